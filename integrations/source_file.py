"""A text file that is to be edited: read once, replaced atomically, never if it changed meanwhile."""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOM: Final = "\ufeff"

LANGUAGES: Final = {
    ".c": "c",
    ".cpp": "cpp",
    ".css": "css",
    ".go": "go",
    ".h": "c",
    ".html": "html",
    ".java": "java",
    ".js": "javascript",
    ".json": "json",
    ".md": "markdown",
    ".py": "python",
    ".pyi": "python",
    ".rb": "ruby",
    ".rs": "rust",
    ".sh": "bash",
    ".sql": "sql",
    ".toml": "toml",
    ".ts": "typescript",
    ".tsx": "tsx",
    ".yaml": "yaml",
    ".yml": "yaml",
}
"""Suffix to the language tag of a code fence."""


class FileError(ValueError):
    """The file cannot be read or written; the message says why in one line."""


@dataclass(frozen=True)
class SourceFile:
    """A UTF-8 file as it was read.

    Attributes:
        path: as given; a symbolic link is followed for reading and writing, and stays a link.
        data: its bytes.
        text: its text, without a byte order mark.
    """

    path: Path
    data: bytes
    text: str

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Read a file, or raise a FileError: absent, not a regular file, not readable, not UTF-8."""
        try:
            if path.exists() and not path.is_file():
                raise FileError(f"{path} is not a regular file")
            data = path.read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from None
        try:
            return cls(path, data, data.decode("utf-8").removeprefix(_BOM))
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not UTF-8: byte {data[error.start]:#04x} at {error.start}") from None

    @property
    def language(self) -> str:
        """Language tag for a code fence, empty where the suffix says nothing."""
        return LANGUAGES.get(self.path.suffix.lower(), "")

    def encode(self, text: str) -> bytes:
        """Return the bytes of a new text, with a byte order mark if the old one had it."""
        has_bom = self.data.startswith(_BOM.encode())
        return (_BOM * has_bom + text).encode("utf-8")

    def replace(self, text: str) -> None:
        """Put ``text`` in the file's place: the old one or the new one is there at any time, with the same mode.

        Raises:
            FileError: the file is write-protected, was changed or removed since it was read, or cannot be written.
        """
        self.check_writable()
        write_atomically(Path(os.path.realpath(self.path)), self.encode(text), expected=self.data)

    def check_writable(self) -> None:
        """Raise a FileError if the file is write-protected or gone, or its folder takes no new file."""
        target = Path(os.path.realpath(self.path))
        if not os.access(target, os.W_OK) or not os.access(target.parent, os.W_OK):
            raise FileError(f"cannot write {self.path}: it is write-protected or gone")

    def diff(self, text: str) -> str:
        """Return the unified diff from the old text to ``text``, in the form that ``patch -p1`` takes."""
        name = self.path.as_posix().lstrip("/")
        lines = difflib.unified_diff(_lines(self.text), _lines(text), f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write_atomically(target: Path, data: bytes, *, expected: bytes | None = None) -> None:
    """Write ``data`` beside ``target`` and rename it into place. An existing file's mode and owner are kept.

    Args:
        target: no symbolic link.
        data: the new content.
        expected: what the file must still hold just before the rename, None if that does not matter.

    Raises:
        FileError: it holds something else, or cannot be written. Nothing was changed then.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _copy_rights(target, Path(name))
            if expected is not None and (not target.exists() or target.read_bytes() != expected):
                raise FileError(f"{target} changed while the model was writing; it was left as it is")
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from None


def _copy_rights(old: Path, new: Path) -> None:
    try:
        known = old.stat()
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        new.chmod(0o666 & ~mask)
        return
    with contextlib.suppress(OSError):  # another owner's file in a shared folder: the content can be ours, no more
        os.chown(new, known.st_uid, known.st_gid)
    new.chmod(stat.S_IMODE(known.st_mode))


def _lines(text: str) -> list[str]:
    """Split at line feeds only, ends kept; ``str.splitlines`` would also split at form feeds and their like."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
