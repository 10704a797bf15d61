"""One server about to be measured: checked, its dialect known, its prompts written."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import httpx

from autotune.clock import Clock, WallClock
from autotune.dialect import Dialect, find_dialect, probe_request
from autotune.engines.base import Engine
from autotune.errors import TrialFailed
from autotune.experiment import SHIPPED, MeasureSettings, Workload
from autotune.foreign_json import foreign_json
from autotune.journal import Journal
from autotune.load import SILENCE_LIMIT_SECONDS, LoadStalled, Run, closed_loop, watched
from autotune.load_processes import closed_loop_in_processes, processes_for
from autotune.observe import Observation, observing
from autotune.prompts import Message, known_kinds, passages
from autotune.records import Failure, FailureKind, Phase
from autotune.stream import Connection, Endpoint, Reply
from autotune.timeline import Timeline
from autotune.tokens import TokenCounter
from autotune.workload import PromptSet, build_prompts, request_path

_RUN_BITS = 20  # most requests of one run, as a power of two

_PROBE_TEXT = (
    "Describe in detail how a letter travelled from one end of a continent to the other before "
    "there were railways, who carried it, and what could go wrong on the way."
)


@dataclass(frozen=True)
class Target:
    """A running server: `http` for control calls, `log_text(offset)` for its log from there."""

    base_url: str
    model: str
    clock: Clock
    engine: Engine | None
    http: httpx.AsyncClient
    log_text: Callable[[int], str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Session:
    """What the phases of one measurement share; `prompts` may learn that a field is ignored."""

    target: Target
    workload: Workload
    settings: MeasureSettings
    timeline: Timeline
    endpoint: Endpoint
    prompts: PromptSet
    template_tokens: int
    journal: Journal
    first_tokens: int = 1
    warnings: list[str] = field(default_factory=list)
    runs: int = 0

    def new_indices(self) -> Iterator[int]:
        """Request numbers of a new run: never used before, and from the same prompt on."""
        self.runs += 1
        return count(self.runs << _RUN_BITS)

    @property
    def clock(self) -> Clock:
        """The server's clock."""
        return self.target.clock

    async def run(
        self, concurrency: int, more: Callable[[Reply], bool], *, usage_in_chunks: bool = False
    ) -> Run:
        """A closed loop over the next prompts; raises TrialFailed when nothing comes any more."""
        make = partial(self.prompts.request, usage_in_chunks=usage_in_chunks)
        indices, clock = self.new_indices(), self.clock
        processes = processes_for(concurrency) if isinstance(clock, WallClock) else 1
        with failing_if_stalled(self.timeline.phase):
            if processes == 1:
                return await closed_loop(
                    self.endpoint, make, concurrency, clock=clock, more=more, indices=indices
                )
            return await closed_loop_in_processes(
                self.endpoint, make, concurrency, processes, more=more, first_index=next(indices)
            )

    def observing(self) -> AbstractAsyncContextManager[Observation]:
        """Sample the engine while the block runs."""
        target = self.target
        return observing(target.engine, target.http, target.clock, target.log_text)

    async def flush(self) -> None:
        """Empty the prefix cache through the engine, where it can: no request needs it."""
        if self.target.engine is not None:
            with suppress(httpx.HTTPError):
                await self.target.engine.flush_cache(self.target.http)

    def warn(self, text: str | None) -> None:
        """Add a warning to the outcome, once."""
        if text and text not in self.warnings:
            self.warnings.append(text)

    def without_ignore_eos(self) -> None:
        """The server takes `ignore_eos` and ends its answers all the same."""
        self.prompts = replace(
            self.prompts, dialect=replace(self.prompts.dialect, ignore_eos=False)
        )
        self.warn("ignore_eos has no effect: answers end where the model ends them")


@contextmanager
def failing_if_stalled(phase: Phase) -> Iterator[None]:
    """A load on which nothing comes any more is the trial's failure. Raises TrialFailed."""
    try:
        yield
    except LoadStalled as stalled:
        failure = Failure(kind=FailureKind.STALLED, phase=phase, cause=str(stalled))
        raise TrialFailed(failure) from stalled


def failed(phase: Phase, cause: str) -> TrialFailed:
    """Requests failed, as the trial's failure."""
    return TrialFailed(Failure(kind=FailureKind.REQUESTS_FAILED, phase=phase, cause=cause))


