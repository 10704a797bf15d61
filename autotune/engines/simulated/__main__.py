"""`python -m autotune.engines.simulated --as sglang|vllm|openai …the engine's own arguments…`."""

from __future__ import annotations

import sys


def list_faults() -> int:
    """Print what AUTOTUNE_SIM_FAULT can hold."""
    from autotune.engines.simulated.faults import KINDS

    for name, kind in KINDS.items():
        phases = f"[@{'|'.join(kind.phases)}]" if kind.phases else ""
        argument = "" if kind.argument is None else f"[:{kind.argument or 'VALUE'}]"
        sys.stdout.write(f"{name + phases + argument:44} {kind.says}\n")
    return 0


def main(argv: list[str]) -> int:
    """Run one server; returns its exit status."""
    if argv[:1] == ["--faults"]:
        return list_faults()
    preflight = "--preflight" in argv[:3]
    words = [word for word in argv[:3] if word != "--preflight"] + argv[3:]
    if words[:1] != ["--as"] or len(words) < 2 or words[1] not in ("sglang", "vllm", "openai"):
        sys.stderr.write(f"usage: {__doc__}\n")
        return 2
    from autotune.engines.simulated.launcher import run

    return run(words[1], words[2:], preflight=preflight)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
