from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from autotune.engines.vllm import VLLM

LOGS = Path(__file__).parent.parent / "data" / "logs"


def recorded(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/metrics":
        return httpx.Response(200, text=(LOGS / "vllm-ngram_spec.metrics.txt").read_text())
    if request.url.path == "/version":
        return httpx.Response(200, json={"version": "0.32.0"})
    return httpx.Response(404)


@pytest.fixture
async def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://x", transport=httpx.MockTransport(recorded))


async def test_effective_settings_come_from_log_metrics_and_version(
    http: httpx.AsyncClient,
) -> None:
    effective = await VLLM().effective(http, (LOGS / "vllm-ngram_spec.log").read_text())
    assert effective.version == "0.32.0"
    assert effective.settings["max_seq_len"] == 1024
    assert effective.settings["enforce_eager"] is True
    assert effective.settings["dtype"] == "float32"
    assert effective.settings["block_size"] == 128
    assert effective.figures == {"kv_tokens": 65_536.0, "max_running_requests": 32.0}


async def test_counters_of_a_recorded_server(http: httpx.AsyncClient) -> None:
    sample = await VLLM().sample(http)
    assert sample.drafts_total == 2373
    assert sample.accepted_tokens_total == 5457
    assert sample.generated_tokens_total == 14_852
    assert sample.prompt_tokens_total == 7176
    assert (sample.running, sample.queued, sample.kv_usage) == (0, 0, 0)
    assert sample.retractions_total == 0


async def test_a_backend_that_the_platform_lacks_is_an_override(http: httpx.AsyncClient) -> None:
    log = (
        (LOGS / "vllm-clean_start_stop.log").read_text()
        + "INFO 11-29 [cpu.py:9] Cannot use AttentionBackendEnum.FLASHINFER backend on CPU.\n"
    )
    effective = await VLLM().effective(http, log)
    (override,) = VLLM().overrides({"attention-backend": "FLASHINFER"}, effective)
    assert (override.asked, override.effective) == ("FLASHINFER", "CPU's own")


async def test_what_the_server_runs_as_asked_is_no_override(http: httpx.AsyncClient) -> None:
    asked = {
        "dtype": "float32",
        "max-model-len": 1024,
        "enforce-eager": True,
        "kv-cache-memory-bytes": "64M",
        "max_num_seqs": 32,
    }
    effective = await VLLM().effective(http, (LOGS / "vllm-clean_start_stop.log").read_text())
    assert VLLM().overrides(asked, effective) == []
    (changed,) = VLLM().overrides(asked | {"max-model-len": 2048}, effective)
    assert (changed.setting, changed.effective) == ("max_model_len", 1024)
