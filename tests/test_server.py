"""The server lifecycle on simulated servers: real processes, real sockets, a ledger of GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from autotune.engines.simulated.adapter import SimulatedEngine
from autotune.errors import MachineNotClean, TrialFailed, TrialLost
from autotune.leash import end_leftovers
from autotune.records import Failure, FailureKind, Launch, Measurement, Phase
from autotune.server import Server
from tests.census import in_sessions, leftovers, marked, wait_until_nothing_is_left
from tests.lifecycle import Stage
from tests.patience import PATIENCE_SECONDS, eventually

K = FailureKind


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def session_of(launch: Launch) -> int:
    return int(json.loads((launch.trial_dir / "processes.json").read_text())["server"])


def nothing_is_left(stage: Stage, launch: Launch) -> None:
    """Neither processes nor GPU memory nor a port nor a temporary folder."""
    assert marked(launch.mark) == set()
    assert in_sessions([session_of(launch)]) == set()
    assert set(stage.machine.memory_used().values()) == {0}
    assert not Path(launch.env["TMPDIR"]).exists()
    with socket.socket() as probe:
        assert probe.connect_ex((launch.host, launch.port)) != 0


async def failure_of(stage: Stage, launch: Launch) -> Failure:
    with pytest.raises(TrialFailed) as caught:
        async with stage.running(launch):
            pass
    nothing_is_left(stage, launch)
    return caught.value.failure


# -- the ordinary way ---------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
async def test_a_server_is_launched_used_and_leaves_nothing(stage: Stage, engine: str) -> None:
    launch = stage.launch(engine=engine)
    async with stage.running(launch) as server:
        assert min(stage.machine.memory_used().values()) > 50 * 2**30
        assert len(stage.machine.holders()) == 8
        models = (await server.guard(server.http.get("/v1/models"))).json()
        assert models["data"][0]["id"] == launch.served_name
        effective = await server.guard(server.engine.effective(server.http, server.log_text()))
        assert effective.figures["kv_tokens"] > 10_000
        sample = await server.guard(server.engine.sample(server.http))
        assert (sample.generated_tokens_total or 0) > 0  # the answer that made it ready
    nothing_is_left(stage, launch)
    order = [Phase.LAUNCH, Phase.LOAD, Phase.CAPTURE, Phase.READY, Phase.STOP, Phase.DRAINED]
    assert stage.phases == order
    assert list(stage.timeline.finish()) == order


async def test_requests_that_nobody_waits_for_are_given_up_before_the_end(stage: Stage) -> None:
    launch = stage.launch()
    async with stage.running(launch) as server:
        pass
    assert '"POST /abort_request HTTP/1.1" 200' in server.log_text()
    nothing_is_left(stage, launch)


async def test_the_seconds_of_giving_up_requests_are_the_stop_s(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def noted(engine: SimulatedEngine, http: httpx.AsyncClient) -> None:
        seen.append(stage.timeline.phase)

    monkeypatch.setattr(SimulatedEngine, "abort_all", noted)
    async with stage.running(stage.launch()):
        stage.timeline.enter(Phase.PEAK)
    assert seen == [Phase.STOP]
    assert list(stage.timeline.finish())[-3:] == [Phase.PEAK, Phase.STOP, Phase.DRAINED]


async def test_an_error_of_the_measurement_passes_and_the_server_is_stopped(stage: Stage) -> None:
    launch = stage.launch()
    with pytest.raises(ZeroDivisionError):
        async with stage.running(launch):
            raise ZeroDivisionError
    nothing_is_left(stage, launch)


async def test_the_api_key_is_used_and_is_not_left_in_the_log(stage: Stage) -> None:
    launch = stage.launch(args={"api-key": "very-secret-key"})
    async with stage.running(launch) as server:
        assert server.headers == {"Authorization": "Bearer very-secret-key"}
        with server.log_path.open("a") as log:
            log.write("resolved: {'api_key': ['very-secret-key']}\n")
    text = (launch.trial_dir / "server.log").read_text()
    assert "very-secret-key" not in text
    assert "***" in text


# -- it dies ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fault", "status"), [("exit1", 1), ("exit0", 0)])
async def test_an_early_exit_is_a_crash_whatever_its_status(
    stage: Stage, fault: str, status: int
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):  # of a limit of three hours
        failure = await failure_of(stage, stage.launch(fault))
    assert (failure.kind, failure.phase) == (K.CRASHED, Phase.LAUNCH)
    assert f"ended by itself with status {status}" in failure.cause


STARTS = [
    ("oom@kv", "sglang", K.OUT_OF_MEMORY, Phase.LOAD, "CUDA out of memory"),
    ("oom@capture", "sglang", K.OUT_OF_MEMORY, Phase.CAPTURE, "CUDA out of memory"),
    ("oom@load", "vllm", K.OUT_OF_MEMORY, Phase.LOAD, "CUDA out of memory"),
    ("unsupported", "sglang", K.UNSUPPORTED, Phase.LOAD, "Unsupported architecture"),
    ("rank_dies@load:3", "sglang", K.CRASHED, Phase.LOAD, "Rank 3 scheduler died"),
    ("rank_exception@load", "vllm", K.CRASHED, Phase.LOAD, "illegal memory access"),
]


@pytest.mark.parametrize(("fault", "engine", "kind", "phase", "cause"), STARTS)
async def test_a_failed_start_has_its_kind_phase_and_first_cause(
    stage: Stage, fault: str, engine: str, kind: FailureKind, phase: Phase, cause: str
) -> None:
    failure = await failure_of(stage, stage.launch(fault, engine=engine))
    assert (failure.kind, failure.phase) == (kind, phase)
    assert cause in failure.cause


async def test_a_command_that_does_not_exist_is_named(stage: Stage) -> None:
    launch = stage.launch().model_copy(update={"argv": ("no-such-engine", "--port", "1")})
    failure = await failure_of(stage, launch)
    assert (failure.kind, failure.phase) == (K.BAD_FLAGS, Phase.LAUNCH)
    assert "cannot start no-such-engine" in failure.cause


async def test_a_death_under_load_ends_the_work_and_keeps_what_was_measured(stage: Stage) -> None:
    """Out of memory at the first burst: the cause is the log's, not the broken connection."""
    launch = stage.launch("oom@burst")
    partial = Measurement(values={"single_stream_tok_s": 80.0}, spread={}, figures={})

    async def burst(server: Server) -> None:
        stage.timeline.enter(Phase.PEAK)
        ask = {"model": launch.served_name, "prompt": "x " * 300, "max_tokens": 64}
        try:
            answers = await asyncio.gather(
                *(
                    server.http.post("/v1/completions", json=ask, timeout=PATIENCE_SECONDS)
                    for _ in range(64)
                )
            )
        except httpx.HTTPError as error:
            broken = str(error)
        else:
            broken = str([answer.status_code for answer in answers if answer.is_error])
        failure = Failure(kind=K.REQUESTS_FAILED, phase=Phase.PEAK, cause=broken)
        raise TrialFailed(failure, partial)

    with pytest.raises(TrialFailed) as caught:
        async with stage.running(launch) as server:
            await server.guard(burst(server))
    assert (caught.value.failure.kind, caught.value.failure.phase) == (K.OUT_OF_MEMORY, Phase.PEAK)
    assert "out of memory" in caught.value.failure.cause
    assert caught.value.partial == partial
    nothing_is_left(stage, launch)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
