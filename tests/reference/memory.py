"""The memory of earlier texts."""

from __future__ import annotations

from fractions import Fraction

from reference.text import BARRIER, LONG_GRAM, match_length


class Memory:
    """Texts in the order they came; the oldest leave first."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.texts: list[tuple[object, str | None, list[int]]] = []  # (identity, namespace, tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return sum(len(tokens) for _, _, tokens in self.texts)

    def add(self, tokens: list[int], namespace: str | None) -> None:
        """Keep one text, of a long one the end."""
        tokens = tokens[-self.max_tokens :]
        self.evict_to(self.max_tokens - len(tokens))
        self.texts += [(object(), namespace, tokens)] if tokens else []

    def evict_to(self, num_tokens: int) -> None:
        """Drop oldest texts until at most so many tokens are left."""
        while self.num_tokens > num_tokens:
            del self.texts[0]

    def of(self, namespace: str | None) -> list[list[int]]:
        """The texts of one namespace."""
        return [tokens for _, owner, tokens in self.texts if owner == namespace]


Arena = tuple[list[int], int]  # texts, each followed by a barrier, and where the first begins that is still alive


def live_texts(arenas: list[Arena]) -> list[list[int]]:
    """The texts that are alive, oldest first."""
    texts: list[list[int]] = []
    for tokens, floor in arenas:
        text: list[int] = []
        for token in tokens[floor:]:
            if token == BARRIER:
                texts.append(text)
                text = []
            else:
                text.append(token)
    return texts


def propose_stored(
    arenas: list[Arena], context: list[int], max_tokens: int, limit: int, min_len: int, min_prob: float
) -> list[int]:
    """What followed the longest match of the end of the context: of all that are 32 and more, and among equals, the
    newest; at most ``limit`` places are looked at for each of the last four tokens and the last one of an arena."""
    best: tuple[int, list[int]] = (0, [])
    for tokens, floor in arenas:
        place, n, _ = find_stored(tokens, context, floor, -1, 0, limit, min_len, 4096)
        if place >= 0 and min(n, 32) >= min(best[0], 32):
            best = n, tokens[place:]
    n, rest = best
    rest = rest[:max_tokens]
    rest = rest[: rest.index(BARRIER)] if BARRIER in rest else rest
    return [token for i, token in enumerate(rest) if n / (n + i + 1.0) >= min_prob]


def find_stored(
    arena: list[int], context: list[int], floor: int, pointer: int, window: int, limit: int, min_len: int, max_len: int
) -> tuple[int, int, int]:
    """The position to copy from, its match length and its distance from the pointer; (-1, 0, 0) if there is none."""
    places: dict[int, int] = {}
    for p in range(floor + 1, len(arena)):
        n = 0
        while n < min(p, len(context), max_len) and arena[p - 1 - n] == context[-1 - n]:
            n += 1
        if n:
            places[p] = n
    whole = {p: match_length([*arena, BARRIER, *context], p, LONG_GRAM) for p in places}
    near = [p for p in places if pointer >= 0 and abs(p - pointer) <= window]
    newest = [] if min_len >= LONG_GRAM else list(places)[-limit:]
    long = [p for p in places if whole[p] == LONG_GRAM][-limit:]
    allowed = [p for p in {*near, *newest, *long} if places[p] >= min_len and arena[p] != BARRIER]
    if not allowed:
        return -1, 0, 0

    def distance(p: int) -> int:
        return abs(p - pointer) if pointer >= 0 else 1 << 20

    best = max(allowed, key=lambda p: (Fraction(32 ** min(places[p], 32), 1 + distance(p)), p))
    return best, places[best], distance(best)
