"""The published formulas, by the sum over what can happen."""

from __future__ import annotations


def expected_tokens_by_cases(alpha, gamma):
    """Sum over the number of accepted tokens k: k are accepted and the next one is not, or all of them are."""
    total = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma))
    return total + (gamma + 1) * alpha**gamma


def speedups_by_trial(alpha, cost, most):
    """The speed-up of every gamma from 0 to ``most``; exact where alpha and cost are fractions."""
    return [sum(alpha**k for k in range(gamma + 1)) / (gamma * cost + 1) for gamma in range(most + 1)]
