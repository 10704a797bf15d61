"""The main job from the command line: a simulated machine, and a real engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import reaper
from autotune.machine import free_port
from tests.vllm_cpu import ENGINE

ROOT = Path(__file__).parents[1]


def autotune(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def shown(run: Path) -> dict[str, Any]:
    done = autotune("show", run, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def left_running(run: Path) -> set[int]:
    """Processes that carry the mark of one of the run's trials."""
    facts = [json.loads(path.read_text()) for path in run.glob("trials/*/processes.json")]
    assert facts, "no trial was launched"
    return {pid for fact in facts for pid in reaper.members(fact["mark"], fact["server"])}


def small_space(path: Path, **changes: object) -> Path:
    """The shipped Kimi file, with a small workload and few parameters to keep a search short."""
    space = yaml.safe_load((ROOT / "search_spaces" / "kimi.yaml").read_text())
    space["workload"] = {"input_tokens": 128, "output_tokens": 64, "peak_concurrency": 16}
    space["budget"] = {"trials": 6}
    space |= changes
    path.write_text(yaml.safe_dump(space, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished simulated study, in a shell that was given one GPU of the host (as by Slurm)."""
    folder = tmp_path_factory.mktemp("kimi")
    path, space = folder / "run", small_space(folder / "kimi.yaml")
    options = ("--simulate", "--run-dir", path, "--seed", 3)
    done = autotune("search", space, *options, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATION" in done.stdout
    return path


def test_a_search_ends_with_a_front_that_starts_at_the_known_good(run: Path) -> None:
    document = shown(run)
    searched = [t for t in document["trials"] if t["state"] in ("ok", "infeasible")]
    assert document["baseline"] == 0
    assert document["front"]
    assert document["engine_versions"]
    assert all(t["values"] for t in searched if t["state"] == "ok")
    best = max(t["values"]["single_stream_tok_s"] for t in searched if t["state"] == "ok")
    assert best > searched[0]["values"]["single_stream_tok_s"]


def test_every_command_that_shows_a_simulated_figure_says_so(run: Path) -> None:
    for arguments in (("explain", run), ("status", run), ("compare", run, run)):
        assert autotune(*arguments).stdout.startswith("SIMULATION: "), arguments
    for arguments in (("show", run), ("report", run, "--format", "md")):
        assert "simulated" in autotune(*arguments).stdout, arguments
    json.loads(autotune("explain", run, "--json").stdout)


def test_a_search_that_is_over_is_said_to_be(run: Path) -> None:
    assert "finished: 6 trials" in autotune("status", run).stdout.splitlines()


def test_the_front_and_the_baseline_were_launched_again(run: Path) -> None:
    outcomes = [json.loads(path.read_text()) for path in sorted(run.glob("trials/*/outcome.json"))]
    repeats = {o["repeats"] for o in outcomes if o["purpose"] == "finalist"}
    assert 0 in repeats
    assert len(repeats) >= 2
    assert len([o for o in outcomes if o["purpose"] != "finalist"]) == 6


def test_a_trial_folder_alone_is_enough_to_run_it_again(run: Path) -> None:
    names = {path.name for path in (run / "trials" / "0000").iterdir()}
    assert {"launch.sh", "server.log", "timeline.json", "requests.jsonl", "outcome.json"} <= names
    assert oct(run.stat().st_mode)[-3:] == "700"


def test_nothing_is_left_running(run: Path) -> None:
    assert left_running(run) == set()


def test_resume_with_more_trials_continues_and_repeats_nothing(run: Path) -> None:
    before = {t["number"]: t["params"] for t in shown(run)["trials"]}
    space = run.parent / "kimi.yaml"
    done = autotune(
        "search", space, "--simulate", "--run-dir", run, "--resume", "--trials", 8, "--seed", 3
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [json.loads(path.read_text()) for path in sorted(run.glob("trials/*/outcome.json"))]
    assert {n: p for n, p in before.items() if n < len(before)} == {
        o["number"]: o["params"] for o in outcomes if o["number"] in before
    }
    searched = [o for o in outcomes if o["repeats"] is None]
    assert len(searched) == 8
    assert len({o["key"] for o in searched}) == 8
    assert [o["number"] for o in outcomes if o["purpose"] == "baseline"] == [0]


def test_a_run_that_exists_is_not_overwritten(run: Path) -> None:
    done = autotune("search", run.parent / "kimi.yaml", "--simulate", "--run-dir", run)
    assert done.returncode == 2
    assert "--resume continues it" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_changed_workload_is_refused_before_any_launch(run: Path) -> None:
    workload = {"input_tokens": 128, "output_tokens": 32, "peak_concurrency": 16}
    changed = small_space(run.parent / "changed.yaml", workload=workload)
    done = autotune("search", changed, "--simulate", "--run-dir", run, "--resume")
    assert done.returncode == 2
    assert "output_tokens" in done.stderr
    assert "--fork" in done.stderr


def test_an_engine_that_never_starts_ends_with_the_causes_counted(tmp_path: Path) -> None:
    space = small_space(tmp_path / "kimi.yaml", budget={"trials": 3})
    path = tmp_path / "run"
    done = autotune("search", space, "--simulate", "--run-dir", path, AUTOTUNE_SIM_FAULT="oom@load")
    assert done.returncode == 1, done.stdout + done.stderr
    counts = re.findall(r"(\d+)x out_of_memory during load", done.stderr)
    assert sum(map(int, counts)) == 3
    assert [t["state"] for t in shown(path)["trials"]] == ["infeasible"] * 3
    assert (path / "summary.json").exists()


# -- a real engine --------------------------------------------------------------------------
def answer(port: int, process: subprocess.Popen[bytes], seconds: float = 600.0) -> str:
    """The served model's first answer, as soon as it gives one."""
    base, deadline = f"http://127.0.0.1:{port}/v1", time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{base}/models", timeout=10) as response:
                model = json.load(response)["data"][0]["id"]
            body = json.dumps({"model": model, "prompt": "one", "max_tokens": 4}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{base}/completions", body, headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                text: str = json.load(response)["choices"][0]["text"]
                return text
        except OSError:  # refused, cut off, too slow
            time.sleep(1)
    raise AssertionError(f"no answer; exit status {process.poll()}")


@pytest.mark.engine
def test_a_real_engine_is_searched_and_its_exported_script_serves(tmp_path: Path) -> None:
    space = yaml.safe_load((ROOT / "search_spaces" / "vllm_cpu.yaml").read_text())
    good = {"eager": True, "max_num_seqs": 32}
    space["known_good"] = [
        {**good, "draft_tokens": 4, "block_size": None},
        {**good, "draft_tokens": 0, "block_size": 16},
    ]
    space |= {"budget": {"trials": 2}, "confirm": {"relaunches": 0}}
    path, run = tmp_path / "vllm.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(space))
    done = autotune("search", path, "--run-dir", run, AUTOTUNE_VLLM_CPU=str(ENGINE))
    assert done.returncode == 0, done.stdout + done.stderr
    document = shown(run)
    first, second = document["trials"][:2]
    assert document["front"] == [0]
    assert first["values"]["peak_tok_s"] > 0
    assert first["figures"]["single_accept_length"] > 1
    assert 0 < first["figures"]["single_accept_rate"] <= 1
    assert second["failure"]["kind"] == "unsupported"
    assert "No common block size for 16" in second["failure"]["cause"]
    assert left_running(run) == set()

    script, port = tmp_path / "serve.sh", free_port()
    exported = autotune("export", run)
    assert exported.returncode == 0, exported.stderr
    script.write_text(exported.stdout)
    environment = {**os.environ, "HOST": "127.0.0.1", "PORT": str(port)}
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            ["bash", script], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        assert answer(port, server)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        for pid in reaper.members("", server.pid):
            os.kill(pid, signal.SIGKILL)
