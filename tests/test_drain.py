"""Shared memory that a dead server left: removed if it was the server's, and only then."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.drain import Before, remove_shared_memory

SHM = Path("/dev/shm")


def new_file(prefix: str) -> str:
    name = f"{prefix}{uuid.uuid4().hex}"
    (SHM / name).write_bytes(bytes(4096))
    return name


@pytest.fixture
def names() -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    for name in names:
        (SHM / name).unlink(missing_ok=True)


def test_what_an_engine_left_is_removed_and_what_was_there_before_stays(names: list[str]) -> None:
    old = new_file("sglang_loads_")
    before = Before({}, frozenset(os.listdir(SHM)))
    new, foreign = new_file("sglang_loads_"), new_file("somebody-elses-")
    names += [old, new, foreign]
    removed = remove_shared_memory(before)
    assert new in removed
    assert not (SHM / new).exists()
    assert (SHM / old).exists() and (SHM / foreign).exists()


def test_what_the_server_was_seen_to_map_is_removed_whatever_its_name(names: list[str]) -> None:
    before = Before({}, frozenset(os.listdir(SHM)))
    name = new_file("odd-name-")
    names.append(name)
    mapper = (
        "import mmap, sys\nfile = open(sys.argv[1], 'r+b')\n"
        "mapped = mmap.mmap(file.fileno(), 0)\nprint(1)\ninput()"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", mapper, str(SHM / name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    before.look_at([process.pid])
    process.kill()
    process.communicate()
    assert name in remove_shared_memory(before)
    assert not (SHM / name).exists()


def test_what_a_living_process_maps_is_never_removed(names: list[str]) -> None:
    before = Before({}, frozenset(os.listdir(SHM)))
    name = new_file("nccl-")
    names.append(name)
    with (SHM / name).open("r+b") as file:
        assert name not in remove_shared_memory(before), "it may be about to map it"
        mapped = mmap.mmap(file.fileno(), 0)
    assert name not in remove_shared_memory(before)
    mapped.close()
    assert name in remove_shared_memory(before)


def test_a_living_process_s_semaphore_is_never_removed() -> None:
    """Its maker's memory shows it under the name that it had before it got its own."""
    before = Before({}, frozenset(os.listdir(SHM)))
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    name = f"sem.{semaphore._semlock.name.removeprefix('/')}"  # type: ignore[attr-defined]
    assert (SHM / name).exists()
    assert name not in remove_shared_memory(before)
    assert (SHM / name).exists()
