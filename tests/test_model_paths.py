"""Models that are not where an experiment says are found before a trial is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.experiment import Experiment
from autotune.model_paths import missing_models


def experiment(command: list[str], **more: Any) -> Experiment:
    document: dict[str, Any] = {
        "name": "paths",
        "engines": {"vllm": {"command": command, "args": more.pop("args", {})}},
        "parameters": {"eager": {"choices": [True, False], "flag": "enforce-eager"}} | more,
    }
    return Experiment.model_validate(document)


def test_a_local_path_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    found = experiment(
        ["vllm", "serve", f"{tmp_path}/model"],
        args={
            "tokenizer": f"{tmp_path}/tokenizer",
            "speculative-config": {"model": f"{tmp_path}/draft", "method": "eagle3"},
        },
        chat={"choices": [f"{tmp_path}/a-model"], "flag": "model"},
    )
    assert missing_models(found) == (
        f"engines.vllm.args.tokenizer: {tmp_path}/tokenizer",
        f"engines.vllm.args.speculative-config.model: {tmp_path}/draft",
        f"parameters.chat: {tmp_path}/a-model",
    )


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "moonshotai/Kimi-K2.5"],
        ["docker", "run", "-v", "/data:/models", "vllm/vllm-openai", "/models/kimi"],
    ],
)
def test_what_only_the_engine_can_find_is_left_to_it(command: list[str]) -> None:
    assert missing_models(experiment(command)) == ()
