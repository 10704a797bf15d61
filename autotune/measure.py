"""From a running server to its figures: answers, warm-up, single stream, peak, goodput."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.answers import ANSWER_TOKENS, QUESTIONS, is_degenerate, judge
from autotune.clock import WallClock
from autotune.dialect import encode
from autotune.errors import TrialFailed
from autotune.experiment import MeasureSettings, Workload
from autotune.goodput import measure_goodput
from autotune.load import closed_loop
from autotune.peak import Peak, cannot_reach, measure_peak
from autotune.records import PEAK, SINGLE, Failure, FailureKind, Measurement, Phase
from autotune.session import Session, Target, check_faults, failing_if_stalled, open_session
from autotune.single import Single, measure_single, warm_up
from autotune.statistics import of_configuration
from autotune.stream import Request
from autotune.timeline import Timeline

__all__ = ["Target", "client_ceiling", "measure"]


async def measure(
    target: Target,
    workload: Workload,
    settings: MeasureSettings,
    *,
    constraints: Mapping[str, float],
    timeline: Timeline,
    reference_answers: Sequence[str] = (),
    front: Sequence[tuple[float, float]] = (),
    folder: Path,
) -> Measurement:
    """Measure one server; writes `requests.jsonl` into `folder`.

    `spread` of the result is the half-width of the 95 % interval of what this *configuration*
    gives: that of the measurement, widened by what launches of one command differ by.

    `reference_answers` are the baseline's answers to the fixed questions, `front` the
    (single-stream, peak) pairs in tokens/s measured so far: where they prove that no peak
    figure could bring this server to the front, the peak phase is cut to one wave.

    Raises:
        TrialFailed: requests failed, the answers are wrong, or nothing came any more.
            `partial` holds what had been measured by then.
        InputError: a broken prompt file.
    """
    timeline.enter(Phase.ANSWER_CHECK)
    session = await open_session(target, workload, settings, timeline, folder)
    partial = Measurement(values={}, spread={}, figures={})
    try:
        answers = await check_answers(session, reference_answers) if settings.answer_check else ()
        cold = await warm_up(session)
        single = await measure_single(session)
        partial = _measurement(session, single, None, answers, cold)
        peak = await _peak_phase(session, single, front)
        partial = _measurement(session, single, peak, answers, cold)
        if workload.request_rate is not None:
            goodput = await measure_goodput(session, workload.request_rate, constraints)
            partial = _measurement(session, single, peak, answers, cold | goodput)
        return partial
    except TrialFailed as error:
        raise TrialFailed(error.failure, error.partial or partial) from error
    finally:
        session.journal.close()


async def _peak_phase(
    session: Session, single: Single, front: Sequence[tuple[float, float]]
) -> Peak:
    concurrency = session.workload.peak_concurrency
    rough = single.decode is not None and cannot_reach(
        front, single.estimate, single.decode, concurrency
    )
    if rough:
        session.warn("peak cut to one wave: no peak figure could bring it to the front")
    peak = await measure_peak(session, concurrency, rough=rough)
    _check_texts(single.texts, peak.texts)
    ceiling = await client_ceiling(session, concurrency, peak.estimate.value)
    return replace(peak, figures=peak.figures | ceiling)


async def check_answers(session: Session, reference: Sequence[str]) -> tuple[str, ...]:
    """Ask the fixed questions, all at once and greedily; raises TrialFailed for nonsense."""
    model, chat, dialect = session.target.model, session.workload.chat, session.prompts.dialect
    fields = dialect.fields(ANSWER_TOKENS)
    fields.pop("ignore_eos", None)

    def ask(index: int) -> Request:
        message = {"role": "user", "content": QUESTIONS[index][0]}
        body = encode(model, [message], chat, fields)
        return Request(index, body, max_tokens=ANSWER_TOKENS, stream=dialect.streaming)

    count = len(QUESTIONS)
    with failing_if_stalled(Phase.ANSWER_CHECK):
        run = await closed_loop(
            session.endpoint,
            ask,
            count,
            clock=session.clock,
            more=lambda reply: True,
            indices=itertools.islice(itertools.count(), count),
        )
    check_faults(run, Phase.ANSWER_CHECK, session)
    session.journal.add(Phase.ANSWER_CHECK, run.replies, 1)
    answers = tuple(reply.text for reply in sorted(run.replies, key=lambda reply: reply.index))
    verdict = judge(answers, reference)
    for warning in verdict.warnings:
        session.warn(warning)
    if verdict.cause is not None:
        raise _wrong(Phase.ANSWER_CHECK, verdict.cause)
    return answers


def _check_texts(single: Sequence[str], peak: Sequence[str]) -> None:
    """Whether load turned sane answers into nonsense: a race shows only under load."""
    alone = sum(map(is_degenerate, single)) / max(1, len(single))
    bad = [text for text in peak if is_degenerate(text)]
    if alone == 0 and len(bad) > max(2, len(peak) / 10):
        raise _wrong(
            Phase.PEAK,
            f"{len(bad)} of {len(peak)} answers under load are loops or garbage, none alone is: "
            f"{bad[0][:80]!r}",
        )


def _wrong(phase: Phase, cause: str) -> TrialFailed:
    return TrialFailed(Failure(kind=FailureKind.WRONG_OUTPUT, phase=phase, cause=cause))


def _measurement(
    session: Session,
    single: Single,
    peak: Peak | None,
    answers: tuple[str, ...],
    extra: Mapping[str, float],
) -> Measurement:
    estimates = {SINGLE: of_configuration(single.estimate)}
    figures = {**extra, **single.figures}
    if peak is not None:
        estimates[PEAK] = of_configuration(peak.estimate)
        figures |= peak.figures
    return Measurement(
        values={name: estimate.value for name, estimate in estimates.items()},
        spread={name: estimate.half_width for name, estimate in estimates.items()},
        figures=figures,
        warnings=tuple(session.warnings),
        answers=answers,
    )


async def client_ceiling(session: Session, concurrency: int, tok_s: float) -> dict[str, float]:
    """The client's own limit; warns if the figure is near it.

    A simulated server's seconds say nothing about the client's, so there it is left out.
    """
    if not isinstance(session.clock, WallClock):
        return {}
    from autotune.calibrate import ceiling_warning, client_calibration

    calibration = await client_calibration(concurrency)
    session.warn(ceiling_warning(calibration, tok_s))
    return {"client_ceiling_tok_s": calibration.ceiling_tok_s}
