"""The block: drafted nodes as the columns of one int32 array, filled by kernels and made into a Draft once.

A block has NUM_ROWS rows. Parents stand before their children. PROB and PRICE hold the bits of a float32.
"""

from __future__ import annotations

from typing import Final

# PRICE: forwards over one position that are saved by having the node's token already, if it is right.
TOKEN, PARENT, PROB, MATCH, ORIGIN, SOURCE, PRICE, NUM_ROWS = range(8)

# Where a drafted token was copied from. The numbers are stored per node (uint8) and in files: append, never renumber.
SOURCE_NAMES: Final = ("context", "prediction", "memory", "phrase", "recycled", "window", "custom")
CONTEXT, PREDICTION, MEMORY, PHRASE, RECYCLED, WINDOW, CUSTOM = range(len(SOURCE_NAMES))
