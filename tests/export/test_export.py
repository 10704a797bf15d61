"""What is exported starts the measured server in production, and never holds a secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cli import main
from autotune.errors import InputError
from autotune.export import FORMATS, export
from autotune.machine import free_port
from autotune.records import PEAK, SINGLE, Outcome, Override
from autotune.run import Run, read_run
from tests.patience import PATIENCE_SECONDS
from tests.runs import EXPERIMENT, baseline, failed, measured, write_run

SECRET = "hunter2hunter2"


def run_of(tmp_path: Path, *outcomes: Outcome, experiment=None) -> Run:
    return read_run(write_run(tmp_path / "run", *outcomes, experiment=experiment))


def with_command(*words: str, env: dict[str, str] | None = None, **fields) -> Outcome:
    plain = measured(1, 90, 2000)
    return measured(
        1, 90, 2000, command=(*plain.command, *words), env={**plain.env, **(env or {})}, **fields
    )


def test_the_script_has_the_flags_that_matter_and_not_what_measuring_added(tmp_path: Path) -> None:
    outcome = with_command("--decode-log-interval", "10", env={"NCCL_PROTO": "LL,LL128"})
    text = export(run_of(tmp_path, baseline(), outcome), 1).text
    assert "--attention-backend flashinfer" in text
    assert "--tp-size 8" in text
    assert "export NCCL_PROTO=LL,LL128" in text
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID" in text
    assert "--served-model-name acme/Tiny-1T" in text
    assert '--port "${PORT}"' in text
    for gone in ("AUTOTUNE_MARK", "TMPDIR", "41001", "127.0.0.1 ", "autotune-1", "decode-log"):
        assert gone not in text.replace("127.0.0.1 serves", "")


def test_what_the_experiment_itself_asks_for_stays(tmp_path: Path) -> None:
    engine = EXPERIMENT["engines"]["sglang"]
    asked = engine | {"args": engine["args"] | {"random-seed": 7}}
    outcome = with_command("--random-seed", "7")
    plain = export(run_of(tmp_path / "a", baseline(), outcome), 1).text
    experiment = EXPERIMENT | {"engines": {"sglang": asked}}
    kept = export(run_of(tmp_path / "b", baseline(), outcome, experiment=experiment), 1).text
    assert "--random-seed" not in plain
    assert "--random-seed 7" in kept


def test_the_script_says_what_was_measured_when_and_on_what(tmp_path: Path) -> None:
    text = export(run_of(tmp_path, baseline(), measured(1, 90, 2000)), 1).text
    assert "# synthetic, trial 1: sglang 0.5.23" in text
    assert "one request at a time: 90.0 ± 0.9 tok/s (+12.5 % against the baseline)" in text
    assert "peak: 2,000 ± 10 tok/s (+33.3 % against the baseline)" in text
    assert "Measured on 2026-03-01 on machine feedbeef" in text
    assert "input_tokens 1024" in text
    assert "# Launched once: these figures carry the luck of that." in text
    fresh = measured(2, 88, 1990, purpose="finalist", repeats=1)
    confirmed = export(run_of(tmp_path, baseline(), measured(1, 90, 2000), fresh), 1).text
    assert "Launched once" not in confirmed


def test_what_the_server_changed_is_warned_about(tmp_path: Path) -> None:
    override = Override(
        setting="max-running-requests", asked=128, effective=48, source="server_info"
    )
    warnings = ("max-running-requests: asked 128, the server runs 48 (server_info)",)
    outcome = measured(1, 90, 2000, overrides=(override,), warnings=warnings)
    exported = export(run_of(tmp_path, baseline(), outcome), 1)
    assert exported.warnings == ("max-running-requests: asked 128, the server ran 48",)
    assert "# WARNING: max-running-requests: asked 128, the server ran 48" in exported.text


@pytest.mark.parametrize("format", FORMATS)
def test_no_format_holds_a_secret_and_each_says_what_to_supply(tmp_path: Path, format: str) -> None:
    outcome = with_command(
        "--api-key", SECRET, f"--admin-api-key={SECRET}", env={"HF_TOKEN": SECRET, "X_URL": "a"}
    )
    exported = export(run_of(tmp_path, baseline(), outcome), 1, format)
    assert SECRET not in exported.text
    for name in ("API_KEY", "ADMIN_API_KEY", "HF_TOKEN"):
        assert name in exported.text
        assert any(warning.startswith(f"{name} is a secret") for warning in exported.warnings)


def test_what_is_masked_in_the_outcome_is_asked_for_too(tmp_path: Path) -> None:
    outcome = with_command("--kv-store", "redis://***@cache:6379", env={"HF_TOKEN": "***"})
    text = export(run_of(tmp_path, baseline(), outcome), 1).text
    assert "***" not in text
    assert '--kv-store "${KV_STORE}"' in text
    assert 'export HF_TOKEN="${HF_TOKEN:?' in text


def bash(text: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "serve.sh"
    script.write_text(text)
    environment = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(["bash", script], env=environment, capture_output=True, text=True)


ODD_WORDS = ['{"a": "b c"}', "it's", "$HOME", "`id`", "a\\b", "${PORT}0", "", "two\nlines", "-1"]


def test_every_word_reaches_the_server_as_it_was_measured(tmp_path: Path) -> None:
    """The script is run with a program that prints its arguments in place of the server."""
    printer = tmp_path / "print.py"
    printer.write_text("import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ODD']]))")
    odd = "; rm -rf $HOME '\""
    command = (sys.executable, str(printer), "--json-args", *ODD_WORDS, "--api-key", "***")
    outcome = measured(1, 90, 2000, command=command, env={"ODD": odd}, engine="openai")
    run = run_of(tmp_path, baseline(), outcome)
    done = bash(export(run, 1).text, tmp_path, API_KEY="a $b", PORT="9")
    assert json.loads(done.stdout) == [["--json-args", *ODD_WORDS, "--api-key", "a $b"], odd]


def test_the_script_names_the_secret_that_was_not_supplied(tmp_path: Path) -> None:
    outcome = with_command("--api-key", "***")
    done = bash(export(run_of(tmp_path, baseline(), outcome), 1).text, tmp_path)
    assert done.returncode != 0
    assert "API_KEY: a secret: set it yourself" in done.stderr


def answer_of(url: str, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as reply:
                return int(reply.status)
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the exported server did not answer")


def test_an_exported_server_of_unknown_flags_serves_where_it_is_told(tmp_path: Path) -> None:
    """Its port is found by the experiment's own `{port}`, not by a flag's name."""
    experiment = EXPERIMENT | {
        "engines": {
            "openai": {
                "command": [sys.executable, "-m", "http.server", "{port}"],
                "args": {"bind": "{host}"},
            }
        }
    }
    command = (sys.executable, "-m", "http.server", "41001", "--bind", "127.0.0.1")
    outcome = measured(1, 90, 2000, command=command, engine="openai")
    run = run_of(tmp_path, baseline(), outcome, experiment=experiment)
    script = tmp_path / "serve.sh"
    script.write_text(export(run, 1).text)
    port = free_port()
    env = {"PATH": os.environ["PATH"], "HOST": "127.0.0.1", "PORT": str(port)}
    process = subprocess.Popen(["bash", script], env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        assert answer_of(f"http://127.0.0.1:{port}/", process) == 200
    finally:
        process.kill()
        process.wait()


def test_json_is_one_document(tmp_path: Path) -> None:
    document = json.loads(
        export(run_of(tmp_path, baseline(), measured(1, 90, 2000)), 1, "json").text
    )
    assert document["trial"] == 1
    assert document["gpus"] == 8
    assert document["command"][:3] == ["python", "-m", "sglang.launch_server"]
    assert "${PORT}" in document["command"]
    assert "AUTOTUNE_MARK" not in document["env"]


def test_json_has_the_figures_of_fresh_launches(tmp_path: Path) -> None:
    again = measured(2, 84, 1900, purpose="finalist", repeats=1)
    run = run_of(tmp_path, baseline(), measured(1, 90, 2000), again)
    assert json.loads(export(run, 1, "json").text)["values"] == {SINGLE: 84.0, PEAK: 1900.0}


def test_the_manifest_deploys_the_measured_version_with_its_gpus_and_time_to_load(
    tmp_path: Path,
) -> None:
    outcome = with_command("--api-key", "***", env={"HF_TOKEN": "***"})
    text = export(run_of(tmp_path, baseline(), outcome), 1, "k8s").text
    assert "&id" not in text
    deployment, service = yaml.safe_load_all(text)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "lmsysorg/sglang:v0.5.23"
    assert container["command"] == ["python3"]
    assert container["args"][:2] == ["-m", "sglang.launch_server"]
    assert container["args"][-2:] == ["--api-key", "$(API_KEY)"]
    assert "0.0.0.0" in container["args"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    names = {variable["name"] for variable in container["env"] if "valueFrom" in variable}
    assert names == {"API_KEY", "HF_TOKEN"}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert "kubectl create secret generic synthetic-secrets" in text


@pytest.mark.parametrize(
    ("startup", "seconds"),
    [
        ({}, 3 * 3600),  # the experiment's default
        ({"limit_hours": 5}, 5 * 3600),
        ({"limit_hours": "2"}, 2 * 3600),  # a number to the experiment too
        ({"limit_hours": float("inf")}, 3 * 3600),  # the experiment takes none of these
        ({"limit_hours": float("nan")}, 3 * 3600),
        ({"limit_hours": -1}, 3 * 3600),
        ({"limit_hours": [2]}, 3 * 3600),
        ("fast", 3 * 3600),
        ({"limit_hours": 0.2}, 3 * 435),  # less than three times the measured start of 435 s
    ],
)
def test_kubernetes_waits_for_a_start_as_long_as_the_experiment_allows_one(
    tmp_path: Path, startup: Any, seconds: int
) -> None:
    experiment = EXPERIMENT | {"startup": startup}
    run = read_run(write_run(tmp_path / "run", baseline(), experiment=experiment))
    deployment, _ = yaml.safe_load_all(export(run, 0, "k8s").text)
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    allowed = probe["periodSeconds"] * probe["failureThreshold"]
    assert 0 <= allowed - seconds < 10
    assert deployment["spec"]["progressDeadlineSeconds"] > allowed  # counts the image's pull too


def test_a_start_without_end_stays_within_what_kubernetes_counts(tmp_path: Path) -> None:
    experiment = EXPERIMENT | {"startup": {"limit_hours": 1e306}}  # infinitely many seconds
    run = read_run(write_run(tmp_path / "run", baseline(), experiment=experiment))
    deployment, _ = yaml.safe_load_all(export(run, 0, "k8s").text)
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    for count in (probe["failureThreshold"], deployment["spec"]["progressDeadlineSeconds"]):
        assert 2**27 < count < 2**31


def test_the_docker_command_is_sound_shell_and_mounts_local_models(tmp_path: Path) -> None:
    local = tuple(
        "/models/tiny" if word == "acme/Tiny-1T" else word for word in measured(1, 1, 1).command
    )
    outcome = measured(1, 90, 2000, command=local, env={"HF_TOKEN": "***", "A": "b c"})
    text = export(run_of(tmp_path, baseline(), outcome), 1, "docker").text
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "docker").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (bin_dir / "docker").chmod(0o755)
    path = f"{bin_dir}:{os.environ['PATH']}"
    words = bash(text, tmp_path, PATH=path, HOME="/home/me").stdout.splitlines()
    assert words[0] == "run"
    assert "/models/tiny:/models/tiny:ro" in words
    assert words[words.index("--publish") + 1] == "8000:8000"
    assert "A=b c" in words
    assert words[words.index("HF_TOKEN") - 1] == "--env"
    image = words.index("lmsysorg/sglang:v0.5.23")
    assert words[image + 1 : image + 3] == ["-m", "sglang.launch_server"]
    assert words[image - 2 : image] == ["--entrypoint", "python3"]
    assert words[words.index("--port") + 1] == "8000"


def test_the_config_file_holds_flags_as_the_engine_reads_them(tmp_path: Path) -> None:
    outcome = with_command("--cuda-graph-bs", "1", "2", "4", "--api-key", "***", env={"A": "b"})
    text = export(run_of(tmp_path, baseline(), outcome), 1, "config").text
    settings = yaml.safe_load(text)
    assert settings["tp-size"] == 8
    assert settings["enable-metrics"] is True
    assert settings["cuda-graph-bs"] == [1, 2, 4]
    assert settings["port"] == 8000
    assert "api-key" not in settings
    assert '--config THIS_FILE.yaml --api-key "${API_KEY}"' in text
    assert "A=b" in text


def test_an_engine_without_a_config_file_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, baseline(), measured(1, 90, 2000, engine="openai"))
    with pytest.raises(InputError, match="no config file is known for openai; --format shell"):
        export(run, 1, "config")


def test_a_winner_that_failed_when_launched_again_is_exported_with_a_warning(
    tmp_path: Path,
) -> None:
    again = measured(2, 1, 1, state="infeasible", repeats=1, purpose="finalist")
    exported = export(run_of(tmp_path, baseline(), measured(1, 90, 2000), again), 1)
    said = "this trial has no complete measurement, or failed when launched again"
    assert exported.warnings == (said,)
    assert exported.text.count(f"WARNING: {said}") == 1


def test_a_trial_that_failed_is_said_to_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", baseline(), failed(1))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--trial", "1"])
    said = "trial 1 failed: out_of_memory during load: torch.OutOfMemoryError: CUDA out of memory."
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err == f"autotune: {said}\n"
    assert f"# WARNING: {said}" in out


@pytest.mark.parametrize("format", FORMATS)
def test_only_what_starts_here_is_exported_of_a_simulated_trial(
    tmp_path: Path, format: str
) -> None:
    """No image holds the simulated server, and the engine never served what was measured."""
    run = run_of(tmp_path, baseline(), measured(1, 90, 2000, simulated=True))
    if format in ("shell", "json"):
        assert "simulated server" in export(run, 1, format).text
        return
    with pytest.raises(InputError, match="trial 1 is simulated") as error:
        export(run, 1, format)
    assert f"exported as {format}; --format shell starts" in str(error.value)
