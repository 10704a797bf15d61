"""A private Ray comes up on a busy host too, and a killed one is not waited for."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from autotune import cluster, search
from autotune.errors import InputError, NoMachineLeft
from autotune.workers import Slot
from tests.patience import until

TIMED_OUT = "The current node timed out during startup. This could happen because"


class Starts:
    """Stands in for `ray`: its first starts fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.starts, self.ended = list(failures), 0, 0

    def init(self, address: str, **options: Any) -> None:
        assert address == "local"
        self.starts += 1
        self.seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if self.failures:
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Starts:
    starts = Starts(*request.param)
    monkeypatch.setattr(cluster, "ray", starts)
    return starts


@pytest.mark.parametrize("ray", [[Exception(TIMED_OUT)] * 2], indirect=True)
def test_ray_is_started_again_where_the_host_was_too_busy(ray: Starts) -> None:
    cluster._start_own({})
    assert (ray.starts, ray.ended) == (3, 2)


@pytest.mark.parametrize("ray", [[Exception(TIMED_OUT)] * 3], indirect=True)
def test_a_ray_that_never_starts_is_one_clear_line(ray: Starts) -> None:
    with pytest.raises(NoMachineLeft, match="too busy: Ray did not start in 3 attempts"):
        cluster._start_own({})


@pytest.mark.parametrize("ray", [[ValueError("num_gpus")]], indirect=True)
def test_another_error_is_not_tried_again(ray: Starts) -> None:
    with pytest.raises(ValueError, match="num_gpus"):
        cluster._start_own({})
    assert ray.starts == 1


@pytest.mark.parametrize(("number", "killed"), [(signal.SIGKILL, True), (signal.SIGABRT, False)])
def test_a_daemon_that_gave_up_is_told_from_a_killed_one(number: int, killed: bool) -> None:
    child = subprocess.Popen(["sleep", "600"])
    assert not cluster._has_killed_child("sleep")
    child.send_signal(number)
    until(lambda: cluster._signal_of(child.pid) == number)
    assert cluster._has_killed_child("sleep") is killed
    child.wait()


@pytest.mark.parametrize("before", [None, "0", "3"])
@pytest.mark.parametrize("ray", [[]], indirect=True)
def test_ray_hands_out_the_gpus_of_the_study(
    ray: Starts, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """Of itself it would hand out those of its environment, and refuse more than are named."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    cluster.start_ray(None, (2, 3))
    assert (ray.seen, os.environ.get("CUDA_VISIBLE_DEVICES")) == ("2,3", before)


async def test_what_a_node_found_wrong_is_not_said_to_be_ray_s_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def opening() -> tuple[Slot, ...]:
        raise RayTaskError("describe", "", InputError("names '8', but this host has GPUs 0 to 3"))

    monkeypatch.setattr(search, "ray_has_died", lambda: False)
    with pytest.raises(InputError, match="names '8', but this host has GPUs 0 to 3"):
        await search._unless_ray_dies(opening())
