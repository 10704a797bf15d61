"""Measuring servers that already run, with our client and with others'."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.calibrate import Calibration, ceiling_warning, client_calibration, running_mock
from autotune.cli import main
from autotune.control import ControlClient
from autotune.engines.simulated.http import SPEED_HEADER
from autotune.errors import AutotuneError, InputError
from autotune.measure_url import RunningServer, look_at, measure_url, report_text
from autotune.mock import Truth
from autotune.verify import verify_text, verify_url
from autotune.verify_tools import find_tool
from tests.odd_server import Body, Writer, send_json, serving
from tests.simulated.servers import simulated

MINI = ["--model-path", "/models/mini-kimi", "--attention-backend", "triton"]
KEY = "a-key-of-mine-4711"
TRUTH = Truth(ttft_seconds=0.02, tpot_seconds=0.002, tokens_per_chunk=2)

# What `vllm bench serve` is to verify: takes its options, puts load on the URL, writes its JSON.
STAND_IN = """#!{python}
import json, os, sys, urllib.request
options = dict(zip(sys.argv[3::1], sys.argv[4::1]))
prompts = json.load(open(options["--dataset-path"]))
assert len(prompts) >= int(options["--num-prompts"]), "too few prompts"
assert "--ignore-eos" in sys.argv
body = {{"model": options["--model"], "max_tokens": int(options["--sharegpt-output-len"]),
        "messages": [{{"role": "user", "content": prompts[0]["conversations"][0]["value"]}}]}}
request = urllib.request.Request(options["--base-url"] + options["--endpoint"],
                                 json.dumps(body).encode(),
                                 {{"Authorization": "Bearer " + os.getenv("OPENAI_API_KEY", "")}})
answer = json.load(urllib.request.urlopen(request))
result = {{"output_throughput": 100.0, "median_ttft_ms": 20.0, "median_tpot_ms": 2.0,
          "completed": 8, "total_output_tokens": 256}}
assert answer["usage"]["completion_tokens"] == int(options["--sharegpt-output-len"])
{last}
open(options["--result-dir"] + "/" + options["--result-filename"], "w").write(json.dumps(result))
"""


# What `sglang.bench_serving` is to verify: the options of 0.5.15 that are given to it, a request
# with them, and one line of JSON with the names of its results.
SGLANG = """
import argparse, json, sys, urllib.request
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--backend", choices=["sglang", "sglang-oai", "sglang-oai-chat"])
for name in ("base-url", "model", "served-model-name", "tokenizer", "dataset-path", "output-file"):
    parser.add_argument("--" + name, required=True)
parser.add_argument("--dataset-name", choices=["sharegpt", "random"])
for name in ("sharegpt-output-len", "num-prompts", "warmup-requests", "max-concurrency", "seed"):
    parser.add_argument("--" + name, type=int, required=True)
parser.add_argument("--extra-request-body", type=json.loads, required=True)
parser.add_argument("--flush-cache", action="store_true")
parser.add_argument("--disable-tqdm", action="store_true")
args = parser.parse_args()
assert args.flush_cache, "the warm-up's prompt is the first one's"
assert args.model == args.tokenizer and args.model.endswith("/mini-kimi"), args.model
prompts = json.load(open(args.dataset_path))
assert len(prompts) >= args.num_prompts
body = {"model": args.served_model_name, "stream": True, "ignore_eos": True,
        "messages": [{"role": "user", "content": prompts[0]["conversations"][0]["value"]}],
        "max_completion_tokens": args.sharegpt_output_len, **args.extra_request_body}
request = urllib.request.Request(args.base_url + "/v1/chat/completions", json.dumps(body).encode())
chunks = [line[6:] for line in urllib.request.urlopen(request) if line.startswith(b"data: {")]
usage = json.loads(chunks[-1])["usage"]
result = {"output_throughput": 100.0, "median_ttft_ms": 20.0, "median_tpot_ms": 2.0,
          "completed": args.num_prompts - 1,
          "total_output_tokens": usage["completion_tokens"] * (args.num_prompts - 1)}
