"""Which file `workload.prompts` means, and the copy that a run keeps of it.

The copy is what trials and `replay` read: the user's own file may be edited while a study runs, and
the folder that it came in, a submitted job's for example, may be gone by the time of a replay.
"""

from __future__ import annotations

from pathlib import Path

from autotune.errors import InputError
from autotune.experiment import SHIPPED, Experiment
from autotune.prompts import read_prompts
from autotune.rundir import RunDir, explained, write_text
from autotune.templates import expand


def prompt_file(experiment: Experiment, file: Path) -> Path | None:
    """The absolute path of the prompts that the experiment file `file` names; None if shipped.

    Beside a run's copy of an experiment file lies its copy of the prompts. Elsewhere a relative
    path starts at the file's folder or, if it leads to nothing there, at the current directory.
    """
    if experiment.workload.prompts == SHIPPED:
        return None
    run = RunDir(file.absolute().parent)
    if file.name == run.experiment_yaml.name and run.run_json.exists() and run.prompts.exists():
        return run.prompts
    written = Path(expand(experiment.workload.prompts))
    beside, here = run.path / written, written.absolute()
    return here if here.exists() and not beside.exists() else beside


def with_readable_prompts(experiment: Experiment, file: Path) -> Experiment:
    """The same with the absolute path of its prompts, which are read now, not in a trial.

    Raises:
        InputError: they cannot be read, or a line is broken.
    """
    path = prompt_file(experiment, file)
    if path is None:
        return experiment
    read_prompts(path)
    return experiment.with_prompts(path)


def with_kept_prompts(experiment: Experiment, run: RunDir) -> Experiment:
    """The same with the run's own copy of the prompts, made now; `experiment` has their path.

    Raises:
        InputError: the run has other prompts already.
    """
    if experiment.workload.prompts == SHIPPED:
        return experiment
    source = Path(experiment.workload.prompts)
    with explained(source):
        text = source.read_text(encoding="utf-8")
        kept = run.prompts.read_bytes() if run.prompts.exists() else None
    if kept is None:
        write_text(run.prompts, text)
    elif kept != text.encode():
        raise InputError(
            f"holds other prompts than {source}: figures of the two would not compare. Undo what "
            "changed, or start another run, with --run-dir or with --fork",
            file=run.prompts,
        )
    return experiment.with_prompts(run.prompts.resolve())  # as nodes see it, links or not
