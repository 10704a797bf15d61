"""A server's metrics page: what of it is a number."""

from __future__ import annotations

from autotune.engines.metrics import Page

TEXT = """\
# TYPE accept gauge
accept{engine="0"} NaN
accept{engine="1"} 2.5
empty NaN
steps{mode="graph"} 3
"""


def test_a_gauge_of_nothing_is_no_figure() -> None:
    page = Page(TEXT)
    assert (page.mean("accept"), page.max("accept"), page.sum("accept")) == (2.5, 2.5, 2.5)
    assert (page.mean("empty"), page.max("empty"), page.sum("empty", "accept")) == (None, None, 2.5)


def test_what_has_no_line_of_its_own_yet_was_counted_zero_times() -> None:
    assert Page(TEXT).sum("steps", mode="eager") == 0