with open(args.output_file, "a") as file:
    file.write(json.dumps(result) + "\\n")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a `vllm` on PATH that does as STAND_IN says, with one more line of code."""

    def install(last: str = "") -> None:
        program = tmp_path / "bin" / "vllm"
        program.parent.mkdir(exist_ok=True)
        program.write_text(STAND_IN.format(python=sys.executable, last=last))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return install


def test_a_running_server_is_measured_at_every_concurrency() -> None:
    with running_mock(TRUTH) as url:
        said: list[str] = []
        report = measure_url(
            url, [1, 4], input_tokens=64, output_tokens=32, limit_seconds=10, say=said.append
        )
    json.dumps(report)
    rates = [(level["concurrency"], level["tok_s"]) for level in report["levels"]]
    assert said == [f"concurrency {level}: {rate:.1f} tok/s" for level, rate in rates]
    assert report["model"] == "mock" and report["engine"] is None
    assert [level["concurrency"] for level in report["levels"]] == [1, 4]
    alone = report["levels"][0]
    assert alone["tok_s"] <= 1.01 * 32 / TRUTH.request_seconds(32)
    seconds = alone["figures"]["single_p50_e2e_ms"] / 1000
    assert alone["tok_s"] == pytest.approx(32 / seconds, rel=0.05)
    text = report_text(report)
    assert "mock" in text and len(text.splitlines()) >= 4


@pytest.mark.parametrize(
    ("url", "model", "said"),
    [("http://127.0.0.1:9", None, "nothing answers"), ("mock", "other", "serves mock, not other")],
)
def test_a_wrong_url_or_model_is_one_clear_line(url: str, model: str | None, said: str) -> None:
    with running_mock(TRUTH) as mock_url, pytest.raises(InputError, match=said):
        measure_url(mock_url if url == "mock" else url, [1], model=model)


def test_figures_of_a_simulated_server_are_never_shown_as_real_ones(
    tmp_path: Path, stand_in: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("")

    def printed(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert ended.value.code == 0
        out, err = capsys.readouterr()
        assert bool(err) is ("--quiet" not in words)  # how far it is
        return str(out)

    measured = ("--concurrency", "1", "--input-tokens", "64", "--output-tokens", "32")
    with simulated(tmp_path, "sglang", MINI, host="1x-h200") as server:
        server.wait_ready()
        url = str(server.http.base_url)
        assert printed("measure", url, *measured).startswith("SIMULATION: ")
        report = json.loads(printed("measure", url, *measured, "--json", "--quiet"))
        assert report["simulated"] is True
        speed = f"{server.speed:,g} times as fast as the machine that it plays"
        assert any(speed in warning for warning in report["warnings"])
        tool = ("--tool", "vllm", "--tokenizer", "a-name-on-a-hub")
        verified = printed("verify", url, *tool, "--concurrency", "1")
        assert verified.startswith("SIMULATION: ") and speed in verified
    with running_mock(TRUTH) as url:
        assert "SIMULATION" not in printed("measure", url, *measured)
        report = json.loads(printed("measure", url, *measured, "--json"))
        assert report["simulated"] is False
        assert not any("times as fast" in warning for warning in report["warnings"])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_server_with_a_key_is_measured_with_the_one_of_a_variable(
    engine: str,
    tmp_path: Path,
    stand_in: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in("")

    def ended(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        said = capsys.readouterr()
        assert KEY not in said.out + said.err
        return end.value.code, said.err

    model = MINI if engine == "sglang" else ["/models/mini-kimi"]
    with simulated(tmp_path, engine, [*model, "--api-key", KEY], host="1x-h200") as server:
        server.wait_ready()
        url, with_key = str(server.http.base_url), ("--api-key-env", "KEY_OF_MINE")
        short = ("--concurrency", "1", "--input-tokens", "64", "--output-tokens", "32")
        code, said = ended("measure", url, *short)
        assert code == 2 and "HTTP 401" in said
        code, said = ended("measure", url, *short, *with_key)
        assert code == 2 and "no variable KEY_OF_MINE is set" in said
        monkeypatch.setenv("KEY_OF_MINE", KEY)
        assert ended("measure", url, *short, *with_key)[0] == 0
        tool = ("--tool", "vllm", "--tokenizer", "a-name-on-a-hub", "--rounds", "1")
        assert ended("verify", url, *tool, "--concurrency", "1", *with_key)[0] == 0


def test_a_port_that_is_open_and_silent_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure_url._LOOK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(InputError, match=r"no answer within 0\.2 s"):
            measure_url(f"http://127.0.0.1:{port}", [1])


@pytest.mark.parametrize("fault", ["never_answers", "no_tokens"])
@pytest.mark.parametrize("command", ["measure", "verify"])
def test_a_server_that_hangs_is_told_of_and_given_up(
    tmp_path: Path,
    stand_in: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    fault: str,
) -> None:
    stand_in("")
    monkeypatch.setattr("autotune.measure_url._LOOK_SECONDS", 0.3)
    monkeypatch.setattr("autotune.heartbeat.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("autotune.load.SILENCE_LIMIT_SECONDS", 0.5)
    said: list[str] = []
    with simulated(tmp_path, "sglang", MINI, host="1x-h200", fault=fault) as server:
        server.wait_ready()
        url = str(server.http.base_url)
        with pytest.raises(AutotuneError, match=f"^{url}: no token for .* on any connection$"):
            if command == "measure":
                measure_url(url, [1], say=said.append)
            else:
                verify_url(url, [1], tool="vllm", tokenizer="a-name-on-a-hub", say=said.append)
    waits = [line for line in said if "first request (limit " in line]
    assert 0 < len(waits) < 15  # each after twice as long as the one before


async def trickle(writer: Writer) -> None:
    """An answer whose bytes keep coming, and whose end does not."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_an_answer_that_only_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure_url._LOOK_SECONDS", 0.3)
    endless = {"/v1/models"}

    async def answer(path: str, body: Body, writer: Writer) -> None:
        if path in endless:
            await trickle(writer)
        send_json(writer, {"data": [{"id": "m"}]})

    async def look() -> RunningServer:
        async with serving(answer) as url, ControlClient(base_url=url) as http:
            return await asyncio.wait_for(look_at(http, None), 30)

    with pytest.raises(InputError, match=r"no answer within 0\.3 s"):
        await look()
    endless = {"/server_info", "/version", "/model_info"}
    assert (await look()).engine is None


