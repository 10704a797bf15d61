"""Landscapes on which a wrong launch costs a factor and people know their servers.

The synthetic ones are flat (random launches differ as little as under a curated space) and begin
with mediocre launches. Here random launches differ as under the space of somebody who does not
know the machine (kimi-wide), and the known-good ones are better than random search finds in a
night: of a hundred working launches the best, and after twenty guesses each the one with the
fastest stream and the one with the highest peak. Both numbers were set so that random search,
one-at-a-time and TPE score as on the test bed on which the bars were set, before
``ParetoSampler`` was run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import itemgetter

import numpy as np

from tests.benchmarks.landscapes.base import Config, Point, random_config, random_value
from tests.benchmarks.landscapes.synthetic import OBJECTIVES, Synthetic

TRIED = 100  # working launches of which the default is the best
GUESSES = 20  # working changes of the default that are thought through, per objective
CHANGED = 3  # parameters in each


class Steep(Synthetic):
    """A ``Synthetic`` structure with larger effects and known-good launches of an expert."""

    log_spread = 0.5

    def __init__(self, structure: int, *, rugged: bool, noise: float = 0.02) -> None:
        super().__init__(structure, rugged=rugged, noise=noise)
        self.name = f"steep-{self.name}"

    @cached_property
    def known_good(self) -> Sequence[Config]:
        """A good default, and from it a low-latency and a high-throughput guess."""
        rng = np.random.default_rng(9)
        default = self._best_of(TRIED, partial(random_config, self, rng), math.prod)
        guess = partial(self._changed, default, rng)
        guesses = [self._best_of(GUESSES, guess, itemgetter(i)) for i in range(OBJECTIVES)]
        return [default, *guesses]

    def _best_of(
        self, count: int, draw: Callable[[], Config], worth: Callable[[Point], float]
    ) -> Config:
        """Of that many working launches the one worth most."""
        working: list[tuple[float, Config]] = []
        while len(working) < count:
            config = draw()
            values = self.truth(config).values
            if values is not None:
                working.append((worth(values), config))
        return max(working, key=lambda one: one[0])[1]

    def _changed(self, config: Config, rng: np.random.Generator) -> Config:
        names = list(self.distributions)
        changed = rng.choice(len(names), size=CHANGED, replace=False)
        drawn = {name: random_value(d, rng) for name, d in self.distributions.items()}
        kept = {name: v for name, v in config.items() if names.index(name) not in changed}
        return dict(self.active(drawn | kept))
