"""How each engine dies: what it says, in which order, and with which status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from typing import NoReturn

from autotune.engines.simulated.durations import STOP_POLL_SECONDS, STOP_SECONDS
from autotune.engines.simulated.logs import traceback_text
from autotune.engines.simulated.simulation import Simulation
from autotune.engines.simulated.support import PredictedFailure

_FRAMES = {
    "load": ("model_executor/model_runner.py", 846, "load_model", "self.model = get_model("),
    "capture": ("model_executor/cuda_graph_runner.py", 702, "capture", "graph.replay()"),
    "ready": ("managers/scheduler.py", 2914, "run_batch", "result = self.forward_batch(batch)"),
    "peak": ("managers/scheduler.py", 2914, "run_batch", "result = self.forward_batch(batch)"),
}


def leave(status: int) -> NoReturn:
    """End this process at once: no cleanup, as the engines' own last act."""
    os._exit(status)


def argument_traceback(engine: str, line: str) -> str:
    """What is printed when arguments contradict each other."""
    root = "/opt/sglang/sglang" if engine == "sglang" else "/opt/venv/lib/vllm"
    frames = [
        (f"{root}/launch.py", 42, "<module>", "run_server(server_args)"),
        (f"{root}/arguments.py", 913, "__post_init__", "self._resolve()"),
    ]
    return traceback_text(frames, line)


def _scheduler_traceback(failure: PredictedFailure) -> str:
    """SGLang's account of what a rank raised; a failed capture is an exception of its own."""
    root, frame = "/opt/sglang/sglang/srt/", _FRAMES.get(failure.phase, _FRAMES["load"])
    run = (f"{root}managers/scheduler.py", 4313, "run_scheduler_process", "scheduler = (")
    frames = [(root + frame[0], frame[1], frame[2], frame[3])]
    if "NCCL error" in failure.line:
        check = 'raise RuntimeError(f"NCCL error: {error_str}")'
        place = "distributed/device_communicators/pynccl_wrapper.py"
        frames.append((root + place, 378, "NCCL_CHECK", check))
    if failure.phase != "capture":
        return traceback_text([run, *frames], failure.line)
    said = failure.line.partition(": ")[2]
    failed = (
        f"Exception: Capture cuda graph failed: {said}\n"
        "Possible solutions:\n1. set --mem-fraction-static to a smaller value"
    )
    between = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    return traceback_text(frames, failure.line) + between + traceback_text([run], failed)


