"""Where the code block of an answer ends: what is inside, what is talk, and what cannot be told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.integrations.pipelines.fence import Answer, Block, fence_for


def read(text: str, language: str = "python", old: str = "x = 0", fence: str = "````", is_ended: bool = True) -> Answer:
    block = Block(fence, language, old.split("\n"))
    for line in text.split("\n"):
        if block.feed(line):
            break
    return block.answer(is_ended=is_ended)


MARKDOWN = "# Use\n\n```bash\nls\n```\n\nand\n\n~~~\n````\n~~~\n\n- item\n  ```\n  x\n  ```\n"


@pytest.mark.parametrize(
    ("text", "body", "options"),
    [
        ("x = 1\n````", "x = 1", {}),
        ("x = 1\n````  ", "x = 1", {}),
        ("x = 1\n`````", "x = 1", {}),
        ("x = 1\n````\nI renamed it.\n````\nother\n````", "x = 1", {}),
        ("x = 1\n```", "x = 1", {}),
        ("x = 1\n```\n\n", "x = 1", {}),
        ("# T\n```bash\nls\n```\n````", "# T\n```bash\nls\n```", {"language": "markdown"}),
        ("# T\n```bash\nls\n```\n```", "# T\n```bash\nls\n```", {"language": "markdown"}),
        ("# T\n```\nls\n```\n````", "# T\n```\nls\n```", {"language": "markdown"}),
        ("# T\n````md\n```\na\n```\n````\nb\n````", "# T\n````md\n```\na\n```\n````\nb", {"language": "markdown"}),
        ("# T\n~~~~\n```\n~~~~\n````", "# T\n~~~~\n```\n~~~~", {"language": "markdown"}),
        ('"""\n    ```python\n    f()\n    ```\n"""\n````', '"""\n    ```python\n    f()\n    ```\n"""', {}),
        ("# T\n~~~\n````\n~~~\n````", "# T\n~~~\n````\n~~~", {"language": "markdown"}),
        ("Title\n~~~~~\nx\n````", "Title\n~~~~~\nx", {}),
        ("````python\nx = 1\n````", "x = 1", {}),
        ("```python\nx = 1\n```", "x = 1", {}),
        ("```python\nx = 1\n```\n````", "x = 1", {}),
        ("x = 1\n```\n````", "x = 1", {}),
        ("a\n```\n````", "a\n```", {"old": "a\n```"}),
        ("```python\nx\n```\ny\n````", "```python\nx\n```\ny", {"language": "python", "old": "```python\nx\n```"}),
        (MARKDOWN + "`````", MARKDOWN[:-1], {"language": "markdown", "old": MARKDOWN, "fence": "`````"}),
    ],
)
def test_the_file_in_an_answer(text: str, body: str, options: dict[str, str]) -> None:
    assert read(text, **options) == Answer(body.split("\n"), True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x = 1", {}),
        ("x = 1\n````python", {}),
        ("x = 1\n```\nI renamed it.", {}),
        ("x = 1\n```\nI renamed it.\n```\nother\n```", {}),
        ("x = 1\n```\n\nI renamed it.\n````", {}),
        ("# T\n```bash\nls\n```", {"language": "markdown"}),
        ("a\n```", {"old": "a\n```"}),
        ("  ````", {}),
        ("x = 1 ````", {}),
        ("~~~~", {}),
    ],
)
def test_an_answer_whose_end_cannot_be_told_is_not_whole(text: str, options: dict[str, str]) -> None:
    assert not read(text, **options).is_whole  # type: ignore[arg-type]


def test_a_short_fence_does_not_close_an_answer_that_was_cut_off() -> None:
    assert not read("x = 1\n```", is_ended=False).is_whole
    assert read("x = 1\n````", is_ended=False).is_whole


LINES = st.lists(
    st.sampled_from(["```", "```python", "~~~", "text", "", "    ```", "````", "`a`", "~~~~ b"]) | st.text(max_size=5),
    min_size=1,
    max_size=12,
).filter(lambda lines: not any("\n" in line or "\r" in line for line in lines))


@given(LINES, st.sampled_from(["", "python", "markdown"]))
def test_a_file_that_comes_back_as_it_was_ends_at_its_own_fence(lines: list[str], language: str) -> None:
    """Whatever blocks a file holds, opened and closed or not: the longer fence behind it ends it, and nothing else."""
    code = "\n".join(lines)
    fence = fence_for(code)
    assert read(f"{code}\n{fence}\ntalk", language, code, fence, is_ended=True) == Answer(lines, True)


@given(LINES, LINES, st.booleans())
def test_no_line_is_left_out_in_silence(old: list[str], new: list[str], is_ended: bool) -> None:
    """A whole answer is all its lines up to a fence that opened nothing, but for fences at its two ends."""
    found = read("\n".join(new), "python", "\n".join(old), fence_for("\n".join(old)), is_ended)
    if found.is_whole:
        start = next(at for at in (0, 1) if new[at : at + len(found.lines)] == found.lines)
        left_out = [*new[:start], *new[start + len(found.lines) :]]
        assert left_out[start].strip().startswith("```")
        assert not start or new[0].strip().removeprefix("```").strip("`") == "python"
        short = len(left_out[start].strip()) < len(fence_for("\n".join(old)))
        assert not short or not any(line.strip("` ") for line in left_out[start + 1 :])
