"""Files that appear under their name complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

PARTIAL = ".partial"


def write_whole(path: Path, *parts: bytes | bytearray) -> None:
    """Write beside ``path``, sync, and rename: a crash leaves the old file or the new one.

    What a killed writer left beside it is overwritten by the next one. Where several may write the same file they must
    hold a lock (``manifest.locked``).

    Raises:
        OSError: it cannot be written; an old file is still there.
    """
    partial = path.with_name(path.name + PARTIAL)
    with open(partial, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
