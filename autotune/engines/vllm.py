"""vLLM, V1 engine: how it is launched, what its log and endpoints say."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import httpx
from pydantic import JsonValue

from autotune.engines.base import ArgValue, Effective, LoadProgress, Place, ServingSample
from autotune.engines.compare import (
    asked_of,
    compare_settings,
    completed,
    sizes_of,
    value_of,
    without_secrets,
)
from autotune.engines.failures import COMMON, kind_in, table
from autotune.engines.interpreter import interpreter_of
from autotune.engines.metrics import Page
from autotune.engines.openai import OpenAI, bar_progress, object_at
from autotune.engines.sglang import shared_caches
from autotune.records import FailureKind, Launch, Override, Phase

_PHASES = (
    (re.compile(r"Starting to load model"), Phase.LOAD),
    (
        re.compile(
            r"Dynamo bytecode transform time|Compiling a graph for|Cache the graph of compile"
            r"|Directly load the compiled graph|Profiling CUDA graph memory|Capturing CUDA graphs"
        ),
        Phase.CAPTURE,
    ),
    (re.compile(r"Starting vLLM (?:API )?server|Application startup complete"), Phase.READY),
)
# Rank 0 alone writes most of them, and what all ranks write does not say which one did.
_STEPS = (
    (re.compile(r"non-default args:"), "starting the engine"),
    (re.compile(r"world_size=\d+ rank="), "connecting the ranks"),
    (re.compile(r"Starting to load model"), "loading weights"),
    (re.compile(r"Loading weights took"), "profiling memory"),
    (re.compile(r"Dynamo bytecode transform time|Compiling a graph for"), "compiling the model"),
    (re.compile(r"KV cache size:"), "KV cache allocated"),
    (re.compile(r"Application startup complete"), "waiting for the first answer"),
)
_CAUSES = table(
    (r"vllm(?: serve)?: error:|api_server\.py: error:", FailureKind.BAD_FLAGS),
    (
        r"No available memory for the cache blocks|KV cache is needed, which is larger than",
        FailureKind.NO_KV_ROOM,
    ),
    (
        r"is less than requested memory for kv|on startup is less than desired GPU memory",
        FailureKind.OUT_OF_MEMORY,
    ),
    (
        r"No valid attention backend found|is not valid for this configuration"
        r"|No common block size",
        FailureKind.UNSUPPORTED,
    ),
    (
        r"validation errors? for \w+|must be greater than or equal to|derived max_model_len"
        r"|must be divisible by|Unknown attention backend|HFValidationError"
        r"|invalid literal for int\(\)|is not a valid \w+Backend",
        FailureKind.BAD_FLAGS,
    ),
    (r"Timed out waiting for engine core processes to start", FailureKind.STALLED),
    (r"Executor failed|EngineDeadError|EngineCore encountered", FailureKind.CRASHED),
)
_GENERIC = re.compile(r"Engine core initialization failed|EngineCore failed to start|cancelled")
_RENAMED = {
    "--num-speculative-tokens": "--spec-tokens",
    "--speculative-model": "--spec-model",
    "--disable-log-requests": "--no-enable-log-requests",
}
_ALIASES = {
    "max_model_len": "max_seq_len",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "dpl": "data_parallel_size_local",
    "dpn": "data_parallel_rank",
    "dpb": "data_parallel_backend",
    "n": "nnodes",
}
# With these the words do not say how many GPUs of a host are used.
_ELSEWHERE = frozenset(("nnodes", "config", "data_parallel_rank"))
_BACKENDS = ("distributed_executor_backend", "data_parallel_backend")
# Values of the engine's configuration line that an argument may be compared with.
_CONFIG = re.compile(
    r"\b(max_seq_len|load_format|tensor_parallel_size|pipeline_parallel_size|data_parallel_size"
    r"|decode_context_parallel_size|disable_custom_all_reduce|quantization|enforce_eager"
    r"|kv_cache_dtype|seed|enable_prefix_caching|enable_chunked_prefill|dtype"
    r"|device_config)=([^,\s]+)"
)
_COMPILE = re.compile(r"'(mode|cudagraph_mode|max_cudagraph_capture_size)': (?:<\w+\.)?(\w+)")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend"
    r"|Cannot use AttentionBackendEnum\.(\w+) backend on (\w+)"
)
_VERSION = re.compile(r"(?:version |LLM engine \(v)(\d+\.\d+[\w.+]*)")
_CACHE_LABELS = ("block_size", "num_gpu_blocks", "gpu_memory_utilization", "cache_dtype")

_PREFLIGHT = """
import sys
try:
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.engine.arg_utils import AsyncEngineArgs
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
except BaseException as error:
    print(error); sys.exit(4)
