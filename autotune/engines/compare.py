"""What was asked against what the server says it runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from pydantic import JsonValue

from autotune.engines.base import ArgValue
from autotune.flags import may_mean, plain_name
from autotune.masking import MASK, is_secret_flag, is_secret_name
from autotune.records import Override

# A server may resolve these to something else without changing what it does.
# fmt: off
_IDENTITY = frozenset((
    "model_path", "model", "served_model_name", "host", "port", "tokenizer_path",
))
# fmt: on

# Two names of one thing: what the server reports is what was asked.
_SYNONYMS = {("speculative_algorithm", frozenset(("NEXTN", "EAGLE")))}


def given(args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """The arguments that will be rendered, by plain name."""
    return {plain_name(n): v for n, v in args.items() if v is not None and v is not False}


def value_of(args: Mapping[str, ArgValue], whole: str) -> ArgValue:
    """What the arguments give for the flag of this name, whole or cut short; None if nothing."""
    return next((value for name, value in given(args).items() if may_mean(name, whole)), None)


def completed(args: Mapping[str, ArgValue], needed: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """`args`, and of what is `needed` the flags that they do not give."""
    return dict(args) | {n: v for n, v in needed.items() if value_of(args, n) is None}


def asked_of(
    words: Sequence[str], aliases: Mapping[str, str], settings: Collection[str]
) -> dict[str, str]:
    """Setting -> the word after its flag, of a command line; the last of two counts.

    Both engines' parsers take a flag cut short for the only one that begins so: those of
    `settings`, and their aliases, are read as they are meant.
    """
    known = {setting: setting for setting in settings} | dict(aliases)
    split = [word for part in words for word in part.split("=", 1)]
    flags = [(f, value) for f, value in pairwise([*split, ""]) if f.startswith("-")]
    return {_setting_of(flag, known): value for flag, value in flags}


def _setting_of(flag: str, known: Mapping[str, str]) -> str:
    name = plain_name(flag).replace("-", "_")
    if name in known:
        return known[name]
    meant = {setting for whole, setting in known.items() if may_mean(flag, whole)}
    return meant.pop() if len(meant) == 1 else name


def sizes_of(asked: Mapping[str, str], *names: str) -> dict[str, int] | None:
    """These settings as numbers, 1 where one is not given; None if one is no number."""
    try:
        return {name: int(asked.get(name, 1)) for name in names}
    except ValueError:
        return None


def without_secrets(settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The server's settings as they may be stored."""
    return {n: MASK if v and is_secret_name(n) else v for n, v in settings.items()}


def compare_settings(
    args: Mapping[str, ArgValue],
    settings: Mapping[str, JsonValue],
    aliases: Mapping[str, str],
    source: str,
) -> Sequence[Override]:
    """The asked arguments that the server names and reports another value for."""
    return list(_differences(args, settings, aliases, source))


def _differences(
    args: Mapping[str, ArgValue],
    settings: Mapping[str, JsonValue],
    aliases: Mapping[str, str],
    source: str,
) -> Iterator[Override]:
    for name, asked in given(args).items():
        setting = name.replace("-", "_")
        setting = setting if setting in settings else aliases.get(setting, setting)
        if setting not in settings or setting in _IDENTITY or is_secret_flag(f"--{name}"):
            continue
        effective = settings[setting]
        synonyms = (setting, frozenset((str(asked), str(effective)))) in _SYNONYMS
        if not synonyms and not same_value(asked, effective):
            yield Override(
                setting=setting, asked=as_json(asked), effective=effective, source=source
            )


def as_json(value: ArgValue) -> JsonValue:
    return list(value) if isinstance(value, list) else value


def same_value(asked: ArgValue, effective: JsonValue) -> bool:
    """Whether two spellings mean the same: 8 and "8", 1 and 1.0, EAGLE and eagle, x and [x]."""
    if isinstance(effective, list) and not isinstance(asked, list):
        return len(effective) == 1 and same_value(asked, effective[0])
    if isinstance(asked, list):
        return isinstance(effective, list) and [str(a) for a in asked] == [
            str(e) for e in effective
        ]
    if isinstance(effective, dict) or (isinstance(asked, str) and asked.startswith(("{", "["))):
        return True  # a structure: the server fills in its own defaults
    if str(asked).lower() == str(effective).lower():
        return True
    if asked == "auto":
        return True  # the server was asked to choose
    return not _sizes(asked).isdisjoint(_sizes(effective))


def _sizes(value: object) -> set[float]:
    """The numbers that a value may stand for: 8k is 8000 to one parser and 8192 to another."""
    match = re.fullmatch(r"([\d.]+)([kKmMgG]?)(?:i?B)?", str(value))
    if match is None:
        return set()
    power = "kmg".find(match[2].lower()) + 1 if match[2] else 0
    return {float(match[1]) * 1000**power, float(match[1]) * 1024**power}
