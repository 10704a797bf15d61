"""SGLang, versions 0.5.11 to 0.5.23: how it is launched, what its log and endpoints say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import httpx

from autotune.engines import sglang_log
from autotune.engines.base import ArgValue, Effective, LoadProgress, Place, ServingSample
from autotune.engines.compare import (
    as_json,
    asked_of,
    compare_settings,
    completed,
    sizes_of,
    value_of,
    without_secrets,
)
from autotune.engines.failures import COMMON, kind_in
from autotune.engines.interpreter import interpreter_of
from autotune.engines.metrics import Page
from autotune.engines.openai import OpenAI, bar_progress, object_at
from autotune.records import FailureKind, Launch, Override, Phase

_WATCHDOG_SECONDS = 1200  # its own 300 s end a first request that still compiles kernels
_COLLECTIVE_SECONDS = 3600  # ranks may finish loading far apart

_ABORT_SECONDS = 3.0

_RENAMED = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--disable-piecewise-cuda-graph": "--cuda-graph-backend-prefill disabled",
    "--enable-dp-attention": "--attn-dp-size",
    "--enable-flashinfer-allreduce-fusion": "--flashinfer-allreduce-fusion-backend auto",
}
_ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "model": "model_path",
    "speculative_draft_model": "speculative_draft_model_path",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
}
# With these the words do not say how many GPUs of a host are used.
_ELSEWHERE = frozenset(("nnodes", "config", "use_ray"))

_PREFLIGHT = """
import sys
try:
    from sglang.srt.server_args import prepare_server_args
except BaseException as error:
    print(error); sys.exit(4)
try:
    args = prepare_server_args(sys.argv[1:])
    for step in ("resolve_once", "check_server_args"):
        getattr(args, step, lambda: None)()
except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
    print(type(error).__name__ + ": " + str(error)); sys.exit(3)
except SystemExit:
    raise
except BaseException as error:
    print(error); sys.exit(4)
