"""JSON that others wrote, whatever is wrong with it."""

from __future__ import annotations

import pytest

from autotune.foreign_json import foreign_json


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        foreign_json(text)


def test_text_and_bytes_are_read_alike() -> None:
    assert foreign_json('{"é": [1]}') == foreign_json('{"é": [1]}'.encode()) == {"é": [1]}
