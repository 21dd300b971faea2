"""Writing a file: it stays what it was but for its content, and nothing is lost where that fails."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from zerodraft.integrations.pipelines import file_writer
from zerodraft.integrations.pipelines.file_writer import FileError, check_writable, write_file

OLD, NEW = b"old\n", b"a new and longer text\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.py"
    path.write_bytes(OLD)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_mode_and_owner_stay(file: Path) -> None:
    file.chmod(0o2751)
    if os.geteuid() == 0:
        os.chown(file, 1234, 2345)
        file.chmod(0o2751)
    before = file.stat()
    write_file(file, NEW)
    after = file.stat()
    assert file.read_bytes() == NEW
    assert (stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid) == (0o2751, before.st_uid, before.st_gid)
    assert names(file.parent) == ["file.py"]


def test_extended_attributes_stay_and_none_comes(file: Path) -> None:
    try:
        os.setxattr(file, "user.note", b"mine")
    except (OSError, AttributeError):
        pytest.skip("no extended attributes here")
    write_file(file, NEW)
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == {"user.note": b"mine"}


def test_hard_links_stay_together(file: Path) -> None:
    other = file.with_name("other.py")
    os.link(file, other)
    write_file(file, NEW)
    assert other.read_bytes() == file.read_bytes() == NEW
    assert file.stat().st_ino == other.stat().st_ino


def test_a_symbolic_link_stays_one(file: Path) -> None:
    link = file.with_name("link.py")
    link.symlink_to(file.name)
    write_file(link, NEW)
    assert link.is_symlink()
    assert file.read_bytes() == NEW


def test_a_link_to_nothing_makes_its_file(file: Path) -> None:
    link = file.with_name("link.py")
    link.symlink_to("later.py")
    check_writable(link)
    write_file(link, NEW)
    assert link.is_symlink()
    assert file.with_name("later.py").read_bytes() == NEW


def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    write_file(fifo, NEW * 5000)
    reader.join(20)
    assert got == [NEW * 5000]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_device_is_written_through() -> None:
    write_file(Path("/dev/null"), NEW)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_full_device_is_one_error() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(FileError, match="No space"):
        write_file(Path("/dev/full"), NEW)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EPERM, errno.EXDEV])
def test_what_cannot_be_renamed_onto_is_written_in_place(
    file: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    inode = file.stat().st_ino
    write_file(file, NEW, expected=OLD)
    assert (file.read_bytes(), file.stat().st_ino) == (NEW, inode)
    write_file(file, b"x", expected=NEW)
    assert file.read_bytes() == b"x", "a shorter text leaves nothing of the longer one"
    assert names(file.parent) == ["file.py"]


def test_a_bind_mount_is_written(tmp_path: Path, file: Path) -> None:
    place = tmp_path / "mounted.py"
    place.write_bytes(b"")
    mounted = subprocess.run(["mount", "--bind", file, place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no bind mounts here: {mounted.stderr.decode().strip()}")
    try:
        write_file(place, NEW, expected=OLD)
        assert place.read_bytes() == file.read_bytes() == NEW
    finally:
        subprocess.run(["umount", place], check=True)


def test_another_owners_file_keeps_its_owner(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "not allowed")

    monkeypatch.setattr(os, "fchown", refuse)
    other = os.stat_result([*file.stat()[:4], 4321, *file.stat()[5:10]])
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **rest: other if path == file else real(path, **rest))
    inode = real(file).st_ino
    write_file(file, NEW)
    assert (file.read_bytes(), real(file).st_ino) == (NEW, inode)


def test_a_write_in_place_that_fails_puts_the_old_text_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(file, file.with_name("other.py"))
    real, calls = os.write, []

    def fill_up(handle: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, bytes(data)[:5])

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(FileError, match="No space"):
        write_file(file, NEW)
    assert file.read_bytes() == OLD


@pytest.mark.parametrize("fault", ["write", "rename"])
def test_a_failed_replacement_leaves_the_file_and_nothing_beside_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync" if fault == "write" else "replace", fail)
    with pytest.raises(FileError, match="No space"):
        write_file(file, NEW)
    assert file.read_bytes() == OLD
    assert names(file.parent) == ["file.py"]


def test_a_file_that_changed_is_left(file: Path) -> None:
    with pytest.raises(FileError, match="changed"):
        write_file(file, NEW, expected=b"something else")
    assert file.read_bytes() == OLD
    file.unlink()
    with pytest.raises(FileError, match="changed"):
        write_file(file, NEW, expected=OLD)
    assert names(file.parent) == []


def test_a_name_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_file(path, OLD)
    write_file(path, NEW)
    assert path.read_bytes() == NEW


def test_what_cannot_be_written_is_told_beforehand(tmp_path: Path, file: Path) -> None:
    for path, message in [
        (tmp_path, "it is a folder"),
        (tmp_path / "none" / "x", "no folder"),
        (file / "x", "no folder"),
        (tmp_path / ("n" * 300), "File name too long"),
        (Path(f"{tmp_path}/a\0b"), "null"),
    ]:
        with pytest.raises(FileError, match=message):
            check_writable(path)


def test_a_new_file_gets_the_mode_that_is_usual(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_file(tmp_path / "new.py", NEW)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new.py").stat().st_mode) == 0o640


def test_every_way_of_refusing_a_rename_is_an_errno() -> None:
    assert all(isinstance(code, int) for code in file_writer._NOT_BY_RENAMING)
