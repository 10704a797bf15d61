"""A server of no known engine: takes any flag, knows a few."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from autotune.engines.simulated import sglang_args
from autotune.engines.simulated.hosts import Host
from autotune.engines.simulated.launch_args import Arguments


def parse(argv: Sequence[str], env: Mapping[str, str], host: Host) -> Arguments:
    """Port, host, model and served name are read, whatever else is given is ignored."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--port", "-p", default="8000")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", "--model-path", "-m", default="Qwen/Qwen3-8B")
    parser.add_argument("--served-model-name", "--alias", default=None)
    known, _ = parser.parse_known_args(list(argv))
    words = ["--model-path", known.model, "--port", known.port, "--host", known.host]
    words += ["--served-model-name", known.served_model_name or known.model]
    words += ["--enable-metrics", "--attention-backend", "triton"]
    return sglang_args.parse(words, env, host)
