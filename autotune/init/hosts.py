"""Kinds of GPU: what decides which kernels exist and what fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotune.errors import InputError
from autotune.experiment_errors import nearest


@dataclass(frozen=True)
class GpuKind:
    """One kind of GPU. `link` is how several of them are usually connected in one host."""

    name: str
    title: str
    sm: int  # compute capability: 90 is 9.0, 120 is 12.0
    memory_gib: int
    link: Literal["pcie", "nvlink"]

    @property
    def blackwell_server(self) -> bool:
        """The B200 family, whose kernels the workstation cards (SM120) do not have."""
        return 100 <= self.sm < 110


KINDS = (
    GpuKind("rtx-pro-6000", "RTX PRO 6000 Blackwell", 120, 95, "pcie"),
    GpuKind("rtx-5090", "RTX 5090", 120, 31, "pcie"),
    GpuKind("rtx-4090", "RTX 4090", 89, 23, "pcie"),
    GpuKind("l40s", "L40S", 89, 44, "pcie"),
    GpuKind("a100", "A100", 80, 79, "nvlink"),
    GpuKind("h100", "H100", 90, 79, "nvlink"),
    GpuKind("h200", "H200", 90, 140, "nvlink"),
    GpuKind("b200", "B200", 100, 179, "nvlink"),
    GpuKind("b300", "B300", 103, 268, "nvlink"),
)


def kind_named(name: str) -> GpuKind:
    """The kind called `name`, with or without the vendor's words around it."""
    words = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
    for kind in KINDS:
        if re.search(rf"(?<![a-z0-9]){kind.name}(?![a-z0-9])", words):
            return replace(kind, link="pcie") if "pcie" in words else kind
    raise InputError(f"--gpu {name} is unknown; {nearest(name, [kind.name for kind in KINDS])}")


def kind_of_host(names_and_bytes: Sequence[tuple[str, int]]) -> GpuKind:
    """The kind of this host's GPUs, whose names and memory the driver gives."""
    names = sorted({name for name, _ in names_and_bytes})
    if not names:
        listed = ", ".join(kind.name for kind in KINDS)
        raise InputError(f"this host has no GPU: say which one is meant with --gpu ({listed})")
    if len(names) > 1:
        raise InputError(f"this host mixes GPUs ({', '.join(names)}): use --gpu")
    smallest_gib = min(size for _, size in names_and_bytes) // 2**30
    return replace(kind_named(names[0]), memory_gib=smallest_gib)
