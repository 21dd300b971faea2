"""Lookahead: the n-grams of one step."""

from __future__ import annotations


def lookahead_step(target, context: list[int], levels: list[list[int]]) -> list[tuple[int, ...]]:
    """The n-grams that a full window yields: per column its tokens and the target's choice after them.

    ``levels[0][0]`` is the current token, the last of ``context``; column k of level l sees the context, columns 1 to k
    of level 0 and its own column in the levels below.
    """
    grams = []
    for column in range(len(levels[1]) if len(levels) > 1 else len(levels[0])):
        tower = [level[column] for level in levels[1:]]
        seen = context + levels[0][1 : column + 1] + tower
        grams.append((levels[0][column], *tower, target(seen)))
    return grams
