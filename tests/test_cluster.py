"""Searches over the nodes of a Ray cluster: who runs what, what a loss costs, what differs."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

import psutil
import pytest

from autotune.leash import PROCESSES_NAME
from tests.cluster import add_node, can_hide_folders, cluster, left_on_nodes, node_without
from tests.searching import Outcome, Study, ended, kill, only_line, wait_for

# The same eight-GPU machine with another driver is another host to a fingerprint.
H200 = {"env_vars": {"AUTOTUNE_SIM_HOST": "8x-h200"}}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def environment(study: Study, outcome: Outcome) -> dict[str, str]:
    """What the trial's server was launched with."""
    script = study.run / "trials" / f"{outcome['number']:04d}" / "launch.sh"
    exports = [line.removeprefix("export ") for line in script.read_text().splitlines()]
    return dict(line.split("=", 1) for line in exports if "=" in line)


def node_of(study: Study, outcome: Outcome) -> str:
    """The node that ran a trial, by its simulated machine."""
    return Path(environment(study, outcome)["AUTOTUNE_SIM_DIR"]).name


def niceness_of_servers(study: Study) -> set[int]:
    """How much the launched servers yield to other processes."""
    files = [folder / PROCESSES_NAME for folder in study.launched()]
    return {psutil.Process(json.loads(file.read_text())["server"]).nice() for file in files}


def test_trials_spread_over_the_nodes(study: Study) -> None:
    study.write(trials=4)
    with cluster(2) as nodes:
        status, output = study.search("--address", nodes.address)
    assert status == 0, output
    outcomes = study.outcomes()
    assert [outcome["state"] for outcome in outcomes] == ["ok"] * 4
    assert len({node_of(study, outcome) for outcome in outcomes}) == 2
    assert {outcome["host"] for outcome in outcomes} == {os.uname().nodename}


def test_a_node_started_with_gpus_that_it_has_not_is_one_clear_line(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(8, 16))))
    with cluster(1) as nodes:
        status, output = study.search("--address", nodes.address)
    assert status == 2, output
    assert re.search(r"names '\d+', but this host has GPUs 0 to 7", output), output
    assert "Traceback" not in output


def test_a_node_of_an_unknown_simulated_machine_is_one_clear_line(study: Study) -> None:
    study.write()
    with cluster(1, env_vars={"AUTOTUNE_SIM_HOST": "8x-h300"}) as nodes:
        status, output = study.search("--address", nodes.address)
    assert status == 2, output
    assert only_line(output).startswith("autotune: AUTOTUNE_SIM_HOST: unknown simulated host")
    assert "8x-h200" in output


def test_a_relative_run_directory_is_the_driver_s_not_the_nodes(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write(trials=1)
    nodes_folder = study.folder / "nodes"
    nodes_folder.mkdir()
    monkeypatch.chdir(nodes_folder)
    with cluster(1) as nodes:
        monkeypatch.chdir(study.folder)
        status, output = study.search("--address", nodes.address, "--run-dir", study.run.name)
    assert status == 0, output
    assert f"autotune show {study.run.name}" in output  # as it was typed
    names = {path.name for path in (study.run / "trials" / "0000").iterdir()}
    assert {"outcome.json", "server.log", "timeline.json", "launch.sh"} <= names
    assert not any(nodes_folder.iterdir())


@pytest.mark.parametrize("exclusive", [True, False])
def test_slots_of_one_host_share_nothing_and_are_measured_in_turn(
    study: Study, exclusive: bool
) -> None:
    measure = f"measure: {{limit_seconds: 20, exclusive_peak: {str(exclusive).lower()}}}"
    study.write(gpus=4, trials=4, more=measure)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("moonshotai/Kimi-K2.5", "Qwen/Qwen3-8B"))
    status, output = study.search()
    assert status == 0, output
    outcomes = study.outcomes()
    launched = [environment(study, outcome) for outcome in outcomes]
    assert {variables["CUDA_VISIBLE_DEVICES"] for variables in launched} == {"0,1,2,3", "4,5,6,7"}
    assert len({variables["TMPDIR"] for variables in launched}) == 4
    for outcome in outcomes:
        assert ("turn" in outcome["seconds"]) is exclusive
        assert any("ran on this host" in text for text in outcome["warnings"]) is not exclusive


def test_a_node_that_dies_costs_its_own_trials_alone(study: Study) -> None:
    study.write(trials=6)
    with cluster(1) as nodes:
        doomed = add_node(nodes)
        search = study.start("--address", nodes.address, speed=60)
        wait_for(lambda: len(study.outcomes()) >= 2 and study.has_launched(4), search)
        finished = study.outcomes()
        nodes.remove_node(doomed, allow_graceful=False)
        status, output = ended(search)
        assert status == 0, output
        assert not left_on_nodes(study.run)
    outcomes = study.outcomes()
    assert all(outcomes[outcome["number"]] == outcome for outcome in finished)
    lost = [outcome for outcome in outcomes if outcome["state"] == "lost"]
    ok = [outcome for outcome in outcomes if outcome["state"] == "ok"]
    assert len(lost) == 1  # one slot, one trial
    assert len(ok) == 6
    again = [outcome for outcome in ok if outcome["key"] == lost[0]["key"]]
    assert len(again) == 1  # elsewhere: its own node is gone
    assert f"trial {lost[0]['number']}: lost with {os.uname().nodename}" in output
    assert "(raylet)" not in output  # Ray's own pages about it


