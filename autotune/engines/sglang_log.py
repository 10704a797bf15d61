"""What SGLang writes into its log: phases, steps, causes of death, settings and decode lines."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from pydantic import JsonValue

from autotune.engines.base import LoadProgress, ServingSample
from autotune.engines.failures import table
from autotune.engines.logs import message_of
from autotune.records import FailureKind, Phase

_PHASES = (
    (re.compile(r"Load weight begin"), Phase.LOAD),
    (
        re.compile(
            r"Running FlashInfer autotune|Capture .*CUDA graph begin|Capture cuda graph failed"
        ),
        Phase.CAPTURE,
    ),
    (re.compile(r"Uvicorn running on|Application startup complete"), Phase.READY),
)
# In the order of a start; whether every rank writes it, or rank 0 or the launcher alone.
_STEPS = (
    (re.compile(r"server_args="), "starting the ranks", False),
    (re.compile(r"Init (?:torch distributed|parallel) begin"), "connecting the ranks", True),
    (re.compile(r"Load weight begin"), "loading weights", True),
    (re.compile(r"Load weight end"), "allocating the KV cache", True),
    (re.compile(r"KV Cache is allocated"), "preparing kernels", True),
    (re.compile(r"Running FlashInfer autotune"), "FlashInfer autotuning", False),
    (re.compile(r"Capture target prefill CUDA graph begin"), "capturing prefill CUDA graphs", True),
    (re.compile(r"Capture draft .*CUDA graph begin"), "capturing the draft's CUDA graphs", False),
    (re.compile(r"Capture target .*CUDA graph begin"), "capturing CUDA graphs", True),
    (re.compile(r"Capture .*CUDA graph begin"), "capturing CUDA graphs", False),
    (re.compile(r"Uvicorn running on"), "waiting for the first answer", False),
)
CAUSES = table(
    (r"(?:sglang serve|launch_server\.py): error:", FailureKind.BAD_FLAGS),
    (r"Not enough memory\. Please try to increase --mem-fraction", FailureKind.NO_KV_ROOM),
    (r"alloc_req_slots runs out of memory", FailureKind.OUT_OF_MEMORY),
    (r"Scheduler watchdog timeout", FailureKind.STALLED),
    (
        r"EAGLE is not supported in|backend can only be used with|is only supported on Blackwell"
        r"|is only supported on|Fail when using backend",
        FailureKind.UNSUPPORTED,
    ),
    (r"assert_pkg_version|is installed with the version", FailureKind.UNSUPPORTED),
    (
        r"Capture cuda graph failed: (?!.*out of memory)|Initialization failed\. warmup error",
        FailureKind.CRASHED,
    ),
)
_DECODE = re.compile(
    r"Decode batch.*?#running-req: (?P<running>\d+).*?token usage: (?P<usage>[\d.]+)"
    r"(?:.*?accept len: (?P<accept>[\d.]+)(?:, accept rate: (?P<rate>[\d.]+))?)?"
    r".*?cuda graph: (?P<graph>True|False)"
    r"(?:.*?gen throughput \(token/s\): (?P<speed>[\d.]+))?"
    r".*?#queue-req: (?P<queued>\d+)"
)
_NEARLY_ALL = 0.9  # of the most requests that ran: the batch is full
_LIMITS = re.compile(r"max_total_num_tokens=(\d+).*?max_running_requests=(\d+)")


def phase_of(line: str) -> Phase | None:
    """The phase that a line begins."""
    return next((phase for pattern, phase in _PHASES if pattern.search(line)), None)


def step_of(line: str) -> LoadProgress | None:
    """The step of a start that a line begins."""
    for step, (pattern, text, by_every_rank) in enumerate(_STEPS):
        if pattern.search(line):
            return LoadProgress(text, step=step if by_every_rank else None)
    return None


def sample_from(text: str) -> ServingSample:
    """Gauges are the last decode line's, accept length and rate the means over the lines."""
    lines = list(_DECODE.finditer(text))
    if not lines:
        return ServingSample()
    accepts = [float(line["accept"]) for line in lines if line["accept"]]
    rates = [float(line["rate"]) for line in lines if line["rate"]]
    graphs = sum(line["graph"] == "True" for line in lines)
    return ServingSample(
        running=float(lines[-1]["running"]),
        queued=float(lines[-1]["queued"]),
        kv_usage=max(float(line["usage"]) for line in lines),
        accept_length=sum(accepts) / len(accepts) if accepts else None,
        accept_rate=sum(rates) / len(rates) if rates else None,
        graph_steps_total=float(graphs),
        eager_steps_total=float(len(lines) - graphs),
        decode_tpot_ms=_decode_tpot_ms(lines),
    )


def _decode_tpot_ms(lines: Sequence[re.Match[str]]) -> float | None:
    """Median over the decode lines of a full batch: requests at once / tokens per second."""
    most = max(float(line["running"]) for line in lines)
    full = [
        1000 * float(line["running"]) / float(line["speed"])
        for line in lines
        if float(line["running"]) >= _NEARLY_ALL * most and float(line["speed"] or 0) > 0
    ]
    return median(full) if full else None


def settings_from(log: str) -> tuple[dict[str, JsonValue], dict[str, float]]:
    """The resolved arguments, and the limits that follow from memory (tokens, requests)."""
    settings: dict[str, JsonValue] = {}
    figures: dict[str, float] = {}
    for line in log.splitlines():
        if "server_args=" in line:
            settings = _server_args(message_of(line).partition("server_args=")[2])
        elif match := _LIMITS.search(line):
            figures["kv_tokens"] = float(match[1])
            figures["max_running_requests"] = float(match[2])
    return settings, figures


def _server_args(text: str) -> dict[str, JsonValue]:
    """The resolved arguments, printed as a call (`ServerArgs(a=1)`) or as a dictionary."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        print(f"unreadable server_args line of {len(text)} characters", file=sys.stderr)
        return {}
    if isinstance(node, ast.Call):
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        pairs = [
            (str(key.value) if isinstance(key, ast.Constant) else None, value)
            for key, value in zip(node.keys, node.values, strict=True)
        ]
    else:
        return {}
    literals = {name: _literal(value) for name, value in pairs if name}
    return {name: value for name, value in literals.items() if is_setting(value)}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def is_setting(value: Any) -> bool:
    """Whether a value that the server states is one that a launch can ask for."""
    return (
        value is None
        or isinstance(value, bool | int | float | str)
        or (isinstance(value, list) and all(isinstance(item, int | float | str) for item in value))
    )