class Undertaker:
    """Ends one server the way its engine does. `fail_streams` tells the clients that are left."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.serving = False
        self.fail_streams: Callable[[str], None] = lambda message: None
        self._ending = False
        self._last_acts: list[asyncio.Future[NoReturn]] = []

    def watch(self) -> None:
        """Notice ranks that die or cry for help."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._a_child_died)
        loop.add_signal_handler(signal.SIGQUIT, self._sigquit)
        if self.sim.tree.deaths is not None:
            loop.add_reader(self.sim.tree.deaths, self._a_worker_died)

    # -- failures of a start or of a step ------------------------------
    async def die(self, failure: PredictedFailure) -> NoReturn:
        """End because a rank raised."""
        if self.sim.args.engine == "sglang":
            self._scheduler_exception(failure)
            self.sim.tree.ranks[0].order(b"sigquit")
            await asyncio.sleep(5.0)
            self._sigquit()
        if self.serving:
            await self._engine_dead(failure.line)
        await self._core_failed(failure)
        leave(1)

    def _scheduler_exception(self, failure: PredictedFailure) -> None:
        text = _scheduler_traceback(failure)
        for rank in range(self.sim.settings.tp if failure.kind != "crashed" else 1):
            self.sim.sglang.rank(f"Scheduler hit an exception: {text}\n", rank)

    async def _core_failed(self, failure: PredictedFailure) -> None:
        log = self.sim.vllm
        for rank in range(self.sim.settings.tp):
            log.rank(f"WorkerProc hit an exception. {failure.line}", rank, "worker.py:843", "ERROR")
        log.core("EngineCore failed to start.", "core.py:1510", "ERROR")
        log.core("Traceback (most recent call last):", "core.py:1510", "ERROR")
        log.core(failure.line, "core.py:1510", "ERROR")
        self.sim.tree.kill()
        await asyncio.sleep(0.05)
        log.raw(
            "Traceback (most recent call last):\n"
            '  File "/opt/venv/bin/vllm", line 8, in <module>\n    sys.exit(main())\n'
            "RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {}\n"
        )

    async def _engine_dead(self, cause: str) -> NoReturn:
        """A running vLLM whose engine died: streams get an error, then it ends with status 0."""
        log, self._ending = self.sim.vllm, True
        self.sim.dead = True
        log.core("EngineCore encountered a fatal error.", "core.py:1512", "ERROR")
        log.core("Traceback (most recent call last):", "core.py:1512", "ERROR")
        log.core(cause, "core.py:1512", "ERROR")
        log.main("AsyncLLM output_handler failed.", "async_llm.py:906", "ERROR")
        log.main(
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See "
            "stack trace (above) for the root cause.",
            "async_llm.py:906",
            "ERROR",
        )
        self.fail_streams("EngineCore encountered an issue. See stack trace (above).")
        await asyncio.sleep(0.4)
        log.raw("INFO:     Shutting down\nINFO:     Finished server process\n")
        self.sim.tree.kill()
        leave(0)

    def _begin(self, act: Coroutine[None, None, NoReturn]) -> None:
        self._last_acts.append(asyncio.ensure_future(act))

    # -- signals and children ------------------------------
    def _sigquit(self) -> None:
        log = self.sim.sglang
        log.main(
            "SIGQUIT received. signum=3. It usually means one child failed."
            if self.serving
            else "Received sigquit from a child process. It usually means the child failed."
        )
        log.main(
            f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, "
            f"pid={os.getpid()}"
        )
        self.sim.tree.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        leave(137)

    def _a_child_died(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._buried(pid, os.waitstatus_to_exitcode(status))

    def _buried(self, pid: int, code: int) -> None:
        if self._ending:
            return
        if self.sim.args.engine == "vllm":
            if pid == self.sim.tree.core_pid:
                self._begin(self._engine_dead("RuntimeError: EngineCore died."))
            return
        ranks = {rank.pid: index for index, rank in enumerate(self.sim.tree.ranks)}
        if pid not in ranks:
            return
        if not self.serving:
            self.sim.sglang.raw(
                f"RuntimeError: Rank {ranks[pid]} scheduler died during initialization (exit code: "
                f"{code}). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run "
                "`dmesg -T | grep -i oom` to check.\n"
            )
            self.sim.tree.kill()
            leave(1)
        self.sim.sglang.main(
            f"Subprocess scheduler_{ranks[pid]} (pid={pid}) crashed with exit code {code}. "
            "Triggering SIGQUIT for cleanup..."
        )
        self._sigquit()

    def _a_worker_died(self) -> None:
        assert self.sim.tree.deaths is not None
        words = os.read(self.sim.tree.deaths, 4096).decode().split()
        if not words:
            asyncio.get_running_loop().remove_reader(self.sim.tree.deaths)
            return
        if self._ending:
            return
        self._ending = True
        message = f"Worker proc VllmWorker-{words[0]} died unexpectedly (exit code: {words[1]})"
        self.sim.vllm.core(
            f"{message}, shutting down executor.", "multiproc_executor.py:315", "ERROR"
        )
        if self.serving:
            self._begin(self._engine_dead("RuntimeError: Executor failed."))
        else:
            failure = PredictedFailure("crashed", "load", "RuntimeError: Executor failed.")
            self._begin(self.die(failure))

    # -- the regular end ------------------------------
    async def stop(self, is_idle: Callable[[], bool]) -> None:
        """SIGTERM: SGLang finishes what runs, vLLM aborts it; both end with status 0."""
        if self._ending:
            return
        self._ending = True
        if self.sim.args.engine == "sglang":
            self.sim.sglang.main("Gracefully exiting... Remaining number of requests 0.")
            await self._drained(is_idle)
            await self.sim.clock.advance(STOP_SECONDS)
        else:
            log = self.sim.vllm
            log.main("[shutdown] API server: shutdown triggered", "launcher.py:254")
            self.fail_streams("Request aborted.")
        self.sim.log.http("Shutting down")
        self.sim.log.http("Application shutdown complete.")
        self.sim.memory.stay()
        if "orphans" not in self.sim.faults:
            self.sim.tree.kill()
        leave(0)

    async def _drained(self, is_idle: Callable[[], bool]) -> None:
        """SGLang looks for requests that are left when it is told to stop and every 5 s."""
        clock, told = self.sim.clock, self.sim.clock.now
        if is_idle():
            return
        while not is_idle():
            await asyncio.sleep(0.01)
        await clock.advance(STOP_POLL_SECONDS - (clock.now - told) % STOP_POLL_SECONDS)
