"""Keeps secrets out of everything that is stored or printed.

A secret is known by the name it stands under (`--api-key`, `HF_TOKEN`, `"password": …`), by the
shape of a well-known token, or by its place in a URL. Values found under such names in a launch
are then masked wherever they turn up, the server's own log included: engines print the line of
their resolved arguments with the key in it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from autotune.flags import may_mean, plain_name

MASK = "***"

# fmt: off
_SECRET_WORDS = frozenset((
    "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "apikey",
    "bearer", "authorization", "pat", "cookie",
))
# fmt: on
# fmt: off
_KEYS = frozenset((
    "api", "access", "private", "auth", "secret", "encryption", "signing", "admin", "master",
))
# fmt: on
# Flags of SGLang and vLLM: both take `--api-k` for the first. The last is a path.
_SECRET_FLAGS = ("api-key", "admin-api-key", "hf-token", "ssl-keyfile-password")
_NO_SECRET = "ssl-keyfile"
# Special tokens of a vocabulary, not of a login.
# fmt: off
_VOCABULARY = frozenset((
    "bos", "eos", "pad", "unk", "mask", "sep", "cls", "stop", "image", "video", "audio", "per",
    "next", "first", "last", "max", "tool", "think",
))
# fmt: on
# Shorter values would mask ordinary words and numbers all over a log.
_MIN_KNOWN_LENGTH = 4

_URL_LOGIN = re.compile(r"(?P<scheme>\b[a-zA-Z][\w+.-]*://)[^\s/@'\"]+@")
_TOKEN_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|AKIA[A-Z0-9]{16}|xox[abp]-[A-Za-z0-9-]{10,})"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{4,}")
# name = value, name: value, --name value, "name": ["value"]
_NAMED = re.compile(
    r"""(?P<flag>--?)?(?P<name>[A-Za-z][\w.-]*)(?P<q>['"]?)
        (?P<between>\s*[:=]\s*[\[(]?\s*|(?<=\w)\s+)
        (?P<value>'[^']*'|"[^"]*"|[^\s,;)\]}'"]+)""",
    re.VERBOSE,
)


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name (a flag, a variable, a key) must not be shown."""
    words = [word for word in re.split(r"[^a-z]+", _spaced(name).lower()) if word]
    if not words:
        return False
    if words[-1] in _SECRET_WORDS:
        return len(words) < 2 or words[-2] not in _VOCABULARY
    return any(a in _KEYS and b == "key" for a, b in pairwise(words))


def is_secret_flag(flag: str) -> bool:
    """Whether what stands under this name must not be shown; after `--` it may be cut short."""
    if is_secret_name(flag):
        return True
    may_be_short = flag.startswith("--") and plain_name(flag) != _NO_SECRET
    return may_be_short and any(may_mean(flag, whole) for whole in _SECRET_FLAGS)


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the secrets given and without whatever stands under a secret's name."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _MIN_KNOWN_LENGTH:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    text = _URL_LOGIN.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    text = _TOKEN_SHAPES.sub(MASK, text)
    return _NAMED.sub(_mask_named, text)


def _mask_named(match: re.Match[str]) -> str:
    between, value = match["between"], match["value"]
    separated = bool(between.strip())
    if not separated and not match["flag"]:
        return match[0]  # two words of a sentence
    name = (match["flag"] or "") + match["name"]
    if not is_secret_flag(name) or value.strip("'\"") in ("", "None", "null", MASK):
        return match[0]
    if not separated and value.startswith("-"):
        return match[0]  # the next flag
    if match["name"].lower().endswith("token") and value.replace(".", "").isdigit():
        return match[0]  # a count, as in "#new-token: 128"
    quote = value[0] if value[0] in "'\"" else ""
    return f"{name}{match['q']}{between}{quote}{MASK}{quote}"


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command without secrets: values of secret flags, `--flag=value`, logins in URLs."""
    masked: list[str] = []
    hide_next = False
    for part in argv:
        is_flag = part.startswith("-")
        if hide_next and not is_flag:
            masked.append(MASK)
            continue  # a flag may take several values: all of them are hidden
        flag, equals, _ = part.partition("=")
        hide_next = is_flag and not equals and is_secret_flag(flag)
        secret = equals and is_secret_flag(flag) and " " not in flag
        masked.append(f"{flag}={MASK}" if secret else mask_text(part))
    return tuple(masked)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables without secrets."""
    return {
        name: MASK if value and is_secret_name(name) else mask_text(value)
        for name, value in env.items()
    }


def secrets_of(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The secret values in a command and its environment, to be masked wherever they turn up."""
    found = [value for name, value in env.items() if is_secret_name(name)]
    name = ""
    for part in argv:
        if part.startswith("-"):
            name, equals, value = part.partition("=")
            if equals and is_secret_flag(name):
                found.append(value)
        elif name and is_secret_flag(name):
            found.append(part)
    found += [match[1] for text in (*argv, *env.values()) for match in _LOGIN.finditer(text)]
    return tuple(value for value in found if len(value) >= _MIN_KNOWN_LENGTH)


_LOGIN = re.compile(r"://[^\s/@:'\"]*:([^\s/@'\"]+)@")


def mask_file(path: Path, secrets: Iterable[str] = ()) -> None:
    """Mask a text file in place, a line at a time; a reader sees the old file or the new one."""
    secrets = tuple(secrets)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as masked:
        try:
            with path.open("rb") as lines:
                for line in lines:
                    text = line.decode("utf-8", "surrogateescape")
                    masked.write(mask_text(text, secrets).encode("utf-8", "surrogateescape"))
            masked.flush()
            os.replace(masked.name, path)
        except BaseException:
            os.unlink(masked.name)
            raise
