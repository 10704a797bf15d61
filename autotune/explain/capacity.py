"""Why the peak is what it is: what runs at once, what waits, and for what."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.explain.decode import EAGER, GRAPH
from autotune.explain.finding import (
    Case,
    Finding,
    asked_setting,
    cause,
    number_of,
    setting,
    speculates,
    unknown,
)
from autotune.front_end import front_end_text

NEARLY_ALL = 0.97  # a few requests are outside the engine at any moment
KV_FULL = 0.9
_LIMITS = ("max_running_requests", "max_num_seqs")
_RANKS = ("dp_size", "data_parallel_size")
_MORE_KV = "a larger memory fraction, an 8-bit KV cache, no draft model, a shorter context"
_GRAPH_LIMITS = (
    "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs",
    "cuda_graph_bs_decode",
    "cuda_graph_bs",
    "decode_cuda_graph_bs",
    "max_cudagraph_capture_size",
    "cudagraph_capture_sizes",
)


def concurrency_limit(case: Case) -> Iterator[Finding]:
    """Whether all requests ran at once, and if not, what they waited for."""
    sent, most = case.concurrency, case.gauge("running_requests_max")
    limit = case.figure("max_running_requests")
    if sent is None:
        return
    if limit is not None and limit < NEARLY_ALL * sent:
        yield _max_running(case, sent, limit)
    elif most is None:
        yield _without_gauge(case, sent)
    elif most < NEARLY_ALL * sent - 1:
        yield _kv_or_unknown(case, sent, most)
    elif case.figure("retractions"):
        yield _ran_full(case, sent)


def _max_running(case: Case, sent: int, limit: float) -> Finding:
    queued = case.figure("queued_requests_mean")
    waited = f", {queued:.0f} waited on average" if queued is not None else ""
    return cause(
        "max_running_below_concurrency",
        f"The server runs at most {limit:.0f} requests at once, {sent} were sent{waited}."
        f"{_why_limited(case, limit)}",
        f"a limit of {sent} or more, if the KV cache has room for it",
        max_running_requests=limit,
        peak_concurrency=sent,
        queued_requests_mean=queued,
    )


def _why_limited(case: Case, limit: float) -> str:
    asked = asked_setting(case.trial, *_LIMITS)
    if asked is None and speculates(case.trial):
        return " The engine lowers the limit by itself when it speculates and none is given."
    if asked is not None and number_of(asked) != limit:
        return f" {asked} was asked for."
    return ""


def _without_gauge(case: Case, sent: int) -> Finding:
    """What does not depend on when the server was looked at settles it, or nothing does."""
    if case.figure("retractions") or _kv_ran_full(case, sent):
        return _ran_full(case, sent)
    if _kv_cannot_hold(case, sent):
        return cause(
            "kv_too_small",
            f"{sent} requests were sent, and the KV cache cannot hold them all"
            f"{_kv_text(case, sent)}.",
            _MORE_KV,
            peak_concurrency=sent,
            **_kv_figures(case),
        )
    return unknown(
        "running_requests",
        f"Not known how many of the {sent} requests ran at once: the server does not say, or "
        "its gauge contradicts the tokens that came.",
    )


def _kv_or_unknown(case: Case, sent: int, most: float) -> Finding:
    text = f"{sent} requests were sent, {most:.0f} ran at most"
    if _kv_is_short(case, sent):
        return cause(
            "kv_too_small",
            f"{text}: the KV cache is too small{_kv_text(case, sent)}.",
            _MORE_KV,
            running_requests_max=most,
            peak_concurrency=sent,
            **_kv_figures(case),
        )
    return unknown(
        "running_requests",
        f"{text}. Not known why: neither a limit of requests nor the KV cache explains it.",
        running_requests_max=most,
        peak_concurrency=sent,
        **_kv_figures(case),
    )


def _ran_full(case: Case, sent: int) -> Finding:
    put_back = case.figure("retractions")
    cost = "what is put back is prefilled again" if put_back else "requests waited for room in it"
    return cause(
        "kv_too_small",
        f"The KV cache ran full at peak{_kv_text(case, sent)}: {cost}.",
        "a larger memory fraction or fewer requests at once",
        **_kv_figures(case),
    )


def _kv_is_short(case: Case, sent: int) -> bool:
    tokens, needed = _kv_tokens(case), _tokens_needed(case, sent)
    return (
        (tokens is not None and needed is not None and tokens < needed)
        or (case.figure("kv_usage_max") or 0.0) >= KV_FULL
        or (case.figure("retractions") or 0.0) > 0
    )


def _kv_cannot_hold(case: Case, sent: int) -> bool:
    """Whether the KV cache is below what all requests take at least, on average.

    Requests that run all the time are half answered on average. Answers that the model may end
    early count as nothing.
    """
    early = any("ignore_eos" in warning for warning in case.trial.warnings)
    tokens, needed = _kv_tokens(case), _tokens_needed(case, sent, 0.0 if early else 0.5)
    return tokens is not None and needed is not None and tokens < needed


def _kv_ran_full(case: Case, sent: int) -> bool:
    """Whether the KV cache was seen full though it is not large enough for all whole answers."""
    tokens, needed = _kv_tokens(case), _tokens_needed(case, sent)
    enough = tokens is not None and needed is not None and tokens >= needed
    return not enough and (case.figure("kv_usage_max") or 0.0) >= KV_FULL


def _kv_tokens(case: Case) -> float | None:
    """What the KV cache holds; engines give it for one data-parallel rank."""
    tokens = case.figure("kv_tokens")
    ranks = number_of(setting(case.trial, *_RANKS)) or 1.0
    return tokens * ranks if tokens is not None else None


def _tokens_needed(case: Case, sent: int, answered: float = 1.0) -> float | None:
    """KV tokens of all requests with that share of each answer; a shared prefix counts once.

    None if it is not known: the user's own prompts have lengths of their own.
    """
    prompt, answer = case.workload("input_tokens"), case.workload("output_tokens")
    if prompt is None or answer is None or case.own_prompts:
        return None
    shared = case.workload("shared_prefix_tokens") or 0.0
    return shared + sent * (prompt - shared + answered * answer)


def _kv_figures(case: Case) -> dict[str, float | None]:
    names = ("kv_tokens", "kv_usage_max", "retractions", "queued_requests_mean")
    return {name: case.figure(name) for name in names}


def _kv_text(case: Case, sent: int) -> str:
    tokens, needed = _kv_tokens(case), _tokens_needed(case, sent)
    usage, retractions = case.figure("kv_usage_max"), case.figure("retractions")
    parts = [
        f"it holds {tokens:,.0f} tokens" if tokens is not None else "",
        f"{needed:,.0f} are needed for all" if needed is not None else "",
        f"up to {usage:.0%} of it was used" if usage is not None else "",
        f"{retractions:.0f} requests were put back" if retractions else "",
    ]
    said = ", ".join(part for part in parts if part)
    return f" ({said})" if said else ""


def graph_batch_limit(case: Case) -> Iterator[Finding]:
    """Graphs at one request and none at peak: the largest captured batch is too small."""
    alone = case.figure("single_decode_graph_share")
    peak = case.figure("peak_decode_graph_share")
    if peak is None or peak >= GRAPH or (alone is not None and alone <= EAGER):
        return
    limit = number_of(setting(case.trial, *_GRAPH_LIMITS))
    running = case.gauge("running_requests_mean") or case.decoding or case.concurrency
    captured = ""
    if limit is not None and running is not None and limit < running:
        captured = f": the largest captured batch is {limit:.0f}, {running:.0f} requests ran"
    before = f" (at one request {alone:.0%})" if alone is not None else ""
    yield cause(
        "graph_batch_below_concurrency",
        f"At peak {peak:.0%} of the decode steps ran from a CUDA graph{before}{captured}.",
        "capture graphs up to the number of requests that run at once",
        peak_decode_graph_share=peak,
        graph_max_batch=limit,
        running_requests_mean=running,
    )


def front_end(case: Case) -> Iterator[Finding]:
    """Clients get tokens later than the scheduler makes them: no GPU setting raises the peak."""
    said = front_end_text(case.trial.figures)
    if said is None:
        return
    yield cause(
        "front_end_limited",
        f"At peak {said}.",
        "several tokens a chunk (SGLang: stream-interval), more processes in front of the engine "
        "(SGLang: tokenizer-worker-num; vLLM: api-server-count), and clients on another host",
        p50_tpot_ms=case.figure("p50_tpot_ms"),
        peak_server_tpot_ms=case.figure("peak_server_tpot_ms"),
    )
