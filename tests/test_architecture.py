"""Imports run one way, read from the syntax trees: rooms keep to themselves, and the face loads nothing early."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("lookup", "kernels", "integrations")
ALLOWED = {
    "lookup": {"lookup"},
    "kernels": {"kernels"},
    "integrations": {"lookup", "kernels", "integrations"},
}
FORBIDDEN_OUTSIDE = {
    "lookup": {"torch", "transformers", "triton", "vllm", "rich", "typer", "safetensors", "gguf"},
    "kernels": {"transformers.generation", "vllm", "rich", "typer", "numba"},
    "integrations": set(),
}
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Yield (absolute module name, statement) for every import, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            assert node.module is not None
            yield node.module, node
            for name in node.names:
                yield f"{node.module}.{name.name}", node


def wrong_imports(room: str, source: str) -> list[str]:
    """Return what a file of this room imports and must not."""
    wrong = []
    for name, node in imported(ast.parse(source)):
        first, *rest = name.split(".")
        if first in ROOMS or first in ("src", "tests", "bench"):
            wrong.append(f"line {node.lineno}: {name} (import as zerodraft.{name})")
        elif first == "zerodraft" and not (rest and rest[0] in ALLOWED[room]):
            if rest or isinstance(node, ast.Import):  # "from zerodraft import x" is judged by zerodraft.x
                wrong.append(f"line {node.lineno}: {name}")
        elif any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN_OUTSIDE[room]):
            wrong.append(f"line {node.lineno}: {name}")
    return wrong


def module_of(path: Path) -> str:
    """The name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("zerodraft", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def needed(source: str, modules: set[str]) -> set[str]:
    """Those of ``modules`` that a file imports when it runs, inside functions too; for types alone is not counted."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            node.body = []
    return {name for name, _ in imported(tree)} & modules


def circle(sources: dict[str, str]) -> list[str]:
    """One way round among these modules, the first named again at the end; [] if there is none."""
    modules = set(sources)
    graph = {name: needed(source, modules - {name}) for name, source in sources.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def reached_by_string(source: str) -> list[str]:
    """Calls that import one of our own modules by a string, which no other check here can see."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func).split(".")[-1] in ("import_module", "__import__", "find_spec", "resolve_name")
        and "zerodraft" in ast.unparse(call.args[0])
    ]


def test_no_module_needs_one_that_needs_it() -> None:
    assert circle({module_of(path): path.read_text("utf-8") for path in FILES}) == []


def test_a_circle_is_seen() -> None:
    there = "from zerodraft.integrations.b import x"
    back = "def f():\n    import zerodraft.integrations.a"
    package = "from zerodraft.integrations import a"
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from zerodraft.integrations.a import y"
    for second, is_one in ((back, True), (package, True), (types, False), ("", False)):
        found = circle({"zerodraft.integrations.a": there, "zerodraft.integrations.b": second})
        assert bool(found) == is_one, second
    assert circle({"zerodraft.a": "import zerodraft.b", "zerodraft.b": "import zerodraft.c", "zerodraft.c": ""}) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_are_entered_by_import_alone(path: Path) -> None:
    """Only the face resolves our own names by strings."""
    if path == ROOT / "lookup" / "runtime" / "warm_up.py":
        return  # it names kernel files of its own room, to compile each
    assert reached_by_string(path.read_text("utf-8")) == []


def test_a_string_that_leads_to_a_room_is_seen() -> None:
    for line in (
        'importlib.import_module("zerodraft.integrations.hf.cost_measure")',
        'import_module(f"zerodraft.lookup.{core}")',
        '__import__("zerodraft.kernels.verify")',
    ):
        assert reached_by_string(f"def f():\n    {line}"), line
    assert reached_by_string('importlib.import_module("tomllib")') == []


def test_there_is_something_to_check() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    assert wrong_imports(path.relative_to(ROOT).parts[0], path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("lookup", "import torch"),
        ("lookup", "def f():\n    from torch.nn import functional"),
        ("lookup", "from zerodraft.kernels import verify"),
        ("lookup", "from zerodraft.integrations.models import load_model"),
        ("lookup", "from zerodraft import Draft"),
        ("lookup", "import zerodraft"),
        ("kernels", "from zerodraft.lookup.draft import Draft"),
        ("kernels", "from zerodraft import kernels"),
        ("kernels", "import lookup.draft"),
        ("integrations", "from zerodraft import attach"),
        ("integrations", "from kernels import verify"),
    ],
)
def test_the_check_can_fail(room: str, line: str) -> None:
    if line == "from zerodraft import kernels":
        assert wrong_imports(room, line) == []  # its own room
    else:
        assert wrong_imports(room, line) != []


