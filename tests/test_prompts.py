"""Where prompts come from, and what is wrong with a broken file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.prompts import KINDS, known_kinds, passages, read_prompts


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_openai_sharegpt_and_plain_prompts_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]},
        {"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "c"}]},
        "",
        {"prompt": "d"},
        '"e"',
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "f"}]}]},
    )
    last = [
        (conversation[-1]["role"], conversation[-1]["content"])
        for conversation in read_prompts(path)
    ]
    assert last == [("user", letter) for letter in "abdef"]


def test_answers_at_the_end_are_cut_off_and_those_between_stay(tmp_path: Path) -> None:
    turns = [("human", "one"), ("gpt", "two"), ("human", "three"), ("gpt", "four")]
    path = written(tmp_path, {"conversations": [{"from": f, "value": v} for f, v in turns]})
    [conversation] = read_prompts(path)
    assert [message["content"] for message in conversation] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "not JSON"),
        pytest.param("[" * 100_000, "not JSON", id="nested without end"),
        ('{"text": "x"}', "expected"),
        ('{"messages": [{"role": "user"}]}', "expected"),
        ('{"messages": "hello"}', "expected"),
        ("42", "expected"),
        ('{"prompt": "   "}', "empty"),
        ('{"conversations": [{"from": "gpt", "value": "x"}]}', "empty"),
        ('{"conversations": [{"from": "martian", "value": "x"}]}', "expected"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(
    tmp_path: Path, line: str, said: str
) -> None:
    path = written(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(InputError, match=said) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_an_empty_or_missing_file_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prompt"):
        read_prompts(written(tmp_path, "", ""))
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "nothing.jsonl")


def test_a_line_ends_at_a_newline_alone_and_a_mark_in_front_is_no_text(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three"
    path = tmp_path / "prompts.jsonl"
    line = json.dumps({"prompt": text}, ensure_ascii=False)
    path.write_bytes(f"\ufeff{line}\r\n{line}\r\n".encode())
    assert [message["content"] for (message,) in read_prompts(path)] == [text, text]


def test_a_named_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no regular file"):
        read_prompts(tmp_path / "pipe")


def test_the_shipped_text_is_real_text_of_several_kinds() -> None:
    words: set[str] = set()
    for kind in KINDS:
        assert len(passages(kind)) >= 10, kind
        assert len(set(passages(kind))) == len(passages(kind)), kind
        words |= {
            word.lower().strip(".,;:?!()") for text in passages(kind) for word in text.split()
        }
    assert len(words) > 2300


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="prose, code, questions, chat"):
        known_kinds(["poetry"])
