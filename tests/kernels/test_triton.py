"""The Triton twins without a GPU: interpreted against their torch twins, and compiled for real cards."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


def test_twins_under_the_interpreter() -> None:
    """In a process of its own: whether kernels are interpreted is decided when they are imported."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/interpreted_twins.py"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert "passed" in run.stdout


def test_every_kernel_compiles_for_real_cards_without_spills() -> None:
    run = subprocess.run(
        [sys.executable, "bench", "compile_kernels", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert run.stdout, run.stderr[-4000:]
    rows = json.loads(run.stdout)
    assert {row["sm"] for row in rows} == {80, 90, 100}
    assert len(rows) >= 60
    for row in rows:
        assert row["spilled_bytes"] == 0, row
        assert 0 < row["registers"] <= 255, row
        assert row["shared_bytes"] <= 48 * 1024, row
        assert row["cubin_bytes"] > 0, row
