"""What is said of a server that does not run what it is asked."""

from __future__ import annotations

import pytest

from autotune.engines.base import ServingSample
from autotune.observe import Observation, capacity_warning, with_cause

ASKED = 64.0


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        # A real H200: 32 places, prompts cut into chunks of 2,048 tokens, 31 ever ran.
        ({"running_requests_max": 31.0, "max_running_requests": 32.0}, "takes two places"),
        ({"running_requests_max": 32.0, "max_running_requests": 32.0}, "max_running_requests 32"),
        ({"running_requests_max": 40.0, "kv_usage_max": 0.97}, "its KV cache was full"),
        ({"running_requests_max": 40.0, "retractions": 3.0}, "its KV cache was full"),
        ({"running_requests_max": 40.0, "max_running_requests": 64.0}, "queued on average)"),
    ],
)
def test_a_server_that_runs_less_than_it_is_asked_says_what_limits_it(
    figures: dict[str, float], cause: str
) -> None:
    warning = capacity_warning(figures | {"queued_requests_mean": 30.0}, int(ASKED))
    assert warning is not None
    assert with_cause(warning, figures).endswith(cause)


def test_a_gauge_that_the_client_contradicts_is_no_reason_to_warn() -> None:
    """1,077 tok/s at 83 ms a token are 89 requests that decode, whatever the gauge shows."""
    figures = {"running_requests_max": 3.0, "peak_window_tok_s": 1077.0, "p50_tpot_ms": 83.0}
    assert capacity_warning(figures, 128) is None
    assert capacity_warning(figures | {"running_requests_max": 80.0}, 128) is not None


def test_other_warnings_stay_as_they_are() -> None:
    figures = {"running_requests_max": 31.0, "max_running_requests": 32.0}
    assert with_cause("2 of 64 requests failed", figures) == "2 of 64 requests failed"


def test_the_accept_rate_is_the_engines_counters_over_the_phase() -> None:
    """Three drafted tokens a step, 1.8 accepted; before the phase it was another rate."""
    observation = Observation(
        before=ServingSample(drafts_total=100, drafted_tokens_total=300, accepted_tokens_total=30),
        after=ServingSample(drafts_total=200, drafted_tokens_total=600, accepted_tokens_total=210),
    )
    assert observation.accept_rate == pytest.approx(0.6)
    assert observation.accept_length == pytest.approx(2.8)


def test_the_accept_rate_is_the_log_lines_where_there_are_no_counters() -> None:
    log = ServingSample(accept_length=2.9, accept_rate=0.63)
    assert Observation(log=log, after=ServingSample(accept_rate=0.4)).accept_rate == 0.63


def test_without_speculation_there_is_no_accept_rate() -> None:
    """SGLang's gauges say 0 then."""
    assert Observation(after=ServingSample(accept_rate=0.0)).accept_rate is None
