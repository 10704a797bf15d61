"""`autotune init`: an experiment file for one model and one kind of host."""

from autotune.init.write import write_experiment

__all__ = ["write_experiment"]
