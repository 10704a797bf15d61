"""The models' matrices are small: they are computed by one thread."""

from __future__ import annotations

from contextlib import AbstractContextManager


def one_thread() -> AbstractContextManager[object]:
    """Matrices of this size lose by threads: 20 ms instead of 0.1 ms each on a busy host."""
    import scipy.linalg  # noqa: F401  # its own BLAS must be loaded to be limited
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # publishes none

    limits: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limits
