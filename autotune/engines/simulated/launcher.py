"""One simulated server from its command line to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines.simulated import (
    openai_args,
    sglang_args,
    startup_sglang,
    startup_vllm,
    vllm_args,
)
from autotune.engines.simulated.api import Api
from autotune.engines.simulated.deaths import Undertaker, leave
from autotune.engines.simulated.faults import Faults, faults_from
from autotune.engines.simulated.hosts import GIB, Host, host_named, infer_host
from autotune.engines.simulated.http import Connection
from autotune.engines.simulated.launch_args import Arguments, ResolveError, UsageError
from autotune.engines.simulated.logs import Log, SGLangLog, VLLMLog, traceback_text
from autotune.engines.simulated.memory import out_of_memory
from autotune.engines.simulated.models import model_named
from autotune.engines.simulated.noise import Noise
from autotune.engines.simulated.processes import Tree, sglang_tree, vllm_tree
from autotune.engines.simulated.scheduler import Scheduler
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.simulation import (
    LEDGER_NAME,
    Caches,
    GpuMemory,
    Simulation,
    StartupFailed,
    seed_of,
    visible_gpus,
)
from autotune.engines.simulated.squatter import start_squatter
from autotune.engines.simulated.strikes import failure_in, rank_dies
from autotune.engines.simulated.support import PredictedFailure
from autotune.engines.simulated.timekeeper import Timekeeper
from autotune.engines.simulated.watchers import SGLangWatcher, VLLMWatcher

DEFAULT_SPEED = 2000.0
SIMULATED = "SIMULATED server (autotune): no GPU and no model; every figure is a simulation."
_PARSERS = {"sglang": sglang_args.parse, "vllm": vllm_args.parse, "openai": openai_args.parse}
_BURST_REQUESTS = 8
_DEATH_AFTER_BUSY_SECONDS = 3.0


def run(engine: str, argv: Sequence[str], *, preflight: bool = False) -> int:
    """Be that engine's server. Returns an exit status, or does not return at all."""
    env = os.environ
    try:
        faults = faults_from(env)
        host = _host(env, argv)
    except (ValueError, KeyError) as problem:
        sys.stderr.write(f"{problem.args[0]}\n")
        return 2
    try:
        args = _PARSERS[engine](argv, env, host)
    except UsageError as problem:
        sys.stderr.write(problem.text)
        return 2
    except ResolveError as problem:
        sys.stderr.write(_argument_traceback(engine, problem.line) + "\n")
        return 1
    if preflight:
        return 0
    if "exit0" in faults or "exit1" in faults:
        time.sleep(1.0)
        return 0 if "exit0" in faults else 1
    sim = _assemble(args, argv, env, host, faults)
    return _serve(sim)


def _host(env: Mapping[str, str], argv: Sequence[str]) -> Host:
    """The host named in the environment, else the one the model is usually run on."""
    return host_named(env.get("AUTOTUNE_SIM_HOST") or infer_host(" ".join(argv), 8))


def _argument_traceback(engine: str, line: str) -> str:
    root = "/opt/sglang/sglang" if engine == "sglang" else "/opt/venv/lib/vllm"
    frames = [
        (f"{root}/launch.py", 42, "<module>", "run_server(server_args)"),
        (f"{root}/arguments.py", 913, "__post_init__", "self._resolve()"),
    ]
    return traceback_text(frames, line)


def _assemble(
    args: Arguments, argv: Sequence[str], env: Mapping[str, str], host: Host, faults: Faults
) -> Simulation:
    model = model_named(args.model_path)
    trial_dir = env.get("AUTOTUNE_SIM_CLOCK_DIR")
    speed = float(env.get("AUTOTUNE_SIM_SPEED") or DEFAULT_SPEED)
    clock = Timekeeper(Path(trial_dir) if trial_dir else None, speed)
    tied = "orphans" not in faults
    if faults.get("port_squatter"):
        start_squatter(args.host, args.port)
    tp = min(args.settings.tp, 64)
    is_vllm = args.engine == "vllm"
    tree = vllm_tree(tp, tied=tied) if is_vllm else sglang_tree(tp, tied=tied)
    log: Log = VLLMLog(clock, tp, os.getpid()) if is_vllm else SGLangLog(clock, tp)
    if isinstance(log, VLLMLog):
        log.core_pid, log.worker_pids = tree.core_pid or 0, [rank.pid for rank in tree.ranks]
    folder = Path(env["AUTOTUNE_SIM_DIR"]) if env.get("AUTOTUNE_SIM_DIR") else None
    return Simulation(
        args=args,
        env=env,
        host=host,
        model=model,
        settings=_really(args, argv, env, host, faults),
        clock=clock,
        log=log,
        faults=faults,
        noise=Noise(seed_of(env), model.drift),
        tree=tree,
        memory=_memory(env, folder, tp, tree, faults),
        caches=Caches(folder),
    )


def _really(
    args: Arguments, argv: Sequence[str], env: Mapping[str, str], host: Host, faults: Faults
) -> Settings:
    """What really runs: the resolved settings, but for a flag that is recorded and ignored."""
    ignored = faults.get("ignored_flag")
    if ignored is None:
        return args.settings
    return _PARSERS[args.engine](_without_flag(argv, ignored.argument), env, host).settings


def _without_flag(argv: Sequence[str], name: str) -> list[str]:
    """`argv` without the flag called `name` (dashes or underscores) and its values."""
    kept, dropping = list[str](), False
    for word in argv:
        if word.startswith("-"):
            dropping = word.lstrip("-").partition("=")[0].replace("_", "-") == name.replace(
                "_", "-"
            )
        if not dropping:
            kept.append(word)
    return kept


def _memory(
    env: Mapping[str, str], folder: Path | None, tp: int, tree: Tree, faults: Faults
) -> GpuMemory:
    path = folder / LEDGER_NAME if folder and (folder / LEDGER_NAME).exists() else None
    stays = faults.get("memory_stays")
    until = time.time() + stays.number if stays and stays.argument else None
    return GpuMemory(
        path, visible_gpus(env, tp), env.get("AUTOTUNE_MARK", ""), tree, bool(stays), until
    )


def _serve(sim: Simulation) -> int:
    if "ignores_sigterm" in sim.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Server(sim).run())
    sim.tree.kill()
    return 0


class _Server:
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
                _argument_traceback("vllm", "OSError: [Errno 98] Address already in use") + "\n"
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
            lambda: Connection(self.api.handle, self.api.connections), sock=bound, backlog=1024
        )
        sim.log.http("Application startup complete.")
        if not self.is_vllm:
            address = f"http://{sim.args.host}:{sim.args.port}"
            sim.log.http(f"Uvicorn running on {address} (Press CTRL+C to quit)")
        self.undertaker.serving = True
        if "ignores_sigterm" not in sim.faults:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop)
        for work in (sim.clock.tick_when_idle(), self.scheduler.run()):
            self._tasks.append(asyncio.ensure_future(work))

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
