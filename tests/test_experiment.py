"""The experiment file: what is read, and that every mistake is one line with its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
  memory: {float: {low: 0.8, high: 0.9, step: 0.05}, flag: mem-fraction-static, when: engine == 'sglang'}
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
    assert GOOD.count(old) >= 1
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (change("name: small", "nmae: small"), "space.yaml:1: nmae: unknown key; did you mean name?"),
        (change("    choices: [triton", "    choises: [triton"), "space.yaml:11: parameters.backend.choises: unknown key; did you mean choices?"),
        (change("  vllm: {command", "  vlm: {command"), "space.yaml:7: engines.vlm: unknown engine; did you mean vllm? valid: openai, sglang, vllm"),
        (change("when: engine == 'sglang'", "when: engin == 'sglang'"), "space.yaml:13: parameters.backend.when: engin is no parameter; did you mean engine?"),
        (change("when: engine == 'sglang'", "when: engine == sglang"), "space.yaml:13: parameters.backend.when: sglang is no parameter; valid: backend, engine, memory, proto, steps; text needs quotes: 'sglang'"),
        (change("when: engine == 'sglang'", "when: steps > 0") .replace("    int: {low: 0, high: 5}\n    when: engine == 'sglang'", "    int: {low: 0, high: 5}\n    when: backend == 'triton'"), "space.yaml:13: parameters.backend.when: conditions wait for each other: backend -> steps -> backend"),
        (change("choices: [triton, flashinfer]", "choices: []"), "space.yaml:11: parameters.backend.choices: is empty: give at least one value"),
        (change("choices: [null, LL]", "choices: [1, true]"), "space.yaml:20: parameters.proto.choices: holds true twice"),
        (change("low: 0, high: 5", "low: 6, high: 5"), "space.yaml:15: parameters.steps.int: low 6 is above high 5: exchange them"),
        (change("low: 0, high: 5", "low: zero, high: 5"), "space.yaml:15: parameters.steps.int.low: must be a valid integer"),
        (change("low: 0, high: 5", "low: 0, high: 5, log: true"), "space.yaml:15: parameters.steps.int: log needs low >= 1"),
        (change("step: 0.05", "step: 0.5"), "parameters.memory.float: step 0.5 is larger than the range"),
        (change("args: {model-path: M,", "args: {model-path: M, attention-backend: fa3,"), "space.yaml:12: parameters.backend.flag: the flag attention-backend is given twice, also by engines.sglang.args.attention-backend: keep one"),
        (change("args: {model-path: M,", "args: {model-path: M, --model-path: N,"), "space.yaml:5: engines.sglang.args: --model-path is given twice: keep one"),
        (change("env: NCCL_PROTO", "env: OMP_NUM_THREADS"), "space.yaml:20: parameters.proto.env: the variable OMP_NUM_THREADS is given twice"),
        (GOOD + "name: again\n", "space.yaml:25: name: is given twice (first in line 1): keep one"),
        ("{[", "space.yaml:1: is not YAML: "),
        (GOOD + "\t- x", "space.yaml:25: is not YAML: "),
        ("just text", "space.yaml:1: must be a mapping of keys, such as name,"),
        ("", "is empty; `autotune init` writes a file to start from"),
        (b"name: \xff", "space.yaml:1: is not UTF-8 text"),
        (b"name: a\x00b", "space.yaml:1: is not YAML: special characters are not allowed"),
        ("[" * 5000, "nested too deeply"),
        ("a: &a [x]\nb: !!python/object:os.system x", "space.yaml:2: b: the tag tag:yaml.org,2002:python/object:os.system is not supported"),
        (change("backend: flashinfer, steps", "backend: fa3, steps"), "space.yaml:24: known_good[0].backend: must be one of triton, flashinfer, not fa3"),
        (change("steps: 0}", "steps: 9}"), "known_good[0].steps: must be a whole number from 0 to 5, not 9"),
        (change("steps: 0}", "steps: 0, memory: 0.82}"), "known_good[0].memory: must be a number from 0.8 to 0.9 in steps of 0.05, not 0.82"),
        (change("backend: flashinfer, steps: 0", "backend: triton, steps: 4"), "space.yaml:24: known_good[0]: is forbidden: it crashes (with the defaults memory = 0.8, proto = null)"),
        (change("{engine: sglang, backend: flashinfer, steps: 0}", "{engine: vllm, steps: 0}"), "known_good[0].steps: does not apply here (only when engine == 'sglang'): remove it"),
        (change("    command: [python, -m, sglang.launch_server]\n", ""), "space.yaml:3: engines.sglang.command: is missing: the program and its first arguments"),
        (change("[python, -m, sglang.launch_server]", "python -m sglang"), "space.yaml:4: engines.sglang.command: must be a list of words, such as [python, -m, sglang]"),
        (change("[python, -m, sglang.launch_server]", "[]"), "space.yaml:4: engines.sglang.command: is empty: name the program"),
        (change("trust-remote-code: true", "trust-remote-code: yes"), 'space.yaml:5: engines.sglang.args.trust-remote-code: write true for a switch, or "yes" for the text'),
        (change("name: small", "name: ../../escape"), "space.yaml:1: name: must be letters, digits, dot, dash or underscore"),
        (change("env: NCCL_PROTO", "env: CUDA_VISIBLE_DEVICES"), "CUDA_VISIBLE_DEVICES cannot be set: autotune sets it to the trial's GPUs"),
        (change('"{steps}"', '"{step}"'), "space.yaml:17: parameters.steps.args.speculative-num-steps: step is no parameter; did you mean steps?"),
        (change('"{steps}"', '"{[1, 2][steps]}"'), "parameters.steps.args.speculative-num-steps: `[1, 2][steps]`: 2 is no index of a list of 2 (from 0) (with steps = 2)"),
        (change('"{steps}"', '"{steps.real}"'), "`steps.real` uses an attribute (a dot)"),
        (change("env: NCCL_PROTO", "prior: LL"), "space.yaml:20: parameters.proto: changes nothing: give it a flag, env or args"),
        (change("env: NCCL_PROTO", "env: NCCL_PROTO, prior: Simple"), "parameters.proto.prior: must be one of null, LL, not Simple"),
        (change("choices: [sglang, vllm]", "choices: [sglang]"), "space.yaml:9: parameters.engine.choices: leaves out engines.vllm: add it, or remove that section"),
        (change("  engine: {choices: [sglang, vllm]}\n", "").replace("engine == 'sglang'", "proto == 'LL'").replace("engine: sglang, ", ""), "engines: several engines need `engine: {choices: [sglang, vllm]}`"),
        (GOOD + "constraints: {p99_tttf_ms: 4000}\n", "space.yaml:25: constraints.p99_tttf_ms: is no measured figure; did you mean p99_ttft_ms?"),
        (GOOD + "constraints: {p99_ttft_ms: .inf}\n", "must be a finite number, not .inf"),
        (GOOD + "workload: {input_tokens: 64, shared_prefix_tokens: 64}\n", "workload: shared_prefix_tokens must be below input_tokens (64), not 64"),
        (GOOD + "budget: {trials: 0}\n", "space.yaml:25: budget.trials: must be greater than or equal to 1, not 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place_and_what_would_be_right(mistake, text, expected):
    assert expected in mistake(text)


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


def test_the_estimate_counts_starts_measurements_and_repeats(load):
    text = GOOD + "budget: {trials: 9}\nconfirm: {finalists: 1}\nstartup: {expected_minutes: 3}\n"
    assert estimated_hours(load(text)) == pytest.approx(10 * (3 + 3) / 60)
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
