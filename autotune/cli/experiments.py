"""From an experiment file to a study: init, check, search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.app import Quiet, SpaceFile, app
from autotune.errors import InputError


@app.command()
def init(
    model: Annotated[str, typer.Option(help="a model's folder or its name on the hub")],
    engine: Annotated[str, typer.Option(help="sglang, vllm or both: sglang,vllm")] = "sglang,vllm",
    gpus: Annotated[int, typer.Option(help="GPUs of one server")] = 8,
    gpu: Annotated[
        str | None, typer.Option(help="kind of GPU, e.g. rtx-pro-6000; default: this host's")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; default: print")] = None,
) -> None:
    """Write an experiment file for a model and a host.

    Example: autotune init --model moonshotai/Kimi-K2.5 --gpu rtx-pro-6000 --out kimi.yaml
    """
    from autotune.init import write_experiment

    file = write_experiment(model, [name.strip() for name in engine.split(",")], gpus, gpu)
    for warning in file.warnings:
        print(f"autotune: {warning}", file=sys.stderr)
    if out is None:
        print(file.text, end="")
        return
    if out.exists():
        raise InputError("exists already; choose another --out", file=out)
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent}", field="--out")
    out.write_text(file.text, encoding="utf-8")
    print(f"wrote {out}; next: autotune check {out}")


@app.command()
def check(
    space: SpaceFile,
    preflight: Annotated[
        bool,
        typer.Option("--preflight", help="ask the engine's own parser about each known-good entry"),
    ] = False,
) -> None:
    """Validate an experiment file; nothing is launched and no GPU is needed.

    Example: autotune check search_spaces/kimi.yaml
    """
    from autotune.check import check_lines, preflight_lines

    for line in check_lines(space):
        print(line)
    if preflight:
        for line in preflight_lines(space):
            print(line)


@app.command()
def search(
    space: SpaceFile,
    run_dir: Annotated[Path | None, typer.Option(help="new or empty; default: runs/NAME")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="instead of budget.trials")] = None,
    hours: Annotated[float | None, typer.Option(min=0.0, help="instead of budget.hours")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the sampler")] = 0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="against simulated servers: no GPU used")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run in the run directory")
    ] = False,
    fork: Annotated[
        bool,
        typer.Option(
            "--fork", help="start a new run, seeded with the old results that still apply"
        ),
    ] = False,
    from_run: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="RUN", help="seed with this run's results (repeatable)"),
    ] = None,
    address: Annotated[str | None, typer.Option(help="of a Ray cluster; default: here")] = None,
    allow_mixed: Annotated[
        bool,
        typer.Option(
            "--allow-mixed", help="hosts may differ; each is compared by its own baseline"
        ),
    ] = False,
    storage: Annotated[
        str | None, typer.Option(help="postgresql://… or journal:FILE; default: SQLite")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a study: launch, measure and compare configurations until the budget is spent.

    Example: autotune search search_spaces/kimi.yaml --simulate --trials 40
    """
    from autotune.live import live_view
    from autotune.search import SearchOptions
    from autotune.search import search as run_search

    options = SearchOptions(
        space=space,
        run_dir=run_dir,
        trials=trials,
        hours=hours,
        seed=seed,
        simulate=simulate,
        resume=resume,
        fork=fork,
        from_runs=tuple(from_run or ()),
        address=address,
        allow_mixed=allow_mixed,
        storage=storage,
    )
    with live_view(quiet=quiet) as view:
        end = run_search(options, view.show)
    for line in view.closing_lines(end):
        print(line)
