"""GPUs as NVIDIA's management library (NVML) reports them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from autotune.errors import InputError
from autotune.records import Frozen

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(Frozen):
    """One GPU. None where the driver does not say."""

    index: int = Field(description="physical index, in PCI bus order")
    name: str
    memory_bytes: int
    uuid: str = ""
    driver: str | None = None
    capability: str | None = Field(default=None, description='compute capability, e.g. "12.0"')
    power_limit_w: float | None = None
    power_default_w: float | None = None
    pcie_generation: int | None = Field(default=None, description="highest that both ends know")
    pcie_width: int | None = Field(default=None, description="lanes in use")
    pcie_width_max: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    temperature_c: float | None = None
    ecc: bool | None = None
    numa_node: int | None = None
    peers: tuple[int, ...] = Field(default=(), description="GPUs it can read from directly (P2P)")
    nvlink_peers: int = Field(default=0, description="active NVLink links")
    bus_id: str = ""


class Holder(Frozen):
    """A process that holds memory of one GPU."""

    pid: int
    name: str
    gpu: int
    bytes: int
    mark: str | None = Field(default=None, description="trial mark, None for a stranger")

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}) holds {self.bytes / 2**20:,.0f} MiB on GPU {self.gpu}"


def chosen(gpus: Sequence[Gpu], names: str | None) -> tuple[Gpu, ...]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES names; all of them for None (unset).

    Names are physical indices in PCI bus order, or UUIDs or how they begin ("GPU-8932f9");
    "" and "-1" name none, as in CUDA. CUDA would also end at the first name it does not know,
    without a word.

    Raises:
        InputError: there is no such GPU, or it is named twice.
    """
    if names is None:
        return tuple(gpus)
    words = [word.strip() for word in names.split(",")]
    found = () if words in ([""], ["-1"]) else tuple(_named(word, gpus) for word in words)
    twice = sorted({gpu.index for gpu in found if found.count(gpu) > 1})
    if twice:
        raise InputError(f"{VISIBLE}={names} names GPU {twice[0]} twice; once is right")
    return found


def visible_note() -> str:
    """What a message about too few GPUs has to add where CUDA_VISIBLE_DEVICES is set."""
    value = os.environ.get(VISIBLE)
    return f"; {VISIBLE}={value} leaves out others" if value is not None else ""


def _named(word: str, gpus: Sequence[Gpu]) -> Gpu:
    if word.startswith("MIG-"):
        raise InputError(
            f"{VISIBLE} names {word}: autotune watches the memory of whole GPUs, not of parts "
            "(MIG); name a GPU whose MIG mode is off"
        )
    found = [gpu for gpu in gpus if word == str(gpu.index)] or [
        gpu for gpu in gpus if word and gpu.uuid.startswith(word)
    ]
    if len(found) == 1:
        return found[0]
    there = f"GPUs 0 to {len(gpus) - 1}" if len(gpus) > 1 else "GPU 0" if gpus else "no GPU"
    raise InputError(
        f"{VISIBLE} names {word!r}, but this host has {there}; indices or UUIDs are right"
    )


def numa_node_of(bus_id: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node that a GPU hangs on, None if the host does not say.

    From sysfs: NVML's own NUMA query answers only where GPU memory is a NUMA node itself.
    `bus_id` is NVML's, e.g. "00000000:3B:00.0"; sysfs has four digits of domain.
    """
    domain, _, rest = bus_id.lower().partition(":")
    with contextlib.suppress(OSError, ValueError):
        node = int((devices / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
        return node if node >= 0 else None
    return None


class NvmlReader:
    """Reads GPUs in PCI bus order, which is what CUDA_DEVICE_ORDER=PCI_BUS_ID makes CUDA use."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._handles = sorted(handles, key=lambda handle: self._bus_id(handle))

    def gpus(self) -> tuple[Gpu, ...]:
        """All that is known of each GPU now."""
        return tuple(self._gpu(index, handle) for index, handle in enumerate(self._handles))

    def memory_used(self) -> dict[int, int]:
        """Bytes in use on each GPU."""
        info = self._nvml.nvmlDeviceGetMemoryInfo
        return {index: int(info(handle).used) for index, handle in enumerate(self._handles)}

    def utilisation(self) -> dict[int, float]:
        """Share of time each GPU was busy in the last sample period (1/6 to 1 s)."""
        found = {}
        for index, handle in enumerate(self._handles):
            rates = self._try(self._nvml.nvmlDeviceGetUtilizationRates, handle)
            if rates is not None:
                found[index] = rates.gpu / 100
        return found

    def processes(self) -> list[tuple[int, int, int]]:
        """(GPU, pid, bytes) of every compute process; 0 bytes where the driver hides them."""
        found = []
        for index, handle in enumerate(self._handles):
            running = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            found += [(index, int(p.pid), int(p.usedGpuMemory or 0)) for p in running or ()]
        return found

    def _gpu(self, index: int, handle: Any) -> Gpu:
        nvml, read = self._nvml, self._try
        capability = read(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return Gpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            uuid=_text(read(nvml.nvmlDeviceGetUUID, handle) or ""),
            driver=_text(read(nvml.nvmlSystemGetDriverVersion) or "") or None,
            capability=f"{capability[0]}.{capability[1]}" if capability else None,
            power_limit_w=self._watts(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            power_default_w=self._watts(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
            pcie_generation=read(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_width=read(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            pcie_width_max=read(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            throttle_reasons=self._throttling(handle),
            temperature_c=read(nvml.nvmlDeviceGetTemperature, handle, 0),
            ecc=bool(ecc[0]) if (ecc := read(nvml.nvmlDeviceGetEccMode, handle)) else None,
            numa_node=numa_node_of(self._bus_id(handle)),
            peers=self._peers(index, handle),
            nvlink_peers=self._nvlinks(handle),
            bus_id=self._bus_id(handle),
        )

    def _peers(self, index: int, handle: Any) -> tuple[int, ...]:
        return tuple(
            other
            for other, peer in enumerate(self._handles)
            if other != index
            and self._try(self._nvml.nvmlDeviceGetP2PStatus, handle, peer, _P2P_READ)
            == self._nvml.NVML_P2P_STATUS_OK
        )

    def _nvlinks(self, handle: Any) -> int:
        count = 0
        for link in range(18):
            state = self._try(self._nvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break
            count += state == 1
        return count

    def _throttling(self, handle: Any) -> tuple[str, ...]:
        reasons = self._try(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return tuple(name for bit, name in _THROTTLE_REASONS.items() if (reasons or 0) & bit)

    def _bus_id(self, handle: Any) -> str:
        return _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)

    def _watts(self, read: Callable[..., int], handle: Any) -> float | None:
        milliwatts = self._try(read, handle)
        return milliwatts / 1000 if milliwatts is not None else None

    def _try(self, read: Callable[..., Any], *args: Any) -> Any:
        """A reading, or None where this GPU or driver does not offer it."""
        with contextlib.suppress(self._nvml.NVMLError):
            return read(*args)
        return None


_P2P_READ = 0  # of nvmlGpuP2PCapsIndex_t; pynvml's own constant is a tuple, by a comma too many

# Bits of nvmlClocksThrottleReasons that mean slower than the GPU could be.
_THROTTLE_REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def open_nvml() -> NvmlReader | None:
    """A reader of this host's GPUs, or None without GPUs or NVIDIA's driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    reader = NvmlReader(pynvml)
    return reader if reader.memory_used() else None
