"""Continuous batching in virtual time: which step is next, what it costs and what it gives.

SGLang's way: a prefill batch goes before decoding, in chunks; vLLM's (and SGLang's with mixed
chunks): prefill chunks ride on decode steps. Steps in which nothing is decided are taken several
at a time, and their tokens streamed several a chunk, as far as the speed asks for it: neither
changes a figure, because every chunk is stamped with its virtual time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from autotune.engines.simulated import physics
from autotune.engines.simulated.accounting import Counters, Gauges, Watcher
from autotune.engines.simulated.batch import Batch, effective_max_running
from autotune.engines.simulated.front_end import FrontEnd, Message, chunk_seconds, chunks_of
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.memory import kv_capacity
from autotune.engines.simulated.models import Model
from autotune.engines.simulated.noise import AcceptSampler, EvenAccept, Noise
from autotune.engines.simulated.requests import Sequence
from autotune.engines.simulated.settings import Settings
from autotune.engines.simulated.timekeeper import Timekeeper

IDLE_GAUGE_SECONDS = 0.3  # real time for which the gauges keep the last step's values
SLOW = 20.0  # up to this speed every step is taken, and its tokens sent, on their own
_MAX_STEPS = 32  # of one decode run, and tokens of one chunk
_WAIT_SECONDS = 0.01  # virtual: how long a scheduler without work looks away from new requests


class Scheduler:
    """Serves the requests of one server, step by step."""

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
        self.max_running = effective_max_running(model, settings, self.kv_tokens)
        self._curve = physics.accept_curve(model, settings)
        self.batch = Batch(settings, self.kv_tokens, self.max_running, len(self._curve))
        self.front_end = FrontEnd(chunk_seconds(settings))
        self.counters = Counters()
        self.arrived = asyncio.Event()
        self.drain: Callable[[], asyncio.Future[None] | None] = lambda: None
        self.before_step: Callable[[], None] = lambda: None
        self.busy_seconds = 0.0
        self.gauges = Gauges()
        # SGLANG_SIMULATE_ACC_LEN accepts the same drafts in a whole batch: requests that begin
        # together end together (seen on an H200), which those of a real drafter do not.
        simulated = settings.spec_accept is not None and len(self._curve) > 1
        self._alike = EvenAccept(self._curve[-1]) if simulated else None
        self._cycle_cache: dict[tuple[int, int], float] = {}
        self._replacements = 0  # requests that finished ones made room for and that did not come
        self._ended = 0  # requests whose last tokens were sent in this step
        self._chunks = 0.0  # that this step makes
        self._was_idle = True

    # -- what the HTTP side calls ------------------------------
    def submit(self, sequence: Sequence) -> None:
        """A new request."""
        sequence.step_factor, accept = self.noise.of_request(sequence.text_hash)
        sequence.arrived = self.clock.now
        if len(self._curve) > 1:
            sequence.accept = AcceptSampler(self._curve, accept, sequence.text_hash)
        self.batch.waiting.append(sequence)
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
        self.batch.forget_prefixes()
        self.counters.spec_cycles = self.counters.spec_tokens = 0
        return True

    @property
    def load(self) -> int:
        """Requests in the server."""
        return len(self.batch) + self.front_end.unfinished

    # -- the loop ------------------------------
    async def run(self) -> None:
        """Serve for ever, first what came while the server was not ready."""
        if self.load:
            self.clock.begin_busy()
        while True:
            self.batch.drop_aborted()
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
        self._was_idle = True
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
        batch = self.batch
        # An idle scheduler takes a burst's first request as soon as it is there, by itself (seen on
        # H200, with one rank and two): the others wait for that prefill.
        batch.admit(1 if self._was_idle else math.inf)
        self._was_idle = False
        busy = len(batch.running) + len(batch.prefilling)
        self.gauges = Gauges(busy, len(batch.waiting), batch.kv_used)
        if batch.prefilling and not self.settings.mixed_chunk:
            return await self._prefill([])
        if batch.prefilling:
            return await self._prefill(batch.running)
        if batch.running:
            await self._decode()
        elif not batch.waiting:
            await self._pass_time(min(self.front_end.next_due - self.clock.now, _WAIT_SECONDS))
        return False

    # -- prefill ------------------------------
    async def _prefill(self, riding: list[Sequence]) -> bool:
        """One chunk of prefill; `riding` requests decode one step in the same pass."""
        taken = self.batch.chunk(max(self.settings.chunk_tokens - len(riding), 1))
        tokens = sum(part for _, part in taken)
        seconds = self._prefill_seconds(tokens, len(taken), riding)
        await self._pass_time(seconds)
        cached = sum(s.cached_tokens for s, _ in taken if s.prefilled == s.cached_tokens)
        self.watcher.prefilled([s for s, _ in taken], tokens, cached, seconds)
        self.counters.prefill_steps += 1
        for sequence, part in taken:
            if self.batch.was_read(sequence, part) and sequence.generated == 0:
                self._first_token(sequence)
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

    def _first_token(self, sequence: Sequence) -> None:
        """Of a request that begins to decode, and was not put back before."""
        self.counters.prompt_tokens += sequence.prompt_tokens
        self.counters.cached_tokens += sequence.cached_tokens
        self.counters.ttft_sum += self.clock.now - sequence.arrived
        self.counters.ttft_count += 1
        self._chunks += self._give(sequence, 1, at_once=True)

    # -- decode ------------------------------
    async def _decode(self) -> None:
        """A run of decode steps, up to the next one in which something is decided."""
        self._retract()
        running = self.batch.running
        if not running:
            return
        kv = self.batch.kv_used
        cycle = self._cycle_seconds(len(running), kv)
        steps = self._steps_ahead(cycle)
        width = self._curve[-1]
        cycle = self._cycle_seconds(len(running), kv + int(len(running) * steps * width / 2))
        factor = self.noise.step_factor(self.clock.now, len(running), running[0].step_factor)
        await self._pass_time(steps * cycle * factor)
        self._advance(self.batch.running[:], steps)

    def _retract(self) -> None:
        count = self.batch.retract()
        if count:
            self.counters.retracted += count
            self.watcher.retracted(count)

    def _steps_ahead(self, cycle: float) -> int:
        """How many steps can be taken before a request may end, or the client may act."""
        most = 1 if self.clock.speed <= SLOW else self._most_steps(cycle)
        per_step = len(self._curve)  # tokens a cycle may give
        left = min(s.left for s in self.batch.running)
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
            self.batch.running.remove(sequence)
            self.counters.finished += 1
        return tokens

    def _tokens_a_chunk(self) -> int:
        """One by one in real time; more at high speed, where a client could not keep up."""
        interval = self.settings.stream_interval
        if self.clock.speed <= SLOW:
            return interval
        return max(interval, 8 if len(self.batch.running) <= 4 else _MAX_STEPS)

    async def _pass_time(self, seconds: float) -> None:
        until = self.clock.now + seconds
        if self.clock.wake < math.inf:
            await self.clock.hold_for_sleeper(self.arrived, until)
        await self.clock.advance(max(0.0, until - self.clock.now))
