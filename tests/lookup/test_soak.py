"""The one-minute version of ``make soak`` (cases 6, 7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_survives_a_minute_of_everything():
    result = subprocess.run([sys.executable, BENCH, "soak", "--small"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 3
