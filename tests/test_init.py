"""`autotune init`: what it writes is a valid experiment file that leaves out what cannot run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.engines.launch import rendered
from autotune.engines.simulated import sglang_args, vllm_args
from autotune.engines.simulated.adapter import without_entry
from autotune.engines.simulated.hosts import host_named, infer_host
from autotune.errors import InputError
from autotune.experiment import Experiment
from autotune.experiment_errors import validated
from autotune.init import write_experiment
from autotune.init.hosts import KINDS, kind_of_host
from autotune.init.models import facts_from_config, facts_from_name
from autotune.space import Space
from autotune.yaml_lines import parse_yaml

BOTH = ["sglang", "vllm"]
MODELS = [
    "moonshotai/Kimi-K2.5",
    "moonshotai/Kimi-K2-Instruct",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3.2",
    "festr2/GLM-5-NVFP4-MTP",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
    "moonshotai/Kimi-K2-Thinking",
    "meta-llama/Llama-3.1-70B-Instruct",
    "openai/gpt-oss-120b",
    "somebody/Some-Model-7B-AWQ",
]


def written(model: str, engines: list[str] = BOTH, gpus: int = 8, gpu: str = "h200") -> Space:
    text = write_experiment(model, engines, gpus, gpu).text
    return Space(validated(Experiment, parse_yaml(text, "init.yaml")))


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_for_any_host_is_valid_or_refused_in_one_line(model):
    valid = 0
    for engines, gpus, kind in itertools.product((["sglang"], BOTH), (1, 8), KINDS):
        try:
            space = written(model, engines, gpus, kind.name)
        except InputError as error:
            assert str(error).startswith("--gpus"), error
            continue
        valid += 1
        for params in space.known_good:
            assert space.invalid(params) is None
            assert space.settings(params).command
            assert len(params) <= 14
    assert valid >= 4


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_can_be_simulated_at_once(model):
    """No simulated engine refuses the known good launches: `search --simulate` is what is next."""
    parsers = {"sglang": sglang_args.parse, "vllm": vllm_args.parse}
    for gpus, kind in itertools.product((1, 8), KINDS):
        try:
            space = written(model, BOTH, gpus, kind.name)
        except InputError:
            continue
        host = host_named(infer_host(space.experiment.name, gpus))
        for params in space.known_good:
            settings = space.settings(params)
            words = without_entry((*settings.command, *rendered(settings.args)))
            parsers[settings.engine](words, settings.env, host)


def test_every_parameter_is_commented_and_no_line_is_long():
    text = write_experiment("moonshotai/Kimi-K2.5", BOTH, 8, "rtx-pro-6000").text
    lines = text.splitlines()
    for number, line in enumerate(lines):
        assert len(line) <= 110
        if line.startswith("  ") and line[2] != " " and line.endswith(":") and number > 30:
            assert lines[number + 1].lstrip().startswith("#"), line


def test_backends_without_kernels_for_the_gpu_are_left_out():
    def backends(gpu: str, model: str = "moonshotai/Kimi-K2.5") -> tuple[object, ...]:
        return written(model, gpu=gpu).experiment.parameters["attention_backend"].choices

    assert backends("rtx-pro-6000") == ("flashinfer", "triton")
    assert backends("h200") == ("fa3", "flashmla", "flashinfer", "triton")
    assert "trtllm_mla" in backends("b200")
    assert "trtllm_mla" not in backends("h200")
    assert backends("rtx-pro-6000", "Qwen/Qwen3-8B") == ("flashinfer", "triton")


def test_the_link_decides_the_collectives():
    pcie = written("moonshotai/Kimi-K2.5", gpu="rtx-pro-6000").experiment.parameters
    assert {"nccl_p2p", "nccl_proto", "pcie_ipc_all_reduce"} <= pcie.keys()
    assert not {"nccl_nvls", "custom_all_reduce"} & pcie.keys()
    nvlink = written("moonshotai/Kimi-K2.5", gpu="h200").experiment.parameters
    assert {"nccl_nvls", "custom_all_reduce"} <= nvlink.keys()
    assert not {"nccl_p2p", "pcie_ipc_all_reduce"} & nvlink.keys()
    one = written("Qwen/Qwen3-8B", gpus=1).experiment.parameters
    assert not any(name.startswith(("nccl", "pcie", "custom")) for name in one)


@pytest.mark.parametrize(
    ("model", "algorithm", "drafter"),
    [
        ("moonshotai/Kimi-K2.5", "EAGLE3", "lightseekorg/kimi-k2.5-eagle3-mla"),
        ("deepseek-ai/DeepSeek-V3", "NEXTN", None),
        ("Qwen/Qwen3-8B", "STANDALONE", "Qwen/Qwen3-0.6B"),
    ],
)
def test_the_drafter_is_the_one_that_the_model_has(model, algorithm, drafter):
    space = written(model)
    base = next(params for params in space.known_good if params.get("num_steps") == 3)
    args = space.settings(base).args
    assert args["speculative-algorithm"] == algorithm
    assert args.get("speculative-draft-model-path") == drafter
    assert args["speculative-num-draft-tokens"] == 4


@pytest.mark.parametrize(
    ("model", "longest"),
    [
        ("Qwen/Qwen3-235B-A22B", 40_960),
        ("Qwen/Qwen3-235B-A22B-FP8", 40_960),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", 131_072),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 131_072),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 131_072),
        ("moonshotai/Kimi-K2-Thinking", 131_072),
    ],
)
def test_no_more_context_is_asked_than_the_model_has(model, longest):
    """Both engines refuse a longer one than the checkpoint's before they load it."""
    engines = written(model).experiment.engines
    assert engines["sglang"].args["context-length"] == longest
    assert engines["vllm"].args["max-model-len"] == longest