@pytest.mark.parametrize(
    ("status", "models", "said"),
    [
        ("401 Unauthorized", {"error": "no such key"}, r"/v1/models: HTTP 401: .*no such key"),
        ("404 Not Found", {"detail": "Not Found"}, r"/v1/models: HTTP 404: "),
        ("200 OK", {"models": ["m"]}, r"/v1/models: is no list of models, but .*\[.m.\]"),
        ("200 OK", {"data": ["m"]}, "is no list of models"),
        ("200 OK", {"data": [{"id": None}]}, "serves no model"),
    ],
)
async def test_what_lists_no_models_is_said_in_its_own_words(
    status: str, models: Any, said: str
) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        send_json(writer, models, status)

    async with serving(answer) as url, ControlClient(base_url=url) as http:
        with pytest.raises(InputError, match=said):
            await look_at(http, "m")


HTML = b"<html>"
ENDLESS = b"[" * 100_000


@pytest.mark.parametrize(
    ("answers", "owner", "engine"),
    [
        ({}, "vllm", None),  # a front page under every path
        ({"/server_info": {"version": "0.5.23", "tp_size": 8}}, "sglang", "sglang"),
        ({"/version": {"version": "0.32.0"}}, "vllm", "vllm"),
        ({"/version": {"version": "1.2.0"}}, "tensorrt_llm", None),
        ({"/server_info": {"vllm_config": ""}, "/version": {"version": "0"}}, "vllm", "vllm"),
        ({"/server_info": [], "/version": "0.32.0"}, "vllm", None),
        pytest.param({"/server_info": ENDLESS}, "vllm", None, id="nested without end"),
    ],
)
async def test_an_engine_is_known_by_what_only_it_answers(
    answers: dict[str, Any], owner: str, engine: str | None
) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        if path == "/v1/models":
            send_json(writer, {"data": [{"id": "m", "owned_by": owner}]})
        elif isinstance(found := answers.get(path, HTML), bytes):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(found) + found)
        else:
            send_json(writer, found)

    async with serving(answer) as url, httpx.AsyncClient(base_url=url) as http:
        found = await look_at(http, None)
    assert (found.engine.name if found.engine else None) == engine


@pytest.mark.parametrize(("said", "speed"), [("20", 20), ("fast", 1), ("nan", 1), ("-3", 1)])
async def test_a_clock_s_speed_that_makes_no_sense_is_none(said: str, speed: float) -> None:
    async def answer(path: str, body: Body, writer: Writer) -> None:
        models = b'{"data": [{"id": "m"}]}'
        head = f"HTTP/1.1 200 OK\r\n{SPEED_HEADER}: {said}\r\nContent-Length: {len(models)}\r\n\r\n"
        writer.write(head.encode() + models)

    async with serving(answer) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await look_at(http, None)).speed == speed


def test_an_unknown_tool_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="vllm, sglang, aiperf, guidellm"):
        find_tool("wrk")


