"""A measured cost curve: plausible, kept on disk by what it depends on, and harmless to the model."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
import torch
from support import tiny, tiny_seq2seq

import zerodraft
from zerodraft.integrations.hf.cost_measure import measured_curve
from zerodraft.lookup.cost import DEFAULT_CURVE, CostCurve


def test_measures_once_and_keeps_the_curve(tmp_path):
    model = tiny("llama")
    curve = measured_curve(model, cache_dir=tmp_path, max_seconds=2.0)
    assert curve.points[0][0] == 1
    assert [n for n, _ in curve.points] == [1, 2, 4, 8, 16, 32, 64, 128]
    (file,) = tmp_path.iterdir()
    entry = json.loads(file.read_text())
    entry["rounds"] = 3
    for timed in entry["timed"]:
        timed[-1] = 1e3  # if it is read again, it is this one
    file.write_text(json.dumps(entry))
    assert measured_curve(model, cache_dir=tmp_path).points[1][1] == 1e3
    assert measured_curve(model, cache_dir=tmp_path, refresh=True, max_seconds=0.1).points[1][1] < 1e3


def test_a_measurement_that_was_cut_short_is_gone_on_with(tmp_path, monkeypatch):
    """What disturbs a forward only adds time, so the best of all rounds stays; after enough rounds nothing is timed."""
    from zerodraft.integrations.hf import cost_measure

    calls, speed = [], [5.0]
    monkeypatch.setattr(cost_measure, "_seconds", lambda target, context, ids: calls.append(1) or speed[0] * len(ids))
    curve = measured_curve(tiny("llama"), cache_dir=tmp_path, max_seconds=0.0)
    assert curve.points == ((1, 5.0), (2, 10.0), (4, 20.0), (8, 40.0))  # four widths in any case
    for seconds, best in ((1.0, 1.0), (7.0, 1.0)):  # the second: a busy moment
        calls.clear()
        speed[0] = seconds
        before = measured_curve(tiny("llama"), cache_dir=tmp_path, max_seconds=0.0)
        assert not calls  # this process does not wait twice
        cost_measure._timed_here.clear()
        assert measured_curve(tiny("llama"), cache_dir=tmp_path, max_seconds=0.0).points[0] == (1, best)
        assert calls
        assert before.points[0][1] in (5.0, 1.0)
    calls.clear()
    cost_measure._timed_here.clear()
    assert measured_curve(tiny("llama"), cache_dir=tmp_path).points[0] == (1, 1.0)
    assert not calls


def test_a_row_costs_what_it_takes_longer_than_its_positions(tmp_path, monkeypatch):
    """Timed by a made-up clock: a forward takes 10 + its positions, and 3 for each row after the first."""
    from zerodraft.integrations.hf import cost_measure

    def seconds(target, context, ids):
        num_rows = len(target.cache.lengths)
        assert context * num_rows in (128, 383)  # a short model: fewer columns, as many for four rows as for one
        return 10 + len(ids) * num_rows + 3 * (num_rows - 1)

    monkeypatch.setattr(cost_measure, "_seconds", seconds)
    curve = measured_curve(tiny("llama"), cache_dir=tmp_path)
    assert curve.points == tuple((n, 10.0 + n) for n in (1, 2, 4, 8, 16, 32, 64, 128))
    assert curve.row_cost == 3.0
    assert measured_curve(tiny("llama"), cache_dir=tmp_path) == curve  # as it comes back from the file


def test_the_curve_is_measured_by_its_public_names(tmp_path, monkeypatch):
    from zerodraft.integrations.hf import cost_measure

    monkeypatch.setattr(cost_measure, "_default_folder", lambda: tmp_path)
    model = tiny("llama")
    curve = zerodraft.measure_cost(model, max_seconds=0.1)
    assert zerodraft.CostCurve.measure(model) == zerodraft.measure_cost(model) == measured_curve(model) == curve
    assert len(list(tmp_path.iterdir())) == 1
    assert zerodraft.CostCurve is CostCurve


def test_the_earlier_name_in_a_fresh_process():
    """From the face it times; from its own module, which knows no model, it names the door."""
    script = """
import zerodraft.lookup.cost as cost
try:
    cost.CostCurve.measure(3)
except RuntimeError as error:
    print(error)
from zerodraft import CostCurve
try:
    CostCurve.measure(3)
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [
        "to time a model call zerodraft.measure_cost(model)",
        "model must be a transformers model, got 3",
    ], run.stderr


