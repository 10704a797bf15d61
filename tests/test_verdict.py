"""Which warnings are one kind: those that differ in what was measured, not in what they name."""

from __future__ import annotations

import pytest

from autotune.verdict import Change, warning_groups
from tests.runs import measured


def kinds(*texts: str) -> list[str]:
    """The texts that `show` and the report have of warnings that one trial gave."""
    return [group.text for group in warning_groups([measured(1, 80, 1500, warnings=texts)])]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("GPU 0 was throttled: 3 s", "GPU 1 was throttled: 3 s"),
        ("gpu0 is hot", "gpu1 is hot"),
        ("cuda:0 is hot", "cuda:1 is hot"),
        ("GPUs 0, 1 are slow", "GPUs 0, 2 are slow"),
        ("rank 3 is late", "rank 4 is late"),
        ("[TP0] is late", "[TP1] is late"),
        ("port 41001 still answers", "port 41002 still answers"),
        ("pid 17 [python] holds 512 MiB", "pid 18 [python] holds 512 MiB"),
        ("pid=17 is left", "pid=18 is left"),
        ("trial 3 left a process behind", "trial 4 left a process behind"),
        ("measured on node-1", "measured on node-2"),
        ("10.0.0.5 is slow", "10.0.0.6 is slow"),
        ("cores 0-7 are shared", "cores 0-15 are shared"),
    ],
)
def test_warnings_that_name_different_things_stay_apart(one: str, other: str) -> None:
    assert kinds(one, other) == [one, other]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("GPU 0 was throttled: 3 s", "GPU 0 was throttled: 4 s"),
        ("2 of 8 waves at peak are outliers", "3 of 12 waves at peak are outliers"),
        ("still drifting: 10,761, 9,889 tok/s", "still drifting: 6,397, 584.5 tok/s"),
        ("pid 17 [python3.11] holds 512 MiB", "pid 17 [python3.11] holds 1,024 MiB"),
        ("no support in 3 s", "no support in 4 s"),
        ("it holds 3GiB", "it holds 4.5GiB"),
    ],
)
def test_warnings_that_differ_in_what_was_measured_are_one_kind(one: str, other: str) -> None:
    assert kinds(one, other) == [one]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change("steps", 3, 0), "steps 0 → 3"),
        (Change("proto", None, "LL"), "proto LL → unset"),
        (Change("steps", 3, None, applied=False), "steps → 3"),
        (Change("backend", None, "none", applies=False), "without backend"),
    ],
)
def test_a_parameter_that_does_not_apply_is_not_a_value(change: Change, text: str) -> None:
    """Flags have values called `none`."""
    assert change.text == text
