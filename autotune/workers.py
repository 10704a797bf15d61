"""Ray actors and slots: which GPUs run which trial.

A slot is `gpus_per_trial` GPUs of one node, owned by one actor for the whole study. The actor
runs trials, one at a time; everything it starts lives under a reaper outside Ray's process
tree, so the end of the actor, for whatever reason, is the end of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import socket
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.errors import InputError, MachineNotClean, NoMachineLeft
from autotune.fingerprint import Fingerprint
from autotune.leash import tie_children
from autotune.machine import open_machine
from autotune.records import Outcome, Progress
from autotune.trial import TrialPlan, run_trial

# A log that is larger than this stays on the node that wrote it (bytes, compressed).
MAX_FOLDER_BYTES = 64 * 2**20


@dataclass(frozen=True)
class HostFacts:
    """What a slot tells about its node."""

    node: str
    hostname: str
    gpus: tuple[int, ...]
    fingerprint: Fingerprint
    shares_files: bool  # sees the driver's run directory


@dataclass(frozen=True)
class TrialResult:
    """What comes back from a slot: the outcome, and the trial's folder if the node is apart."""

    outcome: Outcome | None
    folder: bytes | None = None
    not_clean: str | None = None  # message of MachineNotClean


def start_ray(address: str | None, gpus: int | None) -> None:
    """Join the cluster at `address`, or start a private one with `gpus` GPUs on this machine.

    The private cluster listens on loopback only and has no dashboard. Ray's memory monitor is
    switched off: it takes the page cache of a model load for a leak and kills the trial.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
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
    with _noticing_a_dead_raylet():
        ray.init(
            num_gpus=gpus or 0,
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            object_store_memory=128 * 2**20,
            **common,
        )


@contextlib.contextmanager
def _noticing_a_dead_raylet() -> Iterator[None]:
    """`ray.init` waits for half a minute, deaf to signals, for a raylet that was killed as it
    came up. Nothing else runs yet, so the process just ends, and the tied children with it."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            if _has_dead_child("raylet"):
                print("autotune: Ray died as it started; --resume starts again", file=sys.stderr)
                os._exit(NoMachineLeft.exit_status)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _has_dead_child(name: str) -> bool:
    dead = (p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE)
    return any(process.name() == name for process in dead)


