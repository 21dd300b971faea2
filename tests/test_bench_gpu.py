"""bench/gpu.sh in small, on whatever device there is: every part runs and writes what it says."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    run = subprocess.run(
        [ROOT / "bench" / "gpu.sh", "--smoke", "--out", str(tmp_path)],
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=480,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout == ""
    for name in ("correctness", "correctness_compiled"):
        for row in read(tmp_path / f"{name}.csv"):
            assert row["identical"] == row["same_generator_state"] == row["n"], row
            assert int(row["forwards"]) < int(row["tokens"]), row
    assert all(row["equal"] == row["n"] for row in read(tmp_path / "twins.csv"))
    curve = read(tmp_path / "cost_curve.csv")
    assert {row["batch"] for row in curve} == {"1", "2"}
    assert all(float(row["p20_ms"]) <= float(row["p50_ms"]) <= float(row["p80_ms"]) for row in curve)
    parts = {row["part"] for row in read(tmp_path / "verifier.csv")}
    assert parts == {"pick and walk", "append, all layers", "commit, all layers"}
    replays = read(tmp_path / "replay.csv")
    assert {row["way"] for row in replays} == {"plain", "HF prompt lookup, 10 tokens", "zerodraft"}
    for row in replays:
        assert row["forced"] == "True"
        assert (int(row["forwards"]) < int(row["tokens"]) / int(row["batch"])) == (row["way"] != "plain"), row


def test_without_a_card_the_whole_script_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    run = subprocess.run(
        [ROOT / "bench" / "gpu.sh", "--out", str(tmp_path)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 2
    assert "no CUDA device here" in run.stderr
    assert list(tmp_path.iterdir()) == []