def test_the_kernels_folder_has_no_init_file() -> None:
    """With one, ``import transformers`` from the repository's root would take it for a package of another project."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_the_face_imports_lazily(name: str) -> None:
    """At module level only the standard library; types for checkers stand under TYPE_CHECKING."""
    tree = ast.parse((ROOT / "src" / "zerodraft" / name).read_text("utf-8"))
    early = [
        module
        for statement in tree.body
        if isinstance(statement, (ast.Import, ast.ImportFrom))
        for module, _ in imported(statement)
    ]
    assert {module.split(".")[0] for module in early} <= {"__future__", "importlib", "sys", "typing"}


def test_every_public_name_has_a_home_and_a_type() -> None:
    import zerodraft

    source = (ROOT / "src" / "zerodraft" / "__init__.py").read_text("utf-8")
    typed = {
        name.asname or name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zerodraft.")
        for name in node.names
    }
    assert set(zerodraft.__all__) == set(zerodraft._HOME_OF) == typed
    assert zerodraft.__all__ == sorted(zerodraft.__all__)
    for name in zerodraft.__all__:
        assert getattr(zerodraft, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        zerodraft.nonsense  # noqa: B018


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_lock_is_known_to_a_fork(path: Path) -> None:
    """Case 54: a lock that another thread holds at a fork would stay locked in the child for ever."""
    if path.name == "at_fork.py":
        return  # which frees its own
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    known = {id(call.args[0]) for call in calls if ast.unparse(call.func) == "held_at_fork"}
    made = [call for call in calls if ast.unparse(call.func) in ("threading.Lock", "threading.RLock", "Lock", "RLock")]
    assert all(id(call) in known for call in made), [call.lineno for call in made]


# ---- lookup/ as a house to live in: what a reader meets at once stays small ------------------------------------------

LOOKUP = [path for path in FILES if path.is_relative_to(ROOT / "lookup")]
MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 400, 60, 8
KERNELS = {"kernel", "bulk_kernel"}


def too_long(source: str) -> list[str]:
    """Functions above the limit, docstrings and decorators counted."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, functions):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert node.end_lineno is not None
            if node.end_lineno - first + 1 > MAX_FUNCTION:
                found.append(f"{node.name}: {node.end_lineno - first + 1} lines")
    return found


def too_wide(source: str) -> list[str]:
    """Functions that take more than the limit, ``self`` and ``cls`` not counted; kernels have no such limit."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if KERNELS & {ast.unparse(decorator) for decorator in node.decorator_list}:
            continue
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"]))
        if count > MAX_PARAMETERS:
            found.append(f"{node.name}: {count} parameters")
    return found


def is_kernel_file(path: Path) -> bool:
    """Those whose digest is the stamp of every compiled kernel."""
    return path.name.startswith("_") and path.name != "__init__.py"


def foreign_to_kernels(source: str) -> list[str]:
    """What a kernel file imports of ours that is no kernel file: a change there would not compile kernels anew."""
    others = {module_of(path) for path in LOOKUP if not is_kernel_file(path) and path.name != "__init__.py"}
    return sorted({name for name, _ in imported(ast.parse(source))} & others)


@pytest.mark.parametrize("path", LOOKUP, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_of_lookup_fit_a_reader(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= MAX_FILE
    assert too_long(source) == []
    assert too_wide(source) == []


def test_what_is_too_large_is_seen() -> None:
    long = "def f():\n" + "    x = 1\n" * MAX_FUNCTION
    assert too_long(long) == ["f: 61 lines"]
    assert too_long(long.replace("    x = 1\n", "", 1)) == []
    wide = "class A:\n    def f(self, " + ", ".join("abcdefghi") + "): ..."
    assert too_wide(wide) == ["f: 9 parameters"]
    assert too_wide(wide.replace("a, ", "")) == []
    assert too_wide("@kernel\ndef f(a, b, c, d, e, f, g, h, i): ...") == []
    assert too_wide("def f(a, b, c, d, e, *, f, g, h, i): ...") == ["f: 9 parameters"]


@pytest.mark.parametrize("path", list(filter(is_kernel_file, LOOKUP)), ids=lambda path: str(path.relative_to(ROOT)))
def test_kernels_are_made_of_kernel_files_alone(path: Path) -> None:
    """Numbers of other files would be compiled into machine code that outlives them in a cache."""
    if path != ROOT / "lookup" / "runtime" / "_jit.py":  # which compiles them, and says where there is no cache
        assert foreign_to_kernels(path.read_text("utf-8")) == []


def test_a_number_from_elsewhere_is_seen() -> None:
    assert foreign_to_kernels("from zerodraft.lookup.policy import NUM_STATES") == ["zerodraft.lookup.policy"]
    assert foreign_to_kernels("from zerodraft.lookup import _block, draft") == ["zerodraft.lookup.draft"]
    assert foreign_to_kernels("from zerodraft.lookup._block import TOKEN") == []


def test_every_kernel_is_in_a_kernel_file() -> None:
    for path in LOOKUP:
        decorated = [
            node.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.FunctionDef) and KERNELS & {ast.unparse(of) for of in node.decorator_list}
        ]
        assert is_kernel_file(path) or decorated == [], path