async def test_a_killed_rank_ends_work_that_waits_for_ever(stage: Stage, engine: str) -> None:
    launch = stage.launch(engine=engine)
    with pytest.raises(TrialFailed) as caught:
        async with stage.running(launch) as server, asyncio.timeout(PATIENCE_SECONDS):
            stage.timeline.enter(Phase.SINGLE)
            os.kill(stage.machine.holders()[3].pid, signal.SIGKILL)
            await server.guard(asyncio.sleep(3600))
    assert (caught.value.failure.kind, caught.value.failure.phase) == (K.CRASHED, Phase.SINGLE)
    nothing_is_left(stage, launch)


async def test_a_killed_launcher_leaves_no_rank(stage: Stage) -> None:
    launch = stage.launch(engine="vllm")  # whose workers outlive it
    with pytest.raises(TrialFailed) as caught:
        async with stage.running(launch) as server, asyncio.timeout(PATIENCE_SECONDS):
            os.kill(session_of(launch), signal.SIGKILL)
            await server.guard(asyncio.sleep(3600))
    assert "SIGKILL" in caught.value.failure.cause
    nothing_is_left(stage, launch)


async def test_a_killed_reaper_costs_the_trial_and_leaves_nothing(stage: Stage) -> None:
    launch = stage.launch(engine="vllm")
    with pytest.raises(TrialLost, match="reaper"):
        async with stage.running(launch) as server, asyncio.timeout(PATIENCE_SECONDS):
            os.kill(server._leash.reaper_pid, signal.SIGKILL)
            await server.guard(asyncio.sleep(3600))
    nothing_is_left(stage, launch)


# -- it takes its time ----------------------------------------------------------------------------
async def test_a_first_answer_of_264_seconds_is_waited_for(stage: Stage) -> None:
    launch = stage.launch("slow_first_post")
    async with stage.running(launch) as server:
        assert server.launch == launch
    assert stage.timeline.seconds[Phase.READY] > 200


