"""Who runs on a server, by its limits and the room in its KV cache; no time passes here."""

from __future__ import annotations

from autotune.engines.simulated.batch import Batch
from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.settings import Settings


def request(prompt: int = 100, answer: int = 100, blocks: tuple[int, ...] = ()) -> Sequence:
    return Sequence(prompt, answer, lambda sequence, tokens, done: None, 0, blocks)


def batch_of(*requests: Sequence, kv_tokens: int = 10_000, max_running: int = 8) -> Batch:
    batch = Batch(Settings(chunk_tokens=250), kv_tokens, max_running, tokens_a_step=1)
    batch.waiting.extend(requests)
    return batch


def prefill(batch: Batch) -> None:
    """Chunks until nobody prefills."""
    batch.admit()
    while batch.prefilling:
        for sequence, tokens in batch.chunk(250):
            batch.was_read(sequence, tokens)
        batch.admit()


def test_a_prompt_that_is_longer_than_a_chunk_is_read_in_several() -> None:
    first, second = request(prompt=200), request(prompt=200)
    batch = batch_of(first, second)
    batch.admit()
    assert batch.chunk(250) == [(first, 200), (second, 50)]
    assert [batch.was_read(*part) for part in batch.chunk(250)] == [True, False]
    assert (batch.running, batch.chunk(250)) == ([first], [(second, 150)])


def test_no_more_run_than_the_limit_and_the_kv_cache_allow() -> None:
    limited = batch_of(*(request() for _ in range(5)), max_running=3)
    prefill(limited)
    assert (len(limited.running), len(limited.waiting)) == (3, 2)
    # 100 tokens of each prompt, and 35 more that each running one is expected to need.
    full = batch_of(*(request() for _ in range(5)), kv_tokens=400)
    prefill(full)
    assert (len(full.running), len(full.waiting)) == (2, 3)
    assert full.kv_used == 200


def test_one_alone_runs_even_if_the_cache_is_too_small_for_it() -> None:
    batch = batch_of(request(), kv_tokens=50)
    prefill(batch)
    assert len(batch.running) == 1


def test_the_youngest_is_put_back_first_and_reads_again_what_it_had_said() -> None:
    old, young = request(), request()
    batch = batch_of(old, young, kv_tokens=300)
    prefill(batch)
    old.generated = young.generated = 50
    assert batch.retract() == 1
    assert (batch.running, list(batch.waiting)) == ([old], [young])
    assert batch.retract() == 0  # the last one stays
    batch.running.clear()
    batch.admit()
    assert batch.chunk(250) == [(young, 150)]


def test_a_prompt_s_head_is_read_once_until_it_is_forgotten() -> None:
    batch = batch_of(request(blocks=(1,)))
    prefill(batch)
    batch.waiting.append(again := request(blocks=(1,)))
    batch.admit()
    assert batch.chunk(250) == [(again, 36)]
    batch.prefilling.clear()
    batch.forget_prefixes()
    batch.waiting.append(later := request(blocks=(1,)))
    batch.admit()
    assert batch.chunk(250) == [(later, 100)]


def test_those_whose_clients_are_gone_leave() -> None:
    gone, stays = request(), request()
    batch = batch_of(gone, stays, request())
    prefill(batch)
    gone.aborted = True
    batch.drop_aborted()
    assert len(batch) == 2
    assert gone not in batch.running
