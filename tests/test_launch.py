from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.engines.base import ArgValue, Place
from autotune.engines.launch import (
    api_key_of,
    build_launch,
    server_environment,
    write_launch_script,
)
from autotune.engines.registry import engine_named
from autotune.errors import InputError
from autotune.records import Launch


def launch_of(
    folder: Path,
    args: dict[str, ArgValue],
    *,
    command: tuple[str, ...] = ("python", "server.py"),
    env: dict[str, str] | None = None,
    engine: str = "openai",
    gpus: tuple[int, ...] = (),
) -> Launch:
    settings = SimpleNamespace(engine=engine, command=command, args=args, env=env or {})
    place = Place("127.0.0.1", 8123, "autotune-0007", folder, gpus)
    return build_launch(settings, engine_named(engine), place, 7)


def test_arguments_become_words_in_the_order_of_the_file(tmp_path: Path) -> None:
    args: dict[str, ArgValue] = {
        "model-path": "M",
        "eager": True,
        "unset": None,
        "off": False,
        "sizes": [1, 2, 4],
        "O": 3,
        "chunked-prefill-size": -1,
        "extra": "-x",
        "-cc.mode": "none",
        "json": '{"method": "ngram"}',
        "name": "{served_name}",
        "port": "{port}",
    }
    assert launch_of(tmp_path, args).argv == (
        *("python", "server.py", "--model-path", "M", "--eager", "--sizes", "1", "2", "4"),
        *("-O", "3", "--chunked-prefill-size", "-1", "--extra=-x", "-cc.mode", "none"),
        *("--json", '{"method": "ngram"}', "--name", "autotune-0007", "--port", "8123"),
    )


def test_the_file_wins_over_the_adapter_and_the_trial_over_both(tmp_path: Path) -> None:
    env = {"VLLM_ENGINE_READY_TIMEOUT_S": "60", "TMPDIR": "/elsewhere", "NCCL_PROTO": "LL"}
    launch = launch_of(tmp_path, {}, env=env, engine="vllm", gpus=(4, 5))
    assert launch.env["VLLM_ENGINE_READY_TIMEOUT_S"] == "60"
    assert launch.env["NCCL_PROTO"] == "LL"
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert launch.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert launch.env["AUTOTUNE_MARK"] == launch.mark
    assert launch.mark in launch.env["TMPDIR"]


def test_a_temporary_folder_leaves_room_for_the_names_of_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80) / ("y" * 80)
    assert len(launch_of(deep, {}).env["TMPDIR"]) < 70


def test_two_launches_of_one_trial_have_different_marks(tmp_path: Path) -> None:
    assert launch_of(tmp_path, {}).mark != launch_of(tmp_path, {}).mark


def test_a_variable_that_autotune_owns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES"):
        launch_of(tmp_path, {}, env={"CUDA_VISIBLE_DEVICES": "0"})


def test_a_server_does_not_inherit_what_ray_gave_its_worker(tmp_path: Path) -> None:
    host = {"RAY_JOB_ID": "1", "PATH": "/bin", "NCCL_DEBUG": "INFO"}
    environment = server_environment(launch_of(tmp_path, {}, env={"NCCL_DEBUG": "WARN"}), host)
    assert "RAY_JOB_ID" not in environment
    assert environment["PATH"] == "/bin"
    assert environment["NCCL_DEBUG"] == "WARN"


def test_the_script_starts_the_same_command_by_hand(tmp_path: Path) -> None:
    show = (
        "python3",
        "-c",
        "import json, os, sys; print(json.dumps(sys.argv[1:]), os.environ['X'])",
    )
    args: dict[str, ArgValue] = {"text": "it's; $HOME `x` *", "json": '{"a": [1, 2]}', "flag": True}
    launch = launch_of(tmp_path, args, command=show, env={"X": "a b'c"})
    script = tmp_path / "launch.sh"
    write_launch_script(launch, script)
    run = subprocess.run([str(script)], capture_output=True, text=True, check=True)
    assert run.stdout == (
        '["--text", "it\'s; $HOME `x` *", "--json", "{\\"a\\": [1, 2]}", "--flag"] a b\'c\n'
    )
    assert os.stat(script).st_mode & 0o077 == 0
    os.rmdir(launch.env["TMPDIR"])


@pytest.mark.parametrize("flag", ["api-key", "api-k"])
def test_the_script_asks_for_secrets_and_does_not_hold_them(tmp_path: Path, flag: str) -> None:
    show = ("python3", "-c", "import os, sys; print(sys.argv[1:], os.environ['HF_TOKEN'])")
    launch = launch_of(
        tmp_path, {flag: "the-key-itself"}, command=show, env={"HF_TOKEN": "hub-secret"}
    )
    script = tmp_path / "launch.sh"
    write_launch_script(launch, script)
    assert "the-key-itself" not in script.read_text()
    assert "hub-secret" not in script.read_text()
    bare = {"PATH": os.environ["PATH"]}
    refused = subprocess.run([str(script)], capture_output=True, text=True, env=bare)
    assert refused.returncode != 0
    assert "HF_TOKEN: set it to your own" in refused.stderr
    given = bare | {"HF_TOKEN": "t", flag.replace("-", "_").upper(): "k"}
    run = subprocess.run([str(script)], capture_output=True, text=True, env=given, check=True)
    assert run.stdout == f"['--{flag}', 'k'] t\n"
    os.rmdir(launch.env["TMPDIR"])


def test_the_key_that_a_server_asks_for_is_known_to_its_clients(tmp_path: Path) -> None:
    assert api_key_of(launch_of(tmp_path, {"api-key": "abcd"})) == "abcd"
    assert api_key_of(launch_of(tmp_path, {}, command=("s", "--api-key=wxyz"))) == "wxyz"
    assert api_key_of(launch_of(tmp_path, {"api_k": "abcd"})) == "abcd"  # as argparse reads it
    assert api_key_of(launch_of(tmp_path, {"api-server-count": 2})) is None
    assert api_key_of(launch_of(tmp_path, {})) is None
