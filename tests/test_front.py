"""Fresh launches replace the figure that made a configuration a finalist."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.front import front_of, knee_of, points_of
from autotune.records import PEAK, SINGLE
from tests.runs import baseline, failed, measured


def numbers(points) -> list[int]:
    return [point.number for point in points]


def test_the_front_goes_from_single_stream_to_peak() -> None:
    points = points_of([baseline(80, 1500), measured(1, 90, 1400), measured(2, 70, 1450)])
    assert numbers(front_of(points)) == [1, 0]


def test_infeasible_lost_and_half_measured_trials_are_no_points() -> None:
    half = measured(3, 99, 0, values={SINGLE: 99.0})
    lost = measured(4, 99, 9999, state="lost")
    assert numbers(points_of([baseline(), failed(2), half, lost])) == [0]


def test_a_hosts_own_baseline_is_no_configuration_of_its_own() -> None:
    own = measured(1, 81, 1500, purpose="host_baseline")
    assert numbers(points_of([baseline(80, 1500), own])) == [0]


FIRST = (baseline(80, 1500), measured(1, 90, 1400), measured(2, 70, 1600))


def test_what_fails_together_with_the_baseline_is_the_machines_fault() -> None:
    broken = [failed(3 + i, purpose="finalist", repeats=n) for i, n in enumerate((1, 0, 2))]
    assert numbers(points_of([*FIRST, *broken])) == [0, 1, 2]
    repaired = [measured(6, 81, 1510, purpose="finalist", repeats=0)]
    repaired += [measured(7, 88, 1400, purpose="finalist", repeats=1)]
    points = points_of([*FIRST, *broken, *repaired, failed(8, purpose="finalist", repeats=2)])
    assert {point.number: point.launches for point in points} == {0: (0, 6), 1: (7,)}


def test_a_fresh_launch_that_fails_without_the_baseline_counts() -> None:
    fresh = [measured(3, 80, 1500, purpose="finalist", repeats=0)]
    fresh += [failed(4, purpose="finalist", repeats=1), failed(5, purpose="finalist", repeats=2)]
    assert numbers(points_of([*FIRST, *fresh])) == [0]
    assert numbers(points_of([*FIRST, failed(3, purpose="finalist", repeats=0)])) == [1, 2]


def test_a_finalist_is_judged_by_its_fresh_launches_alone() -> None:
    again = [
        measured(number, single, 2000, purpose="finalist", repeats=1)
        for number, single in ((2, 84.0), (3, 86.0))
    ]
    (_, point) = points_of([baseline(), measured(1, 95.0, 2100), *again])
    assert point.values == {SINGLE: 85.0, PEAK: 2000.0}
    assert point.claimed == {SINGLE: 95.0, PEAK: 2100.0}
    assert point.launches == (2, 3)


def test_a_baseline_was_not_selected_so_all_its_launches_count() -> None:
    again = baseline(84.0).model_copy(update={"number": 5, "repeats": 0})
    (point,) = points_of([baseline(80.0), again])
    assert point.values[SINGLE] == 82.0
    assert point.claimed is None
    assert point.launches == (0, 5)


def test_one_launch_is_not_enough_unless_it_is_a_second_one() -> None:
    fresh = measured(3, 90, 1600, purpose="finalist", repeats=1)
    drift = measured(4, 80, 1500, purpose="drift", repeats=0)
    points = points_of([*FIRST, fresh, drift])
    assert [point.number for point in points if point.launched_once] == [2]


def test_the_spread_covers_the_launches() -> None:
    again = [measured(n, 80.0 + 10 * n, 2000, repeats=1) for n in (2, 3)]
    (point,) = points_of([measured(1, 95.0, 2100), *again])
    assert point.spread[SINGLE] == 5.0  # 100 and 110; one measurement alone has 1 %
    assert point.spread[PEAK] == 10.0


def test_a_winner_that_fails_when_launched_again_is_off_the_front() -> None:
    outcomes = [baseline(), measured(1, 95.0, 2100), failed(2, purpose="finalist", repeats=1)]
    assert numbers(points_of(outcomes)) == [0]


def test_a_lost_fresh_launch_says_nothing() -> None:
    lost = measured(2, 1, 1, state="lost", values=None, repeats=1)
    (point,) = points_of([measured(1, 95.0, 2100), lost])
    assert point.values[SINGLE] == 95.0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30))
def test_no_point_beats_a_front_member_and_every_other_is_beaten(pairs) -> None:
    points = points_of([measured(n, single, peak) for n, (single, peak) in enumerate(pairs)])
    front = front_of(points)

    def beats(one, other) -> bool:
        return (
            one.single >= other.single
            and one.peak >= other.peak
            and (one.single, one.peak) != (other.single, other.peak)
        )

    assert not any(beats(one, other) for one in points for other in front)
    values = {(point.single, point.peak) for point in front}
    assert len(values) == len(front)
    for point in points:
        assert (point.single, point.peak) in values or any(beats(one, point) for one in front)


def test_leaving_the_knee_loses_a_larger_factor_than_it_gains() -> None:
    front = front_of(
        points_of([measured(0, 90, 1000), measured(1, 80, 1900), measured(2, 40, 2000)])
    )
    knee = knee_of(front)
    assert knee.number == 1
    for other in front:
        assert (other.single / knee.single) * (other.peak / knee.peak) <= 1
