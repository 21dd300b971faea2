"""The published formulas of speculative decoding: what a drafter of a given quality and cost can bring at best.

``alpha`` is the acceptance rate of a drafted token: the overlap sum(min(p, q)) of the target's and the drafter's
distributions, averaged over contexts. It is *not* how often the drafter's likeliest token is the target's likeliest;
only for a greedy target (p one-hot) and a deterministic drafter (q one-hot) do the two agree. ``gamma`` is the number
of tokens drafted per forward of the target, ``cost`` the price of drafting one of them in forwards of the target (the
paper's c). Acceptance is taken as independent from token to token; real text comes in runs, so a measured tokens per
forward lies above or below E[N] at the same alpha.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192.
"""

from __future__ import annotations

import math
from typing import Final

from zerodraft.lookup.checks import int_in, number_in

MAX_GAMMA: Final = 256


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[N]: tokens per forward of the target, (1 − α^(γ+1)) / (1 − α). At γ = 1, an MTP head's case, it is 1 + α.

    Raises:
        ValueError: alpha outside [0, 1], or gamma below 0; so in all functions here.

    Source: Equation 1.

    >>> round(expected_tokens(0.8, 4), 2), round(expected_tokens(0.7, 1), 2)
    (3.36, 1.7)
    """
    _check(alpha, gamma)
    if alpha == 1.0:
        return gamma + 1.0
    # Through expm1 and log: near α = 1 the quotient of two small differences would lose its digits.
    return math.expm1((gamma + 1) * math.log(alpha)) / (alpha - 1.0) if alpha > 0.5 else _direct(alpha, gamma)


def speedup(alpha: float, gamma: int, cost: float = 0.0) -> float:
    """Plain decoding's time over speculative decoding's: E[N] / (γc + 1), forwards of γ + 1 positions costing one.

    Source: Theorem 3.8.

    >>> round(speedup(0.8, 4, 0.05), 2), round(speedup(0.8, 4, 0.2), 2)
    (2.8, 1.87)
    """
    _check(alpha, gamma, cost)
    return expected_tokens(alpha, gamma) / (gamma * cost + 1.0)


def can_gain(alpha: float, cost: float) -> bool:
    """True if some gamma brings a speed-up above 1, which is so exactly if α > c.

    Source: Corollary 3.9.
    """
    _check(alpha, 0, cost)
    return alpha > cost


def least_gain(alpha: float, cost: float) -> float:
    """The speed-up that is within reach for sure: (1 + α) / (1 + c), that of γ = 1, where α > c; else 1 (γ = 0).

    Source: Corollary 3.9.
    """
    return (1.0 + alpha) / (1.0 + cost) if can_gain(alpha, cost) else 1.0


def best_gamma(alpha: float, cost: float = 0.0, max_gamma: int = MAX_GAMMA) -> int:
    """The gamma of the largest speed-up, the smallest among equals; 0 (do not draft) where α ≤ c.

    Without a cost the speed-up only rises with gamma: ``max_gamma`` is then the answer, or the gamma beyond which
    nothing is gained in float64.

    >>> [best_gamma(alpha, 0.05) for alpha in (0.5, 0.6, 0.7, 0.8, 0.9)]
    [3, 4, 6, 8, 13]
    """
    _check(alpha, max_gamma, cost)
    if not can_gain(alpha, cost):
        return 0
    # One more token pays while its gain α^(γ+1) in E[N] is above S·c, so the speed-up rises and then falls.
    gamma = 0
    while gamma < max_gamma and speedup(alpha, gamma + 1, cost) > speedup(alpha, gamma, cost):
        gamma += 1
    return gamma


def operations_increase(alpha: float, gamma: int, operations_ratio: float = 0.0) -> float:
    """Arithmetic operations per token over plain decoding's: (1 − α)(γĉ + γ + 1) / (1 − α^(γ+1)).

    ``operations_ratio`` is the paper's ĉ: the drafter's operations per token over the target's; 0 for a lookup.

    Source: Theorem 3.11.

    >>> round(operations_increase(0.8, 4), 3)
    1.487
    """
    _check(alpha, gamma, operations_ratio)
    return (gamma * operations_ratio + gamma + 1.0) / expected_tokens(alpha, gamma)


def free_positions(seconds_per_forward: float, flops_per_second: float, flops_per_position: float) -> float:
    """Positions B(γ+1) up to which a forward is limited by reading the weights, so that drafted ones are nearly free.

    Args:
        seconds_per_forward: time to read the weights once: bytes of the weights / memory bandwidth in bytes per second.
        flops_per_second: arithmetic the device really reaches in matrix products.
        flops_per_position: about two per parameter that takes part in the product.

    >>> round(free_positions(4.79e-3, 990e12, 1.50e10))
    316
    """
    for name, value in (
        ("seconds_per_forward", seconds_per_forward),
        ("flops_per_second", flops_per_second),
        ("flops_per_position", flops_per_position),
    ):
        number_in(name, value, 0.0, above=True)
    return seconds_per_forward * flops_per_second / flops_per_position


def free_gamma(positions: float, batch_size: int) -> int:
    """Tokens each of ``batch_size`` rows may draft within so many positions, one position per row being its own token.

    >>> free_gamma(316, 64), free_gamma(316, 63)
    (3, 4)
    """
    int_in("batch_size", batch_size, 1, None)
    number_in("positions", positions, 0.0)
    return max(0, math.floor(positions / batch_size) - 1)


def lookahead_expected_tokens(alpha: float, gamma: int, num_guesses: int) -> float:
    """E of Lookahead: tokens of a forward that checks b guesses of γ tokens, (γ + 1) − Σ (1 − α^i)^b for i = 1 ... γ.

    With one guess this is ``expected_tokens``.

    Raises:
        ValueError: alpha outside [0, 1], gamma below 0 or num_guesses below 1.

    Source: Lookahead decoding (arXiv:2402.02057), the analysis of its scaling.

    >>> round(lookahead_expected_tokens(0.5, 4, 1), 4), round(lookahead_expected_tokens(0.5, 4, 15), 2)
    (1.9375, 4.47)
    """
    _check(alpha, gamma)
    int_in("num_guesses", num_guesses, 1, None)
    return gamma + 1.0 - math.fsum(math.pow(1.0 - math.pow(alpha, i), num_guesses) for i in range(1, gamma + 1))


def lookahead_speedup(expected: float, steps_per_guess: float) -> float:
    """S of Lookahead: (f − 1 + E) / f, where one forward in f has guesses that bring E tokens and the others one each.

    Source: Lookahead decoding (arXiv:2402.02057), the analysis of its scaling.

    >>> lookahead_speedup(4.0, 3.0)
    2.0
    """
    number_in("expected", expected, 1.0)
    number_in("steps_per_guess", steps_per_guess, 1.0)
    return (steps_per_guess - 1.0 + expected) / steps_per_guess


def lookahead_positions(window_size: int, ngram_size: int, guess_set_size: int) -> int:
    """Positions of one forward of Lookahead, at most: (W + G)(N − 1).

    >>> lookahead_positions(15, 5, 15)
    120
    """
    int_in("window_size", window_size, 1, None)
    int_in("ngram_size", ngram_size, 2, None)
    int_in("guess_set_size", guess_set_size, 0, None)
    return (window_size + guess_set_size) * (ngram_size - 1)


def _direct(alpha: float, gamma: int) -> float:
    return (1.0 - math.pow(alpha, gamma + 1)) / (1.0 - alpha)


def _check(alpha: float, gamma: int, cost: float = 0.0) -> None:
    number_in("alpha", alpha, 0.0, 1.0)
    int_in("gamma", gamma, 0, None)
    number_in("cost", cost, 0.0)