async def open_session(
    target: Target,
    workload: Workload,
    settings: MeasureSettings,
    timeline: Timeline,
    folder: Path,
) -> Session:
    """Check the server, learn its dialect and its tokens, write the prompts.

    Raises:
        TrialFailed: it serves another model, refuses requests or answers none, or has too short a
            context.
        InputError: a broken prompt file.
    """
    context = await _context(target)
    endpoint = Endpoint(target.base_url, request_path(workload), target.headers)
    message: Message = {"role": "user", "content": _PROBE_TEXT}
    timeline.note(f"first request (limit {SILENCE_LIMIT_SECONDS:.0f} s without a token)")
    with failing_if_stalled(timeline.phase):
        dialect, probe = await find_dialect(
            endpoint, target.model, [message], workload.chat, target.clock
        )
    if not probe.ok:
        raise failed(timeline.phase, f"the server refuses a plain request: {probe.error}")
    counter = TokenCounter(target.http, target.model)
    await counter.calibrate(_PROBE_TEXT, probe.prompt_tokens or 0)
    if not counter.exact:
        with failing_if_stalled(timeline.phase):
            await _calibrate_density(counter, endpoint, target, dialect, workload)
    _check_context(context, workload, timeline.phase)
    nonce_seed = secrets.randbits(53)
    prompts = await build_prompts(
        workload, target.model, dialect, counter, nonce_seed=nonce_seed, note=timeline.note
    )
    header = {
        "seed": workload.seed,
        "nonce_seed": nonce_seed,
        "prompts": workload.prompts,
        "exact_lengths": prompts.exact,
        "kinds": [body.kind for body in prompts.bodies],
        "model": target.model,
    }
    return Session(
        target=target,
        workload=workload,
        settings=settings,
        timeline=timeline,
        endpoint=endpoint,
        prompts=prompts,
        template_tokens=max(0, counter.overhead),
        journal=Journal(folder / "requests.jsonl", header),
        warnings=list(dialect.warnings()),
    )


async def _calibrate_density(
    counter: TokenCounter, endpoint: Endpoint, target: Target, dialect: Dialect, workload: Workload
) -> None:
    """Count a longer text, of all kinds, with a second tiny request."""
    text = "\n\n".join(passages(kind)[0] for kind in known_kinds(workload.kinds))
    message: Message = {"role": "user", "content": text[: 4 * workload.input_tokens]}
    request = probe_request(dialect, target.model, [message], workload.chat)
    connection = Connection(endpoint, target.clock)
    async with watched([connection]):
        reply = await connection.send(request)
    if reply.ok and reply.prompt_tokens:
        counter.calibrate_density(message["content"], reply.prompt_tokens)


async def _context(target: Target) -> int | None:
    """The longest prompt plus answer, where `/v1/models` says so; checks the model's name."""
    try:
        response = await target.http.get("/v1/models", headers=dict(target.headers), timeout=60)
        models = foreign_json(response.content)["data"] if response.status_code == 200 else []
        names = {model["id"]: model.get("max_model_len") for model in models}
    except httpx.HTTPError as problem:
        raise failed(Phase.ANSWER_CHECK, f"/v1/models does not answer: {problem}") from problem
    except (ValueError, LookupError, TypeError, AttributeError):
        names = {}  # no such endpoint: the first request will tell
    if names and target.model not in names:
        served = ", ".join(names)
        raise failed(
            Phase.ANSWER_CHECK, f"another model answers: asked {target.model}, served {served}"
        )
    return names.get(target.model)


def _check_context(context: int | None, workload: Workload, phase: Phase) -> None:
    longest = 1 + workload.length_spread
    needed = round(workload.input_tokens * longest) + round(workload.output_tokens * longest)
    if context is not None and workload.prompts == SHIPPED and needed > context:
        raise failed(
            phase,
            f"the server's context of {context} tokens is shorter than the workload's "
            f"{needed} ({workload.input_tokens} in + {workload.output_tokens} out)",
        )


def check_faults(run: Run, phase: Phase, session: Session) -> None:
    """Raise TrialFailed if more than one request in twenty failed; warn of fewer."""
    total, bad = len(run.replies), len(run.failed)
    if bad > total / 20:
        raise failed(phase, f"{bad} of {total} requests failed: {run.faults()}")
    if bad:
        session.warn(f"{bad} of {total} requests failed at {phase}: {run.faults()}")
