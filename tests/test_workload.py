"""Prompts of one measurement: heads, lengths, mixes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from autotune.dialect import Dialect
from autotune.experiment import Workload
from autotune.prompts import KINDS, passages
from autotune.tokens import TokenCounter
from autotune.workload import PromptSet, build_prompts
from tests.odd_server import Answer, Body, Writer, good_answer, send_json, serving

PROBE = "Tell me about the sea and what lives in it, please."
LONG_PROBE = "\n\n".join(passages(kind)[0] for kind in KINDS)
TEMPLATE_TOKENS = 7


def words_as_tokens(text: str) -> list[int]:
    """A tokenizer: a space and up to six letters are one token, all else is one each."""
    return [hash(token) for token in re.findall(r" ?[A-Za-z]{1,6}|.", text, re.DOTALL)]


def tokenizing(count: Callable[[str], list[int]]) -> Answer:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if path != "/tokenize":
            return await good_answer(path, body, writer)
        tokens = count(body["prompt"])
        send_json(writer, {"count": len(tokens), "tokens": tokens})

    return answer


@asynccontextmanager
async def counting(answer: Answer) -> AsyncIterator[TokenCounter]:
    async with serving(answer) as url, httpx.AsyncClient(base_url=url) as http:
        counter = TokenCounter(http, "m")
        await counter.calibrate(PROBE, len(words_as_tokens(PROBE)) + TEMPLATE_TOKENS)
        if not counter.exact:
            tokens = len(words_as_tokens(LONG_PROBE)) + TEMPLATE_TOKENS
            counter.calibrate_density(LONG_PROBE, tokens)
        yield counter


async def prompts(workload: Workload, answer: Answer | None = None) -> PromptSet:
    async with counting(answer or tokenizing(words_as_tokens)) as counter:
        return await build_prompts(workload, "m", Dialect(), counter, nonce_seed=1)


def text_of(prompt_set: PromptSet, index: int) -> str:
    return str(json.loads(prompt_set.request(index).body)["messages"][0]["content"])


def tokens_of(prompt_set: PromptSet, index: int) -> int:
    return len(words_as_tokens(text_of(prompt_set, index))) + TEMPLATE_TOKENS


@pytest.mark.parametrize("length", [60, 300, 1000])
async def test_prompts_have_exactly_the_tokens_asked_template_included(length: int) -> None:
    made = await prompts(Workload(input_tokens=length))
    assert made.exact
    lengths = [tokens_of(made, index) for index in range(32)]
    near = length // 400  # which is 0 for prompts of ordinary test length
    assert sum(abs(found - length) <= near for found in lengths) >= 30
    assert all(abs(found - length) <= near + 2 for found in lengths)


async def test_without_tokenize_lengths_are_calibrated_by_a_probe() -> None:
    made = await prompts(Workload(input_tokens=500), good_answer)
    assert not made.exact
    lengths = [tokens_of(made, index) for index in range(32)]
    assert sum(lengths) / len(lengths) == pytest.approx(500, rel=0.15)


async def test_mixed_lengths_spread_as_asked_around_the_mean() -> None:
    workload = Workload(input_tokens=400, output_tokens=100, length_spread=0.3)
    made = await prompts(workload)
    inputs = [tokens_of(made, index) for index in range(32)]
    outputs = [made.request(index).min_tokens for index in range(32)]
    assert (
        min(inputs) < 300 and max(inputs) > 500 and sum(inputs) / 32 == pytest.approx(400, rel=0.02)
    )
    assert (
        min(outputs) < 75
        and max(outputs) > 125
        and sum(outputs) / 32 == pytest.approx(100, rel=0.02)
    )


async def test_a_shared_prefix_is_the_same_for_all_and_the_head_follows_it() -> None:
    made = await prompts(Workload(input_tokens=400, shared_prefix_tokens=150))
    texts = [text_of(made, index) for index in range(8)]
    shared = 0
    while len({text[shared] for text in texts}) == 1:
        shared += 1
    assert 140 <= len(words_as_tokens(texts[0][:shared])) <= 160
    assert all(abs(tokens_of(made, index) - 400) <= 2 for index in range(8))


async def test_only_the_kinds_asked_for_are_used() -> None:
    made = await prompts(Workload(input_tokens=200, kinds=["code"]))
    assert {body.kind for body in made.bodies} == {"code"}


async def test_another_seed_gives_other_text_and_another_nonce_seed_other_heads() -> None:
    first, second = await prompts(Workload(seed=1)), await prompts(Workload(seed=2))
    assert text_of(first, 0).partition(":")[2] != text_of(second, 0).partition(":")[2]
    heads = {text_of(first, index).partition(":")[0] for index in range(500)}
    assert len(heads) == 500


async def test_completions_get_the_same_text_without_messages() -> None:
    made = await prompts(Workload(input_tokens=100, chat=False))
    body = json.loads(made.request(0).body)
    assert "messages" not in body and len(body["prompt"]) > 100
