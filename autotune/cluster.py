"""The Ray cluster that a study runs on: a private one on this machine, or one that is there."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, worker
from ray.exceptions import RayError

import autotune
from autotune.errors import InputError, NoMachineLeft
from autotune.gpus import VISIBLE
from autotune.leash import tie_children

MEMORY_MONITOR = "RAY_memory_monitor_refresh_ms"
"""The environment variable that switches it off with 0, where a node of Ray is started."""

_STARTS = 3
_EXIT_CODE = 49  # of /proc/PID/stat, counted from the state


def start_ray(address: str | None, gpus: Sequence[int] | None) -> None:
    """Join the cluster at `address`, or start a private one here with these GPUs (indices).

    The private cluster listens on loopback only and has no dashboard. Ray's memory monitor is
    switched off: where a server uses most of the host's memory, it would end the trial.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(MEMORY_MONITOR, "0")
    # Ray's own 15 would pass to the servers: any other process of the host would slow them down.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Of a node that died Ray prints pages of its own state; the study says what was lost.
    worker.print_to_stdstream = _say_nothing
    common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is not None:
        _join(address, common)
        return
    # Without this, Ray takes 127.0.0.1 for a mistake, puts the host's own address in its place
    # and listens on every interface. Its environment variable is read when Ray is imported.
    ray_constants.ENABLE_RAY_CLUSTER = False
    # That the private cluster uses Ray's own token is no news to anybody.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    tie_children()  # Ray's daemons outlive a killed driver by a minute; so tied, by seconds
    options = common | {
        "num_gpus": len(gpus or ()),
        "num_cpus": os.cpu_count(),
        "include_dashboard": False,
        "object_store_memory": 128 * 2**20,
    }
    with _naming(gpus or ()):
        _start_own(options)


@contextlib.contextmanager
def _naming(gpus: Sequence[int]) -> Iterator[None]:
    """Let Ray hand out these GPUs: it names what its environment names, and refuses more."""
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(map(str, gpus))
    try:
        yield
    finally:
        del os.environ[VISIBLE]
        if before is not None:
            os.environ[VISIBLE] = before


def _say_nothing(*_: object, **__: object) -> None:
    """Takes the place of Ray's printing of its cluster's errors."""


def _start_own(options: dict[str, Any]) -> None:
    """Start the private cluster, even where one runs on this machine: it was not asked for.

    A raylet ends itself if its agents are not there after 15 s, which nothing can change and a
    busy host may exceed: so once more. Raises NoMachineLeft.
    """
    for start in range(1, _STARTS + 1):
        try:
            with _noticing_a_killed_raylet():
                ray.init("local", **options)
            return
        except Exception as error:  # Ray has no class of its own for it
            if "timed out" not in str(error):
                raise
            ray.shutdown()
            if start == _STARTS:
                raise NoMachineLeft(
                    f"this host is too busy: Ray did not start in {_STARTS} attempts; "
                    "--resume starts again"
                ) from error


@contextlib.contextmanager
def _noticing_a_killed_raylet() -> Iterator[None]:
    """`ray.init` waits for half a minute, deaf to signals, for a raylet that was killed as it
    came up. Nothing else runs yet, so the process just ends, and the tied children with it."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            if _has_killed_child("raylet"):
                print("autotune: Ray died as it started; --resume starts again", file=sys.stderr)
                os._exit(NoMachineLeft.exit_status)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _has_killed_child(name: str) -> bool:
    """Whether somebody killed a child of that name; one that gave up by itself does not count."""
    dead = (p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE)
    return any(p.name() == name and _signal_of(p.pid) == signal.SIGKILL for p in dead)


def _signal_of(pid: int) -> int:
    """The signal that ended a process which nobody has waited for yet; 0 for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[_EXIT_CODE]) & 0x7F


def _join(address: str, options: dict[str, Any]) -> None:
    """Join a cluster. Ray takes minutes to see that nothing listens, so that is asked first."""
    if address.startswith("ray://"):
        raise InputError(
            f"{address} is for Ray's client; run the search on a node of the cluster, with its "
            "own address (HOST:6379), or send it there with `ray job submit`",
            field="--address",
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
        except OSError as error:
            raise InputError(f"{address}: nothing answers ({error})", field="--address") from error
    # Every node runs the driver's own autotune, whatever is installed there.
    options["runtime_env"] = {"py_modules": [str(Path(autotune.__file__).parent)]}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{address}: {reason}{_token_hint(error)}", field="--address") from error


def _token_hint(error: Exception) -> str:
    """What Ray's own message leaves out where a cluster refuses this driver's token."""
    if "uthentication" not in str(error.__cause__):
        return ""
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return "; the token here is not the cluster's: copy its ~/.ray/auth_token"
    return "; it asks for a token: set RAY_AUTH_MODE=token"


def ray_has_died() -> bool:
    """Whether a daemon of the private cluster ended. Actors outlive it by seconds, no more.

    Ray itself notices after 15 s and says nothing of it to the driver.
    """
    node = ray._private.worker._global_node
    daemons: list[tuple[str, Any]] = node.dead_processes() if node is not None else []
    return any(kind in ("raylet", "gcs_server") for kind, _ in daemons)


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's description of every node that is there."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # untyped in Ray
    return [node for node in nodes if node["Alive"]]
