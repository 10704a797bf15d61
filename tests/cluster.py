"""A real Ray cluster on this machine: a head without GPUs, and nodes with eight simulated each."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

from autotune.machine import open_machine
from tests.census import Leftovers, leftovers
from tests.patience import PATIENCE_SECONDS

OBJECT_STORE_BYTES = 80 * 2**20  # Ray's smallest


@contextmanager
def cluster(nodes: int, **node_arguments: object) -> Iterator[Cluster]:
    """A cluster of so many nodes besides its head; `address` is what `--address` takes."""
    head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": OBJECT_STORE_BYTES}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            add_node(made, **node_arguments)
        yield made
    finally:
        made.shutdown()


def add_node(to: Cluster, **arguments: object) -> object:
    """One more node with eight GPUs."""
    options = {"num_cpus": 1, "num_gpus": 8, "object_store_memory": OBJECT_STORE_BYTES}
    return to.add_node(**{**options, **arguments})


def can_hide_folders() -> bool:
    """Whether this user may give a process a view of its own of the file system."""
    return subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@contextmanager
def node_without(folder: Path, address: str) -> Iterator[None]:
    """A node that sees an empty folder where the driver's run directory is, as another machine
    would."""
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    start += ["--address", address, "--num-cpus", "1", "--num-gpus", "8"]
    start += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
    hide = f'mount -t tmpfs none "{folder}" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", hide, "sh", *start]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert node.stdout is not None
    said = "".join(itertools.takewhile(lambda line: "runtime started" not in line, node.stdout))
    assert node.poll() is None, said
    try:
        yield
    finally:
        family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
        node.stdout.close()


def left_on_nodes(run: Path) -> Leftovers:
    """What stays of a run's trials, on whichever node, however long one waits."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := _left(run)) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _left(run: Path) -> Leftovers:
    found = leftovers(run)
    held = [
        str(holder)
        for ledger in sorted(run.glob("simulated/*/gpus.json"))
        for holder in open_machine(ledger).holders()
    ]
    return Leftovers(found.processes, found.ports, tuple(held))
