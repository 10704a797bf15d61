"""The experiment file for one model on one kind of host, as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autotune.errors import InputError
from autotune.gpus import visible_note
from autotune.init.hosts import GpuKind, kind_named, kind_of_host
from autotune.init.links import link_parameters
from autotune.init.models import ModelFacts, read_model
from autotune.init.sglang import sglang_text
from autotune.init.text import EngineText, Parameter, Scalar, choices, commented, spelled
from autotune.init.vllm import vllm_text

Writer = Callable[[ModelFacts, GpuKind, int, int, int, bool], EngineText]
_WRITERS: Mapping[str, Writer] = {"sglang": sglang_text, "vllm": vllm_text}
_LONGEST_CONTEXT = 131_072
_SHORTEST_CONTEXT = 2_048


@dataclass(frozen=True)
class ExperimentFile:
    """The file's `text`, and what may be wrong with it, a line each; the text says it too."""

    text: str
    warnings: tuple[str, ...]


def write_experiment(model: str, engines: list[str], gpus: int, gpu: str | None) -> ExperimentFile:
    """An experiment file for a model on a host, commented.

    Args:
        model: a folder with a config.json, or a well-known name.
        engines: names among sglang and vllm.
        gpus: GPUs of one server.
        gpu: kind of GPU; None asks this host's driver.

    Raises:
        InputError: an unknown engine, GPU or model, or a model that does not fit.
    """
    names = _checked_engines(engines)
    facts = read_model(model)
    kind = kind_named(gpu) if gpu is not None else _kind_here()
    _check_fit(facts, kind, gpus)
    concurrency = 128 if gpus >= 4 else 64
    context = min(facts.context, _LONGEST_CONTEXT if gpus >= 4 else 32_768)
    alone = len(names) == 1
    texts = [_WRITERS[n](facts, kind, gpus, concurrency, context, alone) for n in names]
    parameters = _parameters(texts, link_parameters(kind, gpus, names))
    warnings = tuple(_warnings(facts, kind, gpus))
    text = "\n".join(
        [
            _heading(facts, kind, gpus, warnings),
            f"name: {_slug(facts, kind)}",
            f"gpus_per_trial: {gpus}",
            "",
            "engines:",
            "\n".join(text.text() for text in texts),
            "",
            "parameters:",
            "\n".join(parameter.text() for parameter in parameters),
            *_forbid(parameters),
            "",
            _known_good(texts),
            "",
            _rest(facts, concurrency, context),
        ]
    )
    return ExperimentFile(text, warnings)


def _checked_engines(engines: list[str]) -> tuple[str, ...]:
    for name in engines:
        if name not in _WRITERS:
            raise InputError(f"--engine {name} is not known here; valid: {', '.join(_WRITERS)}")
    return tuple(dict.fromkeys(engines))


def _kind_here() -> GpuKind:
    from autotune.machine import open_machine

    machine = open_machine()
    visible = machine.visible()
    if machine.gpus() and not visible:
        raise InputError(f"no GPU of this host may be used{visible_note()}; or name one with --gpu")
    return kind_of_host([(gpu.name, gpu.memory_bytes) for gpu in visible])


def _check_fit(model: ModelFacts, gpu: GpuKind, gpus: int) -> None:
    if gpus < 1:
        raise InputError(f"--gpus must be at least 1, not {gpus}")
    if model.heads is not None and model.heads % gpus:
        fitting = ", ".join(str(n) for n in range(1, 17) if model.heads % n == 0)
        raise InputError(
            f"--gpus {gpus}: the model's {model.heads} attention heads cannot be split over it; "
            f"possible: {fitting}"
        )
    room_gb = gpu.memory_gib * 1.074 * gpus
    if model.weights_gb is not None and model.weights_gb > 0.92 * room_gb:
        least = math.ceil(model.weights_gb / (0.85 * gpu.memory_gib * 1.074))
        needed = next(n for n in range(least, 10_000) if (model.heads or n) % n == 0 or n > 512)
        raise InputError(
            f"--gpus {gpus}: the weights of {model.weights_gb:.0f} GB do not fit into "
            f"{room_gb:.0f} GB of {gpus}x {gpu.title}; at least {needed} are needed"
        )
    if model.context < _SHORTEST_CONTEXT:
        raise InputError(
            f"--model {model.name}: its context of {model.context} tokens is below the "
            f"{_SHORTEST_CONTEXT} that the workload needs"
        )


