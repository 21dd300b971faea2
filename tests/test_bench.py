"""The door to bench/: every script is found, says what it does and takes --help; results have one format."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import support

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
SCRIPTS = sorted(
    path for path in BENCH.rglob("*.py") if not path.name.startswith(("_", "test_")) and path.parent.name != "data"
)
ABOUT = ["cpu", "num_cpus", "threads", "load_at_start", "python", "numpy", "numba", "torch", "transformers"]

# Every script's help in one process, since importing torch takes seconds.
ALL_HELP = """
import contextlib, importlib, io, sys
for name in sys.argv[1:]:
    said = io.StringIO()
    sys.argv = [f"python bench {name}", "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        importlib.import_module(name).main()
        sys.exit(f"{name} ran")
    assert said.getvalue().startswith(f"usage: python bench {name}"), (name, said.getvalue())
print("all")
"""


@pytest.fixture(scope="module")
def door() -> Any:
    return support.bench_module("__main__")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCH, *words], capture_output=True, text=True, timeout=300, check=False)


def test_the_listing_has_every_script_with_what_it_does(door: Any) -> None:
    listing = bench().stdout
    for path in SCRIPTS:
        if "\ndef main(" in path.read_text("utf-8"):
            line = next(line for line in listing.splitlines() if line.startswith(f"  {path.stem} "))
            assert len(line.split(maxsplit=1)[1]) > 30, line
    assert bench("--help").stdout == listing
    assert {path.parent.relative_to(BENCH).as_posix() for path in SCRIPTS} == set(door.QUESTIONS)


def test_a_name_that_is_no_script_is_refused() -> None:
    for name in ("nonsense", "measure", "lookup/replay", "replay.py"):
        run = bench(name)
        assert run.returncode == 1
        assert run.stderr.startswith(f"python bench: expected the name of a script, got {name!r}"), run.stderr


def test_names_are_their_own() -> None:
    """Scripts import each other by name, so no two may share one, nor hide a module that is installed."""
    names = [path.stem for path in SCRIPTS]
    assert len(names) == len(set(names))
    folders = {entry.name for entry in BENCH.iterdir() if entry.is_dir()}
    for name in {*names, *folders - {"results", "data", "__pycache__"}}:
        spec = importlib.util.find_spec(name) if name not in sys.stdlib_module_names else True
        assert spec is None, name
    assert "kernels" not in folders  # transformers looks for a package of that name


@pytest.mark.slow
def test_every_script_takes_help(door: Any) -> None:
    names = [name for folder in door.QUESTIONS for name in door.scripts(folder)]
    assert len(names) >= 34
    path = os.pathsep.join([*(str(BENCH / folder) for folder in door.QUESTIONS), str(ROOT / "src")])
    run = subprocess.run(
        [sys.executable, "-c", ALL_HELP, *names],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.stdout == "all\n", run.stderr[-3000:]


def test_a_script_takes_its_options_through_the_door() -> None:
    run = bench("replay", "--split", "nonsense")
    assert run.returncode == 2
    assert "usage: python bench replay" in run.stderr
    assert "'nonsense'" in run.stderr


def test_results_are_written_and_read_back(tmp_path: Path) -> None:
    measure = support.bench_module("measure")
    path = measure.write_csv(tmp_path / "new" / "some.csv", [{"name": "Ω, a", "n": 1}, {"name": "b", "ratio": 0.5}])
    rows = measure.read_csv(path)
    about = {key: str(value) for key, value in measure.machine().items()}
    assert [{key: row[key] for key in ("name", "n", "ratio")} for row in rows] == [
        {"name": "Ω, a", "n": "1", "ratio": ""},
        {"name": "b", "n": "", "ratio": "0.5"},
    ]
    assert all(row.items() >= {**about, "threads": row["threads"]}.items() for row in rows)
    assert list(rows[0])[-len(about) :] == list(about)
    # What is added to a file later keeps the machine of the earlier rows.
    again = measure.read_csv(measure.write_csv(path, [rows[0] | {"cpu": "another"}, {"name": "c"}]))
    assert [row["cpu"] for row in again] == ["another", about["cpu"]]
    assert measure.read_csv(tmp_path / "none.csv") == []


@pytest.mark.parametrize("path", sorted((BENCH / "results").rglob("*.csv")), ids=lambda path: path.stem)
def test_committed_results_have_one_format(path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header[-9:] == [
        "cpu",
        "num_cpus",
        "threads",
        "load_at_start",
        "python",
        "numpy",
        "numba",
        "torch",
        "transformers",
    ]
    assert rows
    assert all(len(row) == len(header) for row in rows)


def test_only_measure_writes_results() -> None:
    for path in SCRIPTS:
        assert path.name == "measure.py" or "import csv" not in path.read_text("utf-8"), path
