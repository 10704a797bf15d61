"""Flags as the engines' own parsers read them: with dashes or underscores, whole or cut short."""

from __future__ import annotations


def plain_name(name: str) -> str:
    """An argument's name with dashes and without leading ones: `--tp_size` is `tp-size`."""
    return name.lstrip("-").replace("_", "-")


def may_mean(name: str, whole: str) -> bool:
    """Whether a parser may take this flag, or argument's name, for the flag named `whole`.

    Argparse does if no other flag begins so; where one does, the engine refuses to start.
    """
    plain = plain_name(name)
    short = len(plain) == 1 or (name.startswith("-") and not name.startswith("--"))
    return plain_name(whole).startswith(plain) and not short and plain != ""
