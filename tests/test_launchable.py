"""What is said before anything starts: a variable without a value, too many or too few GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.check import check_lines, doctor_report
from autotune.cli import main
from autotune.engines.registry import engine_named
from autotune.errors import InputError
from autotune.experiment import load_experiment
from autotune.launchable import idle_gpus, refuse_unlaunchable
from tests.searching import Study

TEXT = """\
name: small
gpus_per_trial: 4
engines:
  sglang: {{command: [python, -m, sglang.launch_server], args: {{model-path: M, {sglang}}}}}
  vllm: {{command: [vllm, serve, {vllm}]}}
parameters:
  engine: {{choices: [sglang, vllm]}}
  {parameter}
  memory: {{choices: [0.8, 0.9], flag: mem-fraction-static, when: engine == 'sglang'}}
forbid:
  - {{if: "{forbid}", because: too many GPUs}}
"""
FULL = {"sglang": "tp-size: 4", "vllm": 'M, -tp, "4"'}


def write(folder: Path, **parts: str) -> Path:
    file = folder / "small.yaml"
    whole = {**FULL, "parameter": "", "forbid": "memory > 1"} | parts
    file.write_text(TEXT.format(**whole))
    return file


def refused(file: Path) -> str:
    with pytest.raises(InputError) as error:
        refuse_unlaunchable(load_experiment(file), file)
    return str(error.value)


def idle(file: Path) -> list[str]:
    experiment = load_experiment(file)
    refuse_unlaunchable(experiment, file)
    return idle_gpus(experiment)


@pytest.mark.parametrize(
    ("engine", "words", "gpus"),
    [
        ("sglang", "--tp-size 8", 8),
        ("sglang", "--tp 8 --pp-size=2", 16),
        (
            "sglang",
            "--tensor-parallel-size 2 --pipeline-parallel-size 3 --data-parallel-size 4",
            24,
        ),
        ("sglang", "--tp-size 8 --dp-size 2", 16),
        ("sglang", "--tp-size 8 --dp-size 2 --enable-dp-attention", 8),
        ("sglang", "--tp-size 8 --attn-dp-size 2 --ep-size 8", 8),
        ("sglang", "--tp-size 2 --tp-size 4", 4),
        ("vllm", "M -tp 8", 8),
        ("vllm", "M -tp=2 -pp 2 -dp 2", 8),
        ("vllm", "M --tensor_parallel_size 2 --data-parallel-size 4", 8),
        ("vllm", "M -tp 8 -dcp 8 --enable-expert-parallel", 8),
        ("vllm", "M -tp 2 -pcp 2", 4),
        ("vllm", "M -tp 2 -dp 16 --data-parallel-size-local 2", 4),
        ("sglang", "--tp-size 16 --nnodes 2", None),
        ("vllm", "M -tp 2 -dp 4 --data-parallel-rank 1", None),
        ("vllm", "M --config options.yaml", None),
        ("vllm", "M -tp 16 -n 2 -r 0 --master-addr 10.0.0.1", None),
        ("vllm", "M -tp 16 --distributed-executor-backend ray", None),
        ("vllm", "M -dp 16 -dpb=ray", None),
        ("vllm", "M -tp 8 --distributed-executor-backend mp", 8),
        ("sglang", "--tp-size 16 --use-ray", None),
        ("openai", "--tp-size 8", None),
        # A flag cut short is the one that begins so, for both engines' own parsers.
        ("sglang", "--tp-size 16 --nnode 2", None),
        ("sglang", "--tensor-parallel 8 --pp-s 2", 16),
        ("sglang", "--tp-size 2 --use-r", None),
        ("vllm", "M -tp 16 --nnode=2", None),
        ("vllm", "M --tensor_par 4 --pipe 2", 8),
        ("vllm", "M -tp 2 --data-parallel-size 8 --data-parallel-size-loc 2", 4),
        ("vllm", "M -tp 2 --distributed-ex ray", None),
        ("vllm", "M -tp 2 --data-parallel 8", 2),  # ambiguous: vLLM refuses it
    ],
)
def test_the_gpus_of_a_server_are_those_that_its_engine_will_use(engine, words, gpus):
    sizes = engine_named(engine).parallel_sizes(words.split())
    product = 1
    for size in (sizes or {}).values():
        product *= size
    assert (None if sizes is None else product) == gpus


def test_a_file_that_fits_its_gpus_has_nothing_said_of_it(tmp_path):
    assert idle(write(tmp_path)) == []


def test_more_gpus_than_a_trial_gets_are_refused_in_one_line(tmp_path):
    file = write(tmp_path, sglang="tp: 4, pp-size: 2")
    assert refused(file) == (
        f"{file}:2: gpus_per_trial: is 4, but engine = sglang needs 8 GPUs (tp_size 4 x "
        "pp_size 2): raise it, or leave out or forbid what does not fit"
    )
    assert "engine = vllm needs 8 GPUs" in refused(write(tmp_path, vllm='M, -tp, "8"'))


def test_all_that_need_too_many_gpus_are_named_the_largest_first(tmp_path):
    assert (
        "is 4, but engine = vllm needs 16 GPUs (tensor_parallel_size 16), engine = sglang 8 "
        in (both := refused(write(tmp_path, sglang="tp-size: 8", vllm='M, -tp, "16"')))
    )
    assert "(tp_size 8): raise it" in both
    many = TP.replace("8]", "8, 16, 32, 64]")
    assert ", and 1 more: raise it" in refused(write(tmp_path, parameter=many, sglang="pp-size: 1"))


TP = "tp: {choices: [2, 4, 8], flag: tp-size, when: engine == 'sglang'}"


def test_a_value_of_the_space_counts_unless_it_is_forbidden(tmp_path):
    said = refused(write(tmp_path, parameter=TP, sglang="pp-size: 1"))
    assert "engine = sglang, tp = 8 needs 8 GPUs (tp_size 8): raise it" in said
    allowed = write(tmp_path, parameter=TP, sglang="pp-size: 1", forbid="tp == 8")
    (warning,) = idle(allowed)
    assert warning.startswith("of 4 GPUs a trial, engine = sglang, tp = 2 uses 2 by its flags")


def test_two_values_that_fit_may_not_fit_together(tmp_path):
    pp = "pp: {choices: [1, 2], args: {pp-size: '{pp}'}, when: engine == 'sglang'}"
    space = {"parameter": f"{TP.replace(', 8]', ']')}\n  {pp}", "sglang": "ep-size: 1"}
    assert "engine = sglang, tp = 4, pp = 2 needs 8 GPUs" in refused(write(tmp_path, **space))
    (warning,) = idle(write(tmp_path, **space, forbid="tp * pp > 4"))
    assert "a trial, engine = sglang, tp = 2, pp = 1 uses 2 by its flags: the" in warning


def test_a_server_without_gpus_may_have_as_many_ranks_as_it_likes(tmp_path):
    file = write(tmp_path, sglang="tp-size: 8")
    file.write_text(file.read_text().replace("gpus_per_trial: 4", "gpus_per_trial: 0"))
    assert idle(file) == []


def test_check_warns_of_idle_gpus_and_refuses_before_it_calls_a_file_valid(tmp_path):
    lines = list(check_lines(write(tmp_path, sglang="tp-size: 2")))
    assert "warning: of 4 GPUs a trial, engine = sglang uses 2 by its flags" in "\n".join(lines)
    with pytest.raises(InputError):
        next(check_lines(write(tmp_path, sglang="tp-size: 8")))


def test_every_variable_without_a_value_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SET", "x")
    parameter = 'proto: {choices: ["${SET}", "${UNSET_B}"], env: NCCL_PROTO}'
    file = write(tmp_path, vllm='"${UNSET_A}/M", "${OTHER:-4}"', parameter=parameter)
    file.write_text(file.read_text() + 'workload: {prompts: "${UNSET_C}/p.jsonl"}\n')
    first, second, third = refused(file).splitlines()
    needs = "${UNSET_A} needs the environment variable UNSET_A, which is not set"
    assert first.startswith(f"{file}:5: engines.vllm.command[2]: {needs}")
    assert second.startswith(f"{file}:8: parameters.proto.choices[1]: ${{UNSET_B}} needs")
    assert third.startswith(f"{file}:12: workload.prompts: ${{UNSET_C}} needs")


@pytest.mark.parametrize("command", ["check", "search", "doctor"])
def test_no_command_goes_on_with_a_variable_that_is_not_set(command, tmp_path, capsys):
    file = write(tmp_path, vllm='"${UNSET_A}/M"')
    options = ["--simulate", "--run-dir", str(tmp_path / "run")] if command == "search" else []
    with pytest.raises(SystemExit) as ended:
        main([command, str(file), *options])
    seen = capsys.readouterr()
    assert (ended.value.code, seen.out) == (2, "")
    assert seen.err.startswith(f"autotune: {file}:5: engines.vllm.command[2]: ${{UNSET_A}} needs")
    assert not (tmp_path / "run").exists()


def test_doctor_looks_for_the_program_that_a_variable_names(tmp_path, monkeypatch):
    monkeypatch.setenv("PROGRAM", "/bin/sh")
    file = write(tmp_path)
    file.write_text(file.read_text().replace("[vllm, serve", '["${PROGRAM}", serve'))
    _, text, _ = doctor_report(file)
    assert "vllm: /bin/sh is not on this host" not in text
    assert "${PROGRAM}" not in text


def test_a_search_says_what_check_says_of_its_gpus(tmp_path):
    study = Study(tmp_path)
    study.write(trials=1)
    file = tmp_path / "small.yaml"
    text = file.read_text()
    file.write_text(text.replace("gpus_per_trial: 8", "gpus_per_trial: 2"))
    status, output = study.search()
    assert status == 2
    assert "gpus_per_trial: is 2, but engines.sglang needs 8 GPUs (tp_size 8)" in output
    assert not study.run.exists()
    file.write_text(text.replace("tp-size: 8", "tp-size: 4"))
    _, output = study.search()
    assert "of 8 GPUs a trial, engines.sglang uses 4 by its flags" in output
