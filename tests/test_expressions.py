"""The expression language: what it means, and that nothing else gets through it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.expressions import INACTIVE, ExpressionError, evaluate, holds, names


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("num_steps > 0", {"num_steps": 3}, True),
        (
            "num_steps > 0 and backend in ['triton', 'fa3']",
            {"num_steps": 1, "backend": "fa3"},
            True,
        ),
        ("not graph", {"graph": False}, True),
        ("1 < steps <= 3", {"steps": 3}, True),
        ("proto == null", {"proto": None}, True),
        ("graph == true", {"graph": True}, True),
        ("'fp8' in dtype", {"dtype": "fp8_e4m3"}, True),
        ("num_steps + 1", {"num_steps": 3}, 4),
        ("-steps // 2", {"steps": 3}, -2),
        ("64 if big else 16", {"big": False}, 16),
        ("[1.0, 1.83, 2.43][steps]", {"steps": 2}, 2.43),
    ],
)
def test_an_expression_has_its_value(text, values, expected):
    assert evaluate(text, values) == expected


def test_true_is_not_one_and_text_is_not_a_number():
    assert not holds("graph == 1", {"graph": True})
    assert not holds("size == '64'", {"size": 64})
    assert holds("size != '64'", {"size": 64})


@pytest.mark.parametrize(
    "text",
    [
        "gone == 1",
        "gone != 1",
        "gone in [1]",
        "gone not in [1]",
        "gone > 0",
        "gone",
        "gone + 1 > 0",
    ],
)
def test_every_comparison_with_a_parameter_that_does_not_apply_is_false(text):
    assert not holds(text, {})
    assert holds(f"not ({text})", {})


def test_arithmetic_with_a_parameter_that_does_not_apply_has_no_value():
    assert evaluate("gone + 1", {}) is INACTIVE
    assert evaluate("[1, 2][gone]", {}) is INACTIVE


def test_order_of_null_or_text_against_numbers_is_false_not_an_error():
    assert not holds("channels > 8", {"channels": None})
    assert not holds("channels > 8", {"channels": "many"})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("__import__('os').system('true')", "a call"),
        ("().__class__", "an attribute"),
        ("steps ** 99", "a power"),
        ("[x for x in [1]]", "listcomp"),
        ("lambda: 1", "a lambda"),
        ("f'{steps}'", "a formatted string"),
        ("{'a': 1}", "a mapping"),
        ("steps is null", "write =="),
        ("a & b", "write and"),
        ("steps[0]", "written out"),
        ("(steps := 1)", "namedexpr"),
        ("steps = 1", "not an expression"),
        ("", "not an expression"),
        ("1 +", "not an expression"),
        ("b'x' == a", "no text or number"),
        ("9999999999999999999 > a", "too large"),
        (r"'\x41'", "backslashes"),
        ("a" * 2000, "characters"),
        ("+".join(["1"] * 300), "too long"),
        ("(" * 90 + "1" + ")" * 90 + "+" * 90, "not an expression"),
        ("not " * 60 + "a", "nested too deeply"),
    ],
)
def test_what_is_no_part_of_the_language_is_refused_with_the_reason(text, what):
    with pytest.raises(ExpressionError, match=what):
        names(text)


@pytest.mark.parametrize(
    ("text", "values", "what"),
    [
        ("a + 1", {"a": "x"}, "needs numbers"),
        ("a + 1", {"a": True}, "needs numbers"),
        ("1 / a", {"a": 0}, "divides by zero"),
        ("a * a", {"a": 10**14}, "too large"),
        ("[1, 2][a]", {"a": 2}, "no index"),
        ("[1, 2][a]", {"a": -1}, "no index"),
    ],
)
def test_an_expression_without_a_value_says_why(text, values, what):
    with pytest.raises(ExpressionError, match=what):
        evaluate(text, values)


def test_names_are_those_of_parameters_only():
    assert names("a > 1 and b == null or not true") == {"a", "b"}


_WORDS = """
a b 1 0 2.5 'x' null true ( ) [ ] , + - * / // % ** < <= == != in not and or if else is lambda : .
:= { } @ & | ~ __import__ import yield \\ # 1e999 0x é
"""
_TOKENS = st.sampled_from([*_WORDS.split(), "\n", "\0"])


@settings(max_examples=400, deadline=None)
@given(st.lists(_TOKENS, max_size=25).map(" ".join) | st.text(max_size=40))
def test_any_text_either_evaluates_or_is_refused(text):
    try:
        evaluate(text, {"a": 1, "b": "x"})
    except InputError as error:
        assert "\n" not in str(error)
