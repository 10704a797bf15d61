"""The physics gives the figures of the table, as a function and through HTTP."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from autotune.engines.simulated import sglang_args, vllm_args
from autotune.engines.simulated.hosts import host_named
from autotune.engines.simulated.models import model_named
from autotune.engines.simulated.prediction import Load, Prediction, predict
from tests.simulated.calibration import ROWS, Row
from tests.simulated.servers import simulated, single_tok_s, whole_run_tok_s

TOLERANCE = 0.10
_PARSE = {"sglang": sglang_args.parse, "vllm": vllm_args.parse}


def predicted(row: Row) -> Prediction:
    host = host_named(row.host)
    args = _PARSE[row.engine](row.argv, row.env, host)
    return predict(
        host, model_named(args.model_path), args.settings, Load(128, 256, row.concurrency)
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_prediction_is_within_the_tolerance_of_the_table(row: Row) -> None:
    found = predicted(row)
    assert found.failure is None
    assert found.single_tok_s == pytest.approx(row.single, rel=TOLERANCE)
    if row.peak is not None:
        assert found.peak_tok_s == pytest.approx(row.peak, rel=row.peak_tolerance)


def test_the_eager_verify_costs_what_was_reported() -> None:
    """29 ms for the verify of 3 tokens against 12 ms for plain decode, accept length 2.0."""
    plain, speculative = predicted(ROWS[3]), predicted(ROWS[4])
    assert plain.step_ms == pytest.approx(12.1, rel=TOLERANCE)
    assert speculative.step_ms == pytest.approx(29.0, rel=TOLERANCE)
    assert speculative.accept_length == pytest.approx(2.0, rel=TOLERANCE)
    assert not speculative.graph_single


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_server_measures_within_the_tolerance_of_the_table(row: Row, tmp_path: Path) -> None:
    with simulated(tmp_path, row.engine, row.argv, host=row.host, env=row.env) as server:
        server.wait_ready()
        server.load(4, 1)  # the first tokens of a server are slow
        single = statistics.median(single_tok_s(server.load(9, 1)))
        assert single == pytest.approx(row.single, rel=TOLERANCE)
        if row.peak is not None:
            run = server.load(2 * row.concurrency, row.concurrency)
            assert whole_run_tok_s(run) == pytest.approx(row.peak, rel=row.peak_tolerance)


@pytest.mark.parametrize("row", [r for r in ROWS if r.warm_seconds], ids=lambda row: row.name)
def test_a_warm_start_takes_what_was_measured(row: Row, tmp_path: Path) -> None:
    """Real ones of one configuration differ by a fifth."""
    for _ in ("cold", "warm"):
        with simulated(tmp_path, row.engine, row.argv, host=row.host, env=row.env) as server:
            server.wait_ready()
            seconds = server.clock.now()
    assert seconds == pytest.approx(row.warm_seconds, rel=0.2)
