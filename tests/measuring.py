"""Measuring a server from a test: the pieces that a trial would bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from autotune.clock import Clock, WallClock
from autotune.engines.base import Engine
from autotune.experiment import MeasureSettings, Workload
from autotune.measure import Target, measure
from autotune.records import Measurement
from autotune.timeline import Timeline


async def measured(
    url: str,
    folder: Path,
    *,
    model: str = "m",
    clock: Clock | None = None,
    engine: Engine | None = None,
    log_text: Callable[[int], str] | None = None,
    workload: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    constraints: Mapping[str, float] | None = None,
    reference_answers: Sequence[str] = (),
    front: Sequence[tuple[float, float]] = (),
) -> Measurement:
    """One whole measurement, of a small load unless told otherwise."""
    small = {"input_tokens": 128, "output_tokens": 16, "peak_concurrency": 4}
    used = clock or WallClock()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        return await measure(
            Target(url, model, used, engine, http, log_text),
            Workload.model_validate(small | dict(workload or {})),
            MeasureSettings.model_validate({"limit_seconds": 20.0} | dict(settings or {})),
            constraints=constraints or {},
            timeline=Timeline(1, clock=used),
            reference_answers=reference_answers,
            front=front,
            folder=folder,
        )
