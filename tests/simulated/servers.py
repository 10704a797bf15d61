"""Real simulated servers for tests: launched as processes, measured over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from autotune.engines.simulated.adapter import make_host
from autotune.engines.simulated.clock import SimulatedClock
from autotune.engines.simulated.clock_file import NAME, ClockFile
from autotune.load import Run, closed_loop
from autotune.machine import free_port
from autotune.stream import Endpoint, Request
from tests.patience import PATIENCE_SECONDS, until

KIMI = "moonshotai/Kimi-K2.5"
ENTRY = ("-m", "autotune.engines.simulated")
PROMPT_WORD = "abc "  # one token of a simulated server


@dataclass
class Running:
    """A simulated server's process and where it keeps things."""

    process: subprocess.Popen[bytes]
    port: int
    trial_dir: Path
    host_dir: Path
    speed: float
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS)

    @property
    def log(self) -> str:
        return (self.trial_dir / "server.log").read_text(errors="replace")

    @property
    def clock(self) -> SimulatedClock:
        return SimulatedClock(self.trial_dir, self.speed)

    def wait_ready(self) -> None:
        until(lambda: self._health() == 200 or self.process.poll() is not None)
        assert self.process.poll() is None, self.log[-3000:]

    def set_speed(self, speed: float) -> None:
        ClockFile(self.trial_dir / NAME, speed).speed = speed

    def _health(self) -> int | None:
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return None

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def tree(self) -> dict[int, str]:
        """Living processes that carry this server's session: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _session(int(entry.name)) == self.process.pid:
                with contextlib.suppress(OSError):  # it has just ended
                    words = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                    found[int(entry.name)] = words.decode()
        return found

    def ledger(self) -> dict[int, int]:
        """GPU -> bytes held by living processes."""
        from autotune.engines.simulated.ledger import holds

        content = json.loads((self.host_dir / "gpus.json").read_text())
        used = {gpu["index"]: 0 for gpu in content["gpus"]}
        for entry in content["holders"]:
            used[entry["gpu"]] += entry["bytes"] if holds(entry) else 0
        return used

    def load(self, requests: int, concurrency: int, tokens: tuple[int, int] = (128, 256)) -> Run:
        """A closed loop of distinct prompts through the load client."""
        return asyncio.run(self._load(requests, concurrency, tokens))

    async def _load(self, requests: int, concurrency: int, tokens: tuple[int, int]) -> Run:
        def make(index: int) -> Request:
            body = {
                "model": "m",
                "prompt": f"{index:08d}" + PROMPT_WORD * (tokens[0] - 2),
                "max_tokens": tokens[1],
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            return Request(index, json.dumps(body).encode(), tokens[1])

        endpoint = Endpoint(str(self.http.base_url), "/v1/completions")
        left = iter(range(requests))
        return await closed_loop(
            endpoint, make, concurrency, clock=self.clock, more=lambda reply: True, indices=left
        )


def whole_run_tok_s(run: Run) -> float:
    """All tokens / first send to last token."""
    assert not run.failed, run.faults()
    return run.tokens / (max(r.last for r in run.ok) - min(r.sent for r in run.ok))


def single_tok_s(run: Run) -> list[float]:
    """End-to-end tokens/s of each request."""
    assert not run.failed, run.faults()
    return [reply.completion_tokens / reply.e2e_seconds for reply in run.ok]


def _session(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[3])


@contextmanager
def simulated(
    folder: Path,
    engine: str,
    args: Sequence[str],
    *,
    host: str = "8x-rtx-pro-6000",
    fault: str = "",
    speed: float = 2000.0,
    env: dict[str, str] | None = None,
    seed: str = "1",
) -> Iterator[Running]:
    """A simulated server in its own session; whatever is left of it is killed at the end."""
    host_dir = folder / "host"
    trial_dir = folder / f"trial-{len(list(folder.iterdir()))}"
    trial_dir.mkdir(parents=True)
    make_host(host_dir, host)
    port = free_port()
    command = [sys.executable, *ENTRY, "--as", engine, *args]
    command += ["--port", str(port), "--served-model-name", "m"]
    variables = {
        **os.environ,
        "AUTOTUNE_SIM_HOST": host,
        "AUTOTUNE_SIM_DIR": str(host_dir),
        "AUTOTUNE_SIM_CLOCK_DIR": str(trial_dir),
        "AUTOTUNE_SIM_SPEED": str(speed),
        "AUTOTUNE_SIM_FAULT": fault,
        "AUTOTUNE_SIM_SEED": seed,
        "AUTOTUNE_MARK": f"mark-{trial_dir.name}",
        "CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in range(8 if host.startswith("8") else 1)),
        **(env or {}),
    }
    with (trial_dir / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    server = Running(process, port, trial_dir, host_dir, speed)
    try:
        yield server
    finally:
        server.http.close()
        for pid in server.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
