"""Measure a server that already runs, at several concurrencies: `autotune measure URL`."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from autotune.clock import WallClock
from autotune.control import ControlClient
from autotune.engines.base import Engine
from autotune.engines.openai import object_at
from autotune.engines.registry import engine_named
from autotune.engines.simulated.http import SIMULATED_HEADER, SPEED_HEADER
from autotune.errors import AutotuneError, InputError, TrialFailed
from autotune.experiment import MeasureSettings, Workload
from autotune.foreign_json import foreign_json
from autotune.heartbeat import heartbeat
from autotune.measure import Target, client_ceiling
from autotune.peak import measure_peak
from autotune.session import Session, open_session
from autotune.single import measure_single, warm_up

Report = dict[str, Any]

_LOOK_SECONDS = 20.0  # for the list of models: a server that is not loading has it at once


@dataclass(frozen=True)
class RunningServer:
    """What can be found out about a URL."""

    model: str
    model_path: str | None  # what its tokenizer was loaded from, where it says so
    engine: Engine | None
    simulated: bool
    speed: float  # a simulated server's virtual seconds a real second, else 1


def measure_url(
    url: str,
    concurrencies: Sequence[int],
    *,
    model: str | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 256,
    headers: Mapping[str, str] | None = None,
    limit_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure the server at `url` at each concurrency; the report is plain JSON data.

    `say` gets a line after each concurrency, and what is waited for where that takes long.
    `headers` go with every request, such as those of `with_key`.

    Raises:
        InputError: nothing answers there, or it serves no such model.
        AutotuneError: it could not be measured.
    """
    workload = Workload(
        input_tokens=input_tokens, output_tokens=output_tokens, peak_concurrency=max(concurrencies)
    )
    settings = (
        MeasureSettings() if limit_seconds is None else MeasureSettings(limit_seconds=limit_seconds)
    )
    return asyncio.run(
        _measure(
            url.rstrip("/").removesuffix("/v1"),
            concurrencies,
            model,
            workload,
            settings,
            headers or {},
            say,
        )
    )


async def _measure(
    url: str,
    concurrencies: Sequence[int],
    model: str | None,
    workload: Workload,
    settings: MeasureSettings,
    headers: Mapping[str, str],
    say: Callable[[str], None],
) -> Report:
    async with (
        ControlClient(base_url=url, headers=dict(headers), timeout=60) as http,
        heartbeat(say) as timeline,
    ):
        server = await look_at(http, model)
        target = Target(url, server.model, WallClock(), server.engine, http, headers=headers)
        with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
            try:
                session = await open_session(target, workload, settings, timeline, Path(folder))
                with closing(session.journal):
                    levels = [await _level(session, level, say) for level in concurrencies]
            except TrialFailed as error:
                raise AutotuneError(f"{url}: {error.failure.cause}") from error
    return {
        "url": url,
        "model": server.model,
        "simulated": server.simulated,
        "engine": server.engine.name if server.engine else None,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "exact_lengths": session.prompts.exact,
        "levels": levels,
        "warnings": [*too_fast(server), *session.warnings],
    }


def too_fast(server: RunningServer) -> Iterator[str]:
    """A warning if the server is a simulated one whose clock is not this host's."""
    if server.speed != 1:
        yield (
            f"this simulated server runs {server.speed:,g} times as fast as the machine that it "
            "plays, and the figures are those of this host's clock: start it with "
            "AUTOTUNE_SIM_SPEED=1"
        )


