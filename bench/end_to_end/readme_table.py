"""The measured table of README.md: ``python bench readme_table [--rounds 15] [--update]``.

One edit (the demo's) is decoded plainly, with transformers' prompt lookup and with zerodraft, in turn, round after
round; a speed-up is the median of the ratios within a round. ``--update`` writes the table between README's markers
and the numbers behind it to ``bench/results/readme_table.csv``.
"""

from __future__ import annotations

import argparse
import re
import sys

from demo import FILE, INSTRUCTION
from measure import ROOT, load, machine, ratio, spread, write_csv

from zerodraft.integrations import weights
from zerodraft.integrations.pipelines.compare import PLAIN, PROMPT_LOOKUP, ZERODRAFT, Way, first_difference, measure
from zerodraft.integrations.pipelines.editing import Edit
from zerodraft.integrations.pipelines.source_file import SourceFile
from zerodraft.lookup.runtime.warm_up import warm_up

README = ROOT / "README.md"
BEGIN, END = "<!-- table: python bench readme_table -->", "<!-- end of table -->"
WAYS = (PLAIN, PROMPT_LOOKUP, ZERODRAFT)


def main() -> None:
    """Measure, print, and where asked to write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen", help="qwen, smollm2, a folder or a hub id")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--update", action="store_true", help="write README.md and the results file")
    options = parser.parse_args()
    loaded = load(options.model, options.dtype)
    warm_up()
    source = SourceFile.read(FILE)
    call = Edit.of(loaded.model, loaded.tokenizer, source.text, INSTRUCTION, language=source.language).call
    runs: dict[str, list[Way]] = {name: [] for name in WAYS}
    for number in range(options.rounds + 1):  # the first round warms up and is not counted
        for name in WAYS:
            way = measure(call, name)
            print(f"round {number}: {name}: {way.seconds:.1f} s", file=sys.stderr, flush=True)
            if number:
                runs[name].append(way)
    verdicts = {}
    for name, ways in runs.items():
        parts = first_difference(call, runs[PLAIN][0].written.token_ids, ways[0].written.token_ids)
        verdicts[name] = "identical" if parts is None else f"differs at token {parts.at}"
    table = markdown(runs, verdicts, title(options.model), options.dtype)
    print(table)
    if options.update:
        write_csv("readme_table", [row(name, number, way) for name in WAYS for number, way in enumerate(runs[name])])
        old = README.read_text("utf-8")
        README.write_text(re.sub(f"<!-- table: .*?{END}", lambda _: table, old, flags=re.DOTALL), "utf-8")


def title(model: str) -> str:
    """The model's name, with the sha256 of its pinned file where it is one of ours."""
    if model not in weights.CATALOGUE:
        return model
    pinned = weights.pinned(model)
    return f"{pinned.title}, GGUF sha256 `{pinned.sha256[:16]}…`, dequantized"


def row(name: str, number: int, way: Way) -> dict[str, object]:
    """One run as one line of the results file."""
    return {
        "way": name,
        "round": number,
        "seconds": round(way.seconds, 4),
        "tokens": way.num_tokens,
        "forwards": way.num_forwards,
        "tokens_per_forward": round(way.tokens_per_forward, 3),
        "draft_tokens": way.num_draft_tokens,
        "lookup_us_per_token": way.lookup_us_per_token,
    }


def markdown(runs: dict[str, list[Way]], verdicts: dict[str, str], model: str, dtype: str) -> str:
    """The table, and under it what was measured on what."""
    lines = [
        BEGIN,
        "",
        "| decoding | tokens/s | speed-up (p20 – p80) | tokens per forward | text |",
        "|---|---|---|---|---|",
    ]
    seconds = {name: [way.seconds for way in ways] for name, ways in runs.items()}
    for name, ways in runs.items():
        pace = spread([way.tokens_per_second for way in ways])[1]
        low, middle, high = ratio(seconds[PLAIN], seconds[name])
        speedup = "1" if name == PLAIN else f"**{middle:.2f}×** ({low:.2f} – {high:.2f})"
        text = "the reference" if name == PLAIN else verdicts[name]
        lines.append(f"| {name} | {pace:.1f} | {speedup} | {ways[0].tokens_per_forward:.1f} | {text} |")
    about = machine()
    tokens, rounds = runs[PLAIN][0].num_tokens, len(runs[PLAIN])
    lines += [
        "",
        f"{model}, {dtype}, greedy; one edit (`{FILE.relative_to(README.parent)}`: {INSTRUCTION.rstrip('.')}), "
        f"{tokens} tokens; {about['cpu']}, {about['threads']} threads, load {about['load_at_start']}; "
        f"torch {about['torch']}, transformers {about['transformers']}; medians of n = {rounds} interleaved rounds, "
        "whole calls with prefill.",
        "",
        END,
    ]
    return "\n".join(lines)
