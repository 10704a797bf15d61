"""A trial's folder on its way home from a node that does not see the run directory."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

# Files that are larger stay on the node that wrote them (bytes).
MAX_FILE_BYTES = 32 * 2**20


def packed(folder: Path) -> bytes:
    """The folder as an archive; it is removed here, unless a file in it is too large to send."""
    buffer, large = io.BytesIO(), []
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
                large.append(path)
            elif path.is_file():
                archive.add(path, arcname=str(path.relative_to(folder)))
        if large:
            host = os.uname().nodename
            _add_text(archive, "left_on_node.txt", "".join(f"{host}:{p}\n" for p in large))
    if not large:
        shutil.rmtree(folder, ignore_errors=True)
    return buffer.getvalue()


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry, data = tarfile.TarInfo(name), text.encode()
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def unpack(data: bytes, folder: Path) -> None:
    """Put the files of a trial that ran on another node into its folder here."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")
