from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from autotune.engines.simulated import ledger
from autotune.engines.simulated.hosts import host_named
from autotune.errors import InputError
from autotune.fingerprint import Fingerprint, fingerprint_of, installed_versions
from autotune.gpus import Gpu, NvmlReader, chosen
from autotune.machine import (
    NoGpuMachine,
    NvmlMachine,
    free_port,
    open_machine,
    port_answers,
    port_owners,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gpus.json"
    ledger.create(path, host_named("8x-rtx-pro-6000"))
    return path


def entry(pid: int, gpu: int, size: int, **more: object) -> dict[str, object]:
    return {"pid": pid, "gpu": gpu, "bytes": size, "mark": "0001-ab", "name": "rank"} | more


def test_a_simulated_machine_has_the_gpus_of_its_ledger(path: Path) -> None:
    gpus = open_machine(path).gpus()
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert gpus[0].memory_bytes == 97_887 * 2**20
    assert gpus[0].power_limit_w == 600
    assert set(open_machine(path).memory_used().values()) == {0}


def test_memory_is_held_as_long_as_its_process_lives(path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    ledger.hold(path, [entry(process.pid, 3, 5_000)])
    machine = open_machine(path)
    (holder,) = machine.holders()
    assert (holder.pid, holder.gpu, holder.bytes, holder.mark) == (process.pid, 3, 5_000, "0001-ab")
    assert machine.memory_used()[3] == 5_000
    process.kill()
    process.wait()
    assert machine.memory_used()[3] == 0
    assert machine.holders() == ()


def test_a_leak_is_held_by_the_dead(path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    ledger.hold(path, [entry(process.pid, 0, 7, leaked=True, until=None)])
    process.kill()
    process.wait()
    assert open_machine(path).memory_used()[0] == 7


def test_how_busy_the_gpus_are(path: Path) -> None:
    ledger.hold(path, [entry(os.getpid(), gpu, 1) for gpu in (0, 1)], busy_percent=100)
    assert open_machine(path).utilisation() == {0: 1.0, 1: 1.0} | dict.fromkeys(range(2, 8), 0.0)


def test_a_host_without_gpus_has_none() -> None:
    machine = NoGpuMachine()
    assert (machine.gpus(), machine.memory_used(), machine.holders()) == ((), {}, ())
    assert machine.fingerprint({}).settings["gpu.count"] == "0"


# -- NVML -----------------------------------------------------------------------------------------
def passed_to_c(number: object) -> int:
    """An argument on its way to NVML, as ctypes takes it: a TypeError for what is no number."""
    return ctypes.c_uint(number).value  # type: ignore[arg-type]


def recorded_nvml(**changes: object) -> SimpleNamespace:
    """Two GPUs, listed out of bus order, of a driver that hides power defaults and NUMA.

    Constants are those of the real library: one of them is a tuple, and no number.
    """

    def refuse(*args: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    buses = {0: "00000000:C1:00.0", 1: "00000000:01:00.0"}
    constants = {n: v for n, v in vars(pynvml).items() if n.startswith(("NVML_", "NVMLError"))}
    answers = {
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=buses[handle].encode()),
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            total=150 * 2**30, used=(handle + 1) * 2**30
        ),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": refuse,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 40 + passed_to_c(sensor),
        "nvmlDeviceGetEccMode": lambda handle: (1, 1),
        "nvmlDeviceGetNumaNodeId": refuse,
        "nvmlDeviceGetP2PStatus": lambda handle, peer, capability: passed_to_c(capability),
        "nvmlDeviceGetNvLinkState": lambda handle, link: 1 if passed_to_c(link) < 4 else refuse(),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x44 if handle else 0,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=77, usedGpuMemory=None)
        ],
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=100),
    }
    return SimpleNamespace(**(constants | answers | changes))


def test_gpus_are_numbered_in_bus_order_as_cuda_does() -> None:
    reader = NvmlReader(recorded_nvml())
    assert [gpu.uuid for gpu in reader.gpus()] == ["GPU-1", "GPU-0"]
    assert reader.memory_used() == {0: 2 * 2**30, 1: 2**30}
    assert reader.utilisation() == {0: 1.0, 1: 1.0}
    assert reader.processes() == [(0, 77, 0), (1, 77, 0)]


