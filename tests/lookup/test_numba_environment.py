"""The kernels in hostile surroundings: unusable caches, many processes, threads, forks, one CPU.

Each case is a process of its own that works on a copy of the package, so the cache of this checkout is never harmed.
What concerns the disk is tried on a core file of four tiny kernels, which compile in a second, and once on all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOOKUP = ROOT / "lookup"
CORES = sorted(
    ".".join(path.relative_to(LOOKUP).with_suffix("").parts)
    for path in LOOKUP.rglob("_*.py")
    if "@kernel" in path.read_text("utf-8") and path.name != "_jit.py"
)

DRAFT = """
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.suffix.suffix_tree import SuffixTree

def draft():
    tree = SuffixTree([1, 2, 3, 1, 2])
    session = Drafter(suffix_tree=True).begin([1, 2, 3, 1, 2])
    assert tree.propose(2).token_ids.tolist() == [3, 1], tree.propose(2)
    assert tree.propose(2, max_branches=2).token_ids.tolist() == [3, 1]
    assert session.propose(2).token_ids.tolist() == [3, 1]
"""
REPORT = f"""
import importlib

def kernels():
    cores = [importlib.import_module("zerodraft.lookup." + name) for name in {CORES!r}]
    values = [value for core in cores for value in vars(core).values() if hasattr(value, "nopython_signatures")]
    return list({{id(value): value for value in values}}.values())

def num_compiled():
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels())

def num_uncached():
    return sum(kernel.stats.cache_path is None for kernel in kernels())
"""
USE = DRAFT + REPORT + "draft()\n"


def environment(site: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH") if name in os.environ}
    plain = {"PYTHONPATH": str(site), "HOME": str(site / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **plain, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **extra}


def start(site: Path, code: str, **extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=site, env=environment(site, **extra))


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return out.strip()


def run(site: Path, code: str, **extra: str) -> str:
    return finish(start(site, code, **extra))


MINI_CORE = """
from zerodraft.lookup.runtime._jit import kernel

@kernel
def one(x: int) -> int:
    return x + 1

@kernel
def two(x: int) -> int:
    return one(x) + 1

@kernel
def three(x: int) -> int:
    return two(x) + 1

@kernel
def four(x: int) -> int:
    return three(x) + 1
"""
USE_MINI = """
from zerodraft.lookup import _mini_core as mini
assert mini.four(1) == 5
compiled = [k for k in (mini.one, mini.two, mini.three, mini.four) if sum(k.stats.cache_misses.values())]
"""


def copy_of_package(folder: Path) -> Path:
    shutil.copytree(ROOT / "src" / "zerodraft", folder / "zerodraft", ignore=shutil.ignore_patterns("*.pyc", "*.tmp.*"))
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, this checkout's compiled kernels with it; those that it lacks are compiled here."""
    folder = copy_of_package(tmp_path_factory.mktemp("site"))
    run(folder, USE + "num_compiled()")
    return folder


@pytest.fixture
def mini_site(tmp_path: Path) -> Path:
    """A copy with the tiny core, compiled and cached, and without any other kernel's cache."""
    folder = copy_of_package(tmp_path / "site")
    shutil.rmtree(cache_folder(folder), ignore_errors=True)
    (folder / "zerodraft" / "lookup" / "_mini_core.py").write_text(MINI_CORE)
    assert run(folder, USE_MINI + "print(len(compiled))") == "4"
    assert len(cache_files(folder)) == 4
    return folder


def cache_folder(site: Path) -> Path:
    return site / "zerodraft" / "lookup" / "__pycache__"


def cache_files(site: Path) -> list[Path]:
    return sorted(path for path in cache_folder(site).iterdir() if path.suffix == ".nbc")


def test_a_second_process_compiles_nothing(site: Path) -> None:
    assert run(site, USE + "print(num_compiled(), num_uncached())") == "0 0"


NOWHERE = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull}


