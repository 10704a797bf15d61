"""The machines that can be simulated: what their GPUs and links are able to do."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True)
class Host:
    """One machine. Rates are vendor figures; `*_us` and efficiencies are fitted (physics.py)."""

    name: str
    gpu: str
    gpus: int
    memory_mib: int  # of one GPU
    arch: str  # "sm90", "sm100", "sm120"
    bandwidth_gb_s: float  # GPU memory, vendor figure
    tflops: float  # dense bf16 that prefill reaches
    link: str  # "pcie", "nvlink", or "none" with one GPU
    # Latency of one small all-reduce with default settings; with NVLink the engine's own kernel
    # over two ranks (collectives.py).
    all_reduce_us: float
    all_reduce_gb_s: float  # message bytes / time of large ones
    eager_layer_us: float  # host time to launch one layer's kernels without a CUDA graph
    p2p: bool = True  # peer access between GPUs (on PCIe: the driver's "forced P2P" state)
    power_limit_w: int = 600
    driver: str = "580.95.05"

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB


_RTX_PRO_6000 = Host(
    name="8x-rtx-pro-6000",
    gpu="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    gpus=8,
    memory_mib=97_887,
    arch="sm120",
    bandwidth_gb_s=1_790.0,
    tflops=155.0,
    link="pcie",
    all_reduce_us=50.0,
    all_reduce_gb_s=42.0,
    eager_layer_us=600.0,
)

HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        _RTX_PRO_6000,
        # The same machine with a stock driver: peers reach each other through the CPU's root
        # complex only. Flips the sign of the PCIe all-reduce flags (practice: 73 -> 29 tok/s).
        Host(**{**_RTX_PRO_6000.__dict__, "name": "8x-rtx-pro-6000-no-p2p", "p2p": False}),
        Host(**{**_RTX_PRO_6000.__dict__, "name": "1x-rtx-pro-6000", "gpus": 1, "link": "none"}),
        Host(
            name="8x-h200",
            gpu="NVIDIA H200",
            gpus=8,
            memory_mib=143_771,
            arch="sm90",
            bandwidth_gb_s=4_800.0,
            tflops=560.0,
            link="nvlink",
            all_reduce_us=4.0,
            all_reduce_gb_s=300.0,
            # Measured with two ranks on a virtual machine: 90-150 ms to launch a prefill of 96
            # layers, 203 ms a draft-and-verify cycle of 144 layers.
            eager_layer_us=1_400.0,
            power_limit_w=700,
        ),
        Host(
            name="1x-h200",
            gpu="NVIDIA H200",
            gpus=1,
            memory_mib=143_771,
            arch="sm90",
            bandwidth_gb_s=4_800.0,
            tflops=700.0,
            link="none",
            all_reduce_us=0.0,
            all_reduce_gb_s=1.0,
            # The CPU's, and it differs: SGLang 0.5.15 launched an 8B model's 36 layers in 26 ms on
            # one machine with this GPU and in 30 ms, 40 with 64 requests, on another. Between them.
            eager_layer_us=780.0,
            power_limit_w=700,
        ),
        Host(
            name="8x-b200",
            gpu="NVIDIA B200",
            gpus=8,
            memory_mib=183_359,
            arch="sm100",
            bandwidth_gb_s=8_000.0,
            tflops=1_200.0,
            link="nvlink",
            all_reduce_us=3.2,
            all_reduce_gb_s=550.0,
            eager_layer_us=620.0,
            power_limit_w=1_000,
        ),
    )
}

DEFAULT_HOST = _RTX_PRO_6000.name


def host_named(name: str) -> Host:
    """The host called `name`; a KeyError that lists the known ones otherwise."""
    if name not in HOSTS:
        raise KeyError(f"unknown simulated host {name!r}; one of {', '.join(HOSTS)}")
    return HOSTS[name]


def infer_host(name: str, gpus: int) -> str:
    """The host that an experiment called `name`, with `gpus` a trial, is most likely for."""
    text = name.lower().replace("_", "-")
    small = gpus <= 1 and ("1gpu" in text or "8b" in text or "mini" in text)
    if "b200" in text or "b300" in text:
        return "8x-b200"
    if small:
        return "1x-rtx-pro-6000" if "rtx" in text else "1x-h200"
    if "h200" in text or "h100" in text or "deepseek" in text:
        return "8x-h200"
    return DEFAULT_HOST if gpus > 1 else "1x-h200"
