"""What the commands share: the application, their common arguments, how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from autotune import __version__

app = typer.Typer(
    name="autotune",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
engine_app = typer.Typer(help="Engines that autotune can set up itself.", no_args_is_help=True)
app.add_typer(engine_app, name="engine")

SpaceFile = Annotated[Path, typer.Argument(metavar="SPACE", help="the experiment file (YAML)")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run directory, runs/NAME")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only the end")]
TrialNumber = Annotated[int | None, typer.Option("--trial", help="number of a trial")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def autotune(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="print the version and end"
        ),
    ] = False,
) -> None:
    """Find the best launch configuration of an LLM inference server by measuring it."""


def print_figures(
    document: Callable[[], object], text: Callable[[], str], json_: bool, *, simulated: bool
) -> None:
    """One of the two. The text has a word before it where its figures are simulated; a document
    for programs is nothing but itself."""
    from autotune.live import SIMULATION

    said = json.dumps(document(), indent=1) if json_ else text()
    if simulated and not json_:
        print(SIMULATION)
    print(said)


def on_the_way(quiet: bool) -> Callable[[str], None]:
    """Where a command says how far it is: standard error, which is no part of a document."""

    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    return say
