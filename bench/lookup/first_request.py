"""CPU milliseconds of the first and of the second session of a process after ``warm_up``, by option.

    python bench first_request [--runs 15]

Each run is a process of its own, whose kernels come from numba's cache. A session is begun with a prompt of 60 tokens,
drafts once and commits once. Writes bench/results/first_request.csv.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import measure

OPTIONS = ("", "suffix_tree=True", "recycle=True", 'recycle="shared"', "memory=DraftMemory()", "lookahead")
SCRIPT = """
import sys, time
import numpy as np
from zerodraft.lookup.runtime.warm_up import warm_up
warm_up()
from zerodraft.lookup.draft import Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.lookahead import Lookahead
from zerodraft.lookup.memory.draft_memory import DraftMemory
text = [*range(20)] * 3
for _ in range(2):
    start = time.process_time()
    drafter = Lookahead() if sys.argv[1] == "lookahead" else eval(f"Drafter({sys.argv[1]})")
    session = drafter.begin(text)
    draft = session.propose(16)
    topk = np.zeros((1 + len(draft), session.num_topk), np.int32) if session.num_topk else None
    session.commit(draft, Outcome(path=(), new_ids=(99,), stop="rejected", topk=topk))
    print(1e3 * (time.process_time() - start))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    rows = []
    for option in OPTIONS:
        command = [sys.executable, "-c", SCRIPT, option]
        times = [list(map(float, subprocess.check_output(command, text=True).split())) for _ in range(runs)]
        row: dict[str, Any] = {"option": option or "default", "n": runs}
        for which, column in zip(("first", "second"), zip(*times)):
            for name, value in zip(("p20", "p50", "p80"), measure.spread(column)):
                row[f"{which}_ms_{name}"] = round(value, 2)
        rows.append(row)
        print(row, flush=True)
    print(measure.write_csv("first_request", rows))
