"""One running server, measured by autotune and by another tool: `autotune verify URL`.

Both put the same load on it: as many requests, as many at once, of as many tokens; `vllm` and
`sglang` even get the same kind of prompts. Compared is the figure that all tools have: output
tokens per second over the whole run. Ours over the window of full concurrency stands beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.clock import WallClock
from autotune.control import ControlClient, with_key
from autotune.errors import AutotuneError, InputError, TrialFailed
from autotune.experiment import MeasureSettings, Workload
from autotune.figures import first_delta_tokens, latencies
from autotune.heartbeat import heartbeat
from autotune.load import closed_loop
from autotune.measure_url import RunningServer, look_at, too_fast
from autotune.records import Phase
from autotune.session import Session, Target, check_faults, failing_if_stalled, open_session
from autotune.verify_tools import FIGURE_NAMES, TOOLS, Figures, Job, Tool, find_tool, run_tool

INPUT_TOKENS = 512  # the tools drop longer ShareGPT prompts
OUTPUT_TOKENS = 128
_WAVES = 4
_FEWEST_REQUESTS = 8

Report = dict[str, Any]


def verify_url(
    url: str,
    concurrencies: Sequence[int],
    *,
    tool: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    rounds: int = 3,
    input_tokens: int = INPUT_TOKENS,
    output_tokens: int = OUTPUT_TOKENS,
    api_key: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure with both in alternation, `rounds` times; medians side by side as JSON data.

    `say` gets a line after each measurement, and what is waited for where that takes long:
    SGLang's bench takes 20 s only to start.

    Raises:
        InputError: nothing answers, the tool is unknown or not installed, or its tokenizer is not
            here.
        AutotuneError: a measurement failed.
    """
    found, command = find_tool(tool)
    if api_key is not None and not found.reads_key:
        readers = " and ".join(one.name for one in TOOLS.values() if one.reads_key)
        raise InputError(f"only {readers} are given a key, not {found.name}", field="--tool")
    workload = Workload(input_tokens=input_tokens, output_tokens=output_tokens)
    url = url.rstrip("/").removesuffix("/v1")
    return asyncio.run(
        _verify(
            url, concurrencies, found, command, model, tokenizer, rounds, workload, api_key, say
        )
    )


async def _verify(
    url: str,
    concurrencies: Sequence[int],
    tool: Tool,
    command: tuple[str, ...],
    model: str | None,
    tokenizer: str | None,
    rounds: int,
    workload: Workload,
    api_key: str | None,
    say: Callable[[str], None],
) -> Report:
    headers = with_key(api_key)
    async with (
        ControlClient(base_url=url, headers=headers, timeout=60) as http,
        heartbeat(say) as timeline,
    ):
        server = await look_at(http, model)
        target = Target(url, server.model, WallClock(), server.engine, http, headers=headers)
        with tempfile.TemporaryDirectory(prefix="autotune-") as name:
            folder = Path(name)
            job = _job(url, server, tokenizer, workload, folder, api_key)
            try:
                session = await open_session(target, workload, MeasureSettings(), timeline, folder)
                with closing(session.journal):
                    levels = [
                        await _compare(
                            session, tool, command, replace(job, concurrency=c), rounds, say
                        )
                        for c in concurrencies
                    ]
            except TrialFailed as error:
                raise AutotuneError(f"{url}: {error.failure.cause}") from error
    return {
        "url": url,
        "model": server.model,
        "simulated": server.simulated,
        "tool": tool.name,
        "command": list(command),
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "rounds": rounds,
        "levels": levels,
        "warnings": [*too_fast(server), *session.warnings],
    }


def _job(
    url: str,
    server: RunningServer,
    tokenizer: str | None,
    workload: Workload,
    folder: Path,
    api_key: str | None,
) -> Job:
    return Job(
        url=url,
        model=server.model,
        tokenizer=_tokenizer(tokenizer, server),
        engine=server.engine.name if server.engine else None,
        concurrency=1,
        requests=0,
        warm_up=0,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        seed=0,
        prompts=folder / "prompts.json",
        folder=folder,
        api_key=api_key,
    )


def _tokenizer(given: str | None, server: RunningServer) -> str:
    """Refuse a path that is not here; what there is on a hub only the tool finds out."""
    if given is not None and Path(given).exists():
        return str(Path(given).absolute())  # the tool runs in a folder of its own
    place = given or server.model_path or server.model
    if place.startswith(("/", ".")) and not Path(place).exists():
        raise InputError(
            f"the other tool needs the model's tokenizer, and {place} is not on this host: give "
            "its folder, or its name on the hub",
            field="--tokenizer",
        )
    return place


