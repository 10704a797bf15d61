"""Which hosts may be in one study, and how the slots of one host share it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.admission import host_notes, refuse_missing, refuse_mixed, share_hosts
from autotune.cores import Core
from autotune.errors import InputError
from autotune.experiment import Experiment
from autotune.fingerprint import Fingerprint
from autotune.workers import HostFacts, Slot, SlotRequest

EXPERIMENT = Experiment.model_validate(
    {
        "name": "hosts",
        "engines": {"vllm": {"command": ["vllm", "serve", "m"]}},
        "parameters": {"eager": {"choices": [True], "flag": "enforce-eager"}},
    }
)


def slot(node: str, *gpus: int, driver: str = "570", niceness: int = 0) -> Slot:
    facts = HostFacts(
        node=node,
        hostname=f"host-{node}",
        gpus=gpus,
        gpu_nodes=dict.fromkeys(gpus, 0),
        cores=tuple(Core(0, (cpu,)) for cpu in range(8)),
        fingerprint=Fingerprint(hostname=node, settings={"gpu.driver": driver}, engine_versions={}),
        missing=(),
        niceness=niceness,
    )
    request = SlotRequest(node, len(gpus), Path(), EXPERIMENT, "", None, 0, None)
    return Slot(None, facts, request)


def test_slots_of_one_host_share_its_cpus_and_a_lone_one_has_them_all() -> None:
    shared = share_hosts([slot("a", 0, 1), slot("b", 0, 1), slot("a", 2, 3)])
    assert [s.cores for s in shared] == [(0, 1, 2, 3), (), (4, 5, 6, 7)]
    assert [s.neighbours for s in shared] == [1, 0, 1]


def test_hosts_that_differ_are_refused_by_what_differs() -> None:
    refuse_mixed([slot("a", 0), slot("b", 0)])
    with pytest.raises(InputError, match=r"host-a .* host-b .*gpu.driver: 570 here, 580 there"):
        refuse_mixed([slot("a", 0), slot("b", 0, driver="580")])


def test_a_host_that_lacks_the_model_is_named() -> None:
    there, lacking = slot("a", 0), slot("b", 0)
    refuse_missing([there])
    lacking = replace(lacking, facts=replace(lacking.facts, missing=("args.model: /models/m",)))
    with pytest.raises(InputError, match=r"host-b .*lacks args.model: /models/m"):
        refuse_missing([there, lacking])


def test_servers_that_would_yield_to_others_are_named_once_a_host() -> None:
    assert host_notes([slot("a", 0)]) == []
    (note,) = host_notes([slot("a", 0, niceness=15), slot("a", 1, niceness=15)])
    assert "host-a" in note
    assert "RAY_worker_niceness=0" in note


def test_a_host_whose_ray_ends_trials_for_their_memory_is_named() -> None:
    watched = slot("a", 0)
    watched = replace(watched, facts=replace(watched.facts, memory_monitor=True))
    (note,) = host_notes([watched, slot("b", 0)])
    assert "host-a" in note
    assert "RAY_memory_monitor_refresh_ms=0" in note