def test_experts_whose_fp8_blocks_cannot_be_shared_out_stay_whole():
    """1536 columns are 12 blocks of 128: eight GPUs get one and a half each, four get three."""
    eight = written("Qwen/Qwen3-235B-A22B-FP8")
    assert eight.experiment.engines["sglang"].args["ep-size"] == 8
    assert eight.experiment.engines["vllm"].args["enable-expert-parallel"] is True
    assert "vllm_expert_parallel" not in eight.experiment.parameters
    for model, gpus in (
        ("Qwen/Qwen3-235B-A22B-FP8", 4),
        ("Qwen/Qwen3-235B-A22B", 8),
        ("deepseek-ai/DeepSeek-V3.1", 8),
    ):
        space = written(model, gpus=gpus)
        assert "ep-size" not in space.experiment.engines["sglang"].args
        assert "vllm_expert_parallel" in space.experiment.parameters


@pytest.mark.parametrize(
    ("width", "block", "whole"),
    [(1536, [128, 128], True), (2048, [128, 128], False), (1536, None, False), (1536, [0], False)],
)
def test_the_blocks_of_an_expert_are_read_from_the_config(width, block, whole):
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    config = {"moe_intermediate_size": width, "quantization_config": quantization}
    assert facts_from_config("m", config).whole_experts(8) is whole


def test_a_name_says_what_is_known_of_that_model_only():
    thinking = facts_from_name("moonshotai/Kimi-K2-Thinking")
    assert thinking is not None
    assert (thinking.quantization, thinking.weights_gb) == ("int4", 595)
    later = facts_from_name("Qwen/Qwen3.5-397B-A17B")
    assert later is not None
    assert (later.architecture, later.moe) == ("unknown", True)


def test_a_model_without_a_known_drafter_gets_none():
    assert "num_steps" not in written("openai/gpt-oss-120b").experiment.parameters
    assert "num_steps" not in written("Qwen/Qwen3-0.6B", gpus=1).experiment.parameters


def test_one_engine_needs_no_choice_of_it():
    space = written("Qwen/Qwen3-8B", ["vllm"], 1)
    assert "engine" not in space.experiment.parameters
    assert all(parameter.when is None for parameter in space.experiment.parameters.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the config of a small model of Kimi's shape, its text part nested."""
    text = {
        "kv_lora_rank": 512,
        "n_routed_experts": 64,
        "num_attention_heads": 16,
        "max_position_embeddings": 32_768,
        "num_nextn_predict_layers": 1,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
        },
    }
    config = {"architectures": ["SomeForCausalLM"], "vision_config": {}, "text_config": text}
    config["auto_map"] = {"AutoConfig": "configuration.Some"}
    path = tmp_path / "my model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"\0" * 1000)
    return path


