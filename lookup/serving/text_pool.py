"""TextPool: the texts of many sessions in one set of arrays, each with room to grow."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.copy._text import Text
from zerodraft.lookup.copy.ngram_index import NgramIndex

# Where a line's record says that its part of an array begins and how long it is; for each of a text's five arrays.
PLACES: Final = (*[("at", "capacity")] * 3, ("at_1", "slots_1"), ("at_n", "slots_n"))


class TextPool:
    """One ``Text`` that holds the texts of all lines. Not thread-safe.

    Parts are given out one behind the other; where they come to the end of an array, those in use move to a larger one.
    """

    def __init__(self) -> None:
        self.arrays = Text(*(np.empty(1 << 12, np.int32) for _ in PLACES))
        self._used = [0] * len(PLACES)

    def index_of(self, line: Any, meta: npt.NDArray[np.void]) -> NgramIndex:
        """A line's text as an index that counts in ``meta``; valid until a part moves."""
        index = NgramIndex(meta)
        parts = (array[line[at] : line[at] + line[size]] for array, (at, size) in zip(self.arrays, PLACES))
        index.arrays = Text(*parts)
        return index

    def place(self, index: NgramIndex, line: Any, lines: npt.NDArray[np.void]) -> None:
        """Put an index into the pool as the text of ``line``, one of ``lines``, instead of what it had before."""
        self.free(line)
        if any(used + len(new) > len(array) for used, new, array in zip(self._used, index.arrays, self.arrays)):
            self._move([len(new) for new in index.arrays], lines)
        for number, (new, (at, size)) in enumerate(zip(index.arrays, PLACES)):
            start = self._used[number]
            self.arrays[number][start : start + len(new)] = new
            line[at], line[size] = start, len(new)
            self._used[number] = start + len(new)

    def free(self, line: Any) -> None:
        """Forget a line's text."""
        for _, size in PLACES:
            line[size] = 0

    def _move(self, needed: list[int], lines: npt.NDArray[np.void]) -> None:
        """Copy what is in use into arrays with room for twice that and for what is needed."""
        starts = {at: lines[at].copy() for at, _ in PLACES}
        arrays = []
        for number, (at, size) in enumerate(PLACES):
            sizes, old = lines[size], self.arrays[number]
            ends = np.cumsum(sizes)
            array = np.empty(2 * (int(ends[-1]) + needed[number]), np.int32)
            for start, end, length in zip(starts[at].tolist(), ends.tolist(), sizes.tolist()):
                array[end - length : end] = old[start : start + length]
            lines[at] = ends - sizes
            self._used[number] = int(ends[-1])
            arrays.append(array)
        self.arrays = Text(*arrays)