def block_cache_folder(site: Path) -> None:
    """Put a file where the folder would be: then nobody can make it, not even root, whom permissions do not stop."""
    shutil.rmtree(cache_folder(site), ignore_errors=True)
    cache_folder(site).write_bytes(b"")


@pytest.mark.slow
def test_no_place_for_a_cache_and_no_compiler(tmp_path: Path) -> None:
    """A read-only install, HOME unusable, nothing on PATH: all kernels are compiled in memory, and draft."""
    site = copy_of_package(tmp_path)
    for folder in {path.parent for path in (site / "zerodraft" / "lookup").rglob("*.py")}:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        (folder / "__pycache__").write_bytes(b"")
    assert run(site, USE + "print(num_compiled() > 0)", PATH="", **NOWHERE) == "True"
    assert cache_folder(site).read_bytes() == b""


def test_an_unusable_folder_beside_the_file_and_a_usable_home(mini_site: Path) -> None:
    block_cache_folder(mini_site)
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "4"
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "0"
    assert list((mini_site / "home").rglob("*.nbc"))


READ_ONLY = """
import tempfile
def refuse(*args, **kwargs):
    raise PermissionError("read-only")
tempfile.TemporaryFile = refuse  # what numba tries before it trusts a folder
"""


def test_a_cache_shipped_with_a_read_only_install_is_used(mini_site: Path) -> None:
    assert run(mini_site, READ_ONLY + USE_MINI + "print(len(compiled))", **NOWHERE) == "0"


def test_a_read_only_cache_of_other_sources_is_left_alone(mini_site: Path) -> None:
    core = mini_site / "zerodraft" / "lookup" / "_mini_core.py"
    core.write_text(MINI_CORE.replace("one(x) + 1", "one(x) + 101"))
    changed = USE_MINI.replace("== 5", "== 105")
    assert run(mini_site, READ_ONLY + changed + "print(len(compiled))", **NOWHERE) == "4"


def test_a_cache_folder_of_the_users_choice_is_respected(mini_site: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in cache_files(mini_site)}
    run(mini_site, USE_MINI, NUMBA_CACHE_DIR=str(tmp_path / "chosen"))
    assert len(list((tmp_path / "chosen").rglob("*.nbc"))) == 4
    assert {path: path.stat().st_mtime_ns for path in cache_files(mini_site)} == before


def emptied(content: bytes) -> bytes:
    return b""


def garbage(content: bytes) -> bytes:
    return b"\x80\x04garbage" * 100


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """One bit in the middle: in a data file that is machine code, which would still load."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [emptied, garbage, halved, flipped])
def test_damaged_cache_files_are_compiled_anew(mini_site: Path, damage: Callable[[bytes], bytes]) -> None:
    for path in cache_files(mini_site):
        path.write_bytes(damage(path.read_bytes()))
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "4"
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "0"  # and the cache has healed


def test_a_kernel_never_runs_the_code_of_another(mini_site: Path) -> None:
    """Case 54: files swapped, each of them sound; ``four`` with the code of ``one`` would say 2."""
    four, one, three, two = cache_files(mini_site)
    assert ".one-" in one.name
    assert ".four-" in four.name
    for first, second in ((one, four), (two, three)):
        ones, others = first.read_bytes(), second.read_bytes()
        first.write_bytes(others)
        second.write_bytes(ones)
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "4"
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "0"


def test_a_kernel_never_runs_the_code_of_its_older_self(mini_site: Path) -> None:
    """A cache folder put back over newer sources, as a backup or a layer of an image does."""
    files = {path: path.read_bytes() for path in cache_files(mini_site)}
    core = mini_site / "zerodraft" / "lookup" / "_mini_core.py"
    core.write_text(MINI_CORE.replace("one(x) + 1", "one(x) + 2"))
    changed = USE_MINI.replace("== 5", "== 6") + "print(len(compiled))"
    assert run(mini_site, changed) == "4"
    for path, content in files.items():
        path.write_bytes(content)
    assert run(mini_site, changed) == "4"


@pytest.mark.parametrize("name", ["_prices.py", "copy/_text.py", "runtime/_jit.py"])
def test_a_change_in_any_kernel_file_compiles_all_kernels_anew(mini_site: Path, name: str) -> None:
    """Kernels call each other across files, and take each other's numbers."""
    file = mini_site / "zerodraft" / "lookup" / name
    source = file.read_text("utf-8")
    for text, num_compiled in ((source + "# another line\n", "4"), (source, "4"), (source, "0")):
        file.write_text(text, "utf-8")
        assert run(mini_site, USE_MINI + "print(len(compiled))") == num_compiled