def test_a_folder_is_read_from_its_config(folder):
    facts = facts_from_config("m", json.loads((folder / "config.json").read_text()))
    assert (facts.mla, facts.moe, facts.vision, facts.own_code) == (True, True, True, True)
    assert (facts.quantization, facts.context, facts.heads) == ("int4", 32_768, 16)
    assert facts.drafter is not None and facts.drafter.kind == "mtp"
    space = written(str(folder))
    assert space.settings(space.known_good[0]).args["model-path"] == str(folder)
    assert space.experiment.name == "my-model-h200"


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ("nonsense", "bf16"),
    ],
)
def test_the_quantisation_is_read_from_the_config(quantization, expected):
    assert facts_from_config("m", {"quantization_config": quantization}).quantization == expected


@pytest.mark.parametrize("text", ["", "[]", "{", '{"text_config": 3, "num_attention_heads": "x"}'])
def test_a_strange_config_is_refused_or_read_but_never_a_traceback(folder, text):
    (folder / "config.json").write_text(text)
    try:
        written(str(folder))
    except InputError as error:
        assert "config.json" in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x/y", BOTH, 8, "h200"), "--model x/y: no such folder, and the name is not known here"),
        (("Qwen/Qwen3-8B", ["trtllm"], 1, "h200"), "--engine trtllm is not known here; valid"),
        (("Qwen/Qwen3-8B", BOTH, 1, "h2000"), "--gpu h2000 is unknown; did you mean h200?"),
        (("Qwen/Qwen3-8B", BOTH, 0, "h200"), "--gpus must be at least 1"),
        (("moonshotai/Kimi-K2.5", BOTH, 3, "h200"), "64 attention heads cannot be split"),
        (("moonshotai/Kimi-K2.5", BOTH, 2, "rtx-pro-6000"), "do not fit into 204 GB"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments, message):
    with pytest.raises(InputError) as raised:
        write_experiment(*arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "gpus", "warned"),
    [
        ("Qwen/Qwen3-8B", 3, "usual are 1, 2, 4 and 8 GPUs"),  # a name tells no number of heads
        ("festr2/GLM-5-NVFP4-MTP", 8, "NVFP4 has no kernels of its own before Blackwell"),
    ],
)
def test_what_may_fail_is_a_warning_and_in_the_file(model, gpus, warned):
    file = write_experiment(model, BOTH, gpus, "h200")
    (warning,) = file.warnings
    assert warned in warning
    comments = [line.lstrip("# ") for line in file.text.splitlines() if line.startswith("#")]
    assert f"WARNING: {warning}." in " ".join(comments)


@pytest.mark.parametrize(
    ("model", "gpus"), [("Qwen/Qwen3-8B", 4), ("Qwen/Qwen3-8B", 1), ("openai/gpt-oss-120b", 16)]
)
def test_of_a_usual_number_of_gpus_there_is_no_warning(model, gpus):
    assert write_experiment(model, BOTH, gpus, "h200").warnings == ()


def test_a_warning_is_seen_where_the_file_is_not(tmp_path, capsys):
    words = ["--model", "Qwen/Qwen3-8B", "--gpu", "h200", "--gpus", "3"]
    with pytest.raises(SystemExit, match="0"):
        main(["init", *words, "--out", str(tmp_path / "x.yaml")])
    told = capsys.readouterr()
    assert told.err.startswith("autotune: --gpus 3: how many attention heads")
    assert told.out.startswith("wrote ")


def test_the_driver_names_this_hosts_gpus():
    card = ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887 * 2**20)
    assert kind_of_host([card] * 8).name == "rtx-pro-6000"
    small = kind_of_host([("NVIDIA A100-PCIE-40GB", 40 * 2**30)])
    assert (small.name, small.link, small.memory_gib) == ("a100", "pcie", 40)
    with pytest.raises(InputError, match="has no GPU"):
        kind_of_host([])
    with pytest.raises(InputError, match="mixes GPUs"):
        kind_of_host([card, ("NVIDIA H200", 2**37)])
    with pytest.raises(InputError, match="unknown"):
        kind_of_host([("NVIDIA GH200 480GB", 2**37)])
