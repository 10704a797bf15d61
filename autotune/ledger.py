"""The ledger: the Optuna study that says what was asked and what it gave.

Only the driver writes it. A failed launch is recorded as COMPLETE with a positive constraint
and the worst values seen, because a FAIL is invisible to samplers, which then propose it again
and again. FAIL is kept for trials that say nothing about their configuration: lost ones,
interrupted ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from autotune.optuna_study import fitting_distributions
from autotune.records import OBJECTIVES, Outcome, Purpose, Value
from autotune.space import Space

CONSTRAINT = "infeasible"
# optuna-dashboard 0.21 draws constraints from this key only; Optuna 5 itself writes another.
_DASHBOARD_CONSTRAINTS = "constraints"
# So many proposals in a row that need no launch mean that the space is used up.
MAX_UNLAUNCHED_IN_A_ROW = 50


@dataclass(frozen=True)
class Asked:
    """A configuration to launch."""

    number: int
    params: dict[str, Value]
    key: str
    purpose: Purpose
    repeats: int | None


class Ledger:
    """Asks the sampler, tells it, and knows which configurations have been measured."""

    def __init__(self, study: optuna.Study, space: Space) -> None:
        self.study, self._space = study, space
        self._open: dict[int, Trial] = {}
        self._running_keys: dict[int, str] = {}
        self._results: dict[str, Outcome] = {}  # canonical key -> first conclusive outcome
        self._worst: tuple[float, float] | None = None

    # -- asking -----------------------------------------------------------------------------
    def plan(
        self, params: Mapping[str, Value], purpose: Purpose, repeats: int | None = None
    ) -> None:
        """Ask for this configuration before anything the sampler proposes."""
        attrs: dict[str, Any] = {"purpose": purpose}
        if repeats is not None:
            attrs["repeats"] = repeats
        self.study.enqueue_trial(dict(params), user_attrs=attrs)

    @property
    def planned(self) -> int:
        """How many configurations wait to be asked."""
        return len(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def drop_planned(self, purpose: Purpose) -> None:
        """Take back what waits to be asked for this purpose."""
        storage = self.study._storage
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            if trial.user_attrs["purpose"] == purpose:
                storage.set_trial_user_attr(trial._trial_id, "lost", True)
                storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)

    def ask(self) -> Asked | None:
        """The next configuration to launch; None when the space has no new one to offer.

        A forbidden combination, and what would search where was measured (or is running), are told
        to the sampler at once and never launched.
        """
        for _ in range(MAX_UNLAUNCHED_IN_A_ROW):
            trial = self.study.ask()
            params = self._space.suggest(trial)
            attrs = trial.user_attrs
            asked = Asked(
                number=trial.number,
                params=params,
                key=self._space.key(params),
                purpose=attrs.get("purpose", "search"),
                repeats=attrs.get("repeats"),
            )
            if not self._without_launch(trial, asked):
                self._open[asked.number] = trial
                self._running_keys[asked.number] = asked.key
                trial.set_user_attr("key", asked.key)
                return asked
            if self.is_exhausted():
                return None
        return None

    def start(self, params: Mapping[str, Value], purpose: Purpose, repeats: int | None) -> Asked:
        """Launch this configuration now, whatever else is planned.

        For what belongs to a certain host, which the queue would give to the next that is free, and
        for finalists, which must not wait behind what the budget did not reach.
        """
        distributions = fitting_distributions(self._space, params)
        attrs: dict[str, Any] = {"purpose": purpose, "key": self._space.key(params)}
        attrs |= {} if repeats is None else {"repeats": repeats}
        self.study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=dict(params),
                distributions=distributions,
                user_attrs=attrs,
            )
        )
        newest = self.study.get_trials(deepcopy=False)[-1]
        self._open[newest.number] = Trial(self.study, newest._trial_id)
        self._running_keys[newest.number] = attrs["key"]
        return Asked(newest.number, dict(params), attrs["key"], purpose, repeats)

    def is_exhausted(self) -> bool:
        """True if the sampler knows that no new configuration is left."""
        exhausted = getattr(self.study.sampler, "exhausted", None)
        return bool(exhausted(self.study)) if exhausted is not None else False

    def _without_launch(self, trial: Trial, asked: Asked) -> bool:
        """Tell what is known without a launch; False if a launch is needed."""
        reason = self._space.forbidden(asked.params)
        if reason is not None:
            trial.set_user_attr("forbidden", reason)
            self._tell_infeasible(trial, 1.0)
            return True
        if asked.purpose not in ("search", "known_good"):
            return False
        known = self._results.get(asked.key)
        if known is not None:
            trial.set_user_attr("duplicate_of", known.number)
            self._record(trial, known)
            return True
        if asked.key in self._running_keys.values():
            trial.set_user_attr("lost", True)
            self.study.tell(trial, state=TrialState.FAIL)
            return True
        return False

    # -- telling ----------------------------------------------------------------------------
    def tell(self, outcome: Outcome) -> None:
        """Record how a trial ended."""
        trial = self._open.pop(outcome.number)
        self._running_keys.pop(outcome.number, None)
        self._record(trial, outcome)
        self.remember(outcome)

    def remember(self, outcome: Outcome) -> None:
        """Know an outcome that the storage already holds (on resume) or was just told."""
        if outcome.state not in ("ok", "infeasible") or outcome.purpose == "host_baseline":
            return
        self._results.setdefault(outcome.key, outcome)
        if outcome.state == "ok" and outcome.values is not None:
            values = (outcome.values[OBJECTIVES[0]], outcome.values[OBJECTIVES[1]])
            worst = self._worst or values
            self._worst = (min(worst[0], values[0]), min(worst[1], values[1]))

    def result_of(self, params: Mapping[str, Value]) -> Outcome | None:
        """The conclusive outcome of this configuration, if it has one."""
        return self._results.get(self._space.key(params))

    def forget(self, number: int) -> None:
        """Drop a trial that was asked for and never had a configuration."""
        trial = self._open.pop(number)
        trial.set_user_attr("lost", True)
        self.study.tell(trial, state=TrialState.FAIL)

    def adopt(self, number: int) -> None:
        """Take over a trial that an earlier driver asked for and never told."""
        self._open[number] = Trial(self.study, self.study.trials[number]._trial_id)

    def _record(self, trial: Trial, outcome: Outcome) -> None:
        for name, value in _attributes(outcome).items():
            trial.set_user_attr(name, value)
        if outcome.state in ("lost", "interrupted", "running") or _says_nothing(outcome):
            self.study.tell(trial, state=TrialState.FAIL)
        elif outcome.state == "ok" and outcome.values is not None:
            self._constrain(trial, 0.0)
            self.study.tell(trial, [outcome.values[name] for name in OBJECTIVES])
        else:
            self._tell_infeasible(trial, _violation(outcome), outcome.values)

    def _tell_infeasible(
        self, trial: Trial, violation: float, values: Mapping[str, float] | None = None
    ) -> None:
        self._constrain(trial, violation)
        worst = self._worst or (0.0, 0.0)
        measured = [(values or {}).get(name) for name in OBJECTIVES]
        known = [floor if m is None else m for m, floor in zip(measured, worst, strict=True)]
        self.study.tell(trial, known)

    def _constrain(self, trial: Trial, violation: float) -> None:
        trial.set_constraint(CONSTRAINT, violation)
        storage = self.study._storage
        storage.set_trial_system_attr(trial._trial_id, _DASHBOARD_CONSTRAINTS, [violation])


def _says_nothing(outcome: Outcome) -> bool:
    """Whether the sampler has nothing to learn: a host's own baseline is scaled to the first's."""
    return outcome.purpose == "host_baseline"


def _violation(outcome: Outcome) -> float:
    """1 for a launch that failed; the share by which the worst limit was missed otherwise."""
    return float(outcome.figures.get("worst_violation", 1.0)) or 1.0


def _attributes(outcome: Outcome) -> dict[str, Any]:
    """What a person sees of a trial in optuna-dashboard, and the sampler may learn from."""
    attributes: dict[str, Any] = {
        "state": outcome.state,
        "purpose": outcome.purpose,
        "trial_seconds": round(sum(outcome.seconds.values()), 1),
    }
    if outcome.failure is not None:
        attributes |= {
            "failure_kind": outcome.failure.kind,
            "failure_phase": outcome.failure.phase,
            "failure_cause": outcome.failure.cause[:500],
        }
    if outcome.spread and outcome.values:
        relative = {
            n: s / outcome.values[n] for n, s in outcome.spread.items() if outcome.values.get(n)
        }
        attributes["spread"] = json.dumps(relative)
    if outcome.state in ("lost", "interrupted") or _says_nothing(outcome):
        attributes["lost"] = True
    return attributes