def test_a_new_kernel_file_compiles_all_kernels_anew(mini_site: Path) -> None:
    (mini_site / "zerodraft" / "lookup" / "suffix" / "_another.py").write_text(MINI_CORE)
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "4"
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "0"


def test_a_change_anywhere_else_compiles_nothing(mini_site: Path) -> None:
    for name in ("drafter.py", "__init__.py", "policy.py", "sources/source.py", "../__init__.py"):
        file = mini_site / "zerodraft" / "lookup" / name
        file.write_text(file.read_text("utf-8") + "# another line\n", "utf-8")
    (mini_site / "zerodraft" / "lookup" / "notes.py").write_text("")
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "0"


def test_nothing_in_the_cache_is_unpickled_before_it_is_checked(mini_site: Path) -> None:
    """Files of numba's own format, which numba would unpickle, are not even looked at."""
    bomb = b"cos\n_exit\n(I3\ntR."
    for path in cache_files(mini_site):
        path.with_name(path.name.rsplit(".", 2)[0] + ".nbi").write_bytes(bomb)
        path.write_bytes(bomb * 20)
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "4"


SAID = """
import logging
from zerodraft.lookup.runtime import _jit as _jit
_jit.SAY_AFTER = {after}
"""


def test_compiling_for_long_is_said_once_and_loading_never(mini_site: Path) -> None:
    """Case 54: to whoever has set up no logging, too, on stderr."""
    say = [SAID.format(after=after) + USE_MINI for after in (0.0, 1e9)]
    process = start(mini_site, say[0])
    assert process.communicate(timeout=900)[1] == ""  # all four came from the cache
    for code, count in ((say[0], 1), (say[1], 0)):
        shutil.rmtree(cache_folder(mini_site))
        err = start(mini_site, code).communicate(timeout=900)[1]
        assert err.count("compiles its lookup kernels") == count, err


NO_HOME = """
import os, pwd
os.environ.pop("HOME")
def nobody(uid):
    raise KeyError(uid)
pwd.getpwuid = nobody
"""


def test_no_home_and_no_entry_in_the_user_table(mini_site: Path, tmp_path: Path) -> None:
    """Case 52: it works, with one warning, and no folder called "~" is made in the working directory."""
    block_cache_folder(mini_site)
    process = start(mini_site, NO_HOME + USE_MINI + "print(len(compiled))")
    out, err = process.communicate(timeout=900)
    assert (process.returncode, out.strip()) == (0, "4"), err
    assert err.count("\n") == err.count("no place to keep") == 1, err
    assert not (mini_site / "~").exists()


def test_an_unusable_folder_of_the_users_choice(mini_site: Path) -> None:
    chosen = str(mini_site / "zerodraft" / "__init__.py")
    assert (
        run(mini_site, USE_MINI + "print(len(compiled))", NUMBA_CACHE_DIR=chosen) == "0"
    )  # beside the file, as before


def zipped(site: Path, archive: Path) -> Path:
    """The site's package in a zip file, as zipapp makes it, and its folder gone."""
    shutil.rmtree(cache_folder(site), ignore_errors=True)
    made = shutil.make_archive(str(archive), "zip", site, "zerodraft")
    shutil.rmtree(site / "zerodraft")
    return Path(made).rename(archive)


