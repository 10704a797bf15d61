"""Ray actors and slots: which GPUs run which trial.

A slot is `gpus_per_trial` GPUs of one node, owned by one actor for the whole study. The actor
runs trials, one at a time; everything it starts lives under a reaper outside Ray's process
tree, so the end of the actor, for whatever reason, is the end of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.cluster import MEMORY_MONITOR, alive_nodes
from autotune.cores import Core, read_cores
from autotune.errors import InputError, MachineNotClean
from autotune.experiment import SHIPPED, Experiment
from autotune.fingerprint import Fingerprint
from autotune.gpus import VISIBLE, chosen, visible_note
from autotune.machine import Machine, open_machine
from autotune.model_paths import missing_models
from autotune.parcel import packed
from autotune.records import Outcome, Progress
from autotune.templates import expand
from autotune.trial import TrialPlan, run_trial

_REOPEN_SECONDS = 120.0


@dataclass(frozen=True)
class HostFacts:
    """What a slot tells about its node."""

    node: str  # Ray's id
    hostname: str
    gpus: tuple[int, ...]
    gpu_nodes: Mapping[int, int | None]  # GPU -> its NUMA node
    cores: tuple[Core, ...]
    fingerprint: Fingerprint
    missing: tuple[str, ...]  # models that the experiment names and the host lacks
    niceness: int  # of the servers that the slot starts
    memory_monitor: bool = False  # Ray's own watches the host's memory

    def __str__(self) -> str:
        return f"{self.hostname} (node {self.node[:8]})"


@dataclass(frozen=True)
class TrialResult:
    """What comes back from a slot: the outcome, and the trial's folder if the node is apart."""

    outcome: Outcome | None
    folder: bytes | None = None
    not_clean: str | None = None  # message of MachineNotClean


@dataclass(frozen=True)
class SlotRequest:
    """Where an actor is wanted, with how many GPUs, and for which study.

    `lock` is what the run directory's lock file holds: a node that reads the same there sees
    the driver's files. `prompts` is the user's prompt file, for nodes that do not.
    """

    node: str
    gpus: int
    run_path: Path
    experiment: Experiment
    lock: str
    prompts: bytes | None
    niceness: int  # the driver's own
    simulated_host: Path | None


class SlotWorker:
    """Owns the GPUs of one slot and runs trials on them, one at a time."""

    def __init__(self, request: SlotRequest, omp_num_threads: str | None) -> None:
        self._names = [str(name) for name in ray.get_gpu_ids()]
        self._gpus: tuple[int, ...] = ()
        self._node = ray.get_runtime_context().get_node_id()
        # What Ray sets in its workers would decide the engine's speed: the GPUs come through
        # autotune's own variables, and the threads are those of the driver's environment.
        os.environ.pop(VISIBLE, None)
        os.environ.pop("OMP_NUM_THREADS", None)
        if omp_num_threads is not None:
            os.environ["OMP_NUM_THREADS"] = omp_num_threads
        self._request = request
        self._apart = not _sees(request.run_path / "lock", request.lock)
        self._simulated_host = request.simulated_host
        self._progress: Progress | None = None
        self._task: asyncio.Task[Outcome] | None = None

    def _simulated_folder(self) -> Path | None:
        """This node's simulated machine: each node has one of its own."""
        folder = self._request.simulated_host
        if folder is None or (folder / "gpus.json").exists():
            return folder
        from autotune.engines.simulated.adapter import create_host

        base = Path(tempfile.gettempdir()) / "autotune-simulated" if self._apart else folder
        create_host(base / self._node[:12], self._request.experiment)
        return base / self._node[:12]

    def _machine(self) -> Machine:
        host = self._simulated_host
        return open_machine(host / "gpus.json" if host else None)

    async def describe(self) -> HostFacts:
        """The node, its GPUs and its fingerprint. Comes before any trial.

        Raises:
            InputError: the node was started with GPUs that it does not have, or is to simulate a
                machine that nobody knows.
        """
        self._simulated_host = self._simulated_folder()
        machine, experiment = self._machine(), self._request.experiment
        self._gpus = _physical(self._names, machine)
        commands = {
            str(name): tuple(expand(word) for word in section.command)
            for name, section in experiment.engines.items()
        }
        # Ray runs its workers at niceness 15, and this thread starts the servers.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, self._request.niceness)
        near = {gpu.index: gpu.numa_node for gpu in machine.gpus()}
        return HostFacts(
            node=self._node,
            hostname=os.uname().nodename,
            gpus=self._gpus,
            gpu_nodes={gpu: near.get(gpu) for gpu in self._gpus},
            cores=read_cores(),
            fingerprint=await asyncio.to_thread(machine.fingerprint, commands),
            missing=missing_models(experiment) if self._simulated_host is None else (),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            memory_monitor=os.environ.get(MEMORY_MONITOR) != "0",
        )

    async def run(self, plan: TrialPlan, exclusive: bool) -> TrialResult:
        """Run one trial to the end; `cancel` ends it early."""
        plan = replace(
            plan,
            simulated_host=self._simulated_host,
            turn=self._node if exclusive and plan.neighbours else None,
        )
        if self._apart:
            plan = self._moved(plan)
        self._task = asyncio.create_task(run_trial(plan, self._gpus, self._listen))
        try:
            outcome: Outcome | None = await self._task
            not_clean = None
        except MachineNotClean as error:
            outcome, not_clean = None, str(error)
        finally:
            self._task = self._progress = None
        folder = await asyncio.to_thread(packed, plan.trial_dir) if self._apart else None
        return TrialResult(outcome, folder, not_clean)

    def _moved(self, plan: TrialPlan) -> TrialPlan:
        """The plan with a folder and a prompt file of this node's own."""
        folder = Path(tempfile.mkdtemp(prefix="autotune-trial-"))
        experiment = plan.experiment
        if self._request.prompts is not None:
            prompts = folder / "prompts.jsonl"
            prompts.write_bytes(self._request.prompts)
            experiment = experiment.with_prompts(prompts)
        return replace(plan, trial_dir=folder, experiment=experiment)

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
class Slot:
    """One actor and what it runs on; `neighbours` other slots share its host."""

    actor: Any  # ray's actor handle has no static type
    facts: HostFacts
    request: SlotRequest
    cores: tuple[int, ...] = ()
    neighbours: int = 0


