"""What is shipped, and what importing it loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("lookup", "kernels", "integrations")
HEAVY = ("numba", "torch", "transformers", "numpy", "jinja2", "rich", "pydantic")


def run(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Run this Python; return stdout, fail with both outputs."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and source distribution of a copy of the tree, and the wheel that the latter builds."""
    place = tmp_path_factory.mktemp("dists")
    tree, out, again = place / "tree", place / "out", place / "again"
    junk = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "results")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=junk)
    build = ["-m", "build", "--no-isolation"]
    run(*build, "--sdist", "--wheel", "--outdir", out, cwd=tree)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    run(*build, "--wheel", "--outdir", again, cwd=unpacked)
    return {"wheel": next(out.glob("*.whl")), "sdist": sdist, "wheel of sdist": next(again.glob("*.whl"))}


def entries(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheels_only_top_level_name_is_zerodraft(dists: dict[str, Path]) -> None:
    tops = {name.split("/")[0] for name in entries(dists["wheel"])}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"zerodraft"}


def test_the_wheel_holds_every_file_of_the_rooms(dists: dict[str, Path]) -> None:
    shipped = entries(dists["wheel"])
    wanted = {
        f"zerodraft/{path.relative_to(ROOT).as_posix()}": path
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(set(wanted) - set(shipped)) == []
    assert all(shipped[name] == path.read_bytes() for name, path in wanted.items())
    assert "zerodraft/py.typed" in shipped
    assert "zerodraft/kernels/__init__.py" not in shipped
    assert any(name.endswith("licenses/LICENSE") for name in shipped)


def test_the_source_distribution_builds_the_same_wheel(dists: dict[str, Path]) -> None:
    one, two = entries(dists["wheel"]), entries(dists["wheel of sdist"])
    assert sorted(one) == sorted(two)
    assert [name for name in one if one[name] != two[name]] == []


def test_the_installed_wheel_imports_every_room(dists: dict[str, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(dists["wheel"]) as archive:
        archive.extractall(tmp_path / "site")
    script = """
import zerodraft, zerodraft.kernels.verify, zerodraft.integrations.pipelines.editing
import zerodraft.lookup.policy
assert zerodraft.__file__.startswith({site!r}), zerodraft.__file__
zerodraft.DraftPolicy(), zerodraft.Drafter
print(len([getattr(zerodraft, name) for name in zerodraft.__all__]))
"""
    site = str(tmp_path / "site")
    out = run("-c", script.format(site=site), cwd=tmp_path, PYTHONPATH=site)
    assert int(out) > 5


def loaded_by(code: str, cwd: Path) -> set[str]:
    script = f"import sys\n{code}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    return set(run("-c", script, cwd=cwd).split("\n")[-2].split())


def test_importing_the_face_loads_nothing_heavy(tmp_path: Path) -> None:
    assert loaded_by("import zerodraft", tmp_path) == set()
    assert loaded_by("import zerodraft; zerodraft.Draft", tmp_path) == {"numpy"}


COMMANDS = ("edit", "generate", "replay", "report", "summarize", "theory", "doctor", "memory", "memory build")


@pytest.mark.parametrize("command", [["--help"], ["--version"], *([*name.split(), "--help"] for name in COMMANDS)])
def test_help_loads_nothing_heavy(tmp_path: Path, command: list[str]) -> None:
    code = f"""
sys.argv = ["zerodraft", *{command}]
from zerodraft.__main__ import main
try:
    main()
except SystemExit as done:
    assert not done.code
"""
    assert loaded_by(code, tmp_path) == set()


def test_without_the_command_lines_packages_there_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    done = subprocess.run(
        [sys.executable, "-m", "zerodraft", "--help"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'zerodraft[demo]'")
    assert "Traceback" not in done.stderr


def test_transformers_imports_from_the_repositorys_root(tmp_path: Path) -> None:
    """The root is where ``kernels/`` could be taken for the package of that name; -c puts it on the path."""
    run("-c", "import transformers, zerodraft.integrations.hf.attach", cwd=ROOT)


def test_transformers_imports_with_the_other_kernels_package_installed(tmp_path: Path) -> None:
    """transformers looks for the distribution's version and, where it is new enough, imports the package's names."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text(STUB)
    info = tmp_path / "kernels-0.16.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.16.0\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")
    (info / "top_level.txt").write_text("kernels\n")
    code = """
import importlib.metadata, sys, zerodraft
import transformers.integrations.hub_kernels
from transformers import LlamaForCausalLM
import zerodraft.integrations.hf.attach, zerodraft.kernels.verify
import kernels
print(importlib.metadata.version("kernels"), kernels.__file__)
"""
    version, file = run("-c", code, cwd=ROOT, PYTHONPATH=str(tmp_path)).split()
    assert version == "0.16.0"
    assert Path(file).parent == tmp_path / "kernels" or Path(file).is_relative_to(tmp_path)


STUB = """
class _Anything:
    def __init__(self, *args, **kwargs): pass
    def __call__(self, *args, **kwargs): return args[0] if args and isinstance(args[0], type) else self
    def __getattr__(self, name): return _Anything()
    def __getitem__(self, key): return self
    def __iter__(self): return iter(())
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_Anything,), {})
"""
