"""DraftPolicy: which of the earlier occurrences to copy, how much, and when not to draft at all."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import int_in, shown
from zerodraft.lookup.cost import DEFAULT_CURVE, CostCurve

if TYPE_CHECKING:
    from zerodraft.lookup._prices import Tables

MAX_DRAFT_TOKENS: Final = 4096
MAX_LOOKUP: Final = 4096
MAX_BRANCHES: Final = 16
MAX_ROWS: Final = 1 << 16
NUM_STATES: Final = 513  # match lengths told apart: 1 to 512
# Read on import, before any kernel compiles; also out of a zip file.
_PRIORS: Final[dict[str, Any]] = json.loads(files(__package__).joinpath("priors.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class DraftPolicy:
    """Settings of a Drafter.

    The copy position is the one with the highest ``min(match_len, 32) - 0.2 · log2(1 + |position - pointer|)``, among
    equals the latest; the copy pointer is where the last accepted copy ended. The best few of them that go on
    differently are the branches of the draft. A node is worth the probability that it is right times what its token
    would cost in a later forward; nodes are taken by worth as long as their sum pays for the wider forward (see
    docs/policy.md). Probabilities start from shipped priors and follow the text, within one session.

    Attributes:
        cost: the target's CostCurve; "auto" stands for one measured by whoever runs the target, and where nobody does
            for ``DEFAULT_CURVE``.
        max_draft_tokens: upper bound on the nodes of one draft, 1 to 4096.
        max_batch_tokens: upper bound on the nodes of all rows of one batch together, given to the likeliest; it binds
            a single row, too (0: nothing is drafted). None: no bound but what the cost curve says.
        max_branches: upper bound on the copies drafted side by side, 1 (chains only) to 16.
        prompt_lookup_min: shortest match that is drafted from, at least 1 (vLLM's name); of memory and phrases, too.
        prompt_lookup_max: matches are measured up to this many tokens, at most 4096 (vLLM's name).

    Raises:
        ValueError: an option outside its range, named with the value given.
    """

    cost: CostCurve | str = "auto"
    max_draft_tokens: int = 255
    max_batch_tokens: int | None = None
    max_branches: int = 8
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.cost, CostCurve) and not (isinstance(self.cost, str) and self.cost == "auto"):
            raise ValueError(f'cost must be a CostCurve or "auto", got {shown(self.cost)}')
        for name, low, high in (
            ("max_draft_tokens", 1, MAX_DRAFT_TOKENS),
            ("max_batch_tokens", 0, MAX_ROWS * MAX_DRAFT_TOKENS),
            ("max_branches", 1, MAX_BRANCHES),
            ("prompt_lookup_min", 1, MAX_LOOKUP),
            ("prompt_lookup_max", 1, MAX_LOOKUP),
        ):
            value = getattr(self, name)
            if value is not None or name != "max_batch_tokens":
                object.__setattr__(self, name, int_in(name, value, low, high))
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                "prompt_lookup_min must not exceed prompt_lookup_max, "
                f"got {self.prompt_lookup_min} and {self.prompt_lookup_max}"
            )

    @property
    def curve(self) -> CostCurve:
        """The cost curve in force."""
        return DEFAULT_CURVE if isinstance(self.cost, str) else self.cost

    @property
    def max_row_tokens(self) -> int:
        """Upper bound on the nodes of a row: its own, and what the batch may have together."""
        batch = self.max_batch_tokens
        return self.max_draft_tokens if batch is None else min(self.max_draft_tokens, batch)

    def tables(self, num_rows: int = 1, context: int = 0) -> Tables:
        """What the adaptive rule looks up; solved once per process for each curve, cap, power of two of rows and of
        context (milliseconds), then found in a nanosecond-cheap cache."""
        int_in("num_rows", num_rows, 1, MAX_ROWS)
        int_in("context", context, 0, None)
        curve = self.curve
        rounded = 1 << max(context - 1, 1).bit_length() if curve.long_points else 0
        return _tables(curve, self.max_draft_tokens, 1 << (num_rows - 1).bit_length(), rounded)


@functools.lru_cache(maxsize=1)
def priors() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return (breaks (kinds, NUM_STATES), log weights (kinds,)) as shipped in priors.json."""
    kinds = _PRIORS["kinds"]
    at, knots = np.log(np.arange(1, NUM_STATES)), np.log(_PRIORS["match_lens"])
    breaks = np.ones((len(kinds), NUM_STATES))
    for row, kind in zip(breaks, kinds):
        row[1:] = np.exp(np.interp(at, knots, np.log(kind["breaks"])))
    weights = np.log([kind["weight"] for kind in kinds])
    return _frozen(breaks), _frozen(weights)


@functools.lru_cache(maxsize=256)
def _tables(curve: CostCurve, max_nodes: int, num_rows: int, context: int) -> Tables:
    from zerodraft.lookup import _prices as core  # compiles on import: only sessions need it

    breaks, _ = priors()
    costs = curve.shared_by(num_rows).table(max_nodes + 1, context or None)
    slopes = np.empty_like(costs)
    core.find_slopes(costs, slopes)
    prices = np.zeros_like(breaks)
    core.solve_prices(breaks, costs, max_nodes, prices)
    return core.Tables(breaks, _frozen(prices), _frozen(costs), _frozen(slopes))


def _frozen(array: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    array.flags.writeable = False
    return array
