"""What a text once had in place of what, to be drafted again."""

from __future__ import annotations

from reference.copies import Run
from reference.text import BARRIER


class Replacement:
    """What a text once had in place of what, after which token, and how often it was met again."""

    def __init__(self, left: int, old: list[int], new: list[int], new_at: int) -> None:
        self.left, self.old, self.new, self.new_at = left, old, new, new_at
        self.hits, self.misses = 1, 0


class Replacements:
    """Replacements learned from one text: at most 16, a new one in the place of the oldest."""

    def __init__(self) -> None:
        self.run = Run(-1, -1, 0)
        self.kept: list[Replacement] = []
        self.num_kept = 0
        self.site: tuple[int, int] | None = None
        self.first = {False: [0.6, 1.4], True: [1.6, 0.4]}  # by "the same token stood before": hits, misses

    def find(self, text: list[int], position: int) -> Replacement | None:
        fitting = [r for r in self.kept if r.hits > r.misses and text[position : position + len(r.old)] == r.old]
        return max(fitting, key=lambda r: len(r.old)) if position < len(text) and fitting else None

    def _counts(self, r: Replacement, text: list[int], position: int) -> list[float] | None:
        return self.first[text[position - 1] == r.left] if (r.hits, r.misses) == (1, 0) else None

    def chance(self, r: Replacement, text: list[int], position: int) -> float:
        counts = self._counts(r, text, position)
        return counts[0] / sum(counts) if counts else (r.hits - 0.5) / (r.hits + 4 * r.misses)

    def count(self, r: Replacement, text: list[int], position: int, is_hit: bool) -> None:
        counts = self._counts(r, text, position)
        if counts:
            counts[0 if is_hit else 1] += 1
        if is_hit:
            r.hits += 1
        else:
            r.misses += 1

    def watch(self, source: int, output: int) -> None:
        self.site = self.site or (source, output)

    def close(self, text: list[int], before: int) -> int:
        """The site ends where two tokens of source and text agree again; returns where the copy goes on, or -1."""
        there = self._closed(text, before)
        if there >= 0 and self.run.length != len(text):
            self.run = Run(len(text), there, 8)
        return there

    def _closed(self, text: list[int], before: int) -> int:
        if self.site is None:
            return -1
        source, output = self.site
        for end in range(max(before + 1, output + 2), len(text) + 1):
            for there in range(source + 2, min(source + 16, output) + 1):
                if BARRIER in text[source:there]:
                    break
                if text[there - 2 : there] == text[end - 2 : end]:
                    self._keep(text, source, there - 2, output, end - 2)
                    self.site = None
                    return there if end == len(text) else -1
        if len(text) - output > 24:
            self.site = None
        return -1

    def _keep(self, text: list[int], source: int, source_end: int, output: int, output_end: int) -> None:
        more = 2 if source == source_end or output == output_end else 0
        old, new = text[source : source_end + more], text[output : output_end + more]
        if max(len(old), len(new)) > 8:
            return
        made = Replacement(text[source - 1], old, new, output)
        for place, r in enumerate(self.kept):
            if r.old == old:
                if r.new == new:
                    r.hits += 1
                else:
                    self.kept[place] = made
                return
        place = self.num_kept % 16
        self.num_kept += 1
        self.kept[place : place + 1] = [made]
