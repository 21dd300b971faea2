"""The table of docs/models.md, from the results of bench/models/families.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- written by bench/models/families.py -->", "<!-- end of what is written -->"
Row = dict[str, Any]


def write_page(rows: list[Row], page: Path) -> None:
    """Replace what stands between the two marks of ``page``."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{section(rows)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def section(rows: list[Row]) -> str:
    """Counts, then the families of each kind, then what is refused and why."""
    able = [row for row in rows if row["plain"] == "ok"]
    trees = [row for row in able if row["way"] == "trees" and row["exact"] == "exact"]
    chains = [row for row in able if row["way"] == "chains" and row["exact"] in ("exact", "in part")]
    others = [row for row in able if row not in trees and row not in chains and row["exact"] != "refused"]
    parts = [_counts(rows, able)]
    parts.append(f"**Exact, trees and batches** ({len(trees)} classes): {_names(trees)}.")
    parts.append(f"**Exact at batch 1, by chains; batches refused** ({len(chains)}): {_names(chains)}.")
    if others:
        lines = [f"| `{row['class']}` | {_told(row)} |" for row in others]
        parts.append("\n".join(["**Exact in part**", "", "| class | |", "|---|---|", *lines]))
    refused = [row for row in able if row["exact"] == "refused"]
    lines = [f"| `{row['class']}` | {_why(row)} |" for row in refused]
    parts.append("\n".join([f"**Refused** ({len(refused)})", "", "| class | why |", "|---|---|", *lines]))
    unable = [f"`{row['class']}`" for row in rows if row["plain"] != "ok"]
    parts.append(
        f"Not judged ({len(unable)}), as plain `generate` writes nothing from a text alone or the class is not built "
        f"without further packages: {', '.join(unable)}."
    )
    return "\n\n".join(parts) + "\n"


def _counts(rows: list[Row], able: list[Row]) -> str:
    lines = [f"Of {len(rows)} classes plain `generate` runs on {len(able)}:", ""]
    lines += ["| | classes | exact at batch 1 | and in batches | refused | not exact |", "|---|---|---|---|---|---|"]
    for name, encoder in (("decoder only", "no"), ("encoder and decoder", "yes")):
        own = [row for row in able if row["encoder"] == encoder]
        at_one = [row for row in own if row["exact"] in ("exact", "in part")]
        batches = [row for row in at_one if row["batch"].startswith("=")]
        refused = [row for row in own if row["exact"] == "refused"]
        counts = (len(own), f"{len(at_one)} ({len(at_one) / len(own):.1%})", len(batches), len(refused))
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + f" | {len(own) - len(at_one) - len(refused)} |")
    saved = [float(row["tokens_per_forward"]) for row in able if row["exact"] in ("exact", "in part")]
    lines += ["", f"Right drafts of nine tokens gave every exact class {min(saved)} tokens per forward or more."]
    return "\n".join(lines)


def _names(rows: Iterable[Row]) -> str:
    """Families by name; one that has several classes names those."""
    grouped = itertools.groupby(sorted(rows, key=lambda row: (row["family"], row["class"])), lambda row: row["family"])
    return ", ".join(dict.fromkeys(family for family, _ in grouped))


def _told(row: Row) -> str:
    checks = ("right", "wrong", "mixed", "seeded", "batch", "second_turn", "long")
    said = [f"{name}: {row[name]}" for name in checks if not row[name].startswith(("=", "-"))]
    return "; ".join(said) or row["why"] or "exact"


def _why(row: Row) -> str:
    return row["why"].removeprefix(f"{row['class']} with ").replace("|", "\\|")