def test_models_do_not_share_a_curve(tmp_path):
    for name in ("llama", "gpt2"):
        measured_curve(tiny(name), cache_dir=tmp_path, max_seconds=0.1)
    assert len(list(tmp_path.glob("*.json"))) == 2
    measured_curve(tiny("llama").to(dtype=tiny("llama").dtype), cache_dir=tmp_path, max_seconds=0.1)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"points": 3}', '{"timed": [], "rounds": 9}', '{"timed": [[1, 2, 3]], "rounds": 9}']
)
def test_a_damaged_file_costs_a_measurement(tmp_path, content):
    model = tiny("llama")
    measured_curve(model, cache_dir=tmp_path, max_seconds=0.1)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert len(measured_curve(model, cache_dir=tmp_path, max_seconds=0.1).points) >= 4
    assert json.loads(file.read_text())["points"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert len(measured_curve(tiny("llama"), cache_dir=tmp_path / "file", max_seconds=0.1).points) >= 4


def nowhere(monkeypatch, tmp_path, where):
    """An environment without a usable home, as a new process finds it."""
    import pwd

    from zerodraft.lookup.runtime import user_cache

    def nobody(uid):
        raise KeyError(uid)

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(user_cache, "_told", [])
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if where == "no entry in the user table":
        monkeypatch.setattr(pwd, "getpwuid", nobody)
    elif where == "a file as home":
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))


@pytest.mark.skipif(sys.platform == "win32", reason="the user table is read by pwd")
@pytest.mark.parametrize("where", ["no entry in the user table", "a file as home", "a file as cache"])
@pytest.mark.parametrize("library", ["platformdirs", "without"])
def test_without_a_home_a_model_is_timed_once_per_process(monkeypatch, tmp_path, caplog, where, library):
    """Case 52: attach works, with one warning; a second model like it, another attach and a call time nothing."""
    from zerodraft.integrations.hf import cost_measure
    from zerodraft.integrations.hf import settings as doors

    nowhere(monkeypatch, tmp_path, where)
    if library == "without":
        monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setattr(doors, "_MIN_PARAMETERS_TO_MEASURE", 0)
    monkeypatch.setattr(cost_measure, "_unwritten", {})
    measured, measure = [], cost_measure._measure
    monkeypatch.setattr(cost_measure, "_measure", lambda *args: measured.append(args) or measure(*args[:2], 0.1))
    for _ in range(2):
        model = zerodraft.attach(tiny("llama"))
        try:
            model.generate(torch.tensor([[1, 2, 3, 1, 2]]), max_new_tokens=4, do_sample=False)
            assert model.generate.stats.num_emitted_tokens == 4
            assert model.generate.__func__._settings.curve is not DEFAULT_CURVE
        finally:
            zerodraft.detach(model)
    assert len(measured) == 1
    said = [record.getMessage() for record in caplog.records if record.name.startswith("zerodraft")]
    assert [line.startswith("zerodraft has no place to keep") for line in said] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # no folder called "~"
    assert cost_measure.measured_curve(tiny("llama"), refresh=True)
    assert len(measured) == 2


def test_a_full_disk_keeps_the_better_times_in_the_process(monkeypatch, tmp_path):
    from zerodraft.integrations.hf import cost_measure

    def full(path, content):
        raise OSError(28, "No space left on device")

    first = measured_curve(tiny("llama"), cache_dir=tmp_path, max_seconds=0.1)
    monkeypatch.setattr(cost_measure, "_write", full)
    second = measured_curve(tiny("llama"), cache_dir=tmp_path, max_seconds=0.1, refresh=True)
    assert measured_curve(tiny("llama"), cache_dir=tmp_path) == second
    monkeypatch.undo()
    assert measured_curve(tiny("llama"), cache_dir=tmp_path, max_seconds=0.1) in (first, second)


def test_two_threads_time_one_model_once(monkeypatch, tmp_path):
    from zerodraft.integrations.hf import cost_measure

    calls, measure = [], cost_measure._measure
    monkeypatch.setattr(cost_measure, "_measure", lambda *args: calls.append(1) or measure(*args))
    model, curves = tiny("llama"), []
    threads = [
        threading.Thread(target=lambda: curves.append(measured_curve(model, cache_dir=tmp_path, max_seconds=0.2)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(set(curves)) == 1


def test_the_model_is_left_as_it_was(tmp_path):
    model = tiny("gpt2").train()
    try:
        measured_curve(model, cache_dir=tmp_path, max_seconds=0.1)
        assert model.training
    finally:
        model.eval()


def test_an_encoder_decoder_gets_the_default(tmp_path):
    assert measured_curve(tiny_seq2seq("t5"), cache_dir=tmp_path) is DEFAULT_CURVE
    assert list(tmp_path.iterdir()) == []
