"""A few fixed questions, asked greedily: is the server fast and wrong?

Speculation, KV data types and fused kernels can corrupt what a server says. Greedy answers may
differ between right configurations too, since kernels round differently; so a single change is
a warning, and only nonsense, or several facts lost at once, refuses a configuration. A baseline
that talks nonsense itself (dummy weights) gives nothing to compare with.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

ANSWER_TOKENS = 64

QUESTIONS: tuple[tuple[str, str], ...] = (
    ("What is the capital of France? Answer with one word.", r"paris"),
    ("What is 17 + 25? Answer with the number only.", r"\b42\b"),
    ("Write the seven days of the week in order, separated by commas.", r"tuesday.*friday"),
    ("Which planet is the largest in our solar system? Answer with one word.", r"jupiter"),
    ("List the first eight prime numbers, separated by commas.", r"11\D+13\D+17"),
    ("Describe a lighthouse at night in two sentences.", r"light|sea|dark|beam|ship"),
)
"""Question -> what a right answer contains (searched without regard to case)."""

_LOOP_SHARE = 0.35  # fewer distinct pairs of words than this is a loop
_FEWEST_WORDS = 12
_STRANGE_SHARE = 0.2
_ALIKE = 0.3  # answers less alike than this have nothing in common


@dataclass(frozen=True)
class Verdict:
    """What the answers say: a cause refuses the server."""

    cause: str | None = None
    warnings: tuple[str, ...] = ()


def is_degenerate(text: str) -> bool:
    """Nothing, one thing repeated, or characters that are no text."""
    stripped = text.strip()
    if not stripped:
        return True
    return _strange_characters(stripped) > _STRANGE_SHARE * len(stripped) or is_loop(stripped)


def is_loop(text: str) -> bool:
    """Whether a text repeats itself: few distinct pairs of neighbours among its words."""
    words = text.split()
    if len(words) < _FEWEST_WORDS:
        # One long word may be a loop of characters: "!!!!!!!!", "ababababab".
        words = list("".join(words)) if len(text) >= 4 * _FEWEST_WORDS else []
        if len(words) < 4 * _FEWEST_WORDS:
            return False
    pairs = list(pairwise(words))
    return len(set(pairs)) < _LOOP_SHARE * len(pairs) and len(set(words)) < len(words) / 3


def judge(answers: Sequence[str], reference: Sequence[str] = ()) -> Verdict:
    """Compare the answers with the baseline's; without them, only say what looks wrong."""
    bad = [index for index, answer in enumerate(answers) if is_degenerate(answer)]
    if len(reference) != len(answers):
        return Verdict(warnings=_alone(answers, bad))
    sane = [index for index, answer in enumerate(reference) if not is_degenerate(answer)]
    if 2 * len(sane) < len(reference):
        return Verdict()  # the baseline talks nonsense: nothing to compare with
    broken = [index for index in bad if index in sane]
    lost = [index for index in sane if _right(index, reference) and not _right(index, answers)]
    worst = broken or lost
    if len(broken) > 1 or len(lost) > 1:
        what = "loops or garbage" if broken else "wrong"
        return Verdict(
            f"{len(worst)} of {len(answers)} answers that the baseline gave are {what}: "
            f"{QUESTIONS[worst[0]][0]!r} got {answers[worst[0]][:80]!r}"
        )
    return Verdict(warnings=_changes(answers, reference, worst, sane))


def _alone(answers: Sequence[str], bad: Sequence[int]) -> tuple[str, ...]:
    if not bad:
        return ()
    return (
        f"answer check: {len(bad)} of {len(answers)} answers loop or are garbage "
        f"(are the weights real?): {answers[bad[0]][:60]!r}",
    )


def _changes(
    answers: Sequence[str], reference: Sequence[str], worst: Sequence[int], sane: Sequence[int]
) -> tuple[str, ...]:
    if worst:
        question, answer = QUESTIONS[worst[0]][0], answers[worst[0]]
        return (f"answer check: {question!r} got {answer[:80]!r}, unlike the baseline",)
    alike = [SequenceMatcher(None, answers[i], reference[i]).ratio() for i in sane]
    if sum(share < _ALIKE for share in alike) > len(alike) / 2:
        return ("answer check: most answers have little in common with the baseline's",)
    return ()


def _right(index: int, answers: Sequence[str]) -> bool:
    return re.search(QUESTIONS[index][1], answers[index], re.IGNORECASE | re.DOTALL) is not None


def _strange_characters(text: str) -> int:
    """Control characters, unassigned ones and the replacement character of broken UTF-8."""
    plain = "".join(text.split())
    if plain.isprintable() and "\ufffd" not in plain:
        return 0  # nearly always, and hundreds of answers are looked at
    categories = ("Cc", "Cn", "Co", "Cs")
    return sum(c == "\ufffd" or unicodedata.category(c) in categories for c in plain)
