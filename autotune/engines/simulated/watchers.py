"""What the engines log while they serve."""

from __future__ import annotations

from autotune.engines.simulated.accounting import Watcher
from autotune.engines.simulated.pages import accept_length
from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.scheduler import Scheduler
from autotune.engines.simulated.simulation import Simulation

VLLM_INTERVAL_SECONDS = 10.0


class SGLangWatcher(Watcher):
    """Prefill lines, and a decode line every `decode-log-interval` steps."""

    scheduler: Scheduler

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._steps = self._tokens = self._cycles = self._spec_tokens = 0
        self._since = 0.0

    def prefilled(self, new: list[Sequence], tokens: int, cached: int, seconds: float) -> None:
        batch = self.scheduler.batch
        usage = batch.kv_used / max(1, self.scheduler.kv_tokens)
        self._sim.sglang.rank(
            f"Prefill batch, #new-seq: {len(new)}, #new-token: {tokens}, #cached-token: {cached}, "
            f"token usage: {usage:.2f}, #running-req: {len(batch.running)}, "
            f"#queue-req: {len(batch.waiting)}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {tokens / max(seconds, 1e-9):.2f}"
        )

    def decoded(self, cycles: int, tokens: int, graph: bool) -> None:
        self._steps += cycles
        self._tokens += tokens
        if self._steps < self._sim.args.log_interval:
            return
        batch, now = self.scheduler.batch, self._sim.clock.now
        usage = batch.kv_used / max(1, self.scheduler.kv_tokens)
        self._sim.sglang.rank(
            f"Decode batch, #running-req: {len(batch.running)}, #token: {batch.kv_used}, "
            f"token usage: {usage:.2f}, {self._accept()}cuda graph: {graph}, gen throughput "
            f"(token/s): {self._tokens / max(now - self._since, 1e-9):.2f}, "
            f"#queue-req: {len(batch.waiting)}"
        )
        self._steps = self._tokens = 0
        self._since = now

    def _accept(self) -> str:
        counters, steps = self.scheduler.counters, self._sim.settings.spec_steps
        cycles = counters.cycles - self._cycles
        if not steps or cycles <= 0:
            return ""
        length = 1 + (counters.accepted - self._spec_tokens) / cycles
        self._cycles, self._spec_tokens = counters.cycles, counters.accepted
        return f"accept len: {length:.2f}, accept rate: {(length - 1) / steps:.2f}, "

    def retracted(self, count: int) -> None:
        self._sim.sglang.rank(
            f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, "
            "#new_tokens_gained: 2048, new_token_ratio: 0.70 -> 0.99"
        )


class VLLMWatcher(Watcher):
    """A line of statistics every ten seconds."""

    scheduler: Scheduler

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._prompt = self._generated = 0
        self._since = 0.0

    def decoded(self, cycles: int, tokens: int, graph: bool) -> None:
        sim, scheduler, now = self._sim, self.scheduler, self._sim.clock.now
        seconds = now - self._since
        if seconds < VLLM_INTERVAL_SECONDS:
            return
        counters, batch = scheduler.counters, scheduler.batch
        prompt, generated = counters.prompt_tokens, counters.generated_tokens
        usage = 100 * batch.kv_used / max(1, scheduler.kv_tokens)
        hits = 100 * counters.cached_tokens / max(1, prompt)
        sim.vllm.main(
            f"Engine 000: Avg prompt throughput: {(prompt - self._prompt) / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {(generated - self._generated) / seconds:.1f} tokens/s, "
            f"Running: {len(batch.running)} reqs, Waiting: {len(batch.waiting)} reqs, "
            f"GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: {hits:.1f}%",
            "loggers.py:335",
        )
        length = accept_length(scheduler)
        if length is not None:
            rate = 100 * (length - 1) / sim.settings.spec_steps
            sim.vllm.main(
                f"SpecDecoding metrics: Mean acceptance length: {length:.2f}, "
                f"Accepted: {counters.accepted} tokens, Drafted: "
                f"{counters.cycles * sim.settings.spec_steps} tokens, "
                f"Avg Draft acceptance rate: {rate:.1f}%",
                "metrics.py:120",
            )
        self._prompt, self._generated, self._since = prompt, generated, now
