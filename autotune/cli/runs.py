"""What is in a run, and what can be taken out of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.app import Json, RunArgument, TrialNumber, app, print_figures


@app.command()
def status(run: RunArgument, json_: Json = False) -> None:
    """Say what a running search is doing, from another terminal.

    Example: autotune status runs/kimi-k2.5
    """
    from autotune.live import status_text
    from autotune.run import read_run

    state = read_run(run)
    print_figures(
        lambda: dict(state.status), lambda: status_text(state), json_, simulated=state.simulated
    )


@app.command()
def logs(
    run: RunArgument,
    trial: TrialNumber = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="print what is added")] = False,
) -> None:
    """Print a trial's server log: the given trial's, or the newest.

    Example: autotune logs runs/kimi-k2.5 --trial 7 --follow
    """
    from autotune.live import print_log

    print_log(run, trial, follow)


@app.command()
def show(run: RunArgument, json_: Json = False) -> None:
    """Print a run's trials, front, baseline and failures by cause.

    Example: autotune show runs/kimi-k2.5 --json | jq .front
    """
    from autotune.run import read_run
    from autotune.show import show_document, show_tables

    if json_:
        print(json.dumps(show_document(read_run(run)), indent=1))
        return
    from rich.console import Console

    console = Console()
    for table in show_tables(read_run(run)):
        console.print(table)


@app.command()
def report(
    run: RunArgument,
    format_: Annotated[str, typer.Option("--format", help="html or md")] = "html",
    out: Annotated[Path | None, typer.Option(help="default: RUN/report.html, md: print")] = None,
) -> None:
    """Write the report: one HTML file that needs no network, or Markdown.

    Example: autotune report runs/kimi-k2.5
    """
    from autotune.report import write_report

    written = write_report(run, format_, out)
    print(written)


@app.command()
def explain(run: RunArgument, trial: TrialNumber = None, json_: Json = False) -> None:
    """Say why a configuration is fast or slow, from measured quantities.

    Example: autotune explain runs/kimi-k2.5 --trial 7
    """
    from autotune.explain import explain_document, explain_text
    from autotune.run import read_run

    state = read_run(run)
    print_figures(
        lambda: explain_document(state, trial),
        lambda: explain_text(state, trial),
        json_,
        simulated=state.simulated,
    )


@app.command()
def export(
    run: RunArgument,
    pick: Annotated[str | None, typer.Option(help="single, peak or knee (the default)")] = None,
    trial: TrialNumber = None,
    max_: Annotated[
        str | None, typer.Option("--max", help="objective to maximise: single or peak")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='with --max: "single_stream_tok_s >= 60"')
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="shell, docker, k8s, json or config")
    ] = "shell",
) -> None:
    """Print the launch command of a chosen configuration.

    Example: autotune export runs/kimi-k2.5 --pick knee > serve.sh
    """
    from autotune.export import export_text
    from autotune.run import read_run

    text, warnings = export_text(read_run(run), pick, trial, max_, where, format_)
    for warning in warnings:
        print(f"autotune: {warning}", file=sys.stderr)
    print(text, end="")


@app.command()
def replay(
    run: RunArgument,
    trial: Annotated[int, typer.Option(help="number of the trial to launch again")],
    json_: Json = False,
) -> None:
    """Launch and measure one trial again and compare with what was stored.

    Example: autotune replay runs/kimi-k2.5 --trial 7
    """
    from autotune.replay import replay_trial
    from autotune.run import read_run

    state = read_run(run)
    comparison = replay_trial(state, trial)
    print_figures(comparison.document, comparison.text, json_, simulated=state.simulated)


@app.command()
def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="a run directory")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="another")],
    json_: Json = False,
) -> None:
    """Compare two runs of one space, on two hosts or two engine versions.

    Example: autotune compare runs/kimi-0.5.21 runs/kimi-0.5.23
    """
    from autotune.compare import compare_runs, comparison_document, comparison_text
    from autotune.run import read_run

    runs = read_run(run_a), read_run(run_b)
    comparison = compare_runs(*runs)
    print_figures(
        lambda: comparison_document(comparison),
        lambda: comparison_text(comparison),
        json_,
        simulated=any(run.simulated for run in runs),
    )
