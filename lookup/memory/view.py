"""MemoryView: the segments of one namespace as kernels read them, at one moment."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerodraft.lookup.memory import _stored
from zerodraft.lookup.memory.segment import Segment
from zerodraft.lookup.memory.segment_file import MemoryFileError
from zerodraft.lookup.runtime._address import address_of
from zerodraft.lookup.runtime._jit import dtype_of

if TYPE_CHECKING:
    from zerodraft.lookup.memory.draft_memory import DraftMemory
    from zerodraft.lookup.session._state import Stored

_log = logging.getLogger(__name__)


class MemoryView:
    """Records of the segments, oldest first, and the arrays that these point to, kept alive. Never changed.

    Attributes:
        segments: (n,), the segments.
        records: record array (n,) of ``_stored.Segment``.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments: Final = tuple(segments)
        self.records: Final[Any] = np.zeros(len(segments), dtype_of(_stored.Segment))
        self._arrays: Final = [(segment.index.arrays, segment.blocks) for segment in segments]
        for record, segment, (arrays, blocks) in zip(self.records, segments, self._arrays):
            record.serial, record.length, record.floor = segment.serial, len(segment.index), segment.floor
            record.tokens, record.links_1, record.links_n, record.heads_1, record.heads_n = map(address_of, arrays)
            record.slots_1, record.slots_n = len(arrays.heads_1), len(arrays.heads_n)
            record.checked, record.num_blocks = address_of(blocks.checked), len(blocks.checked)
            record.bases, record.shift = blocks.bases, blocks.shift

    def segment_of(self, serial: int) -> Segment:
        """The segment of this serial number."""
        return next(segment for segment in self.segments if segment.serial == serial)


NOTHING: Final = MemoryView(())


def checked(memory: DraftMemory, namespace: str | None, view: MemoryView, stored: Stored) -> MemoryView:
    """Check the block that a kernel wants to read; return the view to go on with: without the segment, if damaged."""
    try:
        memory.check(view.segment_of(int(stored.fault_serial)), int(stored.fault_block))
    except MemoryFileError as error:  # the memory does not use the file again: say so once
        _log.warning("drafting without a damaged memory file: %s", error)
    return memory.view(namespace)
