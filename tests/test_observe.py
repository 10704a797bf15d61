"""What is said of a server that does not run what it is asked."""

from __future__ import annotations

import pytest

from autotune.observe import capacity_warning, with_cause

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
