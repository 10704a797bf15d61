"""Any server that speaks the OpenAI API, and what all such servers have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx

from autotune.engines.base import ArgValue, Engine, LoadProgress, NoAnswer, Place
from autotune.engines.failures import COMMON, kind_in
from autotune.foreign_json import foreign_json
from autotune.records import FailureKind, Launch, Phase

_CONTROL_SECONDS = 10.0
_BAR = re.compile(
    r"(?P<title>[^:|\r]*?(?:[Ll]oading|[Cc]aptur)[^:|]*(?:\([^)]*\))?)\s*:?\s*"
    r"\d+%.*?(?P<done>\d+)/(?P<total>\d+)\b"
)
_LONGEST_BAR = 500  # characters; the pattern would take seconds for SGLang's line of all settings


async def serves(http: httpx.AsyncClient, name: str) -> bool:
    """Whether the server at the other end lists a model of that name."""
    response = await http.get("/v1/models", timeout=_CONTROL_SECONDS)
    if response.status_code != 200:
        return False
    try:
        models = foreign_json(response.content).get("data") or ()
    except (ValueError, AttributeError):
        return False
    return any(isinstance(model, dict) and model.get("id") == name for model in models)


async def object_at(http: httpx.AsyncClient, path: str, seconds: float) -> dict[str, Any]:
    """The JSON object that a path answers with; empty where there is no such thing in time."""
    try:
        response = await http.get(path, timeout=seconds)
        found = foreign_json(response.content) if response.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def generates(http: httpx.AsyncClient, name: str) -> bool:
    """Whether that model answers a short request with tokens; waits as long as it takes.

    Text completion is asked first, then chat, for servers that know only one of them.

    Raises:
        NoAnswer: it was answered, with an error or without a token. 503 is only: not yet.
    """
    patient = httpx.Timeout(None, connect=_CONTROL_SECONDS)
    common = {"model": name, "max_tokens": 4, "temperature": 0}
    asks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": "The capital of France is"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}]}),
    )
    for path, body in asks:
        response = await http.post(path, json=common | body, timeout=patient)
        if response.status_code == 200 and _has_tokens(response):
            return True
        if response.status_code == 503:
            return False
        if response.status_code not in (400, 404, 405, 501):
            break
    raise NoAnswer(f"HTTP {response.status_code}: {response.text[:200].strip()}")


def _has_tokens(response: httpx.Response) -> bool:
    try:
        answer = foreign_json(response.content)
        choice = answer["choices"][0]
    except (ValueError, LookupError, TypeError):
        return False
    usage = answer.get("usage") or {}
    text = choice.get("text") or (choice.get("message") or {}).get("content")
    return bool(text) or (usage.get("completion_tokens") or 0) > 0


def bar_progress(line: str) -> LoadProgress | None:
    """What a tqdm bar of a model load or a graph capture says."""
    match = _BAR.search(line) if "%" in line and len(line) <= _LONGEST_BAR else None
    if match is None or int(match["total"]) == 0:
        return None
    done, total = int(match["done"]), int(match["total"])
    title = match["title"].strip()
    if "aptur" in title:
        detail = f"capturing CUDA graphs {done}/{total}"
    elif "shard" in title:
        detail = f"loading weights {done}/{total} shards"
    else:
        detail = f"{title[:40].lower()} {done}/{total}"
    return LoadProgress(detail, done / total)


class OpenAI(Engine):
    """An OpenAI-compatible server of which nothing else is known.

    Host, port and served name must be written in the experiment's file with `{host}`, `{port}`
    and `{served_name}`: there are no flags that all servers share.
    """

    name: ClassVar[str] = "openai"
    flags: ClassVar[bool] = False

    def complete(self, args: Mapping[str, ArgValue], place: Place) -> dict[str, ArgValue]:
        return dict(args)

    def phase_of(self, line: str) -> Phase | None:
        if re.search(r"Application startup complete|Uvicorn running on", line):
            return Phase.READY
        if re.search(r"[Ll]oading .*(?:weights|shards|model)", line):
            return Phase.LOAD
        return None

    def progress_of(self, line: str) -> LoadProgress | None:
        return bar_progress(line)

    def failure_of(self, line: str) -> FailureKind | None:
        return kind_in(COMMON, line)

    async def is_ready(self, http: httpx.AsyncClient, launch: Launch) -> bool:
        return await serves(http, launch.served_name) and await generates(http, launch.served_name)