def _join(address: str, options: dict[str, Any]) -> None:
    """Join a cluster. Ray takes minutes to see that nothing listens, so that is asked first."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
        except OSError as error:
            raise InputError(f"{address}: nothing answers ({error})", field="--address") from error
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        hint = "; set RAY_AUTH_MODE=token" if "uthentication" in str(error.__cause__) else ""
        reason = str(error).splitlines()[0]
        raise InputError(f"{address}: {reason}{hint}", field="--address") from error


def ray_has_died() -> bool:
    """Whether a daemon of the private cluster ended. Actors outlive it by seconds, no more.

    Ray itself notices after 15 s and says nothing of it to the driver.
    """
    node = ray._private.worker._global_node
    daemons: list[tuple[str, Any]] = node.dead_processes() if node is not None else []
    return any(kind in ("raylet", "gcs_server") for kind, _ in daemons)


class SlotWorker:
    """Owns the GPUs of one slot and runs trials on them, one at a time."""

    def __init__(
        self, run_path: Path, simulated_host: Path | None, omp_num_threads: str | None
    ) -> None:
        self._gpus = tuple(int(gpu) for gpu in ray.get_gpu_ids())
        # What Ray sets in its workers would decide the engine's speed: the GPUs come through
        # autotune's own variables, and the threads are those of the driver's environment.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ.pop("OMP_NUM_THREADS", None)
        if omp_num_threads is not None:
            os.environ["OMP_NUM_THREADS"] = omp_num_threads
        self._run_path, self._simulated_host = run_path, simulated_host
        self._progress: Progress | None = None
        self._task: asyncio.Task[Outcome] | None = None

    async def describe(self, commands: Mapping[str, tuple[str, ...]]) -> HostFacts:
        """The node, its GPUs and its fingerprint."""
        ledger = self._simulated_host / "gpus.json" if self._simulated_host else None
        machine = open_machine(ledger)
        return HostFacts(
            node=ray.get_runtime_context().get_node_id(),
            hostname=os.uname().nodename,
            gpus=self._gpus,
            fingerprint=await asyncio.to_thread(machine.fingerprint, commands),
            shares_files=self._run_path.is_dir(),
        )

    async def run(self, plan: TrialPlan) -> TrialResult:
        """Run one trial to the end; `cancel` ends it early."""
        apart = not self._run_path.is_dir()
        if apart:
            plan = replace(plan, trial_dir=Path(tempfile.mkdtemp(prefix="autotune-trial-")))
        self._task = asyncio.create_task(run_trial(plan, self._gpus, self._listen))
        try:
            outcome: Outcome | None = await self._task
            not_clean = None
        except MachineNotClean as error:
            outcome, not_clean = None, str(error)
        finally:
            self._task = self._progress = None
        return TrialResult(outcome, _packed(plan.trial_dir) if apart else None, not_clean)

    async def status(self) -> Progress | None:
        """What the running trial is doing, if one runs."""
        return self._progress

    async def cancel(self) -> None:
        """Stop the running trial cleanly; `run` then returns an interrupted outcome."""
        if self._task is not None:
            self._task.cancel()

    def _listen(self, progress: Progress) -> None:
        self._progress = progress


# A crashed trial must be seen as lost, never silently run again: no restarts, no retries.
_OPTIONS = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 16, "num_cpus": 0}
SlotActor: Any = ray.remote(**_OPTIONS)(SlotWorker)  # type: ignore[call-overload]  # dict options


@dataclass(frozen=True)
class SlotRequest:
    """Where an actor is wanted, and with how many GPUs."""

    node: str
    gpus: int
    run_path: Path
    commands: Mapping[str, tuple[str, ...]]
    simulated_host: Path | None


@dataclass(frozen=True)
class Slot:
    """One actor and what it runs on."""

    actor: Any  # ray's actor handle has no static type
    facts: HostFacts
    request: SlotRequest


async def open_slots(
    gpus_per_trial: int,
    run_path: Path,
    commands: Mapping[str, tuple[str, ...]],
    simulated_host: Path | None,
) -> tuple[Slot, ...]:
    """One actor for every `gpus_per_trial` GPUs of every node, pinned to its node.

    Raises:
        InputError: no node has that many GPUs. Ray itself would wait for ever.
    """
    requests = [
        SlotRequest(node, gpus_per_trial, run_path, commands, simulated_host)
        for node, count in _slots_per_node(gpus_per_trial).items()
        for _ in range(count)
    ]
    return tuple(await asyncio.gather(*map(_open_slot, requests)))


def refuse_mixed(slots: Sequence[Slot]) -> None:
    """Refuse hosts that differ: their figures do not compare.

    Raises:
        InputError: lists what differs between the first host and another.
    """
    first = slots[0].facts
    for other in (slot.facts for slot in slots):
        differences = first.fingerprint.differences(other.fingerprint)
        if differences:
            raise InputError(
                f"{first.hostname} and {other.hostname} differ, and their figures would not "
                "compare: " + "; ".join(differences),
                field="--address",
            )


async def reopen_slot(slot: Slot) -> Slot | None:
    """A new actor on the node of one that died; None if the node is gone too."""
    ray.kill(slot.actor)
    alive = {node["NodeID"] for node in _alive_nodes()}
    return await _open_slot(slot.request) if slot.request.node in alive else None


async def _open_slot(request: SlotRequest) -> Slot:
    actor = SlotActor.options(
        num_gpus=request.gpus,
        scheduling_strategy=NodeAffinitySchedulingStrategy(request.node, soft=False),
    ).remote(request.run_path, request.simulated_host, os.environ.get("OMP_NUM_THREADS"))
    return Slot(actor, await actor.describe.remote(request.commands), request)


def _slots_per_node(gpus_per_trial: int) -> dict[str, int]:
    nodes = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in _alive_nodes()}
    if gpus_per_trial == 0:
        return dict.fromkeys(nodes, 1)
    slots = {node: gpus // gpus_per_trial for node, gpus in nodes.items() if gpus >= gpus_per_trial}
    if not slots:
        most = max(nodes.values(), default=0)
        raise InputError(
            f"no machine has {gpus_per_trial} GPUs (the largest has {most}); "
            "lower gpus_per_trial, or name a cluster with --address",
            field="gpus_per_trial",
        )
    return slots


def _alive_nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # untyped in Ray
    return [node for node in nodes if node["Alive"]]


def _packed(folder: Path) -> bytes | None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, arcname=".")
    data = buffer.getvalue()
    return data if len(data) <= MAX_FOLDER_BYTES else None


def unpack_folder(data: bytes, folder: Path) -> None:
    """Put the files of a trial that ran on another node into its folder here."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")
