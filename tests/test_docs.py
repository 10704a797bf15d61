"""What the documentation shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from autotune.engines.registry import ENGINES, engine_named
from autotune.experiment import Experiment, load_experiment
from autotune.export import ELSEWHERE
from autotune.records import FailureKind, Outcome
from autotune.trial import TrialPlan, run_trial
from tests.runs import write_run

DOCS = Path(__file__).parent.parent / "docs"
STAND_IN = Path(__file__).parent / "stand_in_llama.py"


def block(page: str, mark: str) -> str:
    """The code block that follows a comment in a page."""
    text = (DOCS / page).read_text()
    found = re.search(rf"<!-- the {mark}:[^\n]*-->\n```\w+\n(.*?)```", text, re.S)
    assert found is not None, f"{page} has no {mark}"
    return found[1]


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Experiment:
    """The page's adapter, in the registry; its experiment, with the stand-in as its server."""
    module = ModuleType("autotune.engines.llamacpp")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block("add_an_engine.md", "example"), "add_an_engine.md", "exec"), module.__dict__)
    monkeypatch.setitem(ENGINES, "llamacpp", module.LlamaCpp())
    text = block("add_an_engine.md", "experiment")
    command = f"[{sys.executable}, {STAND_IN}]"
    text = text.replace("[llama-server]", command).replace("llamacpp:", "openai:")
    file = tmp_path / "llama.yaml"
    file.write_text(text + "measure: {answer_check: false}\n")
    experiment = load_experiment(file)
    # The second line, in experiment.py, cannot be written by a test: it is as if it had been.
    return experiment.model_copy(update={"engines": {"llamacpp": experiment.engines["openai"]}})


async def launched(experiment: Experiment, folder: Path, **params: object) -> Outcome:
    plan = TrialPlan(experiment, 0, {"parallel": 4} | params, folder / "trial", "baseline")
    return await run_trial(plan)


async def test_the_example_adapter_launches_and_measures_its_server(
    llama: Experiment, tmp_path: Path
) -> None:
    outcome = await launched(llama, tmp_path)
    assert outcome.state == "ok", outcome.failure
    assert outcome.engine == "llamacpp"
    assert outcome.values is not None and outcome.values["peak_tok_s"] > 0
    assert outcome.figures["kv_tokens"] == 8192
    assert {"load", "ready", "single", "peak"} <= set(outcome.seconds)


async def test_the_example_adapter_gives_a_failure_its_cause(
    llama: Experiment, tmp_path: Path
) -> None:
    section = llama.engines["llamacpp"].model_copy(update={"args": {"no-such-flag": 1}})
    broken = llama.model_copy(update={"engines": {"llamacpp": section}})
    outcome = await launched(broken, tmp_path)
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.BAD_FLAGS
    assert "invalid argument" in outcome.failure.cause


def test_the_example_is_about_sixty_lines() -> None:
    assert len(block("add_an_engine.md", "example").splitlines()) <= 70


def test_the_tutorial_s_experiment_is_valid() -> None:
    experiment = load_experiment(DOCS / "tutorial.yaml")
    assert engine_named("sglang").name in experiment.engines


def test_what_the_tutorial_teaches_is_measured_in_every_study_of_it() -> None:
    """Whether 14 trials find speculation by themselves is luck."""
    _, recommended = load_experiment(DOCS / "tutorial.yaml").known_good
    assert recommended["num_steps"] == 3
    assert recommended["attention_backend"] == "triton"


def test_the_tutorial_exports_only_what_a_simulated_study_can_give() -> None:
    commands = re.findall(r"^    autotune export .*", (DOCS / "tutorial.md").read_text(), re.M)
    assert len(commands) > 2
    assert not [line for line in commands if any(f"--format {name}" in line for name in ELSEWHERE)]


def test_every_link_between_pages_arrives() -> None:
    for page in (*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_failure_kind_is_described() -> None:
    text = (DOCS / "failures.md").read_text()
    for kind in FailureKind:
        assert f"`{kind}`" in text, kind


def test_commands_in_the_pages_exist(tmp_path: Path) -> None:
    """Every `autotune VERB` of a page is a command of the program."""
    from typer.main import get_command

    from autotune.cli import app

    verbs = set(getattr(get_command(app), "commands"))  # noqa: B009
    for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"):
        used = set(re.findall(r"(?:^ {4}|`|\$ )autotune ([a-z]+)", page.read_text(), re.M))
        assert used <= verbs, f"{page.name}: {used - verbs}"


def test_the_synthetic_experiment_of_the_tests_is_one(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    assert (
        load_experiment(path / "experiment.yaml").name
        == yaml.safe_load((path / "experiment.yaml").read_text())["name"]
    )