async def _compare(
    session: Session,
    tool: Tool,
    command: tuple[str, ...],
    job: Job,
    rounds: int,
    say: Callable[[str], None],
) -> Report:
    """One concurrency: theirs and ours in turn, so that a drifting host meets both alike.

    Theirs first: a tool that lacks something says so before minutes are spent on ours.
    """
    count = max(_FEWEST_REQUESTS, _WAVES * job.concurrency)
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for number in range(rounds):
        place = f"concurrency {job.concurrency}, round {number + 1} of {rounds}"
        own_folder = job.folder / f"{job.concurrency}-{number}"
        own_folder.mkdir()
        _write_prompts(session, job.prompts, count + job.concurrency)
        this = replace(
            job,
            requests=count,
            warm_up=max(2, job.concurrency),
            seed=secrets.randbits(31),
            folder=own_folder,
        )
        session.timeline.note(f"{place}: {tool.name}")
        theirs.append(await asyncio.to_thread(run_tool, tool, command, this))
        say(f"{place}: {tool.name} {theirs[-1]['tok_s']:.1f} tok/s")
        session.warn(_unlike(tool, theirs[-1], this))
        session.timeline.note(f"{place}: autotune")
        ours.append(await _ours(session, job.concurrency, count))
        say(f"{place}: autotune {ours[-1]['tok_s']:.1f} tok/s")
    return {
        "concurrency": job.concurrency,
        "requests": count,
        "ours": _medians(ours),
        "theirs": _medians(theirs),
        "ratio": _medians(ours)["tok_s"] / _medians(theirs)["tok_s"],
        "rounds": [{"ours": own, "theirs": other} for own, other in zip(ours, theirs, strict=True)],
    }


async def _ours(session: Session, concurrency: int, count: int) -> Figures:
    """As the tools do it: some requests to warm up, then `count`, ramps included."""

    async def load(requests: int, **options: bool) -> Any:
        with failing_if_stalled(Phase.PEAK):
            run = await closed_loop(
                session.endpoint,
                lambda index: session.prompts.request(index, **options),
                concurrency,
                clock=session.clock,
                more=lambda reply: True,
                indices=itertools.islice(session.new_indices(), requests),
            )
        check_faults(run, Phase.PEAK, session)
        return run

    warm = await load(max(2, concurrency), usage_in_chunks=True)
    run = await load(count)
    seconds = max(reply.last for reply in run.ok) - min(reply.sent for reply in run.ok)
    found = latencies(run.ok, first_delta_tokens(warm.ok))
    return {
        "tok_s": run.tokens / seconds,
        "ttft_ms": found.get("p50_ttft_ms", float("nan")),
        "tpot_ms": found.get("p50_tpot_ms", float("nan")),
    }


def _write_prompts(session: Session, path: Path, count: int) -> None:
    """Our prompts as ShareGPT conversations, each under a head never sent before."""
    rows = []
    for index in itertools.islice(session.new_indices(), count):
        body = json.loads(session.prompts.request(index).body)
        turns = [{"from": "human", "value": body["messages"][0]["content"]}]
        rows.append({"conversations": [*turns, {"from": "gpt", "value": "So it is. " * 8}]})
    random.Random(0).shuffle(rows)
    path.write_text(json.dumps(rows))


def _unlike(tool: Tool, theirs: Figures, job: Job) -> str | None:
    """A warning if the other tool's load was not the one that was asked for: no fair comparison."""
    completed = theirs.get("completed", job.requests)
    if completed < job.requests:
        return (
            f"{tool.name} had {completed:.0f} of {job.requests} requests answered: not comparable"
        )
    length = theirs.get("answer_tokens", job.output_tokens)
    if abs(length - job.output_tokens) <= 0.02 * job.output_tokens:
        return None
    return (
        f"{tool.name}'s answers had {length:.0f} tokens, ours {job.output_tokens}: not comparable"
    )


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {name: sorted(r[name] for r in rounds)[len(rounds) // 2] for name in FIGURE_NAMES}


def verify_text(report: Report) -> str:
    """The report as a table for people."""
    lines = [
        f"{report['url']}: {report['model']}, {report['input_tokens']} tokens in, "
        f"{report['output_tokens']} out, medians of {report['rounds']} rounds",
        f"{'':>11} {'tok/s':>23} {'TTFT ms':>19} {'TPOT ms':>19}",
        "concurrency    autotune "
        + f"{report['tool']:>11} {'autotune':>9} {report['tool']:>9}"
        + f" {'autotune':>9} {report['tool']:>9}  ratio",
    ]
    for level in report["levels"]:
        ours, theirs = level["ours"], level["theirs"]
        lines.append(
            f"{level['concurrency']:>11} {ours['tok_s']:>11.1f} {theirs['tok_s']:>11.1f} "
            f"{ours['ttft_ms']:>9.1f} {theirs['ttft_ms']:>9.1f} "
            f"{ours['tpot_ms']:>9.2f} {theirs['tpot_ms']:>9.2f}  {level['ratio']:.3f}"
        )
    lines += [f"warning: {warning}" for warning in report["warnings"]]
    return "\n".join(lines)
