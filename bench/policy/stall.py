"""The demo's edit under curves that are a little off: forwards, and those that draft nothing in a copy that is right.

    python bench stall [--draws 40]

Replayed without a model: the text is the file with every `show` renamed. Each point of a curve is multiplied by
1 + noise * N(0, 1), and the curve made monotone. Writes bench/results/stall.csv, a row per curve and noise.
"""

from __future__ import annotations

import argparse
from typing import Any

import measure
import numpy as np
from demo import FILE, INSTRUCTION, RENAME
from transformers import AutoTokenizer

from zerodraft.integrations import weights
from zerodraft.integrations.pipelines.text_ids import chat_ids, text_ids
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.measure.replay import walk_known
from zerodraft.lookup.policy import DraftPolicy

LONG_MATCH = 32  # tokens; a copy that has matched so many is hardly ever wrong
NOISE = (0.0, 0.03, 0.1, 0.3)


def texts() -> tuple[list[int], list[int], list[int]]:
    """Prompt, prediction and output of the demo's edit, as token ids."""
    folder = weights.find("qwen")
    if folder is None:
        raise SystemExit("qwen is not there yet: python bench/fetch_models.py qwen")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    code = FILE.read_text("utf-8")
    prompt = chat_ids(tokenizer, f"````python\n{code}````\n\n{INSTRUCTION}", answer="````python\n")
    return prompt, text_ids(tokenizer, f"{code}````"), text_ids(tokenizer, f"{code.replace(*RENAME)}````")


def replay(curve: CostCurve, prompt: list[int], prediction: list[int], output: list[int]) -> tuple[int, int]:
    """Decode forwards, and how many of them drafted nothing though the best copy was long and right."""
    session = Drafter(policy=DraftPolicy(cost=curve)).begin(prompt, prediction)
    session.commit(Draft.empty(), Outcome(path=(), new_ids=(output[0],), stop="full"))
    at, forwards, stalled = 1, 0, 0
    while at < len(output):
        draft = session.propose(255, len(output) - at)
        if not len(draft) and session.best_copy is not None:
            position, match, _ = session.best_copy
            stalled += match >= LONG_MATCH and int(session.index.token_ids[position]) == output[at]
        outcome = walk_known(draft, output, at)
        session.commit(draft, outcome)
        at, forwards = at + len(outcome.new_ids), forwards + 1
    return forwards, stalled


def row(name: str, points: list[tuple[int, float]], noise: float, draws: int, edit: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    runs = []
    for _ in range(draws if noise else 1):
        costs = np.maximum.accumulate([cost * (1 + noise * rng.standard_normal()) for _, cost in points])
        curve = CostCurve([(n, max(float(cost), 1e-3)) for (n, _), cost in zip(points, costs)])
        runs.append(replay(curve, *edit))
    forwards = sorted(count for count, _ in runs)
    low, mid, high = measure.spread(forwards)
    return {
        "curve": name, "noise": noise, "n": len(runs), "tokens": len(edit[2]), "forwards_p20": low, "forwards_p50": mid,
        "forwards_p80": high, "forwards_worst": forwards[-1], "forwards_all": sum(forwards),
        "stalled_all": sum(count for _, count in runs),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40)
    draws, edit = parser.parse_args().draws, texts()
    rows = []
    for name in measure.CURVES:
        points = measure.curve(name).points
        for noise in NOISE:
            rows.append(row(name, points, noise, draws, edit))
            print(rows[-1], flush=True)
    print(measure.write_csv("stall", rows))
