"""The command line: parse, call, print. No logic lives here.

Imports stand inside the commands, so that `--help` and `check` do not pay for Ray and Optuna.
"""

from __future__ import annotations

import sys

import typer

# Each module adds its commands, in this order.
from autotune.cli import experiments, runs, servers
from autotune.cli.app import app
from autotune.errors import AutotuneError

__all__ = ["app", "experiments", "main", "runs", "servers"]


def main(argv: list[str] | None = None) -> None:
    """Entry point: the exit status is 0, 1, 2, 3, 4 or 130 as in ARCHITECTURE.md."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = app(args=arguments or ["--help"], prog_name="autotune", standalone_mode=False)
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except _UsageError as error:
        print(_usage_text(error), file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)
    sys.exit(status or 0)


# Typer's own name for it depends on the version; this is BadParameter's base in each.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _usage_text(error: Exception) -> str:
    """A mistake on the command line in one line; for a group without a command, its help."""
    text: str = error.format_message()  # type: ignore[attr-defined]
    if "\n" in text:
        return text
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "autotune"
    return f"autotune: {text.rstrip('.')}; see {command} --help"
