"""A whole measurement of real servers on real sockets: figures, fallbacks, failures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.answers import ANSWER_TOKENS, QUESTIONS
from autotune.calibrate import running_mock
from autotune.errors import InputError, TrialFailed
from autotune.mock import Truth
from autotune.records import FIGURES, PEAK, SINGLE, FailureKind, Measurement, Phase
from tests.measuring import measured
from tests.odd_server import (
    END,
    STREAM_HEAD,
    Body,
    Writer,
    chunk,
    delta,
    good_answer,
    send_json,
    send_models,
    serving,
    usage,
)
from tests.patience import PATIENCE_SECONDS
from tests.simulated.servers import KIMI, Running, simulated
from tests.stamped import stamped

TRUTH = Truth(ttft_seconds=0.04, tpot_seconds=0.004, tokens_per_chunk=4)
LAUNCH = ["--model-path", KIMI, "--tp-size", "8", "--trust-remote-code"]
LAUNCH += ["--mem-fraction-static", "0.9"]
FAST_LOAD = {"input_tokens": 256, "output_tokens": 64, "peak_concurrency": 16}


async def measure_simulated(server: Running, folder: Path, **options: Any) -> Measurement:
    from autotune.engines.registry import engine_named

    options.setdefault("workload", FAST_LOAD)
    return await measured(
        f"http://127.0.0.1:{server.port}",
        folder,
        clock=server.clock,
        engine=engine_named("sglang"),
        log_text=lambda since: server.log.encode()[since:].decode(errors="replace"),
        settings={"limit_seconds": 90.0},
        **options,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


async def test_a_known_truth_comes_out(tmp_path: Path) -> None:
    """In virtual time: how near the client's own clock comes is the benchmark's business."""
    tokens, concurrency = 64, 8
    async with stamped(TRUTH) as (url, clock):
        found = await measured(
            url,
            tmp_path,
            clock=clock,
            workload={"output_tokens": tokens, "peak_concurrency": concurrency},
        )
    single = tokens / TRUTH.request_seconds(tokens)
    assert found.values[SINGLE] == pytest.approx(single)
    assert found.values[PEAK] == pytest.approx(concurrency * single)
    assert found.figures["single_p50_ttft_ms"] == pytest.approx(40.0)
    assert found.figures["p50_ttft_ms"] == pytest.approx(40.0)
    assert found.figures["single_p50_tpot_ms"] == pytest.approx(4.0)
    assert found.figures["p50_tpot_ms"] == pytest.approx(4.0)
    assert found.figures["p50_e2e_ms"] == pytest.approx(1000 * tokens / single)


async def test_no_figure_is_better_than_the_mock_is(tmp_path: Path) -> None:
    """By the host's clock, a busy machine can only make it slower."""
    with running_mock(TRUTH) as url:
        found = await measured(url, tmp_path, model="mock", workload={"output_tokens": 64})
    single = 64 / TRUTH.request_seconds(64)
    assert 0 < found.values[SINGLE] <= 1.01 * single
    assert 0 < found.values[PEAK] <= 1.01 * 4 * single
    assert found.figures["single_p50_ttft_ms"] >= 39.0
    assert found.figures["client_ceiling_tok_s"] > 0


async def test_every_figure_is_in_the_glossary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.goodput._SECONDS", 0.5)
    with running_mock(TRUTH) as url:
        found = await measured(
            url, tmp_path, model="mock", workload={"request_rate": 60.0}, constraints={}
        )
    assert not set(found.figures) - set(FIGURES)
    assert {"goodput_rps", "p99_ttft_ms", "peak_whole_run_tok_s"} <= set(found.figures)


async def test_every_request_has_a_head_that_was_never_sent_before(tmp_path: Path) -> None:
    seen: list[str] = []

    async def answer(path: str, body: Body, writer: Writer) -> None:
        if body.get("max_tokens") == 16:
            seen.append(body["messages"][0]["content"])
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        await measured(url, tmp_path)
    heads = [text.partition(":")[0] for text in seen]
    assert len(seen) > 20 and len(set(heads)) == len(heads)
    assert all(len(head) == 9 and head.isdigit() for head in heads)


async def test_all_trials_of_a_study_read_the_same_text(tmp_path: Path) -> None:
    async def bodies(name: str) -> list[str]:
        seen: list[str] = []

        async def answer(path: str, body: Body, writer: Writer) -> None:
            if body.get("max_tokens") == 16:
                seen.append(body["messages"][0]["content"].partition(":")[2])
            await good_answer(path, body, writer)

        (tmp_path / name).mkdir()
        async with serving(answer) as url:
            await measured(url, tmp_path / name, workload={"seed": 5})
        return seen[:3]  # the fewest that a warm-up sends

    assert await bodies("a") == await bodies("b")