async def open_slots(
    experiment: Experiment, run_path: Path, simulated_host: Path | None
) -> tuple[Slot, ...]:
    """One actor for every `gpus_per_trial` GPUs of every node, pinned to its node.

    Raises:
        InputError: no node has that many GPUs. Ray itself would wait for ever.
    """
    prompts = experiment.workload.prompts
    requests = [
        SlotRequest(
            node=node,
            gpus=experiment.gpus_per_trial,
            run_path=run_path,
            experiment=experiment,
            lock=(run_path / "lock").read_text(),
            prompts=None if prompts == SHIPPED else Path(prompts).read_bytes(),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            simulated_host=simulated_host,
        )
        for node, count in _slots_per_node(experiment.gpus_per_trial).items()
        for _ in range(count)
    ]
    return tuple(await asyncio.gather(*map(_open_slot, requests)))


async def reopen_slot(slot: Slot) -> Slot | None:
    """A new actor on the node of one that died; None if the node is gone too."""
    ray.kill(slot.actor)
    if slot.request.node not in {node["NodeID"] for node in alive_nodes()}:
        return None
    try:
        new = await asyncio.wait_for(_open_slot(slot.request), _REOPEN_SECONDS)
    except (RayError, TimeoutError):  # the node died meanwhile
        return None
    return replace(new, cores=slot.cores, neighbours=slot.neighbours)


async def _open_slot(request: SlotRequest) -> Slot:
    actor = SlotActor.options(
        num_gpus=request.gpus,
        scheduling_strategy=NodeAffinitySchedulingStrategy(request.node, soft=False),
    ).remote(request, _own_threads())
    return Slot(actor, await actor.describe.remote(), request)


def _own_threads() -> str | None:
    """The user's OMP_NUM_THREADS. In the driver of a submitted job there is one of Ray's: 1."""
    job = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR")
    if job is None:
        return os.environ.get("OMP_NUM_THREADS")
    variables: dict[str, str] = json.loads(job).get("runtime_env", {}).get("env_vars", {})
    return variables.get("OMP_NUM_THREADS")


def _slots_per_node(gpus_per_trial: int) -> dict[str, int]:
    nodes = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in alive_nodes()}
    if gpus_per_trial == 0:
        return dict.fromkeys(nodes, 1)
    slots = {node: gpus // gpus_per_trial for node, gpus in nodes.items() if gpus >= gpus_per_trial}
    if not slots:
        most = max(nodes.values(), default=0)
        raise InputError(
            f"no machine has {gpus_per_trial} GPUs (the largest has {most}{visible_note()}); "
            "lower gpus_per_trial, or name a cluster with --address",
            field="gpus_per_trial",
        )
    return slots


def _physical(names: Sequence[str], machine: Machine) -> tuple[int, ...]:
    """The indices of GPUs from Ray's names of them: UUIDs where the node was started with UUIDs.

    Ray gives them in any order, and the order decides which rank runs where.
    """
    gpus = machine.gpus()
    if not gpus and all(name.isdigit() for name in names):
        return tuple(sorted(map(int, names)))  # accelerators of which NVML knows nothing
    return tuple(sorted(gpu.index for gpu in chosen(gpus, ",".join(names))))


def _sees(lock: Path, text: str) -> bool:
    """Whether this node sees the driver's run directory, and not another of that name."""
    try:
        return lock.read_text() == text
    except OSError:
        return False
