"""Edits of files that hold what an answer could be mistaken for: code blocks, docstrings with blocks, control tokens.

    python bench hard_edits [--model qwen] [--dtype float32]

Ten files, ten instructions, one model. A row says whether there was an edited file, how many of the old lines that the
instruction does not touch are missing from it, and what was said. Writes bench/results/hard_edits.csv.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import measure

from zerodraft.integrations.pipelines.editing import EditError, edit_text
from zerodraft.lookup.runtime.warm_up import warm_up


@dataclass(frozen=True)
class Task:
    """A file, what to change, and words of the lines that may change."""

    name: str
    language: str
    text: str
    instruction: str
    touched: tuple[str, ...]


README = """# Widget

A small tool that counts widgets.

## Install

```bash
pip install widget
```

## Use

Run `widget count FILE` and read the number.

```python
from widget import count

print(count("stock.txt"))
```

## Test

Run make test in the root folder.

## Licence

MIT, see the file LICENCE.
"""
NESTED = """# How to write a page

A page begins with a title. A block is written so:

````markdown
```python
print("teh end")
```
````

Close every block. Teh rest is up to you.

- one
- two

Done.
"""
TOKENS = """# Chat format

## Tokens

| token | meaning |
|---|---|
| `<|im_start|>` | a turn begins |
| `<|im_end|>` | a turn ends |
| `<|endoftext|>` | a text ends |

A turn is `<|im_start|>user` and the text, then `<|im_end|>`.

## Notes

Never put these into a message.
"""
TILDES = """# Notes\r
\r
~~~\r
foo --all\r
~~~\r
\r
The command foo lists all.\r
\r
Last line.\r
"""
LOADER = '''"""Configuration.

Example:

```python
config = load("app.json")
```
"""

import json


def load(path):
    """Read a file.

    ```python
    load("app.json")["name"]
    ```
    """
    with open(path) as file:
        return json.load(file)


CONFIG = load("app.json")
'''
AREA = '''"""Shapes."""

PI = 3.14159


def area(radius):
    """Area of a circle."""
    return PI * radius * radius


def edge(radius):
    """Length of its edge."""
    return 2 * PI * radius


print(area(2), edge(2))
'''
CHAT = '''"""Turns of a chat."""

START = "<|im_start|>"
END = "<|im_end|>"


def turn(role, text):
    return f"{START}{role}\\n{text}{END}\\n"


def chat(messages):
    return "".join(turn(role, text) for role, text in messages)


print(chat([("user", "hi")]))
'''
TASKS = [
    Task("readme", "markdown", README, "Add a section `## Uninstall` with a bash code block at the end.", ()),
    Task("readme", "markdown", README, "Put the command make test into a bash code block.", ("make test",)),
    Task("readme", "markdown", README, "Change the title to Widget 2.", ("# Widget",)),
    Task("nested", "markdown", NESTED, "Correct `teh` and `Teh` to `the` and `The`.", ("teh", "Teh")),
    Task("tokens", "markdown", TOKENS, "Rename the section Tokens to Special tokens.", ("## Tokens",)),
    Task("tildes", "markdown", TILDES, "Replace foo by bar everywhere.", ("foo",)),
    Task("loader", "python", LOADER, "Rename the function `load` to `read_config`.", ("load",)),
    Task(
        "area", "python", AREA, "Add an example in a ```python block to the docstring of area.", ("Area of a circle",)
    ),
    Task("chat", "python", CHAT, "Rename START to TURN_START.", ("START",)),
    Task("chat", "python", CHAT, "Add a docstring to each function.", ()),
]


def row(model: Any, tokenizer: Any, task: Task) -> dict[str, Any]:
    """What became of one file."""
    result, missing, said = None, "", ""
    try:
        result = edit_text(model, tokenizer, task.text, task.instruction, language=task.language)
    except EditError as error:
        said = str(error)
    if result is not None:
        kept = [line for line in task.text.splitlines() if line.strip() and not any(w in line for w in task.touched)]
        there = result.text.splitlines()
        missing, said = sum(line not in there for line in kept), "; ".join(result.remarks)
    return {
        "file": task.name, "instruction": task.instruction, "is_edited": result is not None,
        "is_changed": result is not None and result.text != task.text, "untouched_lines_missing": missing,
        "tokens_per_forward": "" if result is None else round(result.stats.tokens_per_forward, 2), "said": said,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    loaded = measure.load(args.model, args.dtype)
    warm_up()
    rows = []
    for task in TASKS:
        rows.append({"model": args.model, "dtype": args.dtype} | row(loaded.model, loaded.tokenizer, task))
        print(rows[-1], flush=True)
    print(measure.write_csv("hard_edits", rows))
