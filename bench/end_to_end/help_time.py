"""How long ``--help`` of every command takes, as a user waits for it: a new process each time.

    python bench help_time

Every command runs ``--help`` 15 times, in turn with the others after one unmeasured round; wall time of whole
processes. Writes ``bench/results/help_time.csv``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from measure import interleaved, spread, write_csv

ROUNDS = 15


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command and of every group of commands, the program's own () first."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def run(path: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-m", "zerodraft", *path, "--help"], stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    from typer.main import get_command

    from zerodraft.integrations.commands.cli import app

    ways = {" ".join(path): lambda path=path: run(path) for path in commands(get_command(app))}
    rows = []
    for name, seconds in interleaved(ways, rounds).items():
        p20, p50, p80 = spread(seconds)
        row = {"command": f"zerodraft {name}".strip() + " --help", "n": len(seconds), "best_s": min(seconds)}
        row |= {"p20_s": p20, "p50_s": p50, "p80_s": p80}
        rows.append({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
        print(f"{row['command']:36} best {row['best_s']:.3f} s, median {p50:.3f} s")
    print(f"wrote {write_csv('help_time', rows)}")