async def look_at(http: httpx.AsyncClient, model: str | None) -> RunningServer:
    """The served model and the engine behind a URL. Raises InputError."""
    url = str(http.base_url)
    try:
        response = await http.get("/v1/models", timeout=_LOOK_SECONDS)
    except httpx.TimeoutException as problem:
        raise InputError(f"no answer within {_LOOK_SECONDS:g} s", file=url) from problem
    except httpx.HTTPError as problem:
        raise InputError(f"nothing answers: {problem}", file=url) from problem
    if not (models := _listed(response)):
        raise InputError("it serves no model", file=url)
    if model is not None and model not in models:
        raise InputError(f"serves {', '.join(models)}, not {model}", file=url)
    name = model or next(iter(models))
    info, version, loaded = await asyncio.gather(
        *(
            object_at(http, path, _LOOK_SECONDS)
            for path in ("/server_info", "/version", "/model_info")
        )
    )
    # SGLang's list of models has only the served name.
    path = loaded.get("tokenizer_path") or loaded.get("model_path") or models[name].get("root")
    return RunningServer(
        model=name,
        model_path=str(path) if path else None,
        engine=_engine_behind(info, version, models[name]),
        simulated=SIMULATED_HEADER in response.headers,
        speed=_speed(response.headers),
    )


def _listed(response: httpx.Response) -> dict[str, Report]:
    """The models in the answer of `/v1/models`, by name. Raises InputError."""
    url, said = str(response.url), " ".join(response.text[:200].split())
    if response.status_code != 200:
        raise InputError(f"HTTP {response.status_code}: {said}", file=url)
    try:
        entries = foreign_json(response.content)["data"]
        return {entry["id"]: entry for entry in entries if isinstance(entry["id"], str)}
    except (ValueError, LookupError, TypeError):
        raise InputError(f"is no list of models, but {said!r}", file=url) from None


def _speed(headers: httpx.Headers) -> float:
    """A simulated server's virtual seconds a real second; 1 where it says nothing of the kind."""
    with suppress(ValueError):
        said = float(headers.get(SPEED_HEADER, 1))
        return said if 0 < said < math.inf else 1.0
    return 1.0


def _engine_behind(info: Report, version: Report, card: Report) -> Engine | None:
    """The adapter of whatever answers so. vLLM has a `/server_info` as well, for developers, and
    `/version` is also TensorRT-LLM's: what is in them decides, and whose the model is."""
    if {"version", "tp_size"} <= info.keys():
        return engine_named("sglang")
    if "version" in version and card.get("owned_by") == "vllm":
        return engine_named("vllm")
    return None


async def _level(session: Session, concurrency: int, say: Callable[[str], None]) -> Report:
    """One concurrency: 1 is the single-stream phase, more the peak phase."""
    if concurrency == 1:
        cold = await warm_up(session)
        single = await measure_single(session)
        estimate, figures = single.estimate, cold | single.figures
    else:
        if session.runs == 0:
            await warm_up(session)
        peak = await measure_peak(session, concurrency)
        ceiling = await client_ceiling(session, concurrency, peak.estimate.value)
        estimate, figures = peak.estimate, peak.figures | ceiling
    say(f"concurrency {concurrency}: {estimate.value:.1f} tok/s")
    return {
        "concurrency": concurrency,
        "tok_s": estimate.value,
        "half_width": estimate.half_width,
        "figures": figures,
    }


def report_text(report: Report) -> str:
    """The report as a table for people."""
    lines = [
        f"{report['url']}: {report['model']} ({report['engine'] or 'unknown engine'}), "
        f"{report['input_tokens']} tokens in, {report['output_tokens']} out",
        "concurrency      tok/s       +-  TTFT p50  TPOT p50   E2E p50",
    ]
    for level in report["levels"]:
        prefix = "single_" if level["concurrency"] == 1 else ""
        cells = [
            _milliseconds(level["figures"].get(f"{prefix}p50_{name}_ms"))
            for name in ("ttft", "tpot", "e2e")
        ]
        rate = f"{level['tok_s']:>10.1f} {level['half_width']:>8.1f}"
        lines.append(f"{level['concurrency']:>11} {rate} {' '.join(cells)}")
    lines += [f"warning: {warning}" for warning in report["warnings"]]
    return "\n".join(lines)


def _milliseconds(value: float | None) -> str:
    return f"{'-':>9}" if value is None else f"{value:>7.1f}ms"