def test_what_a_driver_does_not_say_is_none() -> None:
    first, _ = NvmlReader(recorded_nvml()).gpus()
    assert first.power_limit_w == 700
    assert first.power_default_w is None
    assert first.numa_node is None
    assert first.peers == (1,)
    assert first.nvlink_peers == 4
    assert first.capability == "9.0"
    assert first.throttle_reasons == ("software power cap", "hardware thermal slowdown")


# -- fingerprint ----------------------------------------------------------------------------------
def test_equal_machines_have_one_digest_and_a_difference_is_named() -> None:
    gpus = [Gpu(index=i, name="H200", memory_bytes=2**37, driver="580.1") for i in range(8)]
    renumbered = [gpu.model_copy(update={"uuid": "other", "temperature_c": 80.0}) for gpu in gpus]
    changed = [gpu.model_copy(update={"driver": "570.2"}) for gpu in gpus]
    one, same, other = (fingerprint_of(each, {}) for each in (gpus, renumbered, changed))
    assert one.digest == same.digest != other.digest
    assert one.differences(same) == []
    assert one.differences(other) == ["gpu.driver: 580.1 here, 570.2 there"]
    assert Fingerprint.model_validate_json(one.model_dump_json()) == one


def test_versions_are_asked_of_the_engines_own_interpreter(tmp_path: Path) -> None:
    versions = installed_versions((sys.executable, "-m", "sglang.launch_server"))
    assert versions["python"] == sys.version.split()[0]
    script = tmp_path / "serve"
    script.write_text(f"#!{sys.executable}\nprint(1)\n")
    script.chmod(0o700)
    assert installed_versions((str(script), "serve"))["python"] == versions["python"]
    assert installed_versions(("docker", "run", "image")) == {}
    assert installed_versions(("no-such-engine",)) == {}


# -- ports ----------------------------------------------------------------------------------------
def test_a_free_port_is_free_and_no_outgoing_connection_can_take_it() -> None:
    port = free_port()
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not low <= port <= high
    assert not port_answers("127.0.0.1", port)
    assert port_owners(port) == set()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert port_answers("127.0.0.1", port)
        assert port_owners(port) == {os.getpid()}


def test_a_ledger_that_is_not_there_is_an_empty_machine(tmp_path: Path) -> None:
    assert open_machine(tmp_path / "none.json").gpus() == ()
    assert json.dumps(open_machine(tmp_path / "none.json").memory_used()) == "{}"


FOUR = tuple(
    Gpu(index=index, name="H200", memory_bytes=1, uuid=f"GPU-{index}{index}ab-c")
    for index in range(4)
)


@pytest.mark.parametrize(
    ("names", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("GPU-22ab-c,GPU-0", [2, 0]),
    ],
)
def test_the_gpus_that_cuda_visible_devices_names(names: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in chosen(FOUR, names)] == indices


@pytest.mark.parametrize("names", ["4", "0,", "GPU-", "all"])
def test_a_gpu_that_is_not_there_is_refused(names: str) -> None:
    with pytest.raises(InputError, match=r"names .* this host has GPUs 0 to 3"):
        chosen(FOUR, names)


@pytest.mark.parametrize("names", ["0,0", "2,GPU-22ab-c"])
def test_a_gpu_named_twice_would_get_two_servers(names: str) -> None:
    with pytest.raises(InputError, match=r"names GPU \d twice"):
        chosen(FOUR, names)


def test_a_part_of_a_gpu_cannot_be_watched() -> None:
    with pytest.raises(InputError, match="not of parts"):
        chosen(FOUR, "MIG-7a1b")


def test_trials_without_gpus_ask_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert NoGpuMachine().gpus_for(0) == ()
    with pytest.raises(InputError, match="names '0', but this host has no GPU"):
        NoGpuMachine().gpus_for(1)


def test_trials_may_use_what_this_process_was_given(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine = NvmlMachine(SimpleNamespace(gpus=lambda: FOUR))  # type: ignore[arg-type]
    assert [gpu.index for gpu in machine.visible()] == [1]
    assert len(open_machine(path).visible()) == 8, "simulated GPUs are not CUDA's"
