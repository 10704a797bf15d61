"""From parameters to a launch: conditions, canonical form, keys, and what an edit changes."""

from __future__ import annotations

import json
import warnings

import optuna
import pytest

from autotune.errors import InputError
from autotune.experiment import Experiment
from autotune.experiment_errors import validated
from autotune.space import Space, space_changes
from autotune.yaml_lines import parse_yaml

TEXT = """\
name: small
gpus_per_trial: 8
engines:
  sglang:
    command: [python, -m, sglang.launch_server]
    args: {model-path: "{served_name}", tp-size: 8, trust-remote-code: true}
    env: {OMP_NUM_THREADS: 8}
  vllm:
    command: ["${VENV:-~/venv}/bin/vllm", serve, M]
parameters:
  engine: {choices: [sglang, vllm]}
  steps:
    int: {low: 0, high: 5}
    when: engine == 'sglang'
    args:
      speculative-num-steps: "{steps}"
      speculative-num-draft-tokens: "{steps + 1}"
      speculative-config: {method: eagle3, tokens: "{steps}", greedy: "{greedy}"}
    env: {ACCEPT_LENGTH: "{[1.0, 1.83, 2.43, 2.88, 3.24, 3.46][steps]}"}
    args_when: steps > 0
  greedy: {choices: [true, false], when: steps > 0}
  graph: {choices: [true, false], flag_when_false: disable-cuda-graph, when: engine == 'sglang'}
  mixed: {choices: [true, false], flag: enable-mixed-chunk, when: engine == 'sglang'}
  memory:
    float: {low: 0.8, high: 0.92, step: 0.05}
    flag: mem-fraction-static
    when: engine == 'sglang'
    prior: 0.85
  proto: {choices: [null, LL], env: NCCL_PROTO}
  ipc: {choices: [false, true], env: PCIE_IPC}
  channels:
    choices: [null, 8]
    env:
      NCCL_MIN_NCHANNELS: "{channels}"
      NCCL_MAX_NCHANNELS: "{channels * 2 if channels != null else null}"
forbid:
  - {if: steps > 3 and not graph, because: too slow to measure}
known_good:
  - {engine: sglang, steps: 0}
  - {engine: vllm}
  - {engine: sglang, steps: 0, proto: null}
"""


def experiment_of(text: str) -> Experiment:
    return validated(Experiment, parse_yaml(text, "space.yaml"))


def edited(old: str, new: str) -> Experiment:
    assert old in TEXT
    return experiment_of(TEXT.replace(old, new))


@pytest.fixture
def space() -> Space:
    return Space(experiment_of(TEXT))


SPECULATING = {"engine": "sglang", "steps": 3, "greedy": True, "graph": False, "mixed": True,
               "memory": 0.85, "proto": "LL", "ipc": True, "channels": 8}  # fmt: skip


def test_a_configuration_becomes_arguments_and_variables(space):
    settings = space.settings(SPECULATING)
    assert settings.engine == "sglang"
    assert settings.command == ("python", "-m", "sglang.launch_server")
    assert settings.args == {
        "model-path": "{served_name}",
        "tp-size": 8,
        "trust-remote-code": True,
        "speculative-num-steps": 3,
        "speculative-num-draft-tokens": 4,
        "speculative-config": json.dumps({"method": "eagle3", "tokens": 3, "greedy": True}),
        "disable-cuda-graph": True,
        "enable-mixed-chunk": True,
        "mem-fraction-static": 0.85,
    }
    assert settings.env == {
        "OMP_NUM_THREADS": "8",
        "ACCEPT_LENGTH": "2.88",
        "NCCL_PROTO": "LL",
        "PCIE_IPC": "1",
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_MAX_NCHANNELS": "16",
    }


def test_null_and_false_leave_flags_and_variables_unset(space):
    params = {"engine": "sglang", "steps": 0, "graph": True, "mixed": False, "proto": None,
              "ipc": False, "memory": 0.8, "channels": None}  # fmt: skip
    settings = space.settings(params)
    assert settings.args.keys() == {
        "model-path",
        "tp-size",
        "trust-remote-code",
        "mem-fraction-static",
    }
    assert settings.env == {"OMP_NUM_THREADS": "8", "PCIE_IPC": "0"}


def test_only_parameters_that_apply_are_active(space):
    everything = {**SPECULATING, "engine": "vllm", "unknown": 1}
    assert space.active(everything) == {"engine": "vllm", "proto": "LL", "ipc": True, "channels": 8}
    assert "greedy" not in space.active({**SPECULATING, "steps": 0})
    assert list(space.active(dict(reversed(SPECULATING.items())))) == list(SPECULATING)