"""


class SGLang(OpenAI):
    """The adapter for `python -m sglang.launch_server` and `sglang serve`."""

    name: ClassVar[str] = "sglang"
    flags: ClassVar[bool] = True
    preflight_rejects: ClassVar[tuple[int, ...]] = (2, 3)

    # -- launch ---------------------------------------------------------------------------
    def complete(self, args: Mapping[str, ArgValue], place: Place) -> dict[str, ArgValue]:
        needed: dict[str, ArgValue] = {
            "host": place.host,
            "port": place.port,
            "served-model-name": place.served_name,
            "enable-metrics": True,
            "random-seed": 0,  # drawn anew at every launch otherwise
            "decode-log-interval": 10,
            "watchdog-timeout": _WATCHDOG_SECONDS,
            "dist-timeout": _COLLECTIVE_SECONDS,
        }
        return completed(_with_speculation(args), needed)

    def environment(self, place: Place) -> dict[str, str]:
        return {"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"} | shared_caches()

    def parallel_sizes(self, words: Sequence[str]) -> Mapping[str, int] | None:
        """With attention DP, the `dp_size` groups share the ranks of the tensor parallel one."""
        sizes = ("tp_size", "pp_size", "dp_size")
        asked = asked_of(words, _ALIASES, (*sizes, *_ELSEWHERE, "enable_dp_attention"))
        if asked.keys() & _ELSEWHERE:
            return None
        return sizes_of(asked, *(sizes[:2] if "enable_dp_attention" in asked else sizes))

    def preflight(self, launch: Launch) -> tuple[str, ...] | None:
        found = interpreter_of(launch.argv)
        if found is None:
            return None
        python, rest = found
        args = rest[1:] if rest[:1] == ("serve",) else rest
        return (python, "-c", _PREFLIGHT, *args)

    # -- log ------------------------------------------------------------------------------
    def phase_of(self, line: str) -> Phase | None:
        return sglang_log.phase_of(line)

    def progress_of(self, line: str) -> LoadProgress | None:
        return bar_progress(line) or sglang_log.step_of(line)

    def failure_of(self, line: str) -> FailureKind | None:
        return kind_in((sglang_log.CAUSES, *COMMON), line)

    def hint_of(self, line: str) -> str | None:
        return next(
            (f"{old} is now {new}" for old, new in _RENAMED.items() if f"{old} " in line + " "),
            None,
        )

    # -- a running server -----------------------------------------------------------------
    async def effective(self, http: httpx.AsyncClient, log: str) -> Effective:
        settings, figures = sglang_log.settings_from(log)
        info = await _server_info(http)
        settings |= {n: v for n, v in info.items() if sglang_log.is_setting(v)}
        state: dict[str, Any] = next(iter(info.get("internal_states") or ()), {})
        for figure, value in (
            ("kv_tokens", info.get("max_total_num_tokens")),
            ("max_running_requests", state.get("effective_max_running_requests_per_dp")),
        ):
            if isinstance(value, int | float):
                figures[figure] = float(value)
        version = info.get("version")
        return Effective(without_secrets(settings), figures, str(version) if version else None)

    def overrides(self, args: Mapping[str, ArgValue], effective: Effective) -> Sequence[Override]:
        source = "server_info" if "version" in effective.settings else "log"
        found = compare_settings(args, effective.settings, _ALIASES, source)
        limit = effective.figures.get("max_running_requests")
        asked = value_of(args, "max-running-requests")
        speculates = value_of(args, "speculative-algorithm") is not None
        if limit is None or asked == limit or not (speculates or asked is not None):
            return found
        override = Override(
            setting="max_running_requests",
            asked=as_json(asked),
            effective=limit,
            source=source,
        )
        return [*(o for o in found if o.setting != override.setting), override]

    async def flush_cache(self, http: httpx.AsyncClient) -> bool:
        return (await http.post("/flush_cache", timeout=60.0)).status_code == 200

    async def abort_all(self, http: httpx.AsyncClient) -> None:
        await http.post("/abort_request", json={"abort_all": True}, timeout=_ABORT_SECONDS)

    async def sample(self, http: httpx.AsyncClient) -> ServingSample:
        page = Page((await http.get("/metrics", timeout=10.0)).raise_for_status().text)
        passes = "sglang:cuda_graph_passes_total"
        return ServingSample(
            running=page.sum("sglang:num_running_reqs"),
            queued=page.sum("sglang:num_queue_reqs"),
            kv_usage=page.max("sglang:token_usage"),
            retractions_total=page.sum(
                "sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"
            ),
            generated_tokens_total=page.sum("sglang:generation_tokens_total"),
            prompt_tokens_total=page.sum("sglang:prompt_tokens_total"),
            cached_tokens_total=page.sum("sglang:cached_tokens_total"),
            drafts_total=page.sum("sglang:spec_verify_calls_total"),
            # 0 is what it says without speculation; every verify step accepts at least one.
            accept_length=page.mean("sglang:spec_accept_length") or None,
            accept_rate=page.mean("sglang:spec_accept_rate"),
            graph_steps_total=page.sum(passes, mode="decode_cuda_graph"),
            eager_steps_total=page.sum(passes, mode="decode_none"),
        )

    def sample_from_log(self, text: str) -> ServingSample:
        return sglang_log.sample_from(text)


def shared_caches() -> dict[str, str]:
    """Compiled kernels outlive a trial: only the first one pays for them.

    Torch keeps them in the temporary folder, which every trial has for its own.
    """
    cache = os.path.expanduser("~/.cache/autotune/torchinductor")
    return {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", cache)}


def _with_speculation(args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """`args` with all three of steps, topk and draft tokens, if one of them is given.

    SGLang dies with a TypeError if one is left out. With topk 1, the draft tokens are always
    the steps and one.
    """
    algorithm, steps, topk, drafts = (
        value_of(args, f"speculative-{part}")
        for part in ("algorithm", "num-steps", "eagle-topk", "num-draft-tokens")
    )
    whole = dict(args)
    if algorithm is None or (steps is None and drafts is None):
        return whole
    if isinstance(drafts, int) and steps is None:
        whole["speculative-num-steps"] = steps = drafts - 1
    if topk is None:
        whole["speculative-eagle-topk"] = topk = 1
    if drafts is None and isinstance(steps, int) and topk == 1:
        whole["speculative-num-draft-tokens"] = steps + 1
    return whole


async def _server_info(http: httpx.AsyncClient) -> dict[str, Any]:
    found = await object_at(http, "/server_info", 30.0)
    return found or await object_at(http, "/get_server_info", 30.0)
