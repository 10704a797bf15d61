"""The endpoints of both engines, over one scheduler."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from autotune.engines.simulated import pages
from autotune.engines.simulated.generation import BadRequest, Generation, Style, sequence_for
from autotune.engines.simulated.http import Connection, HttpRequest
from autotune.engines.simulated.scheduler import Scheduler
from autotune.engines.simulated.simulation import Simulation
from autotune.engines.simulated.text import count_tokens

Handler = Callable[[Connection, HttpRequest], Awaitable[None]]


FRESH_SECONDS = 2.0


class Api:
    """Routes requests; knows which generations are in flight."""

    def __init__(self, sim: Simulation, scheduler: Scheduler) -> None:
        self.sim, self.scheduler = sim, scheduler
        self.generations: set[Generation] = set()
        self.connections: set[Connection] = set()
        self._posts = 0
        sglang = sim.args.engine == "sglang"
        self._routes: dict[str, Handler] = {
            "/health": self._health,
            "/ping": self._health,
            "/v1/models": self._models,
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
            "/metrics": self._metrics,
        }
        if sglang:
            self._routes |= {
                "/health_generate": self._health,
                "/server_info": self._server_info,
                "/get_server_info": self._server_info,
                "/model_info": self._model_info,
                "/get_model_info": self._model_info,
                "/flush_cache": self._flush,
                "/generate": self._generate,
                "/abort_request": self._abort_all,
            }
        else:
            self._routes |= {"/version": self._version, "/load": self._load}
            if sim.env.get("VLLM_SERVER_DEV_MODE") == "1":
                self._routes["/reset_prefix_cache"] = self._flush

    async def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer one request and log it as uvicorn does."""
        if "never_answers" in self.sim.faults and request.path not in ("/health", "/v1/models"):
            await self._hang()
        if request.method == "POST":
            self._posts += 1
            slow = self.sim.faults.get("slow_first_post")
            if slow is not None and self._posts == 1:
                await self.sim.clock.advance(slow.number)
        handler = self._routes.get(request.path)
        try:
            if not self._admits(request):
                connection.send_json(401, {"error": "Unauthorized"})
            elif handler is None:
                connection.send_json(404, {"detail": "Not Found"})
            else:
                await handler(connection, request)
        except BadRequest as problem:
            connection.send_json(problem.status, self._error(problem.status, str(problem)))
        except ValueError as problem:
            connection.send_json(400, self._error(400, f"invalid JSON: {problem}"))
        self._access_log(connection, request)

    def _admits(self, request: HttpRequest) -> bool:
        """With a key, SGLang guards all but health and metrics, vLLM what is under `/v1`."""
        key = self.sim.args.resolved.get("api_key")
        open_ = request.path.startswith(("/health", "/metrics"))
        guarded = not open_ if self.sim.args.engine == "sglang" else request.path.startswith("/v1")
        return not key or not guarded or request.authorization == f"Bearer {key}"

    async def _hang(self) -> None:
        self.sim.clock.hanging += 1
        await asyncio.sleep(3600)

    def _access_log(self, connection: Connection, request: HttpRequest) -> None:
        if connection.status == 200 and request.path in ("/metrics",):
            return
        reason = {200: "OK", 503: "Service Unavailable", 404: "Not Found"}.get(
            connection.status, "Bad Request" if connection.status == 400 else "Error"
        )
        self.sim.log.http(
            f'{request.peer} - "{request.method} {request.path} HTTP/1.1" '
            f"{connection.status} {reason}"
        )

    def _error(self, status: int, message: str) -> dict[str, Any]:
        kind = {404: "NotFoundError", 500: "InternalServerError"}.get(status, "BadRequestError")
        body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
        return body if self.sim.args.engine == "sglang" else {"error": body}

    # -- small endpoints ------------------------------
    async def _health(self, connection: Connection, request: HttpRequest) -> None:
        healthy = self.sim.healthy and not self.sim.dead
        connection.send(200 if healthy else 503, b"", "text/plain")

    async def _models(self, connection: Connection, request: HttpRequest) -> None:
        sim = self.sim
        length = sim.settings.context or sim.model.context
        card = {
            "id": sim.args.served_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": sim.args.engine,
            "root": sim.args.served_name if sim.args.engine == "sglang" else sim.args.model_path,
            "max_model_len": length,
            "simulated": True,
        }
        connection.send_json(200, {"object": "list", "data": [card]})

    async def _tokenize(self, connection: Connection, request: HttpRequest) -> None:
        body = request.json()
        prompt = body.get("prompt") or body.get("text") or ""
        if "messages" in body:
            prompt = "\n".join(str(message.get("content", "")) for message in body["messages"])
        count = len(prompt) if isinstance(prompt, list) else count_tokens(prompt)
        length = self.sim.settings.context or self.sim.model.context
        answer = {"count": count, "max_model_len": length, "tokens": list(range(count))}
        connection.send_json(200, answer)

    async def _metrics(self, connection: Connection, request: HttpRequest) -> None:
        if not self.sim.args.metrics:
            connection.send_json(404, {"detail": "Not Found"})
            return
        text = pages.metrics(self.sim, self.scheduler)
        connection.send(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _server_info(self, connection: Connection, request: HttpRequest) -> None:
        connection.send_json(200, pages.server_info(self.sim, self.scheduler))

    async def _model_info(self, connection: Connection, request: HttpRequest) -> None:
        info = {
            "model_path": self.sim.args.model_path,
            "tokenizer_path": self.sim.args.model_path,
            "is_generation": True,
            "simulated": True,
        }
        connection.send_json(200, info)

    async def _version(self, connection: Connection, request: HttpRequest) -> None:
        connection.send_json(200, {"version": pages.VLLM_VERSION, "simulated": True})

    async def _load(self, connection: Connection, request: HttpRequest) -> None:
        connection.send_json(200, {"server_load": self.scheduler.load})

    async def _flush(self, connection: Connection, request: HttpRequest) -> None:
        if not self.scheduler.flush():
            connection.send(400, b"Cache not flushed because there are pending requests.\n")
            return
        self.sim.log.main("Cache flushed successfully!")
        connection.send(200, b"Cache flushed.\n", "text/plain")

    async def _abort_all(self, connection: Connection, request: HttpRequest) -> None:
        for generation in tuple(self.generations):
            generation.abort()
        connection.send_json(200, {"success": True})

    # -- generations ------------------------------
    async def _completions(self, connection: Connection, request: HttpRequest) -> None:
        await self._serve(connection, request.json(), Style.COMPLETION)

    async def _chat(self, connection: Connection, request: HttpRequest) -> None:
        await self._serve(connection, request.json(), Style.CHAT)

    async def _generate(self, connection: Connection, request: HttpRequest) -> None:
        body = request.json()
        sampling = body.get("sampling_params") or {}
        body |= {
            "max_tokens": sampling.get("max_new_tokens", 128),
            "ignore_eos": sampling.get("ignore_eos", False),
            "temperature": sampling.get("temperature", 1.0),
        }
        await self._serve(connection, body, Style.GENERATE)

    async def _serve(self, connection: Connection, body: dict[str, Any], style: Style) -> None:
        faults = self.sim.faults
        if self.sim.dead:
            connection.send_json(500, self._error(500, "EngineCore encountered an issue."))
            return
        failing = faults.get("fail_requests")
        if failing is not None and self._unlucky(body, failing.number):
            connection.send_json(500, self._error(500, "Internal server error: CUDA launch failed"))
            return
        sequence, answer = sequence_for(self.sim, body)
        generation = Generation(self.sim, connection, body, style, sequence, answer)
        breaking = faults.get("error_in_stream")
        generation.breaks = breaking is not None and self._unlucky(body, breaking.number)
        generation.begin()
        if "no_tokens" in faults:
            await self._hang()
        connection.on_close = generation.abort
        self.generations.add(generation)
        self.scheduler.submit(sequence)
        try:
            await generation.finished
        finally:
            self.generations.discard(generation)
            if generation.sequence.aborted or connection.closed:
                self.scheduler.abort(sequence)

    def _unlucky(self, body: dict[str, Any], share: float) -> bool:
        """The same share of requests every time, the same ones for the same bodies."""
        digest = zlib.crc32(json.dumps(body, sort_keys=True).encode())
        return digest % 10_000 < share * 10_000

    # -- what the scheduler calls ------------------------------
    def expects_more(self) -> bool:
        """Whether a client has just opened connections that it has not used yet."""
        now = time.monotonic()
        return any(
            not connection.has_asked and now - connection.opened_at < FRESH_SECONDS
            for connection in self.connections
        )

    def clogged(self) -> asyncio.Future[None] | None:
        """Something to wait for when a client does not keep up; None if all do."""
        slow = [g.connection for g in self.generations if g.connection.clogged]
        return asyncio.ensure_future(_all_drained(slow)) if slow else None


async def _all_drained(connections: list[Connection]) -> None:
    for connection in connections:
        await connection.drained()