def test_two_spellings_of_one_launch_have_one_key(space):
    idle = {**SPECULATING, "steps": 0}
    assert space.key(idle) == space.key({**idle, "greedy": False})
    assert space.key(idle) == space.key({k: v for k, v in idle.items() if k != "greedy"})
    assert space.key(SPECULATING) != space.key({**SPECULATING, "greedy": False})
    assert space.key(SPECULATING) != space.key({**SPECULATING, "memory": 0.9})
    assert space.key({**SPECULATING, "memory": 0.85 + 1e-15}) == space.key(SPECULATING)
    reordered = dict(reversed(SPECULATING.items()))
    assert space.key(reordered) == space.key(SPECULATING)


def test_a_key_is_the_same_on_every_host_and_holds_no_secret(space, monkeypatch):
    params = {"engine": "vllm", "proto": None, "ipc": False, "channels": None}
    before = space.key(params)
    monkeypatch.setenv("VENV", "/opt/other")
    assert space.key(params) == before
    assert space.settings(params).command[0] == "/opt/other/bin/vllm"


def test_variables_of_the_host_are_filled_in_and_home_is_found(space, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("VENV", raising=False)
    assert space.settings({"engine": "vllm"}).command[0] == "/home/somebody/venv/bin/vllm"


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("VENV", raising=False)
    space = Space(edited("${VENV:-~/venv}", "${VENV}"))
    with pytest.raises(InputError, match="needs the environment variable VENV, which is not set"):
        space.settings({"engine": "vllm"})


def test_known_good_is_completed_and_without_repeats(space):
    first, second = space.known_good
    assert first == {"engine": "sglang", "steps": 0, "graph": True, "mixed": True, "memory": 0.85,
                     "proto": None, "ipc": False, "channels": None}  # fmt: skip
    assert second["engine"] == "vllm"
    assert all(space.invalid(params) is None for params in space.known_good)


def test_a_file_without_known_good_starts_from_every_default():
    text = TEXT[: TEXT.index("known_good:")]
    (only,) = Space(experiment_of(text)).known_good
    assert only["engine"] == "sglang"
    assert only["steps"] == 0


def test_forbidden_says_why(space):
    assert space.forbidden({**SPECULATING, "steps": 4}) == "too slow to measure"
    assert space.forbidden(SPECULATING) is None
    assert space.forbidden({**SPECULATING, "engine": "vllm", "steps": 4}) is None


def test_every_configuration_is_counted_once():
    small = TEXT[: TEXT.index("  graph:")] + "  proto: {choices: [null, LL], env: NCCL_PROTO}\n"
    # sglang: steps 0, and steps 1-5 times greedy; vllm: nothing. All times proto.
    assert Space(experiment_of(small)).size() == (1 + 5 * 2 + 1) * 2


def test_a_continuous_range_is_countless():
    space = Space(edited("high: 0.92, step: 0.05", "high: 0.92"))
    assert space.size() is None


def test_suggest_asks_only_for_what_applies_and_gives_configurations(space):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(60):
        trial = study.ask()
        params = space.suggest(trial)
        assert params == space.active(trial.params)
        assert all(len(str(value)) < 12 for value in params.values())
        assert trial.params.keys() == params.keys()
        assert space.invalid(params) in (None, "too slow to measure")
        assert trial.distributions == {name: space.distributions[name] for name in params}
        seen.add(params["engine"])
        study.tell(trial, 0.0)
    assert seen == {"sglang", "vllm"}


def test_distributions_reach_no_value_that_the_file_does_not_allow(space):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = space.distributions["memory"]
    assert (memory.low, memory.high, memory.step) == (0.8, 0.9, 0.05)


def test_parents_come_before_their_children_in_any_order_of_the_file():
    text = TEXT.replace("  engine: {choices: [sglang, vllm]}\n", "")
    text = text.replace("forbid:", "  engine: {choices: [sglang, vllm]}\nforbid:")
    names = list(Space(experiment_of(text)).distributions)
    assert names.index("engine") < names.index("steps") < names.index("greedy")


def test_a_prior_is_offered_with_values_of_the_parameter():
    prior = "prior: {default: 0.9, weight: 0.2, single: {'0.85': 1.1}, peak: {'0.9': 1.2}}"
    hint = Space(edited("prior: 0.85", prior)).priors["memory"]
    assert (hint.prefer, hint.weight) == (0.9, 0.2)
    assert hint.effects == {"single_stream_tok_s": {0.85: 1.1}, "peak_tok_s": {0.9: 1.2}}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("choices: [null, LL]", "choices: [null, LL, Simple]", "is one of null, LL, Simple"),
        ("high: 5}", "high: 7}", "is a whole number from 0 to 7"),
        ("prior: 0.85", "prior: 0.8", "parameters.memory.default: was 0.85, is 0.8"),
        ("because: too slow", "because: far too slow", "forbid"),
        ("known_good:", "budget: {trials: 60}\nknown_good:", "budget.trials: was 40, is 60"),
        (
            "known_good:",
            "measure: {limit_seconds: 30}\nknown_good:",
            "measure.limit_seconds: was 90, is 30",
        ),
    ],
)
def test_a_wider_space_continues(old, new, line):
    text = new.replace("[1.0, 1.83", "[1.0, 1.83")
    accept = "[1.0, 1.83, 2.43, 2.88, 3.24, 3.46]"
    new_text = TEXT.replace(old, text).replace(accept, accept[:-1] + ", 3.6, 3.7]")
    old_text = TEXT.replace(accept, accept[:-1] + ", 3.6, 3.7]")
    changes = space_changes(experiment_of(old_text), experiment_of(new_text))
    assert changes.incompatible == ()
    assert any(line in found for found in changes.compatible)
    assert changes.old_params_still_valid(SPECULATING)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("tp-size: 8,", "tp-size: 4,", "engines.sglang.args.tp-size: was 8, is 4"),
        ("serve, M]", "serve, N]", "engines.vllm.command: was ["),
        (
            "OMP_NUM_THREADS: 8",
            "OMP_NUM_THREADS: 16",
            "engines.sglang.env.OMP_NUM_THREADS: was 8, is 16",
        ),
        ("choices: [null, LL]", "choices: [null, Simple]", "is one of null, Simple"),
        (
            "flag: enable-mixed-chunk",
            "flag: enable-mixed",
            "mixed.flag: was enable-mixed-chunk, is enable-mixed",
        ),
        ("  ipc: {choices: [false, true], env: PCIE_IPC}\n", "", "parameters.ipc: is gone"),
        ("  ipc:", "  more: {choices: [1], flag: more}\n  ipc:", "parameters.more: is new"),
        (
            "known_good:",
            "workload: {output_tokens: 512}\nknown_good:",
            "workload.output_tokens: was 256, is 512",
        ),
        (
            "known_good:",
            "measure: {single_objective: decode}\nknown_good:",
            "measure.single_objective: was end_to_end, is decode",
        ),
        (
            "known_good:",
            "constraints: {p99_ttft_ms: 9}\nknown_good:",
            "constraints.p99_ttft_ms: is new, 9",
        ),
        ("gpus_per_trial: 8", "gpus_per_trial: 4", "gpus_per_trial: was 8, is 4"),
    ],
)
def test_what_changes_the_figures_refuses_with_the_difference(old, new, line):
    changes = space_changes(experiment_of(TEXT), edited(old, new))
    assert any(line in found for found in changes.incompatible), changes


