"""A trial is chosen by an end of the front, its knee, its number, or a rule over its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.export import choose
from autotune.run import Run, read_run
from tests.runs import baseline, failed, measured, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(
        write_run(
            tmp_path / "run",
            baseline(60, 1500, figures={"p99_ttft_ms": 900.0}),
            measured(1, 90, 1000, figures={"p99_ttft_ms": 700.0}),
            measured(2, 80, 1900, figures={"p99_ttft_ms": 5000.0}),
            measured(3, 40, 2000, figures={"p99_ttft_ms": 4000.0}),
            failed(4),
        )
    )


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ({}, 2),
        ({"pick": "single"}, 1),
        ({"pick": "peak"}, 3),
        ({"pick": "knee"}, 2),
        ({"trial": 4}, 4),
        ({"best": "peak", "where": "single_stream_tok_s >= 60"}, 2),
        ({"best": "peak", "where": "single >= 60 and p99_ttft_ms < 1000"}, 0),
        ({"best": "p99_ttft_ms"}, 1),
        ({"where": "single > 85"}, 1),
    ],
)
def test_a_trial_is_chosen(run: Run, how, number: int) -> None:
    assert choose(run, **how) == number


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"pick": "best"}, "unknown pick 'best': one of single, peak, knee"),
        ({"pick": "peak", "trial": 1}, "exclude each other"),
        ({"best": "speed"}, "unknown figure 'speed': one of single, peak"),
        ({"where": "sped > 1"}, "unknown figure 'sped'"),
        ({"where": "single >"}, "is not an expression"),
        ({"where": "single >= 200"}, "no measured trial .* there is single_stream_tok_s 40.0 to"),
        ({"best": "goodput_rps"}, "no trial has the figure goodput_rps"),
        ({"trial": 9}, "no trial 9"),
    ],
)
def test_a_wrong_choice_is_answered_in_one_line(run: Run, how, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        choose(run, **how)
    assert "\n" not in str(error.value)


def test_a_run_without_a_measured_trial_has_nothing_to_choose(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", failed(0)))
    with pytest.raises(InputError, match="no trial was measured"):
        choose(run)
