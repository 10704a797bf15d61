"""Chance, seeded: by the launch (what a re-launch changes) and by the request.

Sizes follow what is reported of real servers: two boots of one configuration differ by just
under a per cent, loads at concurrency 128 by about 1 %, single requests by 1 % and by several
with speculation, because texts differ in how well they are guessed.
"""

from __future__ import annotations

import itertools
import math
import random
import zlib

BOOT_SIGMA = 0.005
REQUEST_SIGMA = 0.008
ACCEPT_SIGMA = 0.07  # of a text's acceptance
LOAD_SIGMA = 0.008
LOAD_PERIOD_SECONDS = 15.0  # how long one state of a loaded machine lasts
DRIFT_CYCLES = 160.0  # decode cycles over which the slowness of the first tokens fades


class Noise:
    """The random factors of one server's step times."""

    def __init__(self, seed: str, drift: float) -> None:
        self._seed = zlib.crc32(seed.encode())
        random_ = random.Random(self._seed)
        self.boot = math.exp(random_.gauss(0.0, BOOT_SIGMA))
        self.luck = random_.random()  # places a cold load in its range
        self._drift = drift
        self._cycles = 0.0
        self._period, self._load = -1, 1.0

    def of_request(self, text_hash: int) -> tuple[float, float]:
        """(step factor, acceptance factor) of a request: the same for the same text and boot."""
        random_ = random.Random(self._seed ^ text_hash)
        texts = random.Random(text_hash)
        step = math.exp(random_.gauss(0.0, REQUEST_SIGMA))
        return step, math.exp(texts.gauss(0.0, ACCEPT_SIGMA))

    def step_factor(self, now: float, running: int, request_factor: float) -> float:
        """Factor on the time of the steps that run now."""
        period = int(now / LOAD_PERIOD_SECONDS)
        if period != self._period:
            random_ = random.Random(self._seed ^ (period * 2_654_435_761))
            self._period, self._load = period, math.exp(random_.gauss(0.0, LOAD_SIGMA))
        cold = 1.0 + self._drift * math.exp(-self._cycles / DRIFT_CYCLES)
        own = request_factor if running == 1 else self._load
        return self.boot * cold * own

    def worked(self, cycles: float) -> None:
        """The server has done that many decode cycles: it warms up."""
        self._cycles += cycles


class EvenAccept:
    """The mean number of tokens from every cycle, its fraction carried over."""

    def __init__(self, length: float) -> None:
        self._length, self._carried = length, 0.0

    def tokens(self, cycles: int) -> int:
        """Whole tokens of the next `cycles` cycles."""
        self._carried += cycles * self._length
        whole = int(self._carried)
        self._carried -= whole
        return whole


class AcceptSampler:
    """Draws how many tokens a speculative cycle gives, by the accept-length curve."""

    def __init__(self, curve: tuple[float, ...], factor: float, seed: int) -> None:
        self._random = random.Random(seed)
        gains = [later - earlier for earlier, later in itertools.pairwise(curve)]
        # gains[i] is the chance that draft i+1 is accepted, given by the curve's slope.
        reach = [1.0, *(min(0.99, gain * factor) for gain in gains), 0.0]
        for index in range(1, len(reach)):
            reach[index] = min(reach[index], reach[index - 1])
        self._tokens = range(1, len(reach))
        chances = [a - b for a, b in itertools.pairwise(reach)]
        total = 0.0
        self._cumulative = [total := total + chance for chance in chances]

    def tokens(self, cycles: int) -> int:
        """Tokens of `cycles` cycles, bonus tokens included."""
        if len(self._cumulative) == 1:
            return cycles
        drawn = self._random.choices(self._tokens, cum_weights=self._cumulative, k=cycles)
        return sum(drawn)
