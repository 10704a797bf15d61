"""Which adapters there are: the keys allowed under `engines` in an experiment file."""

from __future__ import annotations

from autotune.engines.base import Engine
from autotune.engines.openai import OpenAI
from autotune.engines.sglang import SGLang
from autotune.engines.vllm import VLLM
from autotune.errors import InputError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (SGLang(), VLLM(), OpenAI())}


def engine_named(name: str) -> Engine:
    """The adapter of that name.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    try:
        return ENGINES[name]
    except KeyError:
        known = ", ".join(ENGINES)
        raise InputError(f"unknown engine {name!r}; known engines: {known}") from None
