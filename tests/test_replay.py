"""`autotune replay` but for the launch itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autotune import replay
from autotune.cli import main
from autotune.records import Outcome
from autotune.rundir import RunDir
from autotune.trial import TrialPlan
from tests.runs import EXPERIMENT, baseline, measured, write_run


def test_prompts_that_the_run_was_not_made_with_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its experiment file was edited after the copy was made."""
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "other"}')
    workload = EXPERIMENT["workload"] | {"prompts": str(other)}
    run = write_run(tmp_path / "run", baseline(), experiment=EXPERIMENT | {"workload": workload})
    RunDir(run).prompts.write_text('{"prompt": "mine"}')
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(run), "--trial", "0"])
    assert ended.value.code == 2
    assert f"holds other prompts than {other}" in capsys.readouterr().err


def test_a_confirmed_trial_is_compared_with_its_confirmed_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that `show` and `export` give; the first launch was partly luck."""
    run = write_run(
        tmp_path / "run",
        baseline(),
        measured(1, 95, 1500),
        measured(2, 90, 1400, purpose="finalist", repeats=1),
        experiment=EXPERIMENT | {"gpus_per_trial": 0},
    )

    async def launched(plan: TrialPlan, gpus: tuple[int, ...]) -> Outcome:
        return measured(plan.number, 90.1, 1401, repeats=plan.repeats)

    monkeypatch.setattr(replay, "run_trial", launched)
    with pytest.raises(SystemExit):
        main(["replay", str(run), "--trial", "1"])
    text = capsys.readouterr().out
    assert "trial 1, launched again: the same within the spread" in text
    assert "single stream: 90.0 → 90.1 tok/s" in text
    assert "compared with the confirmed figures, those of trial 2" in text


def test_the_run_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every trial's outcome is in it, however many there are."""
    experiment = EXPERIMENT | {"gpus_per_trial": 0}
    run = write_run(tmp_path / "run", baseline(), measured(1, 90, 1400), experiment=experiment)
    seen: Counter[str] = Counter()
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        seen[f"{path.parent.name}/{path.name}"] += 1
        return read_bytes(path)

    async def launched(plan: TrialPlan, gpus: tuple[int, ...]) -> Outcome:
        return measured(plan.number, 90.1, 1401, params=dict(plan.params), repeats=plan.repeats)

    monkeypatch.setattr(Path, "read_bytes", counted)
    monkeypatch.setattr(replay, "run_trial", launched)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(run), "--trial", "1"])
    assert ended.value.code == 0
    assert "trial 1, launched again: the same within the spread" in capsys.readouterr().out
    del seen["run/experiment.yaml"]
    assert seen == {"0000/outcome.json": 1, "0001/outcome.json": 1}