def test_a_killed_driver_leaves_nothing_on_any_node(study: Study) -> None:
    study.write(trials=6)
    with cluster(2) as nodes:
        search = study.start("--address", nodes.address, speed=60)
        wait_for(lambda: study.has_launched(2), search)
        if os.geteuid() == 0:  # another user may not undo what Ray did to its workers
            assert niceness_of_servers(study) == {os.getpriority(os.PRIO_PROCESS, 0)}
        kill(search)
        assert not left_on_nodes(study.run)
        status, output = study.search("--resume", "--address", nodes.address, "--trials", "3")
        assert status == 0, output
    states = [outcome["state"] for outcome in study.outcomes()]
    assert states.count("ok") == 3
    assert states.count("interrupted") == 2


def test_hosts_that_differ_are_refused_and_nothing_is_left_of_the_run(study: Study) -> None:
    study.write(trials=2)
    with cluster(1) as nodes:
        add_node(nodes, **H200)
        status, output = study.search("--address", nodes.address)
    assert status == 2
    assert "gpu.name: " in output
    assert "--allow-mixed" in output
    assert not study.run.exists()


def test_mixed_hosts_are_told_in_the_first_ones_figures(study: Study) -> None:
    study.write(trials=4)
    with cluster(1) as nodes:
        add_node(nodes, **H200)
        status, output = study.search("--address", nodes.address, "--allow-mixed")
        assert status == 0, output
        outcomes = study.outcomes()
        baseline = next(o for o in outcomes if o["purpose"] == "baseline")
        own = next(o for o in outcomes if o["purpose"] == "host_baseline")
        assert own["machine"] != baseline["machine"]
        others = [o for o in outcomes if o["machine"] == own["machine"] and o is not own]
        assert others
        assert own["values"] == pytest.approx(baseline["values"])
        factor = own["figures"]["host_factor_peak"]
        assert not 0.9 < factor < 1.1  # two very different machines
        for outcome in others:
            assert outcome["figures"]["host_factor_peak"] == pytest.approx(factor)
            measured = outcome["figures"]["peak_window_tok_s"]
            assert outcome["values"]["peak_tok_s"] == pytest.approx(measured * factor, rel=0.05)
            assert any("differs from the first host" in text for text in outcome["warnings"])
        assert sum(o["purpose"] != "host_baseline" for o in outcomes) == 4
        leave_untold(study, others[-1])
        status, output = study.search("--resume", "--address", nodes.address, "--allow-mixed")
    assert status == 0, output
    (again,) = (o for o in study.outcomes() if o["number"] == others[-1]["number"])
    assert again["values"] == pytest.approx(others[-1]["values"])


def leave_untold(study: Study, outcome: Outcome) -> None:
    """Make a trial what it is when it ends while no driver listens."""
    factors = {
        "single_stream_tok_s": outcome["figures"]["host_factor_single"],
        "peak_tok_s": outcome["figures"]["host_factor_peak"],
    }
    kept = {n: v for n, v in outcome["figures"].items() if not n.startswith("host_factor")}
    measured = {name: outcome["values"][name] / factors[name] for name in factors}
    place = study.run / "trials" / f"{outcome['number']:04d}" / "outcome.json"
    place.write_text(json.dumps(outcome | {"figures": kept, "values": measured}))
    with sqlite3.connect(study.run / "study.db") as database:
        database.execute(
            "UPDATE trials SET state = 'RUNNING' WHERE number = ?", (outcome["number"],)
        )


@pytest.mark.skipif(not can_hide_folders(), reason="may not unshare a mount namespace")
def test_files_come_back_from_a_node_that_does_not_see_the_run(study: Study) -> None:
    prompts = study.folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Tell me how a bridge is built. " * 40}) + "\n")
    study.run.mkdir()
    study.write(trials=2)
    file = study.folder / "small.yaml"
    file.write_text(file.read_text().replace("workload: {", "workload: {prompts: prompts.jsonl, "))
    with cluster(0) as nodes, node_without(study.folder, nodes.address):
        status, output = study.search("--address", nodes.address)
    assert status == 0, output
    outcomes = study.outcomes()
    assert [outcome["state"] for outcome in outcomes] == ["ok"] * 2
    for outcome in outcomes:
        folder = study.run / "trials" / f"{outcome['number']:04d}"
        names = {path.name for path in folder.iterdir()}
        assert {"server.log", "timeline.json", "requests.jsonl", "launch.sh"} <= names
        assert "autotune-trial-" in environment(study, outcome)["AUTOTUNE_SIM_CLOCK_DIR"]
        assert not Path(environment(study, outcome)["AUTOTUNE_SIM_CLOCK_DIR"]).exists()