FROM_ZIP = """
import zerodraft
assert ".pyz" in zerodraft.__file__
from zerodraft.lookup.policy import priors
assert len(priors()) == 2
from importlib.resources import files
assert files("zerodraft.integrations.report").joinpath("report.html.j2").read_text("utf-8")
"""


def test_a_zipped_package_has_its_files_and_a_cache(mini_site: Path, tmp_path: Path) -> None:
    """Case 54. The archive's name does not matter, nor where the user wants the cache."""
    archive = zipped(mini_site, tmp_path / "app.pyz")
    chosen = {"NUMBA_CACHE_DIR": str(tmp_path / "chosen")}
    for where in ({}, chosen):
        for num_compiled in ("4", "0"):
            code = FROM_ZIP + USE_MINI + "print(len(compiled))"
            assert run(mini_site, code, PYTHONPATH=str(archive), **where) == num_compiled
    assert len(list((tmp_path / "chosen").rglob("*.nbc"))) == 4
    code = NO_HOME + FROM_ZIP + USE_MINI + "print(len(compiled))"
    assert run(mini_site, code, PYTHONPATH=str(archive)) == "4"


@pytest.mark.slow
def test_a_zipped_package_drafts(tmp_path: Path) -> None:
    site = copy_of_package(tmp_path / "site")
    archive = zipped(site, tmp_path / "app.pyz")
    assert run(site, FROM_ZIP + USE + "print(num_compiled() > 0)", PYTHONPATH=str(archive)) == "True"
    assert run(site, FROM_ZIP + USE + "print(num_compiled())", PYTHONPATH=str(archive)) == "0"


def test_a_package_without_its_files_says_so_before_it_compiles(mini_site: Path) -> None:
    (mini_site / "zerodraft" / "lookup" / "priors.json").unlink()
    script = """
import sys
try:
    import zerodraft.lookup.drafter
except FileNotFoundError as error:
    print("priors.json" in str(error), "numba" in sys.modules)
"""
    assert run(mini_site, script) == "True False"


def test_eight_processes_import_at_once_on_a_cold_cache(mini_site: Path) -> None:
    shutil.rmtree(cache_folder(mini_site))
    for process in [start(mini_site, USE_MINI) for _ in range(8)]:
        finish(process)
    assert run(mini_site, USE_MINI + "print(len(compiled))") == "0"
    assert not [path.name for path in cache_folder(mini_site).iterdir() if ".tmp." in path.name]


FOUR_THREADS = """
import threading
failures = []
barrier = threading.Barrier(4)
def first_use():
    barrier.wait()
    try:
        exec(CODE, {})
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=first_use) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
"""


def test_first_use_from_four_threads_at_once(site: Path) -> None:
    run(site, f"CODE = {USE!r}\n{FOUR_THREADS}")


