"""Where things are kept, on machines that have no such place. Case 52."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from zerodraft.lookup.runtime import user_cache


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(user_cache, "_told", [])
    monkeypatch.setattr(user_cache, "_stand_ins", [])


@pytest.fixture(params=["platformdirs", "without"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "platformdirs", None)
    else:
        pytest.importorskip("platformdirs")
    return str(request.param)


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_the_users_cache_and_none_without_a_home(library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pwd

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache.user_cache() == tmp_path / "zerodraft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache.user_cache() == tmp_path / ".cache" / "zerodraft"
    monkeypatch.delenv("HOME")

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert user_cache.user_cache() is None


def test_a_folder_that_cannot_be_made_is_replaced_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert user_cache.writable(tmp_path / "new" / "folder", "x") == tmp_path / "new" / "folder"
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert user_cache.writable(tmp_path / "file" / "x", "models") == user_cache.stand_in() / "models"
    assert len(caplog.records) == 1
    assert "Not a directory" in caplog.text
    assert user_cache.stand_ins() == (user_cache.stand_in(),)
    assert user_cache.is_writable(tmp_path / "not" / "yet")
    assert not user_cache.is_writable(tmp_path / "file" / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


def test_a_stand_in_is_gone_when_its_process_ends() -> None:
    script = "import os\nfrom zerodraft.lookup.runtime.user_cache import stand_in\nprint(stand_in())"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "zerodraft-" in out.stdout
    assert not Path(out.stdout.strip()).exists()
