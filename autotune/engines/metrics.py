"""The few lines of a Prometheus text page that are needed while a server is measured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Point:
    """One line: a value under its labels."""

    labels: Mapping[str, str]
    value: float


class Page:
    """A metrics page, read lazily: only the lines asked for are taken apart."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[tuple[str, str]]] = {}
        for name, labels, value in _LINE.findall(text):
            self._lines.setdefault(name, []).append((labels, value))

    def points(self, name: str) -> Iterator[Point]:
        """Every line of that name whose value is a number: a gauge of nothing is NaN."""
        for labels, value in self._lines.get(name, ()):
            if math.isfinite(number := float(value)):
                yield Point(dict(_LABEL.findall(labels)), number)

    def sum(self, *names: str, **labels: str) -> float | None:
        """Sum over the first of these names that is there, and over the engines behind it."""
        for name in names:
            if points := list(self.points(name)):
                return sum(p.value for p in points if labels.items() <= p.labels.items())
        return None

    def max(self, name: str) -> float | None:
        """The highest value of that name."""
        return max((point.value for point in self.points(name)), default=None)

    def mean(self, name: str) -> float | None:
        """The mean value of that name."""
        values = [point.value for point in self.points(name)]
        return sum(values) / len(values) if values else None
