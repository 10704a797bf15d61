"""Spread, intervals, outliers and steadiness."""

from __future__ import annotations

import random

import pytest

from autotune.statistics import (
    PEAK_PRIOR,
    SINGLE_PRIOR,
    Estimate,
    differs,
    is_steady,
    mad,
    mean_interval,
    median_interval,
    modified_z,
    of_configuration,
    outliers,
    pool,
    pool_objectives,
    settled_from,
    student,
)


def test_student_agrees_with_scipy() -> None:
    from scipy.special import stdtrit

    for freedom in (3, 4, 5, 8, 20, 200):
        assert student(freedom) == pytest.approx(stdtrit(freedom, 0.975), rel=0.003)


def test_median_absolute_deviation_ignores_one_wild_sample() -> None:
    assert mad([10.0, 11.0, 9.0, 10.0, 500.0]) == 1.0


def test_an_outlier_is_found_even_where_the_mad_is_zero() -> None:
    assert outliers([100.0] * 9 + [300.0]) == [9]
    assert outliers([100.0, 101.0, 99.0, 100.0, 160.0, 100.5]) == [4]
    assert outliers([100.0, 101.0, 99.0, 100.0]) == []
    assert modified_z([5.0, 5.0, 5.0]) == [0.0, 0.0, 0.0]


def test_three_equal_samples_are_not_an_exact_figure() -> None:
    assert median_interval([100.0, 100.0, 100.0], SINGLE_PRIOR).half_width > 1.0


@pytest.mark.parametrize("sd", [0.002, 0.005, 0.01, 0.03])
def test_stopping_at_the_first_narrow_interval_still_covers_the_truth(sd: float) -> None:
    """The stopping rule looks for agreeing samples; the interval must survive that."""
    chance = random.Random(7)
    for interval, prior, precision, most in (
        (median_interval, SINGLE_PRIOR, 0.02, 40),
        (mean_interval, PEAK_PRIOR, 0.01, 20),
    ):
        hits = 0
        for _ in range(300):
            samples: list[float] = []
            while True:
                samples.append(chance.gauss(1.0, sd))
                if len(samples) < 3:
                    continue
                estimate = interval(samples, prior)
                if estimate.relative <= precision or len(samples) == most:
                    break
            hits += abs(estimate.value - 1.0) <= estimate.half_width
        assert hits / 300 > 0.83, (interval.__name__, hits)


def test_a_server_that_still_speeds_up_is_not_steady() -> None:
    assert not is_steady([207.0, 602.0, 781.0], 0.05)
    assert not is_steady([100.0, 100.0], 0.05)
    assert is_steady([207.0, 602.0, 781.0, 780.0, 785.0], 0.05)


def test_noise_without_a_trend_is_steady() -> None:
    assert is_steady([100.0, 112.0, 101.0], 0.05)


def test_cold_samples_at_the_start_are_dropped_but_never_below_the_fewest() -> None:
    assert settled_from([50.0, 99.0, 100.0, 101.0, 100.0], 0.03) == 1
    assert settled_from([100.0, 101.0, 99.0, 100.0], 0.03) == 0
    assert settled_from([50.0, 100.0, 101.0], 0.03) == 0


def test_pooled_launches_are_surer_than_one() -> None:
    launches = [of_configuration(Estimate(value, 1.0)) for value in (100.0, 101.0, 99.5)]
    pooled = pool(launches)
    assert pooled.value == pytest.approx(100.17, abs=0.01)
    assert pooled.half_width < launches[0].half_width


def test_launches_that_disagree_widen_the_pooled_interval() -> None:
    agreeing = pool([Estimate(v, 1.0) for v in (100.0, 100.5, 99.5)])
    disagreeing = pool([Estimate(v, 1.0) for v in (100.0, 112.0, 90.0)])
    assert disagreeing.half_width > 3 * agreeing.half_width


def test_one_launch_pools_to_itself_and_none_is_refused() -> None:
    assert pool([Estimate(50.0, 2.0)]) == Estimate(50.0, 2.0, 1)
    with pytest.raises(ValueError, match="nothing to pool"):
        pool([])


def test_pooling_keeps_objectives_that_every_launch_has() -> None:
    both = ({"single": 100.0, "peak": 900.0}, {"single": 1.0, "peak": 9.0})
    values, spread = pool_objectives([both, ({"single": 102.0}, {"single": 1.0})])
    assert values == {"single": 101.0}
    assert set(spread) == {"single"}


def test_a_difference_within_the_spread_is_no_difference() -> None:
    assert not differs(Estimate(100.0, 2.0), Estimate(102.0, 2.0))
    assert differs(Estimate(100.0, 2.0), Estimate(110.0, 2.0))