def _warnings(model: ModelFacts, gpu: GpuKind, gpus: int) -> Iterator[str]:
    if model.heads is None and gpus & (gpus - 1):
        yield (
            f"--gpus {gpus}: how many attention heads the model has is not known here, and engines "
            f"refuse a number that cannot be split over {gpus}; usual are 1, 2, 4 and 8 GPUs"
        )
    if model.quantization == "nvfp4" and gpu.sm < 100:
        yield "NVFP4 has no kernels of its own before Blackwell: it may fail here"


def _heading(model: ModelFacts, gpu: GpuKind, gpus: int, warnings: tuple[str, ...]) -> str:
    traits: list[str] = [model.quantization]
    if model.moe:
        traits.append("mixture of experts")
    if model.mla:
        traits.append("sparse latent attention" if model.sparse else "latent attention")
    if model.weights_gb:
        traits.append(f"{model.weights_gb:.0f} GB of weights")
    link = f", {gpu.link}" if gpus > 1 else ""
    paragraphs = [
        f"{model.name} ({model.architecture}: {', '.join(traits)}; read from {model.known_by}) on "
        f"{gpus}x {gpu.title} (SM{gpu.sm}, {gpu.memory_gib} GiB{link}).",
        "Written by `autotune init` for SGLang 0.5.23 and vLLM 0.32.0: older versions spell some "
        "flags differently. What cannot run on this GPU is left out. Read it, adapt it, then: "
        "autotune check FILE; autotune search FILE --simulate; autotune search FILE.",
        *(f"WARNING: {warning}." for warning in warnings),
    ]
    return "\n".join(commented(paragraph, 0) for paragraph in paragraphs)


def _slug(model: ModelFacts, gpu: GpuKind) -> str:
    base = re.split(r"[/\\]", model.name.rstrip("/\\"))[-1].lower()
    return re.sub(r"[^a-z0-9.-]+", "-", f"{base}-{gpu.name}").strip("-.")[:100] or "model"


def _parameters(texts: list[EngineText], shared: tuple[Parameter, ...]) -> list[Parameter]:
    found = list(shared)
    if len(texts) > 1:
        names = choices(*(text.name for text in texts))
        found.insert(0, Parameter("engine", "Which engine serves.", (names,)))
    return found + [parameter for text in texts for parameter in text.parameters]


def _forbid(parameters: list[Parameter]) -> list[str]:
    names = {parameter.name for parameter in parameters}
    rules: list[str] = []
    if {"pcie_ipc_all_reduce", "nccl_p2p"} <= names:
        rules += [
            "  - if: pcie_ipc_all_reduce and nccl_p2p == 'through_host'",
            "    because: PCIe-IPC all-reduce needs the peer access that NCCL does without",
        ]
    if "kv_cache_dtype" in names:
        rules += [
            "  - if: attention_backend == 'dsa' and kv_cache_dtype == 'bf16'",
            "    because: with a bf16 cache SGLang resolves dsa to kernels that this GPU lacks",
        ]
    return ["", "forbid:", *rules] if rules else []


def _known_good(texts: list[EngineText]) -> str:
    lines = ["known_good:  # measured first; the first is the baseline"]
    for text in texts:
        for why, values in text.known_good:
            chosen: dict[str, Scalar] = {"engine": text.name} if len(texts) > 1 else {}
            pairs = (f"{name}: {spelled(v)}" for name, v in (chosen | dict(values)).items())
            lines += [commented(why, 2), f"  - {{{', '.join(pairs)}}}"]
    return "\n".join(lines)


def _rest(model: ModelFacts, concurrency: int, context: int) -> str:
    minutes = 2 + round((model.weights_gb or 20) / 60)
    prompt = min(1024, context // 2)
    return f"""\
workload:
  prompts: shipped         # or a JSONL file of your own prompts: the answer depends on them
  input_tokens: {prompt}
  output_tokens: 256
  peak_concurrency: {concurrency}

# constraints: {{p99_ttft_ms: 4000}}   # limits on any measured figure: see docs/experiment.md

budget: {{trials: 40, hours: 12}}
startup:
  stall_minutes: 15        # a first launch compiles kernels for minutes without a line of log
  limit_hours: 3
  expected_minutes: {minutes}     # only used for estimates
"""
