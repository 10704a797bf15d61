"""What ARCHITECTURE.md says of the files is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "autotune"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def modules() -> list[str]:
    """`space.py` for a module, `report/` for a package or a folder of data."""
    entries = [path for path in PACKAGE.iterdir() if not path.name.startswith("_")]
    files = [path.name for path in entries if path.suffix == ".py"]
    return sorted(files + [f"{path.name}/" for path in entries if path.is_dir()])


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_file_of_the_package_is_named() -> None:
    named = re.findall(r"`([a-z_0-9*]+(?:\.py|/))`", TEXT)
    unnamed = [name for name in modules() if not any(fnmatch(name, n) for n in named)]
    assert unnamed == []


def test_every_file_that_is_named_exists() -> None:
    table = TEXT.partition("## The files")[2].partition("## What they promise")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    missing = [name for name in named if not list(PACKAGE.glob(name.rstrip("/")))]
    assert len(named) > 40
    assert missing == []


def test_what_runs_on_a_server_s_node_never_imports_what_drives_the_study() -> None:
    above = {"study", "search", "ledger", "opening", "live", "cli", "report", "show", "export"}
    for name in ("trial", "server", "measure", "reaper", "machine", "space", "experiment"):
        imported = {module.split(".")[1] for module in _own(PACKAGE / f"{name}.py")}
        assert not imported & above, f"{name}.py imports {imported & above}"


def _own(path: Path) -> list[str]:
    return [name for name in imported_names(path) if name.startswith("autotune.")]


def test_the_reaper_needs_nothing_but_the_standard_library() -> None:
    assert _own(PACKAGE / "reaper.py") == []
