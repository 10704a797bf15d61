"""Preflights that answer, that refuse, and that fail themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.engines.interpreter import interpreter_of
from autotune.engines.preflight import preflight
from autotune.engines.registry import engine_named
from autotune.engines.sglang import SGLang
from autotune.records import FailureKind, Launch


class Asked(SGLang):
    """SGLang's adapter, with a command of the test's to ask instead of its parser."""

    def __init__(self, script: str) -> None:
        self._script = script

    def preflight(self, launch: Launch) -> tuple[str, ...] | None:
        return (sys.executable, "-c", self._script)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(
        trial=1,
        engine="sglang",
        argv=("python", "-m", "sglang.launch_server", "--api-key", "the-secret-key"),
        env={"AUTOTUNE_MARK": "m", "TMPDIR": str(tmp_path)},
        host="127.0.0.1",
        port=1,
        served_name="x",
        trial_dir=tmp_path,
        mark="m",
    )


async def test_a_refusal_states_the_parsers_own_reason(launch: Launch) -> None:
    says = "sglang serve: error: argument --kv-cache-dtype: invalid choice: 'fp8' the-secret-key"
    failure = await preflight(
        Asked(f"import sys; sys.stderr.write({says!r} + chr(10)); sys.exit(2)"), launch
    )
    assert failure is not None
    assert failure.kind is FailureKind.BAD_FLAGS
    assert "invalid choice: 'fp8' ***" in failure.cause


async def test_a_refusal_of_the_gpu_is_no_bad_flag(launch: Launch) -> None:
    says = "ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x)."
    failure = await preflight(Asked(f"print({says!r}); raise SystemExit(3)"), launch)
    assert failure is not None
    assert failure.kind is FailureKind.UNSUPPORTED


@pytest.mark.parametrize(
    "script", ["pass", "raise SystemExit(4)", "import no_such_module", "import os; os.abort()"]
)
async def test_a_preflight_that_accepts_or_fails_itself_rejects_nothing(
    launch: Launch, script: str
) -> None:
    assert await preflight(Asked(script), launch) is None


async def test_a_preflight_that_hangs_rejects_nothing(launch: Launch) -> None:
    engine = Asked("import time; time.sleep(600)")
    assert await preflight(engine, launch, limit_seconds=0.5) is None


async def test_sglang_without_sglang_says_nothing(launch: Launch) -> None:
    bare = launch.model_copy(update={"argv": (sys.executable, "-m", "sglang.launch_server")})
    assert await preflight(SGLang(), bare) is None


def test_the_interpreter_behind_a_command_is_found(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n")
    script.chmod(0o700)
    module = (sys.executable, "-m", "sglang.launch_server", "--tp", "8")
    assert interpreter_of(module) == (sys.executable, ("--tp", "8"))
    assert interpreter_of((sys.executable, "-u", "serve.py", "--x")) == (sys.executable, ("--x",))
    assert interpreter_of((str(script), "serve", "M")) == (sys.executable, ("serve", "M"))
    assert interpreter_of(("sh", "-c", "x")) is None
    assert interpreter_of(("no-such-program",)) is None


def test_an_unknown_server_cannot_be_asked(launch: Launch) -> None:
    assert engine_named("openai").preflight(launch) is None
