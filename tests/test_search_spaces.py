"""The shipped experiment files, and a thousand broken copies of them."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from autotune.engines.base import Place
from autotune.engines.launch import build_launch
from autotune.engines.registry import engine_named
from autotune.engines.simulated import sglang_args, vllm_args
from autotune.engines.simulated.hosts import host_named
from autotune.errors import InputError
from autotune.experiment import load_experiment
from autotune.space import Space
from autotune.yaml_lines import load_yaml

FOLDER = Path(__file__).parents[1] / "search_spaces"
SPACES = sorted(FOLDER.glob("*.yaml"))
SHIPPED = {
    "kimi", "kimi_h200", "glm5_nvfp4", "deepseek_v3", "qwen3_8b_1gpu", "vllm_cpu",
    "qwen3_8b_h200_dummy", "mini_kimi_h200_dummy", "nccl_h200",
}  # fmt: skip
FUZZED_FILES = 1000


def test_the_files_that_the_documentation_names_are_there():
    assert {path.stem for path in SPACES} >= SHIPPED


@pytest.fixture(params=SPACES, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


def test_a_shipped_space_loads_and_its_known_good_entries_can_be_launched(path):
    space = Space(load_experiment(path))
    assert space.size() is None or space.size() >= 20
    for params in space.known_good:
        assert space.invalid(params) is None
        settings = space.settings(params)
        assert settings.command
        words = [*settings.command, *map(str, settings.args.values()), *settings.env.values()]
        assert not any("${" in word or word.startswith("~") for word in words)
    keys = [space.key(params) for params in space.known_good]
    assert len(set(keys)) == len(space.experiment.known_good)


def test_a_shipped_space_has_few_dimensions_at_a_time(path):
    space = Space(load_experiment(path))
    assert all(len(params) <= 14 for params in space.known_good)


def test_every_parameter_says_where_its_range_comes_from(path):
    document, lines = load_yaml(path), path.read_text().splitlines()
    starts = {name: document.lines["parameters", name] for name in document.data["parameters"]}
    ends = sorted([*starts.values(), *(document.lines[k,] for k in document.data)])
    for name, start in starts.items():
        end = next((line for line in ends if line > start), len(lines))
        block = "\n".join(lines[start - 1 : end - 1])
        assert name == "engine" or "#" in block, f"{name} has no comment"


def test_every_known_good_entry_says_where_it_comes_from(path):
    document, lines = load_yaml(path), path.read_text().splitlines()
    for index in range(len(document.data["known_good"])):
        line = document.lines["known_good", index]
        assert lines[line - 2].lstrip().startswith("#"), f"line {line} has no comment above it"


def test_the_vllm_cpu_space_has_a_value_that_cannot_start():
    space = Space(load_experiment(FOLDER / "vllm_cpu.yaml"))
    assert 16 in space.experiment.parameters["block_size"].choices
    assert space.experiment.gpus_per_trial == 0


def test_kimi_covers_what_was_asked_for():
    space = Space(load_experiment(FOLDER / "kimi.yaml"))
    parameters = space.experiment.parameters
    assert parameters["engine"].choices == ("sglang", "vllm")
    assert (parameters["num_steps"].int_.low, parameters["num_steps"].int_.high) == (0, 5)
    speculating = space.settings({**space.known_good[0], "num_steps": 3})
    assert speculating.args["speculative-num-draft-tokens"] == 4
    eager = space.settings({**space.known_good[0], "cuda_graph_max_bs": 0})
    assert eager.args["disable-cuda-graph"] is True
    assert "cuda-graph-max-bs-decode" not in eager.args
    ipc = {**space.known_good[0], "pcie_ipc_all_reduce": True}
    assert space.settings(ipc).env["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] == "1"


def test_the_engines_parsers_know_every_flag_that_a_space_can_give(path):
    """Random configurations through the simulated engines' own command lines."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = Space(load_experiment(path))
    host = host_named("8x-rtx-pro-6000")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [space.suggest(study.ask()) for _ in range(40)]
    for params in [*space.known_good, *drawn]:
        settings = space.settings(params)
        place = Place("127.0.0.1", 30000, "model", Path("/tmp"))
        launch = build_launch(settings, engine_named(settings.engine), place, 0)
        words = launch.argv[len(settings.command) if settings.engine == "sglang" else 2 :]
        parser = sglang_args if settings.engine == "sglang" else vllm_args
        assert parser.parse(words, launch.env, host).engine == settings.engine


# -- broken copies -------------------------------------------------------------------------------

ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, "", "x", "{x}", "{", "}}", "{port}", "~", "${", "[", [], {},
    [[]], [{}], {"a": {"b": {}}}, [None], [1, 1], "a b", "é" * 50, "engine == 'x'", "1 / 0",
    "engine", "--", "-", ["x"] * 200, {"choices": []}, {"int": {"low": 1}}, "\u2028", "../..",
]  # fmt: skip


PIECES = [
    *(b"\t", b"\n", b"{", b"[", b"|", b"'", b'"', b"\x00", b": ", b"- ", b"? "),
    *(b"&a ", b"*a ", b"!!x ", b"<<: ", b"---\n", b"%YAML 9\n", b"\xef\xbb\xbf"),
]


def flip_bytes(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 6)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut_or_double(raw: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(raw)) for _ in range(2))
    return rng.choice([raw[:start], raw[start:], raw[:start] + raw[end:], raw[:end] + raw[start:]])


def insert_text(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw))
    piece = rng.choice(PIECES)
    return raw[:at] + piece + raw[at:]


def shuffle_lines(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], b" " * rng.randint(0, 6) + lines[one]
    return b"\n".join(lines)


def replace_value(raw: bytes, rng: random.Random) -> bytes:
    data = yaml.safe_load(raw)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(list(places(data)))
        action = rng.random()
        if action < 0.7:
            holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))
        elif isinstance(holder, dict) and action < 0.85:
            holder[str(key)[:-1] or "k"] = holder.pop(key)
        else:
            del holder[key]
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode()


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    else:
        return []
    return [(data, key) for key, _ in items] + [p for _, value in items for p in places(value)]


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    flip_bytes, cut_or_double, insert_text, shuffle_lines, replace_value, replace_value,
]  # fmt: skip


@pytest.mark.parametrize("batch", range(10))
def test_a_broken_file_is_refused_in_lines_that_name_it_and_never_with_a_traceback(batch, tmp_path):
    broken = tmp_path / "broken.yaml"
    refused = 0
    for seed in range(batch, FUZZED_FILES, 10):
        rng = random.Random(seed)
        source = rng.choice(SPACES)
        broken.write_bytes(rng.choice(MUTATIONS)(source.read_bytes(), rng))
        try:
            use(Space(load_experiment(broken)))
        except InputError as error:
            refused += 1
            lines = str(error).splitlines()
            assert len(lines) <= 11, f"seed {seed}: {error}"
            good = re.compile(rf"{re.escape(str(broken))}(:\d+)?: |\.\.\. and |\$\{{")
            assert all(good.match(line) for line in lines), f"seed {seed}: {error}"
    assert refused >= 40, "the mutations no longer break the files"


def use(space: Space) -> None:
    """What a study would do first with a file that was accepted."""
    space.size()
    for params in space.known_good:
        space.settings(params)
        space.forbidden(params)
        space.key(params)
    assert space.distributions
