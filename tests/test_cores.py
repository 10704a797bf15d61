"""Which CPUs belong to which slot of a host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil

from autotune.cores import Core, read_cores, shares
from autotune.engines.launch import write_launch_script
from autotune.gpus import numa_node_of
from tests.lifecycle import Stage

# Two sockets of four cores with two threads each, as Linux numbers them.
CORES = tuple(Core(core // 4, (core, core + 8)) for core in range(8))


def test_a_slot_gets_whole_cores_of_its_gpus_own_node() -> None:
    slots = [{0: 0, 1: 0}, {2: 0, 3: 0}, {4: 1, 5: 1}, {6: 1, 7: 1}]
    assert shares(CORES, slots) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_a_slot_across_both_nodes_gets_cores_of_both() -> None:
    slots = [{0: 0, 4: 1}, {1: 0, 5: 1}]
    assert shares(CORES, slots) == [(0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15)]


def test_unknown_places_are_one_place() -> None:
    slots: list[dict[int, int | None]] = [{0: None}, {1: None}]
    assert shares(CORES, slots) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]


def test_a_host_with_fewer_cores_than_gpus_is_left_alone() -> None:
    assert shares(CORES[:1], [{0: 0}, {1: 0}]) == [(), ()]


def test_every_core_is_given_once() -> None:
    slots: list[dict[int, int | None]] = [{0: 0}, {1: 0}, {2: 0}, {3: 1}]
    given = [cpu for share in shares(CORES, slots) for cpu in share]
    assert sorted(given) == list(range(16))


def test_cores_are_read_from_the_kernels_own_files(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    node = tmp_path / "node" / "node1"
    node.mkdir(parents=True)
    (node / "cpulist").write_text(f"{allowed[0]}-{allowed[-1]}\n")
    for cpu in allowed:
        topology = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu},{cpu + 512}\n")
    assert read_cores(tmp_path) == tuple(Core(1, (cpu,)) for cpu in allowed)


def test_this_hosts_cores_are_those_it_may_use() -> None:
    assert {cpu for core in read_cores() for cpu in core.cpus} == os.sched_getaffinity(0)


def test_a_gpus_numa_node_is_its_pci_devices(tmp_path: Path) -> None:
    device = tmp_path / "0000:3b:00.0"
    device.mkdir()
    (device / "numa_node").write_text("1\n")
    assert numa_node_of("00000000:3B:00.0", tmp_path) == 1
    (device / "numa_node").write_text("-1\n")
    assert numa_node_of("00000000:3B:00.0", tmp_path) is None
    assert numa_node_of("00000000:5E:00.0", tmp_path) is None


def test_a_server_stays_on_its_slots_cpus(tmp_path: Path) -> None:
    stage, cpu = Stage(tmp_path), min(os.sched_getaffinity(0))
    launch = stage.launch().model_copy(update={"cores": (cpu,)})
    write_launch_script(launch, tmp_path / "launch.sh")
    assert f"taskset --cpu-list {cpu} \\" in (tmp_path / "launch.sh").read_text()

    async def cpus() -> list[set[int]]:
        async with stage.running(launch) as server:
            processes = [psutil.Process(pid) for pid in server._leash.pids]
            return [set(process.cpu_affinity() or ()) for process in processes]

    found = asyncio.run(cpus())
    assert len(found) > 8  # a launcher and a process a GPU at least
    assert all(allowed == {cpu} for allowed in found)
