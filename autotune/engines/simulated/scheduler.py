"""Continuous batching in virtual time: who prefills, who decodes, what it costs, who waits.

SGLang's way: a prefill batch goes before decoding, in chunks; vLLM's (and SGLang's with mixed
chunks): prefill chunks ride on decode steps. Steps in which nothing is decided are taken several
at a time, and their tokens streamed several a chunk, as far as the speed asks for it: neither
changes a figure, because every chunk is stamped with its virtual time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from autotune.engines.simulated import physics
from autotune.engines.simulated.accounting import Counters, Gauges, Watcher
from autotune.engines.simulated.front_end import FrontEnd, Message, chunk_seconds, chunks_of
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.memory import kv_capacity
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.noise import AcceptSampler, EvenAccept, Noise
from autotune.engines.simulated.prefix_cache import PrefixCache
from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.timekeeper import Timekeeper

IDLE_GAUGE_SECONDS = 0.3  # real time for which the gauges keep the last step's values
SLOW = 20.0  # up to this speed every step is taken, and its tokens sent, on their own
_MAX_STEPS = 32  # of one decode run, and tokens of one chunk
_WAIT_SECONDS = 0.01  # virtual: how long a scheduler without work looks away from new requests


class Scheduler:
    """The requests of one server and the order in which they are served."""

    def __init__(
        self,
        host: Host,
        model: Model,
        settings: Settings,
        clock: Timekeeper,
        noise: Noise,
        watcher: Watcher,
    ) -> None:
        self.host, self.model, self.settings = host, model, settings
        self.clock, self.noise, self.watcher = clock, noise, watcher
        self.kv_tokens = kv_capacity(host, model, settings)
        self.max_running = physics.effective_max_running(model, settings, self.kv_tokens)
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []
        self.front_end = FrontEnd(chunk_seconds(settings))
        self.counters = Counters()
        self.arrived = asyncio.Event()
        self.drain: Callable[[], asyncio.Future[None] | None] = lambda: None
        self.before_step: Callable[[], None] = lambda: None
        self.busy_seconds = 0.0
        self.gauges = Gauges()
        self._curve = physics.accept_curve(model, settings)
        # SGLANG_SIMULATE_ACC_LEN accepts the same drafts in a whole batch: requests that begin
        # together end together (seen on an H200), which those of a real drafter do not.
        simulated = settings.spec_accept is not None and len(self._curve) > 1
        self._alike = EvenAccept(self._curve[-1]) if simulated else None
        self._cycle_cache: dict[tuple[int, int], float] = {}
        self._prefixes = PrefixCache(self.kv_tokens if settings.prefix_cache else 0)
        self._replacements = 0  # requests that finished ones made room for and that did not come
        self._ended = 0  # requests whose last tokens were sent in this step
        self._chunks = 0.0  # that this step makes

    # -- what the HTTP side calls ------------------------------
    def submit(self, sequence: Sequence) -> None:
        """A new request."""
        sequence.step_factor, accept = self.noise.of_request(sequence.text_hash)
        sequence.arrived = self.clock.now
        if len(self._curve) > 1:
            sequence.accept = AcceptSampler(self._curve, accept, sequence.text_hash)
        self.waiting.append(sequence)
        self._replacements -= 1
        self.arrived.set()

    def abort(self, sequence: Sequence) -> None:
        """The client is gone."""
        if not sequence.aborted and sequence.left > 0:
            sequence.aborted = True
            self.counters.aborted += 1

    def flush(self) -> bool:
        """Empty the prefix cache and the speculation counters; False when not idle."""
        if self.load:
            return False
        self._prefixes.clear()
        self.counters.spec_cycles = self.counters.spec_tokens = 0
        return True

    @property
    def load(self) -> int:
        """Requests in the server."""
        scheduled = len(self.waiting) + len(self.prefilling) + len(self.running)
        return scheduled + self.front_end.unfinished

    @property
    def kv_used(self) -> int:
        """Tokens of KV cache that running requests take."""
        return sum(s.kv_tokens for s in self.running) + sum(s.kv_tokens for s in self.prefilling)

    # -- the loop ------------------------------
    async def run(self) -> None:
        """Serve for ever, first what came while the server was not ready."""
        if self.load:
            self.clock.begin_busy()
        while True:
            self._drop_aborted()
            if not self.load:
                await self._idle()
            self.before_step()
            started = self.clock.now
            self._ended, self._chunks = 0, 0.0
            first = await self._step()
            self.busy_seconds += self.clock.now - started
            self.front_end.step_done(started, self.clock.now, self._chunks)
            self._send()
            await self._after_step(first)

    async def _idle(self) -> None:
        self.clock.busy = False
        self._replacements = self._ended  # a whole wave ended at once: it may well come again
        self.arrived.clear()
        try:
            await asyncio.wait_for(self.arrived.wait(), IDLE_GAUGE_SECONDS)
        except TimeoutError:
            self.gauges = Gauges()
            await self.arrived.wait()
        self.clock.begin_busy()
        await self.clock.settle(self.arrived)
        await self.clock.turn(self.arrived, lambda: self._replacements)

    def _send(self) -> None:
        """Hand out what the front end is through with."""
        for message in self.front_end.sent(self.clock.now):
            message.sequence.sink(message.sequence, message.tokens, message.done)
            self._ended += message.done and not message.sequence.aborted

    async def _after_step(self, first_tokens: bool) -> None:
        """Let what was written go out, and the client answer it, before time moves on."""
        pending = self.drain()
        if pending is not None:
            await pending
        if self._ended:
            if self.load:
                self._replacements = self._ended
                await self.clock.turn(self.arrived, lambda: self._replacements)
        elif first_tokens:
            await asyncio.sleep(0)

    async def _step(self) -> bool:
        """One decision: a prefill batch, a mixed step, a run of decode steps, or to wait."""
        self._admit()
        busy = len(self.running) + len(self.prefilling)
        self.gauges = Gauges(busy, len(self.waiting), self.kv_used)
        if self.prefilling and not self.settings.mixed_chunk:
            return await self._prefill([])
        if self.prefilling:
            return await self._prefill(self.running)
        if self.running:
            await self._decode()
        elif not self.waiting:
            await self._pass_time(min(self.front_end.next_due - self.clock.now, _WAIT_SECONDS))
        return False

    # -- admission ------------------------------
    def _admit(self) -> None:
        reserve = self._reserve()
        used = self.kv_used
        budget = self.settings.chunk_tokens - sum(
            s.prompt_tokens + s.generated - s.prefilled for s in self.prefilling
        )
        while self.waiting and budget > 0:
            if len(self.running) + len(self.prefilling) >= self.max_running:
                return
            sequence = self.waiting[0]
            need = sequence.prompt_tokens + sequence.generated
            reserve += self._expected_new(sequence)
            alone = not self.running and not self.prefilling
            if used + need + reserve > self.kv_tokens and not alone:
                return
            self.waiting.popleft()
            self._reuse_prefix(sequence)
            self.prefilling.append(sequence)
            used += need
            budget -= need - sequence.prefilled

    def _reserve(self) -> float:
        return sum(self._expected_new(s) for s in (*self.running, *self.prefilling))

    def _expected_new(self, sequence: Sequence) -> float:
        """KV that a running request is still expected to take; too little leads to retraction."""
        if self.settings.engine == "vllm":
            return 0.0
        return 0.35 * self.settings.conservativeness * sequence.left

    def _reuse_prefix(self, sequence: Sequence) -> None:
        hit = self._prefixes.reuse(sequence.blocks)
        sequence.prefilled = min(hit, sequence.prompt_tokens - 1)
        if sequence.generated == 0:  # one that was retracted finds its own prompt again
            sequence.cached_tokens = sequence.prefilled

    # -- prefill ------------------------------
    async def _prefill(self, riding: list[Sequence]) -> bool:
        """One chunk of prefill; `riding` requests decode one step in the same pass."""
        budget = max(self.settings.chunk_tokens - len(riding), 1)
        taken: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            part = min(budget, sequence.prompt_tokens + sequence.generated - sequence.prefilled)
            taken.append((sequence, part))
            budget -= part
            if budget <= 0:
                break
        tokens = sum(part for _, part in taken)
        seconds = self._prefill_seconds(tokens, len(taken), riding)
        await self._pass_time(seconds)
        cached = sum(s.cached_tokens for s, _ in taken if s.prefilled == s.cached_tokens)
        self.watcher.prefilled([s for s, _ in taken], tokens, cached, seconds)
        self.counters.prefill_steps += 1
        for sequence, part in taken:
            sequence.prefilled += part
            if sequence.prefilled >= sequence.prompt_tokens + sequence.generated:
                self._start_decoding(sequence)
        if riding:
            self._advance(riding[:], 1)
        return True

    def _prefill_seconds(self, tokens: int, seqs: int, riding: list[Sequence]) -> float:
        milliseconds = physics.prefill_ms(self.host, self.model, self.settings, tokens, seqs)
        if riding:
            both = physics.forward_ms(
                self.host,
                self.model,
                self.settings,
                tokens=tokens + len(riding),
                seqs=seqs + len(riding),
                kv_tokens=tokens + sum(s.kv_tokens for s in riding),
                graph=False,
            )
            milliseconds = max(milliseconds, both)
        return milliseconds / 1e3 * self.noise.step_factor(self.clock.now, 2, 1.0)

    def _start_decoding(self, sequence: Sequence) -> None:
        self.prefilling.remove(sequence)
        if sequence.generated == 0:  # not one that was retracted
            self.counters.prompt_tokens += sequence.prompt_tokens
            self.counters.cached_tokens += sequence.cached_tokens
            self.counters.ttft_sum += self.clock.now - sequence.arrived
            self.counters.ttft_count += 1
        sequence.prefilled = sequence.prompt_tokens
        self.running.append(sequence)
        if sequence.generated == 0:
            self._chunks += self._give(sequence, 1, at_once=True)

    # -- decode ------------------------------
    async def _decode(self) -> None:
        """A run of decode steps, up to the next one in which something is decided."""
        self._retract()
        if not self.running:
            return
        kv = self.kv_used
        cycle = self._cycle_seconds(len(self.running), kv)
        steps = self._steps_ahead(cycle)
        width = self._curve[-1]
        cycle = self._cycle_seconds(
            len(self.running), kv + int(len(self.running) * steps * width / 2)
        )
        factor = self.noise.step_factor(
            self.clock.now, len(self.running), self.running[0].step_factor
        )
        await self._pass_time(steps * cycle * factor)
        self._advance(self.running[:], steps)

    def _steps_ahead(self, cycle: float) -> int:
        """How many steps can be taken before a request may end, or the client may act."""
        most = 1 if self.clock.speed <= SLOW else self._most_steps(cycle)
        per_step = len(self._curve)  # tokens a cycle may give
        left = min(s.left for s in self.running)
        return max(1, min(most, -(-left // per_step)))

    def _most_steps(self, cycle: float) -> int:
        """Fewer than a client can look at between two of its turns, or than it waits for."""
        acts = min(self.clock.wake, self.front_end.next_due)  # infinite if it does neither
        asleep = acts - self.clock.now
        return _MAX_STEPS if asleep > _MAX_STEPS * cycle else max(1, int(asleep / cycle))

    def _cycle_seconds(self, seqs: int, kv: int) -> float:
        key = (seqs, kv >> 8)
        found = self._cycle_cache.get(key)
        if found is None:
            found = physics.cycle_ms(self.host, self.model, self.settings, seqs, kv)[0] / 1e3
            self._cycle_cache[key] = found
        return found

    def _advance(self, sequences: list[Sequence], steps: int) -> None:
        graph = physics.graph_covers(self.model, self.settings, len(sequences))
        if graph:
            self.counters.graph_steps += steps
        else:
            self.counters.eager_steps += steps
        self.noise.worked(steps)
        total, alike = 0, self._alike.tokens(steps) if self._alike else 0
        for sequence in sequences:
            if sequence.accept is None:
                tokens = steps
            else:
                tokens = alike or sequence.accept.tokens(steps)
                self._count_speculation(sequence, steps, tokens)
            given = self._give(sequence, tokens)
            self._chunks += chunks_of(self.settings, steps, given)
            total += given
        self.watcher.decoded(steps, total, graph)

    def _count_speculation(self, sequence: Sequence, steps: int, tokens: int) -> None:
        sequence.cycles += steps
        counters = self.counters
        counters.cycles += steps
        counters.accepted += tokens - steps
        counters.spec_cycles += steps
        counters.spec_tokens += tokens

    def _give(self, sequence: Sequence, tokens: int, at_once: bool = False) -> int:
        """New tokens for a request; they are sent in chunks of a few."""
        tokens = min(tokens, sequence.left)
        sequence.generated += tokens
        sequence.pending += tokens
        self.counters.generated_tokens += tokens
        done = sequence.left <= 0
        if done or at_once or sequence.pending >= self._tokens_a_chunk():
            fresh, sequence.pending = sequence.pending, 0
            self.front_end.put(Message(sequence, fresh, done))
        if done:
            self.running.remove(sequence)
            self.counters.finished += 1
        return tokens

    def _tokens_a_chunk(self) -> int:
        """One by one in real time; more at high speed, where a client could not keep up."""
        interval = self.settings.stream_interval
        if self.clock.speed <= SLOW:
            return interval
        return max(interval, 8 if len(self.running) <= 4 else _MAX_STEPS)

    # -- KV pressure ------------------------------
    def _retract(self) -> None:
        """Put the youngest requests back until the next steps fit."""
        growth = len(self.running) * len(self._curve)
        count = 0
        while len(self.running) > 1 and self.kv_used + growth > self.kv_tokens:
            sequence = self.running.pop()
            sequence.prefilled = 0
            self.waiting.appendleft(sequence)
            count += 1
        if count:
            self.counters.retracted += count
            self.watcher.retracted(count)

    def _drop_aborted(self) -> None:
        if any(s.aborted for s in (*self.running, *self.prefilling, *self.waiting)):
            self.running = [s for s in self.running if not s.aborted]
            self.prefilling = [s for s in self.prefilling if not s.aborted]
            self.waiting = deque(s for s in self.waiting if not s.aborted)

    async def _pass_time(self, seconds: float) -> None:
        until = self.clock.now + seconds
        if self.clock.wake < math.inf:
            await self.clock.hold_for_sleeper(self.arrived, until)
        await self.clock.advance(max(0.0, until - self.clock.now))
