"""The simulator's physics under a shipped search space: what a study with --simulate sees.

From the space's configuration to a command line, through the engine's own parser, to the
prediction without noise. Nothing is launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution

from autotune.engines.base import Place
from autotune.engines.launch import build_launch
from autotune.engines.registry import engine_named
from autotune.engines.simulated import sglang_args, vllm_args
from autotune.engines.simulated.hosts import host_named
from autotune.engines.simulated.launch_args import Arguments, ResolveError, UsageError
from autotune.engines.simulated.models import model_named
from autotune.engines.simulated.prediction import Load, predict
from autotune.errors import InputError
from autotune.experiment import load_experiment
from autotune.space import Space
from tests.benchmarks.landscapes.base import Config, Truth

SHIPPED = Path(__file__).parents[3] / "search_spaces"
WIDE = Path(__file__).parent
PROBLEMS = {
    "kimi": (SHIPPED / "kimi.yaml", "8x-rtx-pro-6000"),
    "kimi-h200": (SHIPPED / "kimi_h200.yaml", "8x-h200"),
    "kimi-wide": (WIDE / "kimi_wide.yaml", "8x-rtx-pro-6000"),
    "h200-wide": (WIDE / "h200_wide.yaml", "8x-h200"),
}
PLACE = Place("127.0.0.1", 30000, "model", Path("trial"))
PARSERS = {"sglang": sglang_args.parse, "vllm": vllm_args.parse}
REFUSED_SECONDS = 25.0
MEASURE_SECONDS = 300.0


class Simulated:
    """One shipped space on one simulated host."""

    def __init__(self, name: str, file: Path, host: str, noise: float = 0.02) -> None:
        self.name = name
        self.noise = noise
        self._file = file
        self._space = Space(load_experiment(file))
        self._host = host_named(host)
        self._known: dict[str, Truth] = {}

    def elsewhere(self, seed: int) -> Simulated:
        """The same experiment file on the other machine; the seed changes nothing."""
        host = next(host for _, host in PROBLEMS.values() if host_named(host) != self._host)
        return Simulated(self.name, self._file, host, self.noise)

    @cached_property
    def distributions(self) -> Mapping[str, BaseDistribution]:
        return self._space.distributions

    @property
    def known_good(self) -> Sequence[Config]:
        return [dict(self._space.active(c)) for c in self._space.known_good[:3]]

    def active(self, params: Mapping[str, Any]) -> Config:
        return dict(self._space.active(params))

    def forbidden(self, params: Mapping[str, Any]) -> str | None:
        return self._space.forbidden(params)

    def truth(self, params: Mapping[str, Any]) -> Truth:
        identity = self._space.key(params)
        if identity not in self._known:
            self._known[identity] = self._look_up(params)
        return self._known[identity]

    def _look_up(self, params: Mapping[str, Any]) -> Truth:
        if self.forbidden(params) is not None:
            return Truth(None, "bad_flags", "launch", REFUSED_SECONDS)
        try:
            arguments = self._parse(params)
        except (UsageError, ResolveError, InputError):
            return Truth(None, "bad_flags", "launch", REFUSED_SECONDS)
        model = model_named(arguments.model_path)
        told = predict(self._host, model, arguments.settings, Load(1024, 256, 128))
        if told.failure is not None:
            seconds = told.start_seconds if told.failure.phase != "launch" else REFUSED_SECONDS
            return Truth(None, told.failure.kind, told.failure.phase, seconds)
        values = (told.single_tok_s, told.peak_tok_s)
        return Truth(values, seconds=told.start_seconds + MEASURE_SECONDS)

    def _parse(self, params: Mapping[str, Any]) -> Arguments:
        settings = self._space.settings(params)
        launch = build_launch(settings, engine_named(settings.engine), PLACE, 0)
        first_flag = next(i for i, word in enumerate(launch.argv) if word.startswith("--"))
        words = launch.argv[first_flag:]
        if settings.engine == "vllm":
            words = (launch.argv[first_flag - 1], *words)
        return PARSERS[settings.engine](words, launch.env, self._host)
