"""Losses and hosts that differ: who is asked again, who is left out, what a factor does."""

from __future__ import annotations

import pytest

from autotune.experiment import Experiment
from autotune.ledger import Asked
from autotune.losses import Losses, unmeasured
from autotune.mixed import Scales
from autotune.records import PEAK, SINGLE, Failure, FailureKind, Outcome, Phase, Purpose, State
from autotune.space import Space
from tests.runs import EXPERIMENT, bare_outcome

FIRST, OTHER = "first", "other"


def outcome(
    key: str = "k",
    *,
    number: int = 0,
    machine: str = FIRST,
    purpose: Purpose = "search",
    state: State = "ok",
    values: tuple[float, float] | None = (100.0, 1000.0),
) -> Outcome:
    return bare_outcome(
        number,
        key,
        state=state,
        machine=machine,
        host="box",
        purpose=purpose,
        values=None if values is None else {SINGLE: values[0], PEAK: values[1]},
        spread={} if values is None else {SINGLE: 1.0, PEAK: 10.0},
        failure=None
        if values is not None
        else Failure(kind=FailureKind.CRASHED, phase=Phase.LOAD, cause="broken"),
    )


# -- losses -----------------------------------------------------------------------------------
def test_a_lost_trial_goes_to_another_node() -> None:
    losses = Losses()
    losses.add(outcome("a"), "n1")
    assert losses.take("n1", {"n1", "n2"}) is None
    taken = losses.take("n2", {"n1", "n2"})
    assert taken is not None
    assert taken.key == "a"
    assert losses.pending == []


def test_without_another_node_it_goes_to_the_same() -> None:
    losses = Losses()
    losses.add(outcome("a"), "n1")
    assert losses.take("n1", {"n1"}) is not None


def test_it_is_asked_again_twice_and_no_more() -> None:
    losses = Losses()
    for node in ("n1", "n2"):
        losses.add(outcome("a"), node)
        assert losses.take("n3", {"n1", "n2", "n3"}) is not None
    losses.add(outcome("a"), "n3")
    assert losses.pending == []


def test_three_losses_in_a_row_put_a_node_out_and_a_finished_trial_counts_them_anew() -> None:
    losses = Losses()
    for key in "ab":
        losses.add(outcome(key), "n1")
    losses.clear("n1")
    for key in "cd":
        losses.add(outcome(key), "n1")
    assert not losses.is_out("n1")
    losses.add(outcome("e"), "n1", again=False)
    assert losses.is_out("n1")
    assert not losses.is_out("n2")
    assert "e" not in {lost.key for lost in losses.pending}


def test_a_launch_whose_end_nobody_saw_keeps_no_secret() -> None:
    server = {"command": ["sglang", "serve", "--api-key", "very-secret"]}
    space = Space(Experiment.model_validate({**EXPERIMENT, "engines": {"sglang": server}}))
    asked = Asked(3, dict(space.known_good[0]), "k", "finalist", 1)
    lost = unmeasured(asked, space, "lost", warnings=("the node is gone",))
    assert lost.command == ("sglang", "serve", "--api-key", "***")
    assert (lost.number, lost.state, lost.purpose, lost.repeats) == (3, "lost", "finalist", 1)
    assert lost.warnings == ("the node is gone",)


# -- hosts that differ ------------------------------------------------------------------------
def measured_scales() -> Scales:
    scales = Scales(FIRST)
    scales.add(outcome(purpose="baseline"))
    scales.add(outcome(machine=OTHER, purpose="host_baseline", values=(200.0, 1250.0)))
    return scales


def test_a_host_that_is_twice_as_fast_is_told_in_the_first_ones_figures() -> None:
    told = measured_scales().scaled(outcome(machine=OTHER, values=(220.0, 1000.0)))
    assert told.values == pytest.approx({SINGLE: 110.0, PEAK: 800.0})
    assert told.spread == pytest.approx({SINGLE: 0.5, PEAK: 8.0})
    assert told.figures == pytest.approx({"host_factor_single": 0.5, "host_factor_peak": 0.8})
    assert "box" in told.warnings[-1]


def test_the_first_host_is_told_as_it_measured() -> None:
    scales, own = measured_scales(), outcome(values=(123.0, 456.0))
    assert scales.scaled(own) is own


def test_each_other_kind_of_host_measures_the_baseline_once() -> None:
    scales = Scales(FIRST)
    assert not scales.needs_baseline(FIRST)
    assert not scales.needs_baseline(OTHER)  # it would be through first, and told as it is
    scales.add(outcome(purpose="baseline"))
    assert scales.needs_baseline(OTHER)
    scales.is_measuring(OTHER)
    assert not scales.needs_baseline(OTHER)
    assert scales.factors(OTHER) is None
    scales.add(outcome(machine=OTHER, purpose="host_baseline", state="lost", values=None))
    assert scales.needs_baseline(OTHER)  # lost: nobody knows it yet


def test_a_stored_baseline_that_was_told_in_the_first_ones_figures_gives_the_same_factors() -> None:
    scales = measured_scales()
    own = outcome(machine=OTHER, purpose="host_baseline", values=(200.0, 1250.0))
    again = Scales(FIRST)
    again.look_at([outcome(purpose="baseline"), scales.scaled(own)])
    assert again.factors(OTHER) == pytest.approx(scales.factors(OTHER))


@pytest.mark.parametrize("failed", [FIRST, OTHER])
def test_without_both_baselines_a_host_cannot_be_compared(failed: str) -> None:
    scales = Scales(FIRST)
    for machine, purpose in ((FIRST, "baseline"), (OTHER, "host_baseline")):
        bad = machine == failed
        scales.add(
            outcome(
                machine=machine,
                purpose=purpose,  # type: ignore[arg-type]  # a literal of the loop
                state="infeasible" if bad else "ok",
                values=None if bad else (100.0, 1000.0),
            )
        )
    assert scales.cannot_compare(OTHER)
    assert not scales.cannot_compare(FIRST)


def test_a_host_launches_the_baseline_that_the_first_one_did() -> None:
    scales = Scales(FIRST)
    first = outcome(purpose="baseline").model_copy(update={"params": {"steps": 3}})
    scales.look_at([first, outcome("b", number=1), outcome("c", number=2, purpose="baseline")])
    assert scales.needs_baseline(OTHER)
    assert scales.baseline_params == {"steps": 3}