def test_verify_puts_both_tools_side_by_side(stand_in: Callable[[str], None]) -> None:
    stand_in("")
    with running_mock(TRUTH) as url:
        said: list[str] = []
        report = verify_url(
            url, [1], tool="vllm", rounds=2, input_tokens=64, output_tokens=32, say=said.append
        )
    assert [line.partition(" tok/s")[0].rpartition(" ")[0] for line in said] == [
        f"concurrency 1, round {number} of 2: {tool}"
        for number in (1, 2)
        for tool in ("vllm", "autotune")
    ]
    [level] = report["levels"]
    assert level["theirs"]["tok_s"] == 100.0 and len(level["rounds"]) == 2
    assert level["ratio"] == pytest.approx(level["ours"]["tok_s"] / 100)
    assert "vllm" in verify_text(report)


def test_answers_of_another_length_are_no_fair_comparison(stand_in: Callable[[str], None]) -> None:
    stand_in("result['total_output_tokens'] = 128")
    with running_mock(TRUTH) as url:
        report = verify_url(url, [1], tool="vllm", rounds=1, input_tokens=64, output_tokens=32)
    assert report["warnings"] == ["vllm's answers had 16 tokens, ours 32: not comparable"]


def test_sglang_s_bench_is_called_as_it_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a server whose served name is no path: its tokenizer is found all the same."""
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bench_serving.py").write_text(SGLANG)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    model = tmp_path / "models" / "mini-kimi"
    model.mkdir(parents=True)
    args = ["--model-path", str(model), *MINI[2:], "--served-model-name", "m"]
    with simulated(tmp_path, "sglang", args, host="1x-h200") as run:
        run.wait_ready()
        report = verify_url(str(run.http.base_url), [1], tool="sglang", rounds=1, output_tokens=32)
    [level] = report["levels"]
    assert level["theirs"] == {"tok_s": 100.0, "ttft_ms": 20.0, "tpot_ms": 2.0}
    assert level["rounds"][0]["theirs"]["answer_tokens"] == 32
    assert "sglang had 7 of 8 requests answered: not comparable" in report["warnings"]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("sys.exit('no such option')", "no such option"),
        ("result = {}", "no result that can be read"),
    ],
)
def test_a_tool_that_fails_is_reported_with_its_last_words(
    stand_in: Callable[[str], None], last: str, said: str
) -> None:
    stand_in(last)
    with running_mock(TRUTH) as url, pytest.raises(AutotuneError, match=f"vllm: .*{said}"):
        verify_url(url, [1], tool="vllm", rounds=1, input_tokens=64, output_tokens=32)


def test_what_a_tool_lacks_is_known_before_anything_is_measured(
    tmp_path: Path, stand_in: Callable[[str], None]
) -> None:
    stand_in("sys.exit('no such tokenizer')")
    said: list[str] = []
    with running_mock(TRUTH) as url, pytest.raises(AutotuneError, match="no such tokenizer"):
        verify_url(url, [1], tool="vllm", say=said.append)
    with simulated(tmp_path, "sglang", MINI, host="1x-h200") as server:
        server.wait_ready()
        with pytest.raises(InputError, match=r"--tokenizer: .* /models/mini-kimi is not on this"):
            verify_url(str(server.http.base_url), [1], tool="vllm", say=said.append)
    assert said == []


def test_a_tokenizer_s_folder_may_be_given_relative_to_the_current_directory(
    tmp_path: Path, stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tok").mkdir()
    monkeypatch.chdir(tmp_path)
    stand_in(f"assert options['--tokenizer'] == {str(tmp_path / 'tok')!r}, options['--tokenizer']")
    with running_mock(TRUTH) as url:
        verify_url(url, [1], tool="vllm", tokenizer="tok", rounds=1, output_tokens=8)


def test_the_clients_ceiling_is_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = asyncio.run(client_calibration(8))
    assert first.ceiling_tok_s > 0 and first.cpu_us_per_token > 0
    assert asyncio.run(client_calibration(8)) == first
    assert len(list((tmp_path / "autotune" / "client").iterdir())) == 1


def test_a_figure_above_a_third_of_the_ceiling_is_marked() -> None:
    calibration = Calibration(64, 20.0, 50_000.0)
    assert ceiling_warning(calibration, 16_000.0) is None
    assert (ceiling_warning(calibration, 17_000.0) or "").startswith("client_ceiling")


def test_two_servers_can_be_measured_at_once() -> None:
    """Nothing of a measurement is shared between the slots of one host."""
    with running_mock(TRUTH) as one, running_mock(TRUTH) as two, ThreadPoolExecutor(2) as pool:
        reports = list(
            pool.map(
                lambda url: measure_url(
                    url, [2], input_tokens=64, output_tokens=16, limit_seconds=5
                ),
                (one, two),
            )
        )
    assert all(report["levels"][0]["tok_s"] > 0 for report in reports)
