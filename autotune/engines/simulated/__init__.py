"""A GPU-less inference server: real in everything but the arithmetic.

`python -m autotune.engines.simulated --as sglang|vllm …the engine's own arguments…` is one server:
a process tree, a port, log lines, GPU memory in a ledger file, and the physics of `physics.py` in
virtual time. `SimulatedEngine` launches it in place of the engine it wraps. See
`docs/simulator.md`.

The server's processes import this package, so nothing heavy may be imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.engines.simulated.adapter import SimulatedEngine
    from autotune.engines.simulated.hosts import infer_host

__all__ = ["SimulatedEngine", "infer_host"]


def __getattr__(name: str) -> Any:
    if name == "SimulatedEngine":
        from autotune.engines.simulated.adapter import SimulatedEngine

        return SimulatedEngine
    if name == "infer_host":
        from autotune.engines.simulated.hosts import infer_host

        return infer_host
    raise AttributeError(name)
