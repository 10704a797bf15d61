"""A search as the driver of a job that was submitted to Ray: what Ray sets there and moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cluster import _token_hint
from autotune.errors import InputError
from autotune.placement import choose_run_dir
from autotune.workers import _own_threads

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def test_threads_that_ray_set_in_the_job_s_driver_do_not_reach_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv(JOB, raising=False)
    assert _own_threads() == "1"
    monkeypatch.setenv(JOB, json.dumps({"runtime_env": {"working_dir": "gcs://pkg.zip"}}))
    assert _own_threads() is None
    of_user = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "8"}}}
    monkeypatch.setenv(JOB, json.dumps(of_user))
    assert _own_threads() == "8"


def test_a_run_in_ray_s_copy_of_the_working_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    for requested in (None, Path("runs/mine")):
        with pytest.raises(InputError, match=r"--run-dir: lies in Ray's copy"):
            choose_run_dir(requested, "kimi", resume=False)
    assert choose_run_dir(tmp_path / "run", "kimi", resume=False).path == tmp_path / "run"


@pytest.mark.parametrize(
    ("mode", "says"), [(None, "set RAY_AUTH_MODE=token"), ("token", "is not the cluster's")]
)
def test_a_refused_token_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, mode: str | None, says: str
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    error = ConnectionError("Failed to connect")
    assert _token_hint(error) == ""
    error.__cause__ = RuntimeError("Authentication token is missing or incorrect")
    assert says in _token_hint(error)
