"""Verification: processed distributions, Algorithm 1, sequential rejection."""

from __future__ import annotations

import math

Distribution = list[float]


def softmax(scores: list[float]) -> Distribution:
    """exp(x) / sum, over finite scores; -inf has probability 0."""
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def processed(
    logits: list[float],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Distribution:
    """The distribution that sampling draws from: temperature, then top-k, then top-p, then min-p."""
    scores = [logit / temperature for logit in logits]

    def only(kept: set[int]) -> list[float]:
        return [score if i in kept else float("-inf") for i, score in enumerate(scores)]

    if top_k is not None:
        floor = sorted(scores, reverse=True)[min(top_k, len(scores)) - 1]
        scores = only({i for i, score in enumerate(scores) if score >= floor})
    if top_p is not None:
        probs = softmax(scores)
        kept, mass = set(), 0.0
        for i in sorted(range(len(probs)), key=lambda i: -probs[i]):
            if mass >= top_p:
                break
            kept.add(i)
            mass += probs[i]
        scores = only(kept)
    if min_p is not None:
        probs = softmax(scores)
        scores = only({i for i, p in enumerate(probs) if p >= min_p * max(probs)})
    return softmax(scores)


def autoregressive_joint(model, context: tuple[int, ...], length: int) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of ``length`` tokens; ``model(context)`` is the next token's distribution."""
    joint = {(): 1.0}
    for _ in range(length):
        joint = {
            (*tokens, token): weight * p
            for tokens, weight in joint.items()
            for token, p in enumerate(model((*context, *tokens)))
            if p > 0
        }
    return joint


def acceptance(p: float, q: float) -> float:
    """Chance to keep a token that was drawn with probability q and that the target gives p; 1 where q is 0."""
    return 1.0 if q == 0 else min(1.0, p / q)


def residual(p: Distribution, q: Distribution) -> Distribution:
    """What is left of p when q was offered and refused; p itself where nothing is left."""
    rest = [max(0.0, a - b) for a, b in zip(p, q)]
    total = sum(rest)
    return [r / total for r in rest] if total > 0 else list(p)


def algorithm_one(ps: list[Distribution], q: list[Distribution], draft: list[int]) -> dict[tuple[int, int], float]:
    """Probability of every (number accepted, next token), given what was drafted.

    ``ps[i]`` is the target's distribution after the first i drafted tokens, so there is one more of them than of q.
    """
    result: dict[tuple[int, int], float] = {}
    weight = 1.0
    for i, token in enumerate(draft):
        keep = acceptance(ps[i][token], q[i][token])
        for after, p in enumerate(residual(ps[i], q[i])):
            if weight * (1 - keep) * p > 0:
                result[i, after] = weight * (1 - keep) * p
        weight *= keep
    for after, p in enumerate(ps[-1]):
        if weight * p > 0:
            result[len(draft), after] = weight * p
    return result


def sequential_rejection(
    model, context: tuple[int, ...], token_ids: list[int], parents: list[int], verify: list[bool]
) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
    """Probability of every (accepted path, emitted tokens) of a tree of one-hot drafts.

    At each node the children are offered one after another; a child is kept with the probability that the current
    distribution gives its token, and a refusal goes on with the residual of that distribution.
    """
    result: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def below(node: int, path: tuple[int, ...], weight: float) -> None:
        emitted = tuple(token_ids[i] for i in path)
        p = model((*context, *emitted))
        for child, parent in enumerate(parents):
            if parent != node or not verify[child]:
                continue
            one_hot = [float(token == token_ids[child]) for token in range(len(p))]
            keep = acceptance(p[token_ids[child]], 1.0)
            if weight * keep > 0:
                below(child, (*path, child), weight * keep)
            if keep >= 1.0:
                return
            weight *= 1 - keep
            p = residual(p, one_hot)
        for token, chance in enumerate(p):
            if weight * chance > 0:
                key = (path, (*emitted, token))
                result[key] = result.get(key, 0.0) + weight * chance

    below(-1, (), 1.0)
    return result
