"""The adapter launches a simulated server with the same arguments and passes on the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.engines.base import Engine, Place
from autotune.engines.registry import engine_named
from autotune.engines.simulated.adapter import SimulatedEngine, make_host, without_entry


def engine(tmp_path: Path, name: str = "sglang") -> SimulatedEngine:
    make_host(tmp_path / "host", "8x-rtx-pro-6000")
    return SimulatedEngine(engine_named(name), tmp_path / "host")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("python -m sglang.launch_server", ""),
        ("/opt/venv/bin/python -m sglang.launch_server --tp 8", "--tp 8"),
        ("sglang serve --model-path M", "--model-path M"),
        ("/opt/venv/bin/vllm serve M", "M"),
        ("python -m vllm.entrypoints.openai.api_server --model M", "--model M"),
        ("docker run --gpus all -v /m:/m image python3 -m sglang.launch_server --tp 8", "--tp 8"),
        ("./my-server --fast", ""),
    ],
)
def test_the_entry_point_of_any_command_is_replaced(command: str, arguments: str) -> None:
    assert " ".join(without_entry(command.split())) == arguments


def test_the_command_runs_this_package(tmp_path: Path) -> None:
    command = engine(tmp_path).command(("python", "-m", "sglang.launch_server", "--tp", "8"))
    assert command == (
        sys.executable,
        *("-m", "autotune.engines.simulated", "--as", "sglang", "--tp", "8"),
    )


def test_the_environment_names_machine_and_clock(tmp_path: Path) -> None:
    place = Place("127.0.0.1", 1, "m", tmp_path / "trial")
    env = engine(tmp_path).environment(place)
    assert env["AUTOTUNE_SIM_HOST"] == "8x-rtx-pro-6000"
    assert env["AUTOTUNE_SIM_DIR"] == str(tmp_path / "host")
    assert env["AUTOTUNE_SIM_CLOCK_DIR"] == str(tmp_path / "trial")
    inner = engine_named("sglang").environment(place)
    assert inner.items() <= env.items()


def test_everything_else_is_the_wrapped_engines(tmp_path: Path) -> None:
    """No method of an engine may be answered by the base class instead of the wrapped engine."""
    own = set(vars(SimulatedEngine))
    asked = {name for name, value in vars(Engine).items() if callable(value) and name[0] != "_"}
    assert asked <= own
