"""One simulated server from its command line to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines.simulated import (
    openai_args,
    sglang_args,
    vllm_args,
)
from autotune.engines.simulated.clock_file import DEFAULT_SPEED
from autotune.engines.simulated.deaths import argument_traceback
from autotune.engines.simulated.faults import Faults, faults_from
from autotune.engines.simulated.hosts import Host, host_named, infer_host
from autotune.engines.simulated.launch_args import Arguments, ResolveError, UsageError
from autotune.engines.simulated.logs import Log, SGLangLog, VLLMLog
from autotune.engines.simulated.models import model_named
from autotune.engines.simulated.noise import Noise
from autotune.engines.simulated.processes import Tree, sglang_tree, vllm_tree
from autotune.engines.simulated.server import Server
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.simulation import (
    LEDGER_NAME,
    Caches,
    GpuMemory,
    Simulation,
    seed_of,
    visible_gpus,
)
from autotune.engines.simulated.squatter import start_squatter
from autotune.engines.simulated.timekeeper import Timekeeper

_PARSERS = {"sglang": sglang_args.parse, "vllm": vllm_args.parse, "openai": openai_args.parse}


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
        sys.stderr.write(argument_traceback(engine, problem.line) + "\n")
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
    seconds = stays.number if stays and stays.argument else None
    return GpuMemory(
        path, visible_gpus(env, tp), env.get("AUTOTUNE_MARK", ""), tree, bool(stays), seconds
    )


def _serve(sim: Simulation) -> int:
    if "ignores_sigterm" in sim.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Server(sim).run())
    sim.tree.kill()
    return 0