async def test_seeds_and_every_request_are_stored(tmp_path: Path) -> None:
    async with serving(good_answer) as url:
        found = await measured(url, tmp_path, workload={"seed": 11})
    header, *requests = rows(tmp_path)
    assert header["seed"] == 11 and header["nonce_seed"] > 0
    phases = [row["phase"] for row in requests]
    assert {"answer_check", "warm_up", "single", "peak"} == set(phases)
    assert phases.count("peak") == found.figures["peak_requests"]


async def test_ignore_eos_refused_is_a_fallback_with_a_warning(tmp_path: Path) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if "ignore_eos" in body:
            return send_json(writer, {"error": "extra fields: ignore_eos"}, "422 Unprocessable")
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        found = await measured(url, tmp_path)
    assert any("ignore_eos refused" in warning for warning in found.warnings)
    assert found.values[PEAK] > 0


async def test_ignore_eos_without_effect_is_noticed(tmp_path: Path) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if body.get("max_tokens") == 16:
            body = {**body, "max_tokens": 9}
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        found = await measured(url, tmp_path)
    assert any("ignore_eos has no effect" in warning for warning in found.warnings)
    assert rows(tmp_path)[-1]["completion_tokens"] == 9


@pytest.mark.parametrize("refusal", ["status", "silence"])
async def test_stream_options_refused_or_ignored_means_no_streaming(
    tmp_path: Path, refusal: str
) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if "stream_options" in body and refusal == "status":
            return send_json(writer, {"error": "unknown: stream_options"}, "400 Bad Request")
        if body.get("stream"):
            writer.write(STREAM_HEAD + delta("word") + END)  # and no usage
        else:
            await good_answer(path, body, writer)

    async with serving(answer) as url:
        found = await measured(url, tmp_path)
    assert any("without streaming" in warning for warning in found.warnings)
    assert found.values[SINGLE] > 0 and "p50_ttft_ms" not in found.figures


async def test_a_context_shorter_than_the_workload_is_a_clear_error(tmp_path: Path) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if path.endswith("/models"):
            return send_models(writer, "m", context=100)
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        with pytest.raises(TrialFailed, match=r"context of 100 tokens.*144 \(128 in \+ 16 out\)"):
            await measured(url, tmp_path)


async def test_another_models_server_is_a_clear_error(tmp_path: Path) -> None:
    async with serving(good_answer) as url:
        with pytest.raises(TrialFailed, match="asked mine, served m"):
            await measured(url, tmp_path, model="mine")


async def test_a_server_that_refuses_every_request_fails_with_its_words(tmp_path: Path) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if path.endswith("/models"):
            return send_models(writer)
        send_json(writer, {"error": {"message": "no GPU today"}}, "500 Internal Server Error")

    async with serving(answer) as url:
        with pytest.raises(TrialFailed, match="no GPU today") as caught:
            await measured(url, tmp_path)
    assert caught.value.failure.kind is FailureKind.REQUESTS_FAILED


@pytest.mark.parametrize("silent_from", [0, 1])
async def test_a_server_that_answers_no_more_has_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_from: int
) -> None:
    """At the first request, and at the questions that are asked next."""
    asked = 0

    async def answer(path: str, body: Body, writer: Writer) -> None:
        nonlocal asked
        if path.endswith("completions"):
            asked += 1
            if asked > 2 * silent_from:  # without /tokenize two requests come before the questions
                await asyncio.sleep(3600)
        await good_answer(path, body, writer)

    monkeypatch.setattr("autotune.load.SILENCE_LIMIT_SECONDS", 0.3)
    async with serving(answer) as url:
        with pytest.raises(TrialFailed, match="no token") as raised:
            await asyncio.wait_for(measured(url, tmp_path), PATIENCE_SECONDS)
    assert raised.value.failure.kind is FailureKind.STALLED
    assert raised.value.failure.phase is Phase.ANSWER_CHECK
    assert asked == (1 if silent_from == 0 else 2 + len(QUESTIONS))


async def test_a_server_whose_answers_to_the_questions_have_no_end_is_not_waited_for(
    tmp_path: Path,
) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if body.get("max_tokens") != ANSWER_TOKENS:
            return await good_answer(path, body, writer)
        writer.write(STREAM_HEAD)
        while not writer.is_closing():
            writer.write(delta("again ") * 100)
            await writer.drain()

    async with serving(answer) as url:
        with pytest.raises(TrialFailed, match="no end of the answer") as raised:
            await asyncio.wait_for(measured(url, tmp_path), PATIENCE_SECONDS)
    assert raised.value.failure.phase is Phase.ANSWER_CHECK


