"""Lines of torch, CUDA, NCCL and the kernel libraries that state why a server died.

They mean the same under every engine. What only one engine says stands in that engine's file.
A table is read from the top; the first pattern found in a line gives its kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.records import FailureKind

Table = tuple[tuple[re.Pattern[str], FailureKind], ...]


def table(*rows: tuple[str, FailureKind]) -> Table:
    """Compile (pattern, kind) rows."""
    return tuple((re.compile(pattern), kind) for pattern, kind in rows)


def kind_in(tables: Iterable[Table], line: str) -> FailureKind | None:
    """The kind of the first pattern that is found in `line`."""
    for rows in tables:
        for pattern, kind in rows:
            if pattern.search(line):
                return kind
    return None


NOISE = re.compile(
    r"Found ulimit of|Ignore import error|is deprecated|resource_tracker|Fail to set RLIMIT"
    r"|(?:Deprecation|Future|User|Runtime)Warning|is disabled because|[Ff]all(?:ing)? ?back"
    r"|^(?:\([\w-]+ pid=\d+\) )?(?:DEBUG|INFO|WARNING) |^INFO: "
)
"""Lines of healthy starts that look like failures: a warning never killed a server."""

# A rank that lost its peers says this; the cause stands in the log of the peer.
LOST_PEER: Table = table(
    (
        r"remote process exited or there was a network error|ncclRemoteError"
        r"|[Cc]onnection closed by (?:remote )?peer|Connection reset by peer"
        r"|Broken pipe.*(?:TCPStore|NCCL)|(?:TCPStore|sendBytes|recvValue).*(?:failed|peer)"
        r"|Rank \d+ (?:scheduler )?died|died unexpectedly|crashed with exit code"
        r"|Fatal Python error|Segmentation fault|core dumped|Illegal instruction"
        r"|terminate called",
        FailureKind.CRASHED,
    ),
)

COLLECTIVE: Table = table(
    (
        r"Watchdog caught collective operation timeout|NCCL (?:WARN )?.*timeout"
        r"|NCCL error|NCCL failure|ncclUnhandledCudaError|ncclSystemError|ncclInternalError"
        r"|ncclInvalidUsage|ncclInvalidArgument|DistBackendError|ProcessGroupNCCL.*[Ee]rror"
        r"|Gloo .*(?:timed out|Timed out|failed)|Timed out (?:initializing|waiting).*process group"
        r"|monitored_?[bB]arrier.*(?:timed? ?out|failed)|could finish the model loading, but"
        r"|custom_all_reduce\.cuh.*(?:error|failed)|cudaIpcOpenMemHandle"
        r"|peer access is not supported",
        FailureKind.COLLECTIVE,
    ),
)

OUT_OF_MEMORY: Table = table(
    (
        r"OutOfMemoryError|(?:Cuda failure|CUDA error).*out of memory|(?:CUDA|HIP) out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
        r"|(?:Prefill|Decode) out of memory|std::bad_alloc|\bMemoryError\b"
        r"|Cannot allocate memory|oom-kill|Out of memory: Killed",
        FailureKind.OUT_OF_MEMORY,
    ),
)

UNSUPPORTED: Table = table(
    (
        # The build lacks the library of the kernels that were chosen; another choice may run.
        r"(?:ImportError|ModuleNotFoundError)\b.*\b(?:sgl_kernel|flash_?attn|flash_mla|flashinfer"
        r"|deep_gemm|deep_ep|flash_ops|vllm\.\w*_C|cutlass|trtllm|aiter|tilelang)\b"
        # NCCL_ALGO, NCCL_PROTO: a bare name limits every collective, and few have every algorithm.
        r"|no algorithm/protocol available for function"
        r"|Unsupported architecture|no kernel image is available|named symbol not found"
        r"|CUDA error: invalid device function|CUDA driver version is insufficient"
        r"|(?:Error|Exception)\b.*(?:[Nn]ot supported|[Uu]nsupported|only supported|only supports?"
        r"|compute capability|does not support|not yet supported)",
        FailureKind.UNSUPPORTED,
    ),
)

CRASHED: Table = table(
    (
        r"illegal memory access|device-side assert|unspecified launch failure|misaligned address"
        r"|CUDA error|CUDNN_STATUS_|CUBLAS_STATUS_|cuFuncSetAttribute failed"
        r"|ModuleNotFoundError|ImportError",
        FailureKind.CRASHED,
    ),
)

BAD_FLAGS: Table = table(
    (
        r"error: (?:unrecognized arguments|argument |ambiguous option|the following arguments are)"
        r"|autotune: cannot start|^(?:OSError|EnvironmentError): .*(?:not a valid model identifier"
        r"|does not appear to have a file named)",
        FailureKind.BAD_FLAGS,
    ),
)

COMMON: tuple[Table, ...] = (
    BAD_FLAGS,
    LOST_PEER,
    OUT_OF_MEMORY,
    UNSUPPORTED,
    COLLECTIVE,
    CRASHED,
)

HOSTS_FAULT = re.compile(
    r"[Aa]ddress already in use|\bEADDRINUSE\b|Port is already in use"
    r"|The memory capacity is unbalanced"
)
"""No configuration is to blame: a port was taken, or somebody holds GPU memory."""
