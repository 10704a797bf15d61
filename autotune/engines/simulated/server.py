"""One running simulated server: its start, its tasks, and failures while it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from autotune.engines.simulated import (
    startup_sglang,
    startup_vllm,
)
from autotune.engines.simulated.api import Api
from autotune.engines.simulated.deaths import Undertaker, argument_traceback, leave
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.hosts import GIB
from autotune.engines.simulated.http import Connection
from autotune.engines.simulated.memory import out_of_memory
from autotune.engines.simulated.scheduler import Scheduler
from autotune.engines.simulated.simulation import (
    Simulation,
    StartupFailed,
)
from autotune.engines.simulated.strikes import failure_in, rank_dies
from autotune.engines.simulated.support import PredictedFailure
from autotune.engines.simulated.watchers import SGLangWatcher, VLLMWatcher

SIMULATED = "SIMULATED server (autotune): no GPU and no model; every figure is a simulation."
_BURST_REQUESTS = 8
_DEATH_AFTER_BUSY_SECONDS = 3.0


class Server:
    """The tasks of one server."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.is_vllm = sim.args.engine == "vllm"
        self.undertaker = Undertaker(sim)
        watcher = VLLMWatcher(sim) if self.is_vllm else SGLangWatcher(sim)
        self.scheduler = Scheduler(sim.host, sim.model, sim.settings, sim.clock, sim.noise, watcher)
        watcher.scheduler = self.scheduler
        self.scheduler.before_step = self._before_step
        self.api = Api(sim, self.scheduler)
        self.scheduler.drain = self.api.clogged
        sim.clock.expects_more = self.api.expects_more
        self.undertaker.fail_streams = self._fail_streams
        self._tasks: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Start, serve, never come back but by death."""
        self.undertaker.watch()
        if flood := self.sim.faults.get("log_flood"):
            self._tasks.append(asyncio.ensure_future(self._flood(flood.number)))
        self._say_what_it_is()
        try:
            await self._start_and_serve()
        except StartupFailed as failed:
            await self.undertaker.die(failed.failure)

    def _say_what_it_is(self) -> None:
        self.sim.log.main(SIMULATED)
        if not self.is_vllm:
            self.sim.log.raw(
                "launch_server.py:55: UserWarning: 'python -m sglang.launch_server' is still "
                "supported, but 'sglang serve' is the recommended entrypoint.\n"
            )

    async def _start_and_serve(self) -> None:
        bound: socket.socket | None = None
        if self.is_vllm:
            await startup_vllm.banner(self.sim)
            bound = self._bind()
            await startup_vllm.start(self.sim)
        else:
            await startup_sglang.start(self.sim)
        await self._open(bound or self._bind())
        if not self.is_vllm:
            await startup_sglang.warm_up(self.sim)
        self.sim.memory.busy(0)
        self.sim.healthy = True
        self.sim.clock.busy = False
        # Not before: while kernels are compiled for the first request, nothing else is served.
        self._tasks.append(asyncio.ensure_future(self.scheduler.run()))
        await self.scheduler_forever()

    def _bind(self) -> socket.socket:
        args = self.sim.args
        # With its protocol named, asyncio sets TCP_NODELAY: small chunks are not held for 40 ms.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((args.host, args.port))
        except OSError:
            self._port_taken()
        return bound

    def _port_taken(self) -> None:
        args = self.sim.args
        if self.is_vllm:
            self.sim.log.raw(
                argument_traceback("vllm", "OSError: [Errno 98] Address already in use") + "\n"
            )
        else:
            self.sim.log.main(
                f"ERROR:    [Errno 98] error while attempting to bind on address ('{args.host}', "
                f"{args.port}): address already in use"
            )
        self.sim.tree.kill()
        leave(1)

    async def _open(self, bound: socket.socket) -> None:
        loop, sim = asyncio.get_running_loop(), self.sim
        if self.is_vllm:
            startup_vllm.opened(sim)
        sim.log.http(f"Started server process [{os.getpid()}]")
        sim.log.http("Waiting for application startup.")
        await loop.create_server(
            lambda: Connection(self.api.handle, self.api.connections, self.sim.clock.speed),
            sock=bound,
            backlog=1024,
        )
        sim.log.http("Application startup complete.")
        if not self.is_vllm:
            address = f"http://{sim.args.host}:{sim.args.port}"
            sim.log.http(f"Uvicorn running on {address} (Press CTRL+C to quit)")
        self.undertaker.serving = True
        if "ignores_sigterm" not in sim.faults:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
        self._tasks.append(asyncio.ensure_future(sim.clock.tick_when_idle()))

    def _stop(self) -> None:
        self._tasks.append(
            asyncio.ensure_future(self.undertaker.stop(lambda: self.scheduler.load == 0))
        )

    async def scheduler_forever(self) -> None:
        """Wait for a task to end, which none does but by an error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if isinstance(error, StartupFailed):
                raise error
            if error is not None:
                raise error

    def _fail_streams(self, message: str) -> None:
        for generation in tuple(self.api.generations):
            generation.fail(message)

    # -- failures while serving ------------------------------
    def _before_step(self) -> None:
        sim, busy = self.sim, self.scheduler.busy_seconds
        crash = sim.faults.get("crash_under_load")
        if crash is not None and busy > crash.number:
            raise StartupFailed(_illegal_access())
        if busy > _DEATH_AFTER_BUSY_SECONDS:
            if sim.faults.strikes("rank_exception", "serve"):
                raise StartupFailed(_illegal_access())
            if fault := sim.faults.strikes("rank_dies", "serve"):
                rank_dies(sim, int(fault.number))
                sim.faults = Faults()
        if self.scheduler.load >= _BURST_REQUESTS:
            self._burst()

    def _burst(self) -> None:
        """The first burst of requests needs memory that nothing needed before."""
        failure = failure_in(self.sim, "peak")
        if failure is None and self.sim.faults.strikes("oom", "burst"):
            failure = out_of_memory(self.sim.host, "peak", 1.74 * GIB, 0.9 * GIB)
        if failure is not None:
            raise StartupFailed(failure)

    async def _flood(self, megabytes_a_second: float) -> None:
        line = "[flood] " + "x" * 1015 + "\n"
        while True:
            self.sim.log.raw(line * int(megabytes_a_second * 1024 / 20))
            await asyncio.sleep(0.05)


def _illegal_access() -> PredictedFailure:
    line = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    return PredictedFailure("crashed", "peak", line)