FORK = """
import os
child = os.fork()
if child == 0:
    try:
        draft()
        os._exit(0 if num_compiled() == 0 else 2)
    except BaseException:
        os._exit(1)
_, status = os.waitpid(child, 0)
draft()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_use_then_fork(site: Path) -> None:
    assert run(site, USE + FORK) == "0"


ONE_CPU = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # what taskset does
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_on_one_cpu_there_is_one_thread(site: Path) -> None:
    assert run(site, ONE_CPU + USE + "print(len(os.listdir('/proc/self/task')))") == "1"


AFTER_WARM_UP = """
from zerodraft.lookup.runtime.warm_up import num_compiled as compiled, warm_up
seconds = warm_up()
assert seconds >= 0.0
assert compiled() == num_compiled() == 0
import zerodraft.lookup.suffix.suffix_tree
before = {f"{kernel.__module__}.{kernel.__name__}": len(kernel.nopython_signatures) for kernel in kernels()}
misses = num_compiled()
draft()
import numpy as np
tree = zerodraft.lookup.suffix.suffix_tree.SuffixTree(np.arange(50, dtype=np.int64))
tree.extend((1, 2)); tree.append(3); tree.add_barrier(); tree.count([1]); tree.branches()
frozen = np.array([5, 6, 5], np.int32); frozen.flags.writeable = False
tree.extend(frozen); tree.count(frozen); tree.propose(np.int64(3), min_prob=0)
after = {f"{kernel.__module__}.{kernel.__name__}": len(kernel.nopython_signatures) for kernel in kernels()}
assert after == before
assert len(before) > 60
assert num_compiled() == misses
assert set(before.values()) == {1}, before
"""


def test_after_warm_up_nothing_is_compiled(site: Path) -> None:
    """The first propose then is a plain call; no kernel ever gets a second version for other argument types."""
    run(site, DRAFT + REPORT + AFTER_WARM_UP)


FIRST_REQUESTS = """
import sys
from zerodraft.lookup.runtime.warm_up import warm_up
warm_up()
from zerodraft.lookup import policy
loaded, solved = set(sys.modules), (policy._tables.cache_info().misses, policy.priors.cache_info().misses)
from zerodraft.lookup.lookahead.beside import Beside
from zerodraft.lookup.draft import Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.serving.lines import SessionLines
from zerodraft.lookup.lookahead.lookahead import Lookahead
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.sources.phrases import PhraseBook
from zerodraft.lookup.sources.source import Source
from zerodraft.lookup.policy import DraftPolicy
import numpy as np

text = [*range(20)] * 3
one = DraftPolicy(max_branches=1)
class Custom(Source):
    def __init__(self, prompt):
        pass
    def propose(self, candidates):
        candidates.add([3, 4, 5], [-1, 0, 0], probs=[0.9, 0.5, 0.2])

memory = DraftMemory()
memory.add(text)
options = [dict(), dict(suffix_tree=True), dict(recycle=True), dict(recycle="shared"), dict(memory=memory),
    dict(sources=[Custom]), dict(policy=one)]
try:
    options.append(dict(phrases=PhraseBook([text[:9]])))
except ModuleNotFoundError:
    pass
for drafter in (*(Drafter(**option) for option in options), Lookahead(), Beside(Drafter(), Lookahead())):
    session = drafter.begin(text, text[:9])
    for token in (7, 8, 30):
        draft = session.propose(32)
        topk = np.zeros((1 + len(draft), session.num_topk), np.int32) if session.num_topk else None
        session.commit(draft, Outcome(path=(), new_ids=(token,), stop="rejected", topk=topk))
    session.finish(remember=drafter.memory is not None)
for option in (dict(), dict(memory=memory)):
    lines = SessionLines(Drafter(policy=one, **option), 8)
    rows, line = np.array([text + [0] * 9], np.int32), lines.begin(np.array(text, np.int32))
    new, status = np.ones(1, np.int64), np.zeros(1, np.int64)
    lines.step(rows, np.array([61]), new, np.array([line]), status, 69, True)
    lines.finish(line)
print(sorted(set(sys.modules) - loaded), policy._tables.cache_info().misses - solved[0],
    policy.priors.cache_info().misses - solved[1])
"""


def test_after_warm_up_the_first_session_loads_and_solves_nothing(site: Path) -> None:
    """Case 54, by what is loaded and solved rather than by the clock: for every option of a session."""
    assert run(site, FIRST_REQUESTS) == "[] 0 0"


WRONG_TYPES = """
import numpy as np
from zerodraft.lookup.copy import _text as core
from zerodraft.lookup.copy.ngram_index import NgramIndex
index = NgramIndex()
for ids in (np.zeros(1, np.int64), np.zeros((1, 1), np.int32), np.zeros(4, np.int32)[::2]):
    try:
        core.append(ids, 0, index.arrays, index._meta)
    except TypeError:
        print("refused", end=" ")
"""


def test_a_kernel_refuses_other_types(site: Path) -> None:
    assert run(site, WRONG_TYPES) == "refused refused refused"