async def test_a_bar_that_stands_for_less_than_the_limit_is_no_stall(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_SIM_SPEED", "400")  # slow enough to be looked at meanwhile
    async with stage.running(stage.launch("slow_shard:800")):
        pass
    assert stage.timeline.seconds[Phase.LOAD] > 800
    assert re.search(r"loading weights \d+/\d+ shards", stage.details)


SILENT = {
    "reads": "open('/dev/zero', 'rb').read(2**22); time.sleep(0.1)",
    "computes": "sum(range(200_000))",
    "sleeps": "time.sleep(1)",
}


@pytest.mark.parametrize("what", SILENT)
async def test_a_silent_start_is_a_stall_only_if_nothing_moves(stage: Stage, what: str) -> None:
    """Eight seconds without a log line, of a limit of three, in real time."""
    silent = f"import time\nend = time.time() + 8\nwhile time.time() < end:\n    {SILENT[what]}\n"
    stage.stall_minutes = 0.05
    launch = stage.launch()
    argv = (sys.executable, "-c", silent + STRANGER, str(launch.port))
    launch = launch.model_copy(update={"argv": argv, "engine": "openai"})
    if what == "sleeps":
        failure = await failure_of(stage, launch)
        assert failure.kind is K.STALLED
        assert "no log, no bytes read, no GPU memory, no CPU time" in failure.cause
        return
    async with stage.running(launch):
        pass
    nothing_is_left(stage, launch)


async def test_ranks_that_wait_for_each_other_stall_and_the_deadlock_is_named(
    stage: Stage,
) -> None:
    stage.limit_hours = 100.0
    failure = await failure_of(stage, stage.launch("nccl_hang@init"))
    assert (failure.kind, failure.phase) == (K.STALLED, Phase.LAUNCH)
    assert "no progress for" in failure.cause
    assert "signature of a deadlock between ranks" in failure.cause


async def test_a_server_that_never_answers_stalls(stage: Stage) -> None:
    stage.limit_hours = 100.0
    failure = await failure_of(stage, stage.launch("never_answers"))
    assert (failure.kind, failure.phase) == (K.STALLED, Phase.READY)


@pytest.mark.parametrize("fault", ["fail_requests:1", "no_tokens"])
async def test_a_server_that_answers_every_probe_with_an_error_is_given_up(
    stage: Stage, fault: str
) -> None:
    """The probes' own lines in its log are no progress: it would be waited for until the limit."""
    stage.limit_hours = 100.0
    failure = await failure_of(stage, stage.launch(fault))
    assert failure.phase is Phase.READY
    assert failure.kind in (K.REQUESTS_FAILED, K.STALLED)
    if fault == "fail_requests:1":
        assert "no request is answered: HTTP 500" in failure.cause


async def test_the_limit_ends_a_start_that_still_makes_progress(stage: Stage) -> None:
    stage.limit_hours = 0.05
    failure = await failure_of(stage, stage.launch())
    assert failure.kind is K.STALLED
    assert "not ready after" in failure.cause


# -- it does not want to end ----------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["orphans", "ignores_sigterm"])
async def test_processes_that_ignore_sigterm_are_ended(stage: Stage, fault: str) -> None:
    launch = stage.launch(fault)
    async with stage.running(launch):
        pass
    nothing_is_left(stage, launch)
    async with stage.running(stage.launch(number=2)):
        pass  # the next one finds a clean machine


async def test_memory_that_comes_back_late_is_waited_for(stage: Stage) -> None:
    async with stage.running(stage.launch("memory_stays:2")):
        pass
    assert set(stage.machine.memory_used().values()) == {0}


async def test_memory_that_does_not_come_back_stops_the_study(stage: Stage) -> None:
    with pytest.raises(MachineNotClean) as caught:
        async with stage.running(stage.launch("memory_stays")):
            held = stage.machine.holders()[0]
    assert caught.value.exit_status == 3
    assert f"pid {held.pid} (sglang::scheduler_TP0) holds" in str(caught.value)
    assert "GPU 7" in str(caught.value)


# -- ports and strangers --------------------------------------------------------------------------
# A server of somebody else, which lists the very model name that a trial waits for.
STRANGER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {"data": [{"id": "autotune-0001"}], "choices": [{"text": "Paris"}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    do_POST = do_GET
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def stranger_on(port: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The stranger's process and the port that it listens on (0: any)."""
    process = subprocess.Popen([sys.executable, "-c", STRANGER, str(port)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def test_a_port_that_answers_is_refused_before_the_launch(stage: Stage) -> None:
    with stranger_on(0) as (stranger, port):
        launch = stage.launch(port=port)
        with pytest.raises(TrialLost, match=f"port {port} is already answered by pid"):
            async with stage.running(launch):
                pass
        assert not (launch.trial_dir / "server.log").exists()
        assert stranger.poll() is None


async def test_a_port_that_is_taken_during_the_load_is_never_taken_for_the_server(
    stage: Stage,
) -> None:
    launch = stage.launch("port_squatter")
    with pytest.raises(TrialLost):
        async with stage.running(launch):
            pass
    nothing_is_left(stage, launch)


async def test_a_stranger_that_takes_the_port_is_named_and_survives(stage: Stage) -> None:
    """It even answers under the trial's model name: its process gives it away."""
    launch = stage.launch().model_copy(update={"argv": ("sleep", "600")})
    task = asyncio.create_task(forever(stage, launch))
    await eventually((launch.trial_dir / "processes.json").exists)
    with stranger_on(launch.port) as (stranger, _):
        with pytest.raises(TrialLost, match=f"was taken by pid {stranger.pid}"):
            await asyncio.wait_for(task, PATIENCE_SECONDS)
        assert stranger.poll() is None
        assert marked(launch.mark) == set()


async def test_strangers_on_the_gpus_are_named_and_left_alone(stage: Stage) -> None:
    from autotune.engines.simulated import ledger

    neighbour = subprocess.Popen(["sleep", "600"])
    entry = {"pid": neighbour.pid, "gpu": 5, "bytes": 2 * 2**30, "mark": None, "name": "other"}
    ledger.hold(stage.ledger, [entry])
    try:
        async with stage.running(stage.launch()) as server:
            assert server.notes == (
                f"stranger on a GPU: pid {neighbour.pid} (other) holds 2,048 MiB on GPU 5",
            )
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


# -- the end comes from outside -------------------------------------------------------------------
@pytest.mark.parametrize("phase", [Phase.LAUNCH, Phase.LOAD, Phase.READY])
async def test_a_cancelled_trial_is_cleaned_up_before_it_ends(stage: Stage, phase: Phase) -> None:
    launch = stage.launch()
    task = asyncio.create_task(forever(stage, launch))
    started = launch.trial_dir / "processes.json"
    await eventually(lambda: started.exists() and phase in stage.phases)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    nothing_is_left(stage, launch)


async def test_a_second_cancellation_hurries_and_is_still_clean(stage: Stage) -> None:
    stage.grace_seconds = 600.0
    launch = stage.launch("ignores_sigterm")
    task = asyncio.create_task(forever(stage, launch))
    await eventually(lambda: Phase.READY in stage.phases)
    task.cancel()
    await asyncio.sleep(0.5)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), PATIENCE_SECONDS)
    nothing_is_left(stage, launch)


async def forever(stage: Stage, launch: Launch) -> None:
    async with stage.running(launch) as server:
        await server.guard(asyncio.sleep(3600))


DRIVER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.lifecycle import Stage
from tests.test_server import forever
stage = Stage(Path(sys.argv[2]))
asyncio.run(forever(stage, stage.launch(engine=sys.argv[3])))
"""


@pytest.mark.parametrize(("engine", "phase"), [("sglang", "load"), ("vllm", "ready")])
async def test_kill_9_of_the_driver_leaves_nothing(stage: Stage, engine: str, phase: str) -> None:
    root = str(Path(__file__).parent.parent)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, root, str(stage.folder), engine])
    timeline = stage.folder / "trials" / "0001" / "timeline.json"

    def reached() -> bool:
        assert driver.poll() is None
        return timeline.exists() and phase in timeline.read_text()

    await eventually(reached)
    assert leftovers(stage.folder, stage.ledger)
    driver.kill()
    driver.wait()
    left = await asyncio.to_thread(
        wait_until_nothing_is_left, PATIENCE_SECONDS, stage.folder, stage.ledger
    )
    assert not left


async def test_what_outlives_driver_and_reaper_is_ended_before_the_next_trial(
    stage: Stage,
) -> None:
    root = str(Path(__file__).parent.parent)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, root, str(stage.folder), "vllm"])
    trial_dir = stage.folder / "trials" / "0001"

    def loaded() -> bool:
        assert driver.poll() is None
        return len(stage.machine.holders()) == 8

    await eventually(loaded)
    facts = json.loads((trial_dir / "processes.json").read_text())
    os.kill(facts["reaper"], signal.SIGSTOP)  # it cannot see the driver's end any more
    driver.kill()
    driver.wait()
    os.kill(facts["reaper"], signal.SIGKILL)
    assert in_sessions([facts["server"]])  # vLLM's workers live on
    assert end_leftovers(trial_dir) == set()
    assert not leftovers(stage.folder, stage.ledger)
    assert end_leftovers(trial_dir) == set()
