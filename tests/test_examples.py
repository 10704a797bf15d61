"""The files in docs/examples fit the program, and are what their kind demands."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
FILES = ("slurm.sbatch", "kuberay.yaml")


def options_of_search() -> set[str]:
    from typer.main import get_command

    from autotune.cli import app

    commands: dict[str, Any] = getattr(get_command(app), "commands")  # noqa: B009
    return {name for option in commands["search"].params for name in option.opts}


@pytest.mark.parametrize("name", FILES)
def test_an_example_searches_with_options_that_exist(name: str) -> None:
    found = re.search(r"^[^#\n]*autotune search .*\n?.*", (EXAMPLES / name).read_text(), re.M)
    assert found is not None
    used = set(re.findall(r"(?<!\S)--[a-z-]+", found[0]))
    assert {"--address", "--run-dir"} <= used
    assert used - {"--resume"} <= options_of_search()


@pytest.mark.parametrize("name", FILES)
def test_an_example_continues_a_run_and_starts_ray_as_servers_need_it(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert "experiment.yaml" in text and "--resume" in text
    for variable in ("RAY_memory_monitor_refresh_ms", "RAY_worker_niceness"):
        assert re.search(rf'{variable}(=0|\n\s+value: "0")', text)
    assert re.search(r"RAY_AUTH_MODE=token|authOptions:\n\s+mode: token", text)


def test_the_slurm_script_is_a_script() -> None:
    script = EXAMPLES / "slurm.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


def test_the_kuberay_hosts_have_what_a_server_needs() -> None:
    cluster = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert worker["image"] == head["image"]
    assert worker["resources"]["limits"] == worker["resources"]["requests"]
    assert {mount["mountPath"] for mount in worker["volumeMounts"]} == {"/models", "/dev/shm"}
    for container, pod in ((worker, group), (head, cluster["headGroupSpec"])):
        volumes = {volume["name"] for volume in pod["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
