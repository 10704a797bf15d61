from __future__ import annotations

from pathlib import Path

import pytest

from autotune.experiment import load_experiment
from autotune.masking import mask_argv, mask_env, mask_file, mask_text, secrets_of
from autotune.opening import _masked

KEY = "k3y-of-the-house"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key {KEY}",
        f"--api-key={KEY}",
        f"--api-k {KEY}",
        f"--admin={KEY}",
        f"'api_key': '{KEY}', 'port': 8000",
        f"api_key='{KEY}', admin_api_key=None",
        f'{{"token": "{KEY}"}}',
        f"HF_TOKEN={KEY}",
        f"AWS_SECRET_ACCESS_KEY: {KEY}",
        f"Authorization: Bearer {KEY}",
        f"https://user:{KEY}@hub.example.org/model",
        f"ssl_keyfile_password='{KEY}'",
    ],
)
def test_a_secret_is_masked_by_the_name_it_stands_under(text: str) -> None:
    assert KEY not in mask_text(text)
    assert "***" in mask_text(text)


@pytest.mark.parametrize("token", ["hf_AbCdEfGhIjKlMnOpQrSt", "sk-abcdefghijklmnop1234"])
def test_a_token_of_a_known_shape_is_masked_anywhere(token: str) -> None:
    assert mask_text(f"denied for {token}.") == "denied for ***."


@pytest.mark.parametrize(
    "text",
    [
        "Decode batch, #running-req: 1, #token: 199, token usage: 0.00, accept len: 2.88",
        "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, #pending-token: 0",
        "--max-total-tokens 4096 --tokenizer-path /models/x --speculative-token-map /m.pt",
        "api_key=None, admin_api_key=None, bos_token='<s>', eos_token_id=2",
        "the token was refused",
        "--ssl-keyfile /etc/key.pem --api-server-count 2 --host here -a word",
        "http://127.0.0.1:31000/v1/models",
        "max_total_num_tokens=343791, chunked_prefill_size=8192",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_text(text) == text


def test_every_value_of_a_secret_flag_is_masked() -> None:
    argv = ("vllm", "serve", "M", "--api-key", KEY, "other-key", "--port", "1", f"--token={KEY}")
    assert mask_argv(argv) == (
        *("vllm", "serve", "M", "--api-key", "***", "***", "--port", "1", "--token=***"),
    )


@pytest.mark.parametrize("flag", ["--api-k", "--api_ke", "--hf-tok", "--admin-api"])
def test_a_secret_flag_that_is_cut_short_is_one(flag: str, tmp_path: Path) -> None:
    """Both engines take `--api-k KEY`."""
    for argv in ([flag, KEY], [f"{flag}={KEY}"]):
        assert KEY not in " ".join(mask_argv(argv))
        assert secrets_of(argv, {}) == (KEY,)


def test_a_run_s_copy_of_its_experiment_holds_no_key_that_is_cut_short(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        "name: small\ngpus_per_trial: 1\nengines:\n  sglang:\n    command: [sglang, serve]\n"
        f"    args: {{model-path: M, api-k: {KEY}}}\n"
        "parameters:\n  steps: {flag: x, choices: [1, 2]}\n"
    )
    assert KEY not in _masked(file, load_experiment(file))


def test_secret_variables_are_masked_and_others_stay() -> None:
    env = {"HF_TOKEN": KEY, "NCCL_PROTO": "LL", "OPENAI_API_KEY": KEY, "EMPTY_TOKEN": ""}
    assert mask_env(env) == {
        "HF_TOKEN": "***",
        "NCCL_PROTO": "LL",
        "OPENAI_API_KEY": "***",
        "EMPTY_TOKEN": "",
    }


def test_a_known_value_is_masked_wherever_it_turns_up(tmp_path: Path) -> None:
    argv = ("server", "--api-key", KEY, "--url", "http://me:pa55word@host/x")
    secrets = secrets_of(argv, {"HF_TOKEN": "a-hub-token", "PATH": "/bin"})
    assert set(secrets) == {KEY, "pa55word", "a-hub-token"}
    log = tmp_path / "server.log"
    log.write_bytes(f"keys: ['{KEY}']\nlogin pa55word ok\r 50%\nraw \xff\n".encode("latin-1"))
    mask_file(log, secrets)
    assert log.read_bytes() == b"keys: ['***']\nlogin *** ok\r 50%\nraw \xff\n"
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]


def test_a_short_value_does_not_mask_every_number_of_a_log() -> None:
    assert mask_text("port 80, 80 requests", secrets_of(("s", "--api-key", "80"), {})) == (
        "port 80, 80 requests"
    )
