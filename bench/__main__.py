"""The one door to what is measured here: ``python bench`` lists the scripts, ``python bench NAME [options]`` runs one.

Scripts lie in folders by the question that they answer and import each other, and ``measure`` and ``workloads`` beside
this file, by plain name: a script's name is its own in all of bench/. The repository's root is never on the path.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent
QUESTIONS = {
    ".": "To begin with",
    "lookup": "How long does a lookup take, and what does it hold?",
    "policy": "What should be drafted, and what is it worth? Known outputs replayed, no model runs",
    "end_to_end": "What does a user gain with a real model?",
    "serving": "How does it do with many rows, many processes, and in vLLM?",
    "models": "Which models does it decode exactly?",
    "gpu": "What does it cost on a card?",
}


def scripts(folder: str) -> dict[str, str]:
    """What can be run in one folder: name and the first line of its docstring."""
    found = {}
    for path in sorted((BENCH / folder).glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def listing() -> str:
    """All scripts, by question."""
    lines = ["usage: python bench NAME [options]; python bench NAME --help says more"]
    for folder, question in QUESTIONS.items():
        lines += ["", question]
        lines += [f"  {name:<17} {says}" for name, says in scripts(folder).items()]
    return "\n".join(lines)


def main() -> int | None:
    """Run the script that is named first; list all without a name."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(listing())
        return None
    if not any(name in scripts(folder) for folder in QUESTIONS):
        sys.exit(f"python bench: expected the name of a script, got {name!r}; python bench lists them")
    sys.path[:1] = [str(BENCH / folder) for folder in QUESTIONS]
    sys.argv[:2] = [f"python bench {name}"]
    status: int | None = importlib.import_module(name).main()
    return status


if __name__ == "__main__":
    sys.exit(main())
