"""From timings to figures, on timings written by hand."""

from __future__ import annotations

from array import array

import pytest

from autotune.figures import (
    TokenLine,
    cached_share,
    decode_tok_s,
    end_to_end_tok_s,
    first_delta_tokens,
    latencies,
    tpot_seconds,
)
from autotune.peak import cannot_reach
from autotune.statistics import Estimate
from autotune.stream import Reply


def reply(
    sent: float,
    deltas: list[float],
    tokens: int,
    *,
    first: int | None = None,
    streamed: bool = True,
    cached: int | None = None,
) -> Reply:
    return Reply(
        index=0,
        sent=sent,
        last=deltas[-1],
        deltas=array("d", deltas),
        prompt_tokens=100,
        completion_tokens=tokens,
        cached_tokens=cached,
        first_tokens=first,
        streamed=streamed,
    )


def test_tpot_leaves_out_the_tokens_of_the_first_delta() -> None:
    # 12 tokens in 3 chunks of 4: the 8 later ones took 0.8 s.
    chunked = reply(0.0, [0.5, 0.9, 1.3], 12, first=4)
    assert tpot_seconds(chunked, 1) == pytest.approx(0.1)
    assert tpot_seconds(reply(0.0, [0.5, 0.9, 1.3], 12), 4) == pytest.approx(0.1)
    assert decode_tok_s(chunked, 1) == pytest.approx(10)
    assert end_to_end_tok_s(chunked) == pytest.approx(12 / 1.3)


def test_a_reply_in_one_piece_has_no_tpot() -> None:
    assert tpot_seconds(reply(0.0, [0.5], 12), 1) is None
    assert tpot_seconds(reply(0.0, [0.5], 12, streamed=False), 1) is None


def test_tokens_are_counted_inside_a_window_only() -> None:
    line = TokenLine([reply(0.0, [1.0, 2.0, 3.0, 4.0], 4), reply(0.5, [1.5, 2.5], 2)], 1)
    assert line.until(0.9) == 0
    assert line.until(2.0) == 3
    assert line.until(9.0) == 6
    assert line.rate(1.0, 3.0) == pytest.approx(2.0)
    assert line.rate(3.0, 3.0) == 0.0


def test_tokens_lie_on_the_deltas_with_the_first_one_apart() -> None:
    line = TokenLine([reply(0.0, [1.0, 2.0, 3.0], 21, first=1)], 1)
    assert line.until(1.5) == 1 and line.until(2.5) == 11 and line.until(3.0) == 21


def test_without_streaming_tokens_are_laid_evenly_over_the_request() -> None:
    line = TokenLine([reply(0.0, [10.0], 10, streamed=False)], 1)
    assert line.until(5.0) == 5


def test_the_gap_between_tokens_is_the_gap_between_chunks_over_their_tokens() -> None:
    found = latencies([reply(0.0, [0.1, 0.5, 0.9], 9, first=1)], 1)
    assert found["p50_itl_ms"] == pytest.approx(100)
    assert found["p50_ttft_ms"] == pytest.approx(100)
    assert found["p99_e2e_ms"] == pytest.approx(900)


def test_what_is_unknown_is_left_out() -> None:
    found = latencies([reply(0.0, [1.0], 8, streamed=False)], 1, "single_")
    assert set(found) == {"single_p50_e2e_ms", "single_p99_e2e_ms"}
    assert cached_share([reply(0.0, [1.0], 8)], 0) is None


def test_cached_tokens_beyond_the_expected_ones_are_a_share_of_the_prompts() -> None:
    replies = [reply(0.0, [1.0], 8, cached=30), reply(0.0, [1.0], 8, cached=5)]
    assert cached_share(replies, 10) == pytest.approx(20 / 200)


def test_tokens_of_a_first_delta_come_from_the_server_or_are_one() -> None:
    assert first_delta_tokens([reply(0.0, [1.0], 8, first=4)] * 3) == 4
    assert first_delta_tokens([reply(0.0, [1.0], 8)]) == 1


def test_the_peak_is_skipped_only_if_both_figures_are_beaten_whatever_it_says() -> None:
    single, decode = Estimate(40.0, 1.0), Estimate(42.0, 1.0)
    bound = 1.25 * 128 * 43
    assert cannot_reach([(42.0, bound + 1)], single, decode, 128)
    assert not cannot_reach([(42.0, bound - 1)], single, decode, 128)
    assert not cannot_reach([(40.5, bound + 1)], single, decode, 128)
    assert not cannot_reach([(90.0, 100.0), (41.0, bound + 1)], single, decode, 128)
    assert not cannot_reach([], single, decode, 128)