async def test_failures_under_load_keep_the_single_stream_figure(tmp_path: Path) -> None:
    active = 0

    async def answer(path: str, body: Body, writer: Writer) -> None:
        nonlocal active
        if body.get("max_tokens") != 16:
            return await good_answer(path, body, writer)
        active += 1
        await asyncio.sleep(0.01)
        if active > 2:
            writer.write(STREAM_HEAD + chunk({"error": {"message": "out of memory"}}) + END)
        else:
            await good_answer(path, body, writer)
        active -= 1

    async with serving(answer) as url:
        with pytest.raises(TrialFailed, match="out of memory") as caught:
            await measured(url, tmp_path)
    assert caught.value.failure.phase is Phase.PEAK
    assert caught.value.partial is not None and caught.value.partial.values[SINGLE] > 0


async def test_cached_prompts_are_warned_of(tmp_path: Path) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if not body.get("stream"):
            return await good_answer(path, body, writer)
        tokens = body["max_tokens"]
        text = b"".join(delta(f"w{i} ") for i in range(tokens))
        writer.write(STREAM_HEAD + text + usage(tokens, prompt=1000, cached=900) + END)

    async with serving(answer) as url:
        found = await measured(url, tmp_path)
    assert any("prefix cache" in warning for warning in found.warnings)


async def test_the_users_prompts_are_sent_as_they_are_under_a_head(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        json.dumps({"messages": [{"role": "user", "content": "why is the sky blue"}]}) + "\n"
    )
    seen: set[str] = set()

    async def answer(path: str, body: Body, writer: Writer) -> None:
        if body.get("max_tokens") == 16:
            seen.add(body["messages"][0]["content"].partition(": ")[2])
        await good_answer(path, body, writer)

    async with serving(answer) as url:
        await measured(url, tmp_path, workload={"prompts": str(path)})
        assert seen == {"why is the sky blue"}
        path.write_text("{}\n")
        with pytest.raises(InputError, match=r"mine\.jsonl:1"):
            await measured(url, tmp_path, workload={"prompts": str(path)})


def test_a_simulated_server_is_measured_with_what_it_says_of_itself(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", LAUNCH) as server:
        server.wait_ready()
        found = asyncio.run(measure_simulated(server, tmp_path))
    # The context of this configuration: 62 tokens/s alone, and no wave far from the others.
    assert found.values[SINGLE] == pytest.approx(62, rel=0.1)
    assert found.values[PEAK] > 4 * found.values[SINGLE]
    assert found.figures["peak_decode_graph_share"] > 0.9
    assert found.answers[0].strip().startswith(("Paris", "The capital of France is Paris"))
    assert not [warning for warning in found.warnings if "answer check" in warning]


def test_garbled_answers_refuse_the_server(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", LAUNCH) as server:
        server.wait_ready()
        baseline = asyncio.run(measure_simulated(server, tmp_path))
    with simulated(tmp_path, "sglang", LAUNCH, fault="garbled") as server:
        server.wait_ready()
        with pytest.raises(TrialFailed) as caught:
            asyncio.run(measure_simulated(server, tmp_path, reference_answers=baseline.answers))
    assert caught.value.failure.kind is FailureKind.WRONG_OUTPUT


@pytest.mark.parametrize("source", [["--enable-metrics"], []], ids=["metrics", "log"])
def test_fewer_running_than_asked_is_marked(tmp_path: Path, source: list[str]) -> None:
    launch = [*LAUNCH, "--max-running-requests", "8", *source]
    with simulated(tmp_path, "sglang", launch) as server:
        server.wait_ready()
        heavy = {"output_tokens": 256, "peak_concurrency": 64}  # long enough to be looked at
        found = asyncio.run(measure_simulated(server, tmp_path, workload=FAST_LOAD | heavy))
    assert any(w.startswith("capacity_limited: 64 requests asked, 8 ran") for w in found.warnings)


def test_a_server_that_cannot_reach_the_front_gets_a_short_peak(tmp_path: Path) -> None:
    with simulated(tmp_path, "sglang", LAUNCH) as server:
        server.wait_ready()
        found = asyncio.run(measure_simulated(server, tmp_path, front=[(500.0, 50_000.0)]))
        whole = asyncio.run(measure_simulated(server, tmp_path, front=[(500.0, 100.0)]))
    assert any("cut to one wave" in warning for warning in found.warnings)
    assert found.figures["peak_waves"] == 1 < whole.figures["peak_waves"]
    assert found.values[PEAK] == pytest.approx(whole.values[PEAK], rel=0.1)
    assert found.spread[PEAK] > 2 * whole.spread[PEAK]
