"""Preflights that answer, that refuse, and that fail themselves."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from autotune.check import preflight_lines
from autotune.engines.interpreter import interpreter_of, package_run_by
from autotune.engines.preflight import Answer, ask, preflight
from autotune.engines.registry import engine_named
from autotune.engines.sglang import SGLang
from autotune.records import FailureKind, Launch
from tests.searching import Study

without_sglang = pytest.mark.skipif(find_spec("sglang") is not None, reason="sglang is here")


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


async def test_who_accepts_was_asked(launch: Launch) -> None:
    assert await ask(Asked("pass"), launch) == Answer()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("print('no config: the-secret-key'); raise SystemExit(4)", "no config: ***"),
        ("import no_such_module", f"{sys.executable} cannot import no_such_module"),
        ("import os; os.abort()", "its parser ended with status -6 and said nothing"),
        ("import time; time.sleep(600)", "no answer within 2 s"),
    ],
)
async def test_a_preflight_that_fails_itself_rejects_nothing_and_accepts_nothing(
    launch: Launch, script: str, why: str
) -> None:
    assert await ask(Asked(script), launch, limit_seconds=2) == Answer(unasked=why)
    assert await preflight(Asked(script), launch, limit_seconds=2) is None


@without_sglang
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (sys.executable, f"{sys.executable} cannot import sglang"),
        ("python9", "python9 is not on this host"),
        ("sh", "only a launch can tell"),
    ],
)
async def test_where_sglang_is_not_nothing_is_asked(launch: Launch, program: str, why: str) -> None:
    bare = launch.model_copy(update={"argv": (program, "-m", "sglang.launch_server")})
    assert await ask(SGLang(), bare) == Answer(unasked=why)


async def test_sglangs_own_parser_is_asked(launch: Launch, tmp_path: Path) -> None:
    parser = tmp_path / "sglang" / "srt" / "server_args.py"
    parser.parent.mkdir(parents=True)
    parser.write_text(
        "import argparse\n"
        "def prepare_server_args(argv):\n"
        "    parser = argparse.ArgumentParser(prog='sglang serve')\n"
        "    parser.add_argument('--tp-size', type=int)\n"
        "    return parser.parse_args(argv)\n"
    )
    env = launch.env | {"PYTHONPATH": str(tmp_path)}
    known, misspelt = (
        launch.model_copy(
            update={"argv": (sys.executable, "-m", "sglang.launch_server", flag, "8"), "env": env}
        )
        for flag in ("--tp-size", "--tq-size")
    )
    assert await ask(SGLang(), known) == Answer()
    refused = (await ask(SGLang(), misspelt)).refused
    assert refused is not None
    assert "unrecognized arguments: --tq-size 8" in refused.cause


@without_sglang
def test_what_could_not_be_asked_is_one_line_and_no_verdict(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.write(
        backends="flashinfer, triton, misspelt",
        more="  - {attention_backend: misspelt, max_running_requests: 8, fault: null}",
    )
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(text.replace("[python, -m", f"[{sys.executable}, -m"))
    lines = list(preflight_lines(tmp_path / "small.yaml"))
    assert lines == [f"sglang could not be asked: {sys.executable} cannot import sglang"]


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
    assert package_run_by(("/opt/bin/python3", "-u", "-m", "sglang.launch_server")) == "sglang"
    for other in ((), ("vllm", "-m", "x"), ("python", "serve.py", "-m", "x"), ("python", "-m")):
        assert package_run_by(other) is None


def test_an_unknown_server_cannot_be_asked(launch: Launch) -> None:
    assert engine_named("openai").preflight(launch) is None
