"""CostCurve: what one forward of the target costs, by the number of positions it computes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zerodraft.lookup.checks import int_in, number_in, shown

_MAX_CONTEXT: Final = 2**31
Point = tuple[int, float]


@dataclass(frozen=True)
class CostCurve:
    """Cost of a forward over n positions, linear between measured points, with the last slope beyond them.

    Only ratios matter: a curve in seconds and the same curve relative to one position draft alike. A measured curve
    may dip: a point that costs more than a later one is read as costing the same, since more positions are never
    cheaper, and what disturbs a measurement only adds time.

    Attributes:
        points: (positions, cost) by rising positions, the first at 1 position.
        long_points: the same at a longer context; () if the cost was measured at one context length only.
        contexts: the two context lengths in tokens that ``points`` and ``long_points`` belong to.
        row_cost: what each row after the first adds to a forward over as many positions, in the unit of ``points``.

    Raises:
        ValueError: points that are not so, named.

    >>> curve = CostCurve([(1, 10.0), (33, 20.0)])
    >>> curve.cost(17), curve.cost(65)
    (1.5, 3.0)
    """

    points: tuple[Point, ...]
    long_points: tuple[Point, ...] = ()
    contexts: tuple[int, int] = (512, 4096)
    row_cost: float = 0.0

    def __init__(
        self,
        points: Sequence[Sequence[float]],
        long_points: Sequence[Sequence[float]] = (),
        contexts: Sequence[int] = (512, 4096),
        row_cost: float = 0.0,
    ) -> None:
        object.__setattr__(self, "points", _checked(points, "points"))
        is_none = isinstance(long_points, (tuple, list)) and not long_points
        object.__setattr__(self, "long_points", () if is_none else _checked(long_points, "long_points"))
        if not isinstance(contexts, (tuple, list)) or len(contexts) != 2:
            raise ValueError(f"contexts must be two rising context lengths, got {shown(contexts)}")
        first = int_in("contexts[0]", contexts[0], 1, _MAX_CONTEXT - 1)
        object.__setattr__(self, "contexts", (first, int_in("contexts[1]", contexts[1], first + 1, _MAX_CONTEXT)))
        object.__setattr__(self, "row_cost", number_in("row_cost", row_cost, 0.0))

    def cost(self, positions: float, context: int | None = None) -> float:
        """Cost of a forward over ``positions`` positions, in forwards over one position at the same context length."""
        values = self.table(math.ceil(number_in("positions", positions, 0.0)), context)
        return float(np.interp(positions, np.arange(len(values)), values))

    def table(self, positions: int, context: int | None = None) -> npt.NDArray[np.float64]:
        """Relative costs of 0 to ``positions`` positions, float64 (positions + 1,); a forward over none costs 0."""
        int_in("positions", positions, 0, None)
        if context is not None:
            number_in("context", context, 0.0)
        at = np.arange(positions + 1)
        costs = _extended(self.points, at)
        if self.long_points and context is not None:
            short, long = self.contexts
            share = min(max((context - short) / (long - short), 0.0), 1.0)
            costs = (1 - share) * costs + share * _extended(self.long_points, at)
        costs[0] = 0.0
        if positions >= 1:
            costs /= costs[1]
        return costs

    def shared_by(self, num_rows: int) -> CostCurve:
        """The curve one of ``num_rows`` rows sees when all draft alike. One row: this curve.

        The cost of n positions is the forward's over rows · n positions, and ``row_cost`` for each further row.
        """
        if int_in("num_rows", num_rows, 1, None) == 1:
            return self

        def spread(points: tuple[Point, ...]) -> list[Point]:
            at = [1, 2, 4, 8, 16, 32, 64, 128, 256]
            costs = _extended(points, np.array(at) * num_rows) + (num_rows - 1) * self.row_cost
            return [(n, float(cost)) for n, cost in zip(at, costs)]

        return CostCurve(spread(self.points), spread(self.long_points) if self.long_points else (), self.contexts)

    @classmethod
    def measure(cls, model: Any, *, refresh: bool = False, max_seconds: float = 8.0) -> CostCurve:
        """``zerodraft.measure_cost`` by its earlier name, on the class as it is taken from ``zerodraft``.

        Raises:
            RuntimeError: on the class as it is taken from this module, which cannot time a model.
        """
        raise RuntimeError("to time a model call zerodraft.measure_cost(model)")

    @classmethod
    def load(cls, file: str | Path, name: str) -> CostCurve:
        """Read the curve called ``name`` from a JSON file of named curves.

        Raises:
            ValueError: a file that is not such JSON, or has no curve of that name; the names it has are listed.
        """
        try:
            curves = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file} is not a readable file of cost curves: {error}") from None
        entries = (
            {key: value for key, value in curves.items() if isinstance(value, dict)} if isinstance(curves, dict) else {}
        )
        if name not in entries:
            raise ValueError(f"{file} must hold a curve called {name!r}, got {sorted(entries)}")
        return cls.from_dict(entries[name])

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> CostCurve:
        """The curve described by ``as_dict``, or by {"points": [[1, 1.0], ...]} alone.

        Raises:
            ValueError: an entry without points, or points that make no curve.
        """
        if not isinstance(entry, dict) or not isinstance(entry.get("points"), list):
            got = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
            raise ValueError(f"a curve must be a dict with a list of points, got {got}")
        return cls(
            entry["points"],
            entry.get("long_points", ()),
            entry.get("contexts", (512, 4096)),
            entry.get("row_cost", 0.0),
        )

    def as_dict(self) -> dict[str, Any]:
        """The curve as plain JSON-ready values."""
        return {
            "points": [list(point) for point in self.points],
            "long_points": [list(point) for point in self.long_points],
            "contexts": list(self.contexts),
            "row_cost": self.row_cost,
        }


def _checked(points: Sequence[Sequence[float]], what: str) -> tuple[Point, ...]:
    try:
        clean = tuple((int_in("positions", n, 1, None), number_in("cost", cost, 0.0)) for n, cost in points)
    except (TypeError, ValueError) as error:
        reason = f" ({error})" if " must be " in str(error) else ""
        raise ValueError(f"{what} must be pairs of positions and cost, got {shown(points)}{reason}") from None
    if len(clean) < 2 or clean[0][0] != 1:
        raise ValueError(f"{what} must be at least two, the first at 1 position, got {list(clean)}")
    if any(b[0] <= a[0] for a, b in itertools.pairwise(clean)):
        raise ValueError(f"{what} must be at rising numbers of positions, got {[n for n, _ in clean]}")
    if not all(0 < cost < math.inf for _, cost in clean):
        raise ValueError(f"{what} must have finite costs above 0, got {[cost for _, cost in clean]}")
    return clean


def _extended(points: tuple[Point, ...], at: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Costs at these numbers of positions: linear between the points, the last slope beyond."""
    n = np.array([point[0] for point in points], np.float64)
    cost = np.minimum.accumulate(np.array([point[1] for point in points[::-1]], np.float64))[::-1]
    slope = (cost[-1] - cost[-2]) / (n[-1] - n[-2])
    return np.asarray(np.interp(at, n, cost) + slope * np.maximum(at - n[-1], 0.0), np.float64)


# Used where nothing was measured: 27 more positions cost as much as a forward. Between an accelerator at batch 1 (about
# 200 more) and a small CPU in fp32 (about 6): drafts stay modest, on text with little to copy about three nodes.
DEFAULT_CURVE = CostCurve([(1, 1.0), (28, 2.0)])
