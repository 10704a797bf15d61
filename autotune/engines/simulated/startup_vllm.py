"""vLLM's start: its phases, its log lines, and what can go wrong in each."""

from __future__ import annotations

from autotune.engines.simulated.durations import load_seconds
from autotune.engines.simulated.hosts import GIB
from autotune.engines.simulated.logs import bar
from autotune.engines.simulated.memory import Budget, budget, kv_capacity
from autotune.engines.simulated.simulation import Simulation, StartupFailed
from autotune.engines.simulated.startup_sglang import hang, load_shards
from autotune.engines.simulated.strikes import check, failure_in, gather_logits
from autotune.engines.simulated.support import PredictedFailure

VERSION = "0.32.0"
IMPORT_SECONDS, CORE_SECONDS = 9.0, 7.0


async def banner(sim: Simulation) -> None:
    """What is said before the port is bound."""
    log = sim.vllm
    await sim.clock.advance(IMPORT_SECONDS)
    log.main("", "api_utils.py:347")
    log.main("       █     █     █▄   ▄█", "api_utils.py:347")
    log.main(f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {VERSION}", "api_utils.py:347")
    log.main(f"  █▄█▀ █     █     █     █  model   {sim.args.model_path}", "api_utils.py:347")
    log.main("   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀", "api_utils.py:347")
    asked = {"model_tag": sim.args.model_path, **sim.args.asked, "model": sim.args.model_path}
    log.main(f"non-default args: {asked}")


async def start(sim: Simulation) -> None:
    """From the banner to the moment HTTP listens. Raises StartupFailed."""
    log, args, settings = sim.vllm, sim.args, sim.settings
    resolved = args.resolved
    log.main(f"Resolved architecture: {sim.model.architecture}", "model.py:733")
    log.main(f"Using max model len {resolved['max_model_len']}", "model.py:2152")
    if not settings.graph_max_bs:
        log.main(
            "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
            "vllm.py:1703",
            "WARNING",
        )
    await sim.clock.advance(CORE_SECONDS)
    log.core(f"Initializing a V1 LLM engine (v{VERSION}) with config: {_config(sim)}")
    plan = budget(sim.host, sim.model, settings)
    await _init(sim, plan)
    await _load(sim, plan)
    await _compile(sim)
    await _pool(sim, plan)
    await _capture(sim, plan)
    log.core(
        f"init engine (profile, create kv cache, warmup model) took {sim.clock.now:.2f} s",
        "core.py:402",
    )
    log.main("Supported tasks: ['generate']", "entry.py:136")


def _config(sim: Simulation) -> str:
    resolved, settings = sim.args.resolved, sim.settings
    speculative = resolved["speculative_config"]
    compiled = "VLLM_COMPILE" if settings.compiled else "NONE"
    mode = "FULL_AND_PIECEWISE" if settings.graph_max_bs else "NONE"
    return (
        f"model='{sim.args.model_path}', speculative_config={speculative}, "
        f"tokenizer='{sim.args.model_path}', trust_remote_code={resolved['trust_remote_code']}, "
        f"dtype=torch.bfloat16, max_seq_len={resolved['max_model_len']}, "
        f"load_format={resolved['load_format'] or 'auto'}, tensor_parallel_size={settings.tp}, "
        f"pipeline_parallel_size={resolved['pipeline_parallel_size'] or 1}, "
        f"data_parallel_size={resolved['data_parallel_size'] or 1}, "
        f"disable_custom_all_reduce={not settings.collective.custom}, "
        f"quantization={resolved['quantization']}, enforce_eager={not settings.graph_max_bs}, "
        f"kv_cache_dtype={resolved['kv_cache_dtype'] or 'auto'}, device_config=cuda, "
        f"seed={resolved['seed'] or 0}, served_model_name={sim.args.served_name}, "
        f"enable_prefix_caching={settings.prefix_cache}, enable_chunked_prefill=True, "
        f"compilation_config={{'mode': <CompilationMode.{compiled}"
        f": 3>, 'cudagraph_mode': <CUDAGraphMode.{mode}: (2, 1)>, "
        f"'max_cudagraph_capture_size': {settings.graph_max_bs}}}"
    )


async def _init(sim: Simulation, plan: Budget) -> None:
    log, tp = sim.vllm, sim.settings.tp
    for rank in range(tp):
        log.rank(
            f"world_size={tp} rank={rank} local_rank={rank} "
            "distributed_init_method=tcp://127.0.0.1:51233 backend=nccl",
            rank,
            "parallel_state.py:1906",
        )
    await check(sim, "init")
    failure = failure_in(sim, "launch")
    if failure is not None and failure.kind == "collective":
        await hang(sim, plan.context)
    if failure is not None:
        raise StartupFailed(failure)
    await sim.clock.advance(2.5)
    others = sim.memory.others()
    sim.memory.hold(plan.context)
    wanted = sim.settings.mem_fraction * plan.total
    if others > plan.total - wanted:
        raise StartupFailed(_held(sim, others, wanted))
    if tp > 2 and sim.host.link == "pcie" and not sim.args.resolved["disable_custom_all_reduce"]:
        log.rank(
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only "
            "GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.",
            0,
            "custom_all_reduce.py:152",
            "WARNING",
        )


def _held(sim: Simulation, others: int, wanted: float) -> PredictedFailure:
    total = sim.host.memory_bytes / GIB
    return PredictedFailure(
        "out_of_memory",
        "load",
        f"ValueError: Free memory on device cuda:0 ({total - others / GIB:.2f}/{total:.2f} GiB) "
        f"on startup is less than desired GPU memory utilization "
        f"({sim.settings.mem_fraction}, {wanted / GIB:.2f} GiB).",
    )


async def _load(sim: Simulation, plan: Budget) -> None:
    log, clock = sim.vllm, sim.clock
    log.rank(f"Using {sim.settings.attention} attention backend.", 0, "cuda.py:411")
    failure = failure_in(sim, "load")
    if failure is not None and failure.kind == "unsupported":
        raise StartupFailed(failure)
    log.rank(f"Starting to load model {sim.args.model_path}...", 0, "gpu_model_runner.py:68")
    cold = sim.caches.first(f"weights/{sim.model.name}")
    seconds = load_seconds(sim.model, sim.settings, cold, sim.noise.luck)
    started = clock.now
    await load_shards(sim, plan, seconds, "Loading safetensors checkpoint shards")
    took = clock.now - started
    log.rank(f"Loading weights took {took:.2f} seconds", 0, "default_loader.py:501")
    if sim.settings.spec_steps:
        log.rank("Loading drafter model...", 0, "gpu_model_runner.py:3021")
        await clock.advance(6.0)
    size = (plan.weights + plan.draft) / GIB
    log.rank(
        f"Model loading took {size:.2f} GiB memory and {took:.6f} seconds",
        0,
        "gpu_model_runner.py:3118",
    )
    sim.memory.hold(plan.context + plan.weights + plan.draft)
    await check(sim, "loaded")


async def _compile(sim: Simulation) -> None:
    if sim.settings.compiled:
        await _dynamo(sim)
    gather_logits(sim, "capture")


async def _dynamo(sim: Simulation) -> None:
    log, first = sim.vllm, sim.caches.first(f"kernels/{sim.kernel_key}")
    if first:
        log.rank("Dynamo bytecode transform time: 11.20 s", 0, "backends.py:643")
        await sim.clock.advance(48.0)
        log.rank("Compiling a graph for compile range (1, 8192) takes 41.3 s", 0, "backends.py:391")
    else:
        await sim.clock.advance(6.0)
        log.rank(
            "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, "
            "took 3.1 s",
            0,
            "backends.py:285",
        )
    log.rank("Initial profiling/warmup run took 2.41 s", 0, "monitor.py:48")


async def _pool(sim: Simulation, plan: Budget) -> None:
    log = sim.vllm
    await check(sim, "kv")
    log.rank(f"Available KV cache memory: {plan.pool / GIB:.2f} GiB", 0, "gpu_worker.py:298")
    failure = failure_in(sim, "load")
    if failure is not None:
        raise StartupFailed(failure)
    await sim.clock.advance(1.0)
    tokens = kv_capacity(sim.host, sim.model, sim.settings)
    length = sim.args.resolved["max_model_len"]
    if tokens < length:
        raise StartupFailed(_too_long(sim, plan, tokens, length))
    log.core(
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per "
        f"request: {tokens / length:.2f}x",
        "kv_cache_utils.py:2327",
    )
    sim.memory.hold(plan.context + plan.weights + plan.draft + plan.pool)


def _too_long(sim: Simulation, plan: Budget, tokens: int, length: int) -> PredictedFailure:
    needed = plan.kv_token * length / GIB
    return PredictedFailure(
        "no_kv_room",
        "load",
        f"ValueError: To serve at least one request with the model's max seq len ({length}), "
        f"({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({plan.pool / GIB:.2f} GiB). Based on the available memory, the estimated maximum model "
        f"length is {tokens}.",
    )


async def _capture(sim: Simulation, plan: Budget) -> None:
    log, clock, settings = sim.vllm, sim.clock, sim.settings
    if not settings.graph_max_bs:
        return
    await check(sim, "capture")
    log.rank("Profiling CUDA graph memory: PIECEWISE=51, FULL=35", 0, "gpu_model_runner.py:4410")
    failure, started = failure_in(sim, "capture"), clock.now
    label = "Capturing CUDA graphs (decode, FULL):"
    for done in range(settings.graph_sizes):
        log.raw(bar(label, done, settings.graph_sizes, clock.now - started))
        await clock.advance(0.08 + 0.004 * sim.model.layers)
        if failure is not None and done == settings.graph_sizes // 2:
            log.raw("\n")
            raise StartupFailed(failure)
    log.raw(bar(label, settings.graph_sizes, settings.graph_sizes, clock.now - started) + "\n")
    log.rank(
        f"Graph capturing finished in {clock.now - started:.0f} secs, took "
        f"{plan.graphs / GIB:.2f} GiB",
        0,
        "gpu_model_runner.py:4502",
    )
    used = plan.context + plan.weights + plan.draft + plan.pool + plan.graphs
    sim.memory.hold(used + plan.activations)


_ROUTES = (
    ("/load", "GET"),
    ("/version", "GET"),
    ("/health", "GET"),
    ("/metrics", "GET"),
    ("/tokenize", "POST"),
    ("/v1/models", "GET"),
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
)


def opened(sim: Simulation) -> None:
    """What is said once HTTP listens."""
    log = sim.vllm
    log.main(f"Starting vLLM server on http://{sim.args.host}:{sim.args.port}", "entry.py:140")
    log.main("Available routes are:", "launcher.py:186")
    for path, methods in _ROUTES:
        log.main(f"Route: {path}, Methods: {methods}", "launcher.py:195")
