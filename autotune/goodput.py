"""The open-loop phase: requests at random moments, and how many met every latency limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autotune.figures import tpot_seconds
from autotune.load import open_loop
from autotune.records import Phase
from autotune.session import Session, failing_if_stalled
from autotune.stream import Reply

_SECONDS = 20.0
_FEWEST_REQUESTS = 20


async def measure_goodput(
    session: Session, rate_per_second: float, constraints: Mapping[str, float]
) -> dict[str, float]:
    """Requests per second that met every limit on TTFT, TPOT and E2E, at a Poisson rate.

    A limit on a percentile (`p99_ttft_ms: 4000`) is taken as the limit of each request. Failed
    requests meet none. Raises TrialFailed when nothing comes any more.
    """
    session.timeline.note(f"goodput at {rate_per_second:g} requests/s")
    await session.flush()
    count = max(_FEWEST_REQUESTS, math.ceil(rate_per_second * _SECONDS))
    first = next(session.new_indices())
    with failing_if_stalled(Phase.PEAK):
        run = await open_loop(
            session.endpoint,
            lambda index: session.prompts.request(first + index),
            rate_per_second,
            count,
            clock=session.clock,
            seed=session.workload.seed,
        )
    session.journal.add("goodput", run.replies, session.first_tokens)
    met = [reply for reply in run.ok if meets(reply, constraints, session.first_tokens)]
    seconds = max(1e-9, run.full_until - run.full_from)
    return {
        "goodput_rps": len(met) / seconds,
        "goodput_share": len(met) / len(run.replies),
    }


def meets(reply: Reply, constraints: Mapping[str, float], first_tokens: int) -> bool:
    """Whether one request kept every limit that can be put to a single request."""
    measured: dict[str, Callable[[], float | None]] = {
        "_ttft_ms": lambda: reply.ttft_seconds,
        "_tpot_ms": lambda: tpot_seconds(reply, first_tokens),
        "_e2e_ms": lambda: reply.e2e_seconds,
    }
    for figure, limit in constraints.items():
        if figure.startswith("single_"):
            continue
        for ending, seconds in measured.items():
            value = seconds() if figure.endswith(ending) else None
            if value is not None and 1000 * value > limit:
                return False
    return True
