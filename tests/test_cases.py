"""``docs/cases.md``: every case that is cited stands there, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "cases.md").read_text("utf-8")
CASES = {int(case[1]): case[0] for case in re.finditer(r"^\*\*(\d+)\. .*?(?=^\*\*\d|^## |\Z)", PAGE, re.M | re.S)}
CITING = [
    path
    for folder in ("lookup", "kernels", "integrations", "tests", "bench", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md") and "__pycache__" not in path.parts and path != Path(__file__).resolve()
]
CITED = re.compile(r"\bcases? (\d+(?:(?:, | and | to )\d+)*)", re.IGNORECASE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)`(?:\s+\(((?:`test_\w+`(?:,\s+)?)+)\))?")


def cited_in(text: str) -> set[int]:
    return {int(number) for found in CITED.finditer(text) for number in re.findall(r"\d+", found[1])}


def functions_in(path: str) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))) if isinstance(node, functions)}


def test_the_cases_are_numbered_without_a_gap() -> None:
    assert list(CASES) == list(range(1, len(CASES) + 1))
    assert len(CASES) >= 55


def test_what_is_cited_stands_on_the_page() -> None:
    texts = {path: path.read_text("utf-8") for path in CITING}
    assert {path: cited_in(text) - set(CASES) for path, text in texts.items() if cited_in(text) - set(CASES)} == {}
    assert len({number for path, text in texts.items() if path.suffix == ".py" for number in cited_in(text)}) > 20


def test_there_is_one_way_to_cite() -> None:
    """ "Case 54", "cases 1, 4 and 6", in small or capital first letters: no other spelling would be found again."""
    other = {path: re.findall(r"\bCASES?[ -]?\d+", path.read_text("utf-8")) for path in CITING}
    assert {path: found for path, found in other.items() if found} == {}


def test_a_wrong_number_would_be_seen() -> None:
    assert cited_in("as in cases 3, 7 and 99, or case 1") == {1, 3, 7, 99}
    assert cited_in("Case 54.") == {54}


@pytest.mark.parametrize("number", CASES)
def test_each_case_names_tests_that_exist(number: int) -> None:
    """Or a script, where no test can hold it."""
    named = NAMED.findall(CASES[number])
    assert named or "No test of the suite can do that" in CASES[number]
    assert CASES[number].count("`tests/") == len(named)
    assert CASES[number].count("`test_") == sum(names.count("`test_") for _, names in named)
    for path, names in named:
        assert (ROOT / path).is_file(), path
        assert set(re.findall(r"test_\w+", names)) <= functions_in(path), path
