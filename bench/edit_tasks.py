"""Edits for a real model: renames in source files of public packages (bench/workloads.py), as chat prompts."""

from __future__ import annotations

import builtins
import collections
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workloads

from zerodraft.integrations.pipelines.call import Call
from zerodraft.integrations.pipelines.editing import Edit

_WORD = re.compile(r"\b[a-z_][a-z_]{3,}\b")


@dataclass(frozen=True)
class EditTask:
    """A file, what to do to it, and what should come out."""

    path: str
    code: str
    instruction: str
    expected: str


def edit_tasks(count: int, *, min_lines: int = 20, max_lines: int = 60, cache: Path | None = None) -> list[EditTask]:
    """The first ``count`` files of the held-out packages that offer something to rename; the same every run."""
    tasks: list[EditTask] = []
    per_package: collections.Counter[str] = collections.Counter()
    for package, versions in workloads.HELD_OUT_PACKAGES.items():
        wheel = workloads.download(package, versions[-1], cache or workloads.DEFAULT_CACHE)
        for path, code in _files(wheel):
            task = _rename(path, code) if min_lines <= code.count("\n") <= max_lines else None
            if task is not None and per_package[package] < -(-count // 8):
                tasks.append(task)
                per_package[package] += 1
    return tasks[:count]


def _files(wheel: object) -> Iterator[tuple[str, str]]:
    for path in sorted(wheel.namelist()):  # type: ignore[attr-defined]
        if path.endswith(".py") and "vendor" not in path:
            yield path, wheel.read(path).decode("utf-8", "replace")  # type: ignore[attr-defined]


def _rename(path: str, code: str) -> EditTask | None:
    """Rename the commonest plain word that stands 3 to 9 times in the file."""
    if "```" in code or code.count("\n") < 5:
        return None
    taken = set(keyword.kwlist) | set(dir(builtins)) | {"self", "typing", "none", "true", "false"}
    assigned = set(re.findall(r"\b([a-z_]{4,})\b\s*(?::[^=\n]+)?=[^=]", code)) | set(
        re.findall(r"def ([a-z_]{4,})", code)
    )
    counts = collections.Counter(word for word in _WORD.findall(code) if word not in taken and word in assigned)
    fitting = sorted((-number, word) for word, number in counts.items() if 3 <= number <= 9)
    if not fitting:
        return None
    old = fitting[0][1]
    new = f"new_{old.strip('_')}"
    instruction = f"Rename `{old}` to `{new}` everywhere in this file. Change nothing else."
    return EditTask(path, code, instruction, re.sub(rf"\b{old}\b", new, code))


def request(model: Any, tokenizer: Any, task: EditTask) -> Call:
    """The request that ``edit_text`` would make of a model for this task."""
    call = Edit.of(model, tokenizer, task.code, task.instruction, language="python").call
    return call


def greedy_options(model: Any, tokenizer: Any, max_new_tokens: int) -> dict[str, Any]:
    """Keywords for ``generate``: greedy, no setting of the checkpoint has a say, the text ends at the closing fence."""
    close = tokenizer("```", add_special_tokens=False).input_ids[0]
    given = model.generation_config.eos_token_id
    return {
        "max_new_tokens": max_new_tokens, "do_sample": False, "repetition_penalty": 1.0,
        "eos_token_id": [*(given if isinstance(given, list) else [given]), close],
        "pad_token_id": tokenizer.pad_token_id, "temperature": None, "top_p": None, "top_k": None,
    }  # fmt: skip
