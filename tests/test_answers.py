"""Fast and wrong: what the fixed questions tell."""

from __future__ import annotations

import pytest

from autotune.answers import QUESTIONS, is_degenerate, judge

RIGHT = (
    "Paris",
    "42",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    "Jupiter",
    "2, 3, 5, 7, 11, 13, 17, 19",
    "The lamp turns above the dark sea. Far out a ship answers with a small light of its own.",
)
GARBAGE = "\ufffd\ufffd\x00\ufffd w\ufffd\ufffd"
LOOP = "the the the " * 12


def test_there_is_an_example_for_every_question() -> None:
    assert len(RIGHT) == len(QUESTIONS)
    assert judge(RIGHT, RIGHT) == judge(RIGHT)
    assert judge(RIGHT, RIGHT).cause is None and not judge(RIGHT, RIGHT).warnings


@pytest.mark.parametrize("text", ["", "  \n", "!" * 64, LOOP, GARBAGE, "ab" * 40])
def test_nonsense_is_seen(text: str) -> None:
    assert is_degenerate(text)


@pytest.mark.parametrize(
    "text",
    [
        *RIGHT,
        "Paris is the capital. Paris has been the capital since 987. Paris lies on the Seine.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16",
        "巴黎是法国的首都, 位于塞纳河畔。",
        "def f(x):\n    return x\n\ndef g(x):\n    return f(f(x))\n",
    ],
)
def test_sense_is_not_called_nonsense(text: str) -> None:
    assert not is_degenerate(text)


def test_several_answers_turned_to_garbage_refuse_the_server() -> None:
    verdict = judge((GARBAGE, LOOP, *RIGHT[2:]), RIGHT)
    assert verdict.cause is not None and "loops or garbage" in verdict.cause


def test_several_facts_lost_at_once_refuse_the_server() -> None:
    wrong = ("The man", "a long path", *RIGHT[2:])
    verdict = judge(wrong, RIGHT)
    assert verdict.cause is not None and "2 of 6" in verdict.cause


def test_one_changed_answer_is_only_a_warning() -> None:
    verdict = judge((*RIGHT[:3], "Saturn, I think", *RIGHT[4:]), RIGHT)
    assert verdict.cause is None and "Saturn" in verdict.warnings[0]


def test_answers_in_other_words_are_no_change() -> None:
    other = (
        "The capital of France is Paris.",
        "17 + 25 = 42",
        RIGHT[2].lower(),
        "It is Jupiter.",
        "The first eight primes are 2, 3, 5, 7, 11, 13, 17 and 19.",
        "A lighthouse stands above the dark sea. Its beam sweeps over the waves and the ships.",
    )
    assert judge(other, RIGHT).cause is None


def test_a_baseline_that_talks_nonsense_gives_nothing_to_compare_with() -> None:
    nonsense = (LOOP,) * 6
    assert judge((GARBAGE,) * 6, nonsense).cause is None
    assert "weights" in judge(nonsense).warnings[0]
