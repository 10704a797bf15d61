"""The experiment file: what is read, and that every mistake is one line with its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import InputError
from autotune.experiment import ENGINES, Experiment, estimated_hours, load_experiment
from autotune.experiment_reference import render

ROOT = Path(__file__).parents[1]

GOOD = """\
name: small
engines:
  sglang:
    command: [python, -m, sglang.launch_server]
    args: {model-path: M, tp-size: 8, trust-remote-code: true}
    env: {OMP_NUM_THREADS: 8}
  vllm: {command: [vllm, serve, M]}
parameters:
  engine: {choices: [sglang, vllm]}
  backend:
    choices: [triton, flashinfer]
    flag: attention-backend
    when: engine == 'sglang'
  steps:
    int: {low: 0, high: 5}
    when: engine == 'sglang'
    args: {speculative-num-steps: "{steps}"}
    args_when: steps > 0
  memory: {float: {low: 0.8, high: 0.9, step: 0.05}, flag: memory, when: engine == 'sglang'}
  proto: {choices: [null, LL], env: NCCL_PROTO}
forbid:
  - {if: steps > 3 and backend == 'triton', because: it crashes}
known_good:
  - {engine: sglang, backend: flashinfer, steps: 0}
"""


@pytest.fixture
def load(tmp_path: Path):
    def load_text(text: str | bytes) -> Experiment:
        path = tmp_path / "space.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_experiment(path)

    return load_text


@pytest.fixture
def mistake(load):
    """The message about a broken file, without the folder; always one line a mistake."""

    def message_of(text: str | bytes) -> str:
        with pytest.raises(InputError) as raised:
            load(text)
        lines = str(raised.value).splitlines()
        shown = [re.sub(r"^.*/space\.yaml", "space.yaml", line) for line in lines]
        assert all(line.startswith(("space.yaml:", "...")) for line in shown)
        return "\n".join(shown)

    return message_of


def test_the_good_file_is_read_with_its_defaults(load):
    experiment = load(GOOD)
    assert experiment.engines["sglang"].env == {"OMP_NUM_THREADS": "8"}
    assert experiment.gpus_per_trial == 8
    assert experiment.workload.peak_concurrency == 128
    assert experiment.parameters["proto"].choices == (None, "LL")


def change(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def changed(case: dict[str, Any]) -> str:
    text = case.get("text", GOOD + case.get("append", ""))
    for old, new in case.get("change", ()):
        assert old in text
        text = text.replace(old, new)
    return text


CASES = yaml.safe_load((Path(__file__).parent / "data" / "experiment_mistakes.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["expect"][:60] for case in CASES])
def test_a_mistake_is_one_line_with_its_place_and_what_would_be_right(mistake, case):
    assert case["expect"] in mistake(changed(case))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"name: \xff", "space.yaml:1: is not UTF-8 text"),
        (b"name: a\x00b", "space.yaml:1: is not YAML: special characters are not allowed"),
        (b"[" * 5000, "nested too deeply"),
        (b"#" * 1_000_001, "is larger than 1000 kB"),
    ],
)
def test_what_is_no_text_or_far_too_much_is_refused(mistake, raw, expected):
    assert expected in mistake(raw)


def test_several_mistakes_come_in_the_order_of_the_file(mistake):
    text = change("low: 0, high: 5", "low: a, high: 5").replace("name: small", "name: 7")
    lines = mistake(text).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["space.yaml:1", "space.yaml:15"]


def test_a_flag_may_come_from_two_places_that_never_meet(load):
    text = change("env: NCCL_PROTO", "flag: attention-backend, when: engine == 'vllm'")
    assert load(text).parameters["proto"].flag == "attention-backend"


def test_a_value_that_could_be_a_secret_is_not_repeated(mistake):
    text = change("env: {OMP_NUM_THREADS: 8}", "env: {API_KEY: [sk-1234567890]}")
    assert "sk-1234567890" not in mistake(text)


def test_yaml_of_the_older_kind_does_not_surprise(load):
    text = GOOD + 'budget: {hours: 1e1}\nworkload: {prompts: 12:30, seed: 010}\nlisten: "on"\n'
    experiment = load(text)
    assert experiment.budget.hours == 10
    assert experiment.workload.prompts == "12:30"
    assert experiment.workload.seed == 10
    assert experiment.listen == "on"


def test_a_small_file_cannot_expand_into_a_large_one(mistake):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{other}: &{other} [" + ", ".join([f"*{one}"] * 10) + "]\n"
    assert "too large" in mistake(bomb)


def test_a_missing_file_is_said_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"gone\.yaml: cannot be read: no such file"):
        load_experiment(tmp_path / "gone.yaml")


def test_an_experiment_made_in_python_is_checked_like_a_file():
    with pytest.raises(ValueError, match="no parameter"):
        Experiment.model_validate(
            {
                "name": "x",
                "engines": {"vllm": {"command": ["vllm"]}},
                "parameters": {"a": {"choices": [1], "flag": "a", "when": "b > 1"}},
            }
        )


def test_the_estimate_counts_starts_measurements_finalists_and_the_baseline(load):
    text = GOOD + "budget: {trials: 9}\nconfirm: {finalists: 1}\nstartup: {expected_minutes: 3}\n"
    assert estimated_hours(load(text)) == pytest.approx(11 * (3 + 3) / 60)
    assert estimated_hours(load(text.replace("trials: 9", "trials: 9, hours: 0.5"))) == 0.5


def test_the_engines_are_those_of_the_registry():
    registry = pytest.importorskip("autotune.engines.registry")
    assert {registry.engine_named(name).name for name in ENGINES} == set(ENGINES)


def test_the_reference_page_is_current():
    page = (ROOT / "docs" / "experiment.md").read_text()
    assert page == render(), "run: python -m autotune.experiment_reference > docs/experiment.md"


def test_reading_a_file_does_not_import_what_only_a_search_needs():
    code = (
        "import sys; from pathlib import Path; from autotune.experiment import load_experiment; "
        "from autotune.space import Space; "
        "space = Space(load_experiment(Path('search_spaces/kimi.yaml'))); "
        "space.size(); space.settings(space.known_good[0]); "
        "print([m for m in ('optuna', 'ray', 'pandas', 'numpy', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
