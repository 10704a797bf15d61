"""How GPUs talk: parameters that both engines share."""

from __future__ import annotations

from autotune.init.hosts import GpuKind
from autotune.init.text import Parameter, choices

IPC_WORLD_SIZES = (2, 4, 8)


def link_parameters(gpu: GpuKind, gpus: int, engines: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Parameters of collectives; none for a single GPU."""
    if gpus == 1:
        return ()
    return _pcie(gpus, engines) if gpu.link == "pcie" else _nvlink()


def _nvlink() -> tuple[Parameter, ...]:
    return (
        Parameter(
            "nccl_nvls",
            "In-switch reduction over NVLink, with cuMem. Unset means 0 under SGLang, unlike plain "
            "NCCL, so the value is written. Takes GPU memory.",
            (
                choices(0, 1),
                'env: {NCCL_NVLS_ENABLE: "{nccl_nvls}", NCCL_CUMEM_ENABLE: "{nccl_nvls}"}',
            ),
        ),
        Parameter(
            "custom_all_reduce",
            "The engines' own kernel for small all-reduces; without it NCCL does them all.",
            (choices(True, False), "flag_when_false: disable-custom-all-reduce"),
        ),
    )


def _pcie(gpus: int, engines: tuple[str, ...]) -> tuple[Parameter, ...]:
    found = [
        Parameter(
            "nccl_p2p",
            "SYS lets peers talk directly even across sockets; PHB only below one host bridge; "
            "through_host does without peer access, with more channels and large buffers. The "
            "sign of its effect depends on the host and its driver. A level that is too high can "
            "deadlock at start.",
            (choices(None, "SYS", "PHB", "through_host"), *_P2P_VARIABLES),
        ),
        Parameter(
            "nccl_proto",
            "LL is NCCL's low-latency protocol: on AMD hosts it made small all-reduces 1.5 to "
            "1.9 times faster. null lets NCCL choose.",
            (choices(None, "LL", "LL,LL128,Simple"), "env: NCCL_PROTO"),
        ),
        Parameter(
            "nccl_min_channels",
            "More channels help large messages and cost small ones.",
            (choices(None, 8, 16), "env: NCCL_MIN_NCHANNELS"),
            ("nccl_p2p != 'through_host'",),
        ),
    ]
    if gpus in IPC_WORLD_SIZES:
        found.append(_pcie_ipc(engines))
    if gpus == 2:
        found.append(_nvlink()[1])  # on more PCIe GPUs both engines switch it off by themselves
    return tuple(found)


_P2P_VARIABLES = (
    "env:",
    "  NCCL_P2P_LEVEL: \"{nccl_p2p if nccl_p2p in ['SYS', 'PHB'] else null}\"",
    "  NCCL_P2P_DISABLE: \"{1 if nccl_p2p == 'through_host' else null}\"",
    "  NCCL_MIN_NCHANNELS: \"{16 if nccl_p2p == 'through_host' else null}\"",
    "  NCCL_MAX_NCHANNELS: \"{32 if nccl_p2p == 'through_host' else null}\"",
    "  NCCL_BUFFSIZE: \"{33554432 if nccl_p2p == 'through_host' else null}\"",
)
_IPC_VARIABLES = {
    "sglang": "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "vllm": "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
}


def _pcie_ipc(engines: tuple[str, ...]) -> Parameter:
    if len(engines) == 1:
        target = [f"env: {_IPC_VARIABLES[engines[0]]}"]
    else:
        target = ["env:"]
        for engine in engines:
            condition = f"pcie_ipc_all_reduce and engine == '{engine}'"
            target.append(f'  {_IPC_VARIABLES[engine]}: "{{1 if {condition} else null}}"')
    return Parameter(
        "pcie_ipc_all_reduce",
        "All-reduce through PCIe peer memory, for bf16 models on 2, 4 or 8 such GPUs (SGLang since "
        "0.5.21). Its author's figures on 8: 15 against 585 us for 96 KiB. Off by default.",
        (choices(False, True), *target),
    )
