"""CostCurve: interpolation, contexts, rows, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.lookup.cost import DEFAULT_CURVE, CostCurve

CURVES = Path(__file__).resolve().parents[2] / "bench" / "curves.json"

points = st.lists(
    st.tuples(st.integers(1, 40), st.floats(0.01, 5.0)), min_size=2, max_size=8, unique_by=lambda point: point[0]
).map(lambda given: [(1, 0.5), *sorted(p for p in given if p[0] > 1)])


@given(points.filter(lambda p: len(p) > 1), st.integers(0, 100))
def test_a_table_is_relative_to_one_position_and_never_falls(given_points, positions):
    table = CostCurve(given_points).table(positions)
    assert table.shape == (positions + 1,)
    assert table[0] == 0.0
    if positions:
        assert table[1] == 1.0
    assert (np.diff(table) >= -1e-12).all()


def test_linear_between_the_points_and_on_beyond_them():
    curve = CostCurve([(1, 2.0), (3, 4.0), (5, 8.0)])
    assert [curve.cost(n) for n in (1, 2, 3, 4, 5, 7)] == [1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert curve.table(3).tolist() == [0.0, 1.0, 1.5, 2.0]


def test_a_disturbed_point_costs_no_more_than_a_later_one():
    assert CostCurve([(1, 1.0), (2, 5.0), (4, 1.5)]).table(4).tolist() == [0.0, 1.0, 1.5, 1.5, 1.5]


def test_scale_does_not_matter():
    in_seconds = CostCurve([(1, 0.02), (9, 0.06)]).table(20).tolist()
    assert CostCurve([(1, 1.0), (9, 3.0)]).table(20).tolist() == pytest.approx(in_seconds)


def test_between_two_contexts_costs_are_mixed_and_outside_them_kept():
    curve = CostCurve([(1, 1.0), (3, 1.0)], [(1, 2.0), (3, 6.0)], (100, 300))
    assert [curve.cost(3, context) for context in (None, 0, 100, 200, 300, 9000)] == pytest.approx(
        [1.0, 1.0, 1.0, 3.5 / 1.5, 3.0, 3.0]
    )


def test_rows_share_a_forward():
    curve = CostCurve([(1, 1.0), (4, 1.0), (8, 2.0), (16, 4.0)])
    assert curve.shared_by(1) is curve
    assert [curve.shared_by(4).cost(n) for n in (1, 2, 4)] == [1.0, 2.0, 4.0]
    slopes = [curve.shared_by(rows).cost(8) for rows in (1, 2, 4, 64)]
    assert slopes == sorted(slopes)


def test_a_row_has_a_cost_of_its_own():
    curve = CostCurve([(1, 1.0), (17, 2.0)], row_cost=0.5)
    four = curve.shared_by(4)
    assert four.cost(4) == pytest.approx((1 + 15 / 16 + 1.5) / (1 + 3 / 16 + 1.5))
    assert curve.shared_by(1) is curve
    assert CostCurve.from_dict(curve.as_dict()) == curve
    for wrong in (-0.1, float("inf"), float("nan"), "1", None):
        with pytest.raises(ValueError, match="row_cost must be a"):
            CostCurve([(1, 1.0), (17, 2.0)], row_cost=wrong)


def test_files_round_trip_and_name_what_they_have(tmp_path):
    curve = CostCurve([(1, 1.0), (16, 2.5)], [(1, 1.5), (16, 4.0)], (256, 2048))
    file = tmp_path / "curves.json"
    file.write_text(json.dumps({"about": "test", "mine": curve.as_dict()}), encoding="utf-8")
    assert CostCurve.load(file, "mine") == curve
    assert hash(CostCurve.load(file, "mine")) == hash(curve)
    with pytest.raises(ValueError, match=r"'yours', got \['mine'\]"):
        CostCurve.load(file, "yours")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"a": 1}', '{"a": {"points": 3}}', "\x00"])
def test_other_files_are_refused_in_one_way(tmp_path, content):
    file = tmp_path / "curves.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"curve|points"):
        CostCurve.load(file, "a")
    with pytest.raises(ValueError, match="readable"):
        CostCurve.load(tmp_path / "absent.json", "a")


@pytest.mark.parametrize("name", ["gpu-like", "cpu-bf16", "cpu-fp32"])
def test_the_shipped_curves_can_be_read(name):
    assert CostCurve.load(CURVES, name).cost(1) == 1.0


@pytest.mark.parametrize(
    "bad",
    [[], [(1, 1.0)], [(2, 1.0), (3, 1.0)], [(1, 1.0), (1, 2.0)], [(1, 0.0), (2, 1.0)], [(1, 1.0), (2, float("inf"))]],
)
def test_points_that_make_no_curve_are_refused(bad):
    with pytest.raises(ValueError, match="points must"):
        CostCurve(bad)


@pytest.mark.parametrize("bad", [[1, 2], ["ab"], [(1, "x"), (2, 3)]])
def test_things_that_are_no_points_are_refused(bad):
    with pytest.raises(ValueError, match="points must"):
        CostCurve(bad)


@pytest.mark.parametrize("contexts", [(5, 5), (0, 9), (9, 3), (1, 2, 3)])
def test_contexts_must_rise(contexts):
    with pytest.raises(ValueError, match="contexts"):
        CostCurve([(1, 1.0), (2, 2.0)], [(1, 1.0), (2, 2.0)], contexts)


def test_the_default_is_between_an_accelerator_and_a_small_cpu():
    costs = [CostCurve.load(CURVES, name).cost(16) for name in ("gpu-like", "cpu-fp32")]
    assert costs[0] < DEFAULT_CURVE.cost(16) < costs[1]