def test_another_engine_with_parameters_of_its_own_continues():
    engine = "engines:\n  openai: {command: [./serve]}\n"
    parameter = "parameters:\n  depth: {choices: [1, 2], flag: depth, when: engine == 'openai'}\n"
    text = TEXT.replace("engines:\n", engine).replace("parameters:\n", parameter)
    text = text.replace("[sglang, vllm]", "[sglang, vllm, openai]")
    changes = space_changes(experiment_of(TEXT), experiment_of(text))
    assert changes.incompatible == ()
    assert "parameters.depth: is new" in changes.compatible
    assert changes.old_params_still_valid(SPECULATING)


def test_an_unchanged_file_has_no_differences():
    changes = space_changes(experiment_of(TEXT), experiment_of(TEXT))
    assert (changes.compatible, changes.incompatible) == ((), ())


def test_old_parameters_outside_a_narrower_space_do_not_apply():
    narrow = edited("choices: [null, LL]", "choices: [null, Simple]")
    changes = space_changes(experiment_of(TEXT), narrow)
    assert not changes.old_params_still_valid(SPECULATING)
    assert changes.old_params_still_valid({**SPECULATING, "proto": None})


def test_secrets_are_neither_compared_nor_shown():
    with_key = "env: {OMP_NUM_THREADS: 8, HF_TOKEN: hf_abcdefghijkl}"
    old = edited("env: {OMP_NUM_THREADS: 8}", with_key.replace("hf_abcdefghijkl", "'***'"))
    new = edited("env: {OMP_NUM_THREADS: 8}", with_key)
    assert space_changes(old, new).incompatible == ()
    trusting = "trust-remote-code: true"
    old, new = (edited(trusting, f"{trusting}, api-k: {key}") for key in ("'***'", "the-new-key"))
    assert space_changes(old, new).incompatible == ()
    served = "serve, M, --api-key, sk-1234567890]"
    changes = space_changes(edited("serve, M]", "serve, N]"), edited("serve, M]", served))
    assert "engines.vllm.command" in changes.incompatible[0]
    assert "sk-1234567890" not in str(changes.incompatible)
