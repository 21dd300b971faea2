"""The formulas against sums over what can happen, and against the figures that were published with them."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import reference.theory
from hypothesis import given
from hypothesis import strategies as st

from zerodraft.lookup.measure import theory

ALPHAS = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("alpha", "gamma", "cost", "tokens", "speed"),
    [
        (0.8, 4, 0.05, 3.36, 2.80),
        (0.8, 8, 0.05, 4.33, 3.09),
        (0.6, 4, 0.05, 2.31, 1.92),
        (0.9, 4, 0.05, 4.10, 3.41),
        (0.8, 4, 0.2, 3.36, 1.87),
        (0.2, 3, 0.0, 1.25, 1.25),
    ],
)
def test_published_figures(alpha: float, gamma: int, cost: float, tokens: float, speed: float) -> None:
    assert round(theory.expected_tokens(alpha, gamma), 2) == tokens
    assert round(theory.speedup(alpha, gamma, cost), 2) == speed


@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 3), (0.6, 4), (0.7, 6), (0.8, 8), (0.9, 13)])
def test_published_best_gammas(alpha: float, gamma: int) -> None:
    assert theory.best_gamma(alpha, 0.05) == gamma


@given(ALPHAS, st.integers(0, 60))
def test_expected_tokens_is_the_sum_over_cases(alpha: float, gamma: int) -> None:
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(
        reference.theory.expected_tokens_by_cases(alpha, gamma), rel=1e-12, abs=0
    )


def test_digits_survive_close_to_one() -> None:
    alpha = 1 - 1e-13
    assert theory.expected_tokens(alpha, 4) == pytest.approx(math.fsum(alpha**k for k in range(5)), rel=1e-13)
    assert theory.expected_tokens(1.0, 4) == 5.0
    assert theory.expected_tokens(0.0, 4) == 1.0


@given(st.integers(0, 100), st.integers(1, 40))
def test_best_gamma_is_the_best_of_all(alpha: int, cost: int) -> None:
    """In exact arithmetic; where two values of gamma tie, rounding may take either, but never one where α ≤ c."""
    speeds = reference.theory.speedups_by_trial(Fraction(alpha, 100), Fraction(cost, 40), 40)
    best = theory.best_gamma(alpha / 100, cost / 40, 40)
    assert speeds[best] >= max(speeds) - Fraction(1, 10**12)
    if 40 * alpha <= 100 * cost:
        assert best == 0


def test_nothing_is_drafted_where_it_cannot_pay() -> None:
    assert theory.best_gamma(0.05, 0.05) == theory.best_gamma(0.1, 0.2) == theory.best_gamma(0.0) == 0
    assert not theory.can_gain(0.05, 0.05)
    assert theory.can_gain(0.06, 0.05)
    assert theory.least_gain(0.05, 0.05) == 1.0
    assert theory.best_gamma(1.0, 0.0, 7) == 7
    assert theory.best_gamma(0.9, 0.05, 5) == 5


@given(ALPHAS, st.floats(0.0, 2.0))
def test_corollary_3_9(alpha: float, cost: float) -> None:
    best = theory.speedup(alpha, theory.best_gamma(alpha, cost), cost)
    assert best >= theory.least_gain(alpha, cost) * (1 - 1e-12)
    if theory.can_gain(alpha, cost):
        assert theory.speedup(alpha, 1, cost) == pytest.approx(theory.least_gain(alpha, cost), rel=1e-12)
    else:
        assert all(theory.speedup(alpha, gamma, cost) <= 1 + 1e-12 for gamma in range(9))


@given(ALPHAS, st.integers(0, 30), st.floats(0.0, 1.0))
def test_operations(alpha: float, gamma: int, ratio: float) -> None:
    plain = reference.theory.expected_tokens_by_cases(alpha, gamma)
    assert theory.operations_increase(alpha, gamma, ratio) == pytest.approx((gamma * ratio + gamma + 1) / plain)


@given(ALPHAS)
def test_one_extra_head_brings_its_hit_rate(alpha: float) -> None:
    assert theory.expected_tokens(alpha, 1) == pytest.approx(1 + alpha, rel=1e-12)


def test_positions_that_are_nearly_free() -> None:
    positions = theory.free_positions(4.79e-3, 990e12, 1.50e10)
    assert round(positions) == 316
    assert 64 * (4 + 1) == 320 > positions
    assert theory.free_gamma(positions, 64) == 3
    assert theory.free_gamma(positions, 63) == 4
    assert theory.free_gamma(positions, 400) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.expected_tokens(1.1, 4), r"alpha must be in \[0, 1\], got 1.1"),
        (lambda: theory.expected_tokens(math.nan, 4), "alpha"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma must be at least 0, got -1"),
        (lambda: theory.expected_tokens(0.5, 1.5), "gamma"),  # type: ignore[arg-type]
        (lambda: theory.speedup(0.5, 1, -0.1), "cost must be a finite number at least 0, got -0.1"),
        (lambda: theory.free_positions(0.0, 1.0, 1.0), "seconds_per_forward"),
        (lambda: theory.free_gamma(10, 0), "batch_size"),
    ],
)
def test_values_outside_their_range(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