try:
    args = parser.parse_args(sys.argv[1:])
    if getattr(args, "model_tag", None):
        args.model = args.model_tag
    validate_parsed_serve_args(args)
    AsyncEngineArgs.from_cli_args(args).create_engine_config()
except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
    print(type(error).__name__ + ": " + str(error)); sys.exit(3)
except SystemExit:
    raise
except BaseException as error:
    print(error); sys.exit(4)
"""


class VLLM(OpenAI):
    """The adapter for `vllm serve`."""

    name: ClassVar[str] = "vllm"
    flags: ClassVar[bool] = True
    preflight_rejects: ClassVar[tuple[int, ...]] = (2, 3)

    # -- launch ---------------------------------------------------------------------------
    def complete(self, args: Mapping[str, ArgValue], place: Place) -> dict[str, ArgValue]:
        needed: dict[str, ArgValue] = {
            "host": place.host,
            "port": place.port,
            "served-model-name": place.served_name,
            "seed": 0,
        }
        return completed(args, needed)

    def environment(self, place: Place) -> dict[str, str]:
        return {
            "VLLM_ENGINE_READY_TIMEOUT_S": "14400",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        } | shared_caches()

    def parallel_sizes(self, words: Sequence[str]) -> Mapping[str, int] | None:
        """Decode context parallelism is left out: it shares the tensor parallel ranks."""
        local, everywhere = "data_parallel_size_local", "data_parallel_size"
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
        asked = asked_of(words, _ALIASES, (*sizes, local, everywhere, *_ELSEWHERE, *_BACKENDS))
        if asked.keys() & _ELSEWHERE or _spreads_by_ray(asked):
            return None
        return sizes_of(asked, *sizes, local if local in asked else everywhere)

    def preflight(self, launch: Launch) -> tuple[str, ...] | None:
        found = interpreter_of(launch.argv)
        if found is None:
            return None
        python, rest = found
        args = rest[1:] if rest[:1] == ("serve",) else rest
        return (python, "-c", _PREFLIGHT, *args)

    # -- log ------------------------------------------------------------------------------
    def phase_of(self, line: str) -> Phase | None:
        return next((phase for pattern, phase in _PHASES if pattern.search(line)), None)

    def progress_of(self, line: str) -> LoadProgress | None:
        bar = bar_progress(line)
        if bar is not None:
            return bar
        step = next((text for pattern, text in _STEPS if pattern.search(line)), None)
        return LoadProgress(step) if step is not None else None

    def failure_of(self, line: str) -> FailureKind | None:
        return None if _GENERIC.search(line) else kind_in((_CAUSES, *COMMON), line)

    def hint_of(self, line: str) -> str | None:
        return next(
            (f"{old} is now {new}" for old, new in _RENAMED.items() if f"{old} " in line + " "),
            None,
        )

    # -- a running server -----------------------------------------------------------------
    async def effective(self, http: httpx.AsyncClient, log: str) -> Effective:
        settings, figures, version = _from_log(log)
        page = Page((await http.get("/metrics", timeout=30.0)).text)
        for point in page.points("vllm:cache_config_info"):
            settings |= {n: _number(point.labels[n]) for n in _CACHE_LABELS if n in point.labels}
            tokens = _number(point.labels.get("kv_cache_size_tokens", ""))
            if isinstance(tokens, int) and "kv_tokens" not in figures:
                figures["kv_tokens"] = float(tokens)
        return Effective(without_secrets(settings), figures, await _version(http) or version)

    def overrides(self, args: Mapping[str, ArgValue], effective: Effective) -> Sequence[Override]:
        found = list(compare_settings(args, effective.settings, _ALIASES, "log"))
        refused = effective.settings.get("attention_backend_refused")
        if refused is not None and value_of(args, "attention-backend") is not None:
            used = effective.settings.get("attention_backend")
            override = Override(
                setting="attention_backend", asked=refused, effective=used, source="log"
            )
            found = [o for o in found if o.setting != "attention_backend"] + [override]
        return found

    async def flush_cache(self, http: httpx.AsyncClient) -> bool:
        """Only with VLLM_SERVER_DEV_MODE=1; False without it."""
        return (await http.post("/reset_prefix_cache", timeout=60.0)).status_code == 200

    async def sample(self, http: httpx.AsyncClient) -> ServingSample:
        page = Page((await http.get("/metrics", timeout=10.0)).raise_for_status().text)
        return ServingSample(
            running=page.sum("vllm:num_requests_running"),
            queued=page.sum("vllm:num_requests_waiting"),
            kv_usage=page.max("vllm:kv_cache_usage_perc"),
            retractions_total=page.sum("vllm:num_preemptions_total"),
            generated_tokens_total=page.sum("vllm:generation_tokens_total"),
            prompt_tokens_total=page.sum("vllm:prompt_tokens_total"),
            cached_tokens_total=page.sum("vllm:prefix_cache_hits_total"),
            drafts_total=page.sum("vllm:spec_decode_num_drafts_total"),
            drafted_tokens_total=page.sum("vllm:spec_decode_num_draft_tokens_total"),
            accepted_tokens_total=page.sum("vllm:spec_decode_num_accepted_tokens_total"),
        )


async def _version(http: httpx.AsyncClient) -> str | None:
    version = (await object_at(http, "/version", 10.0)).get("version")
    return None if version is None else str(version)


def _spreads_by_ray(asked: Mapping[str, str]) -> bool:
    """Whether a Ray cluster, and so any host, may have the ranks."""
    return "ray" in map(asked.get, _BACKENDS)


def _from_log(log: str) -> tuple[dict[str, JsonValue], dict[str, float], str | None]:
    settings: dict[str, JsonValue] = {}
    figures: dict[str, float] = {}
    version: str | None = None
    for line in log.splitlines():
        if version is None and (match := _VERSION.search(line)):
            version = match[1]
        if "non-default args:" in line:
            settings = _asked(line.partition("non-default args:")[2]) | settings
        elif "Initializing a V1 LLM engine" in line:
            settings |= {name: _number(value) for name, value in _CONFIG.findall(line)}
            settings |= {f"compilation_{n}": _number(v) for n, v in _COMPILE.findall(line)}
        elif match := _KV_TOKENS.search(line):
            figures["kv_tokens"] = float(match[1].replace(",", ""))
        elif match := _BACKEND.search(line):
            settings |= _backend(match)
    limit = settings.get("max_num_seqs")
    if isinstance(limit, int):
        figures["max_running_requests"] = float(limit)
    return settings, figures, version


def _backend(match: re.Match[str]) -> dict[str, JsonValue]:
    used, refused, platform = match.groups()
    if used is not None:
        return {"attention_backend": used}
    return {"attention_backend_refused": refused, "attention_backend": f"{platform}'s own"}


def _asked(text: str) -> dict[str, JsonValue]:
    try:
        asked: Any = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return {}
    plain = (bool, int, float, str)
    return {n: v for n, v in asked.items() if isinstance(v, plain) or v is None}


def _number(text: str) -> JsonValue:
    """A word of a log as the value it stands for."""
    text = text.strip("'\"")
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.removeprefix("torch.")
