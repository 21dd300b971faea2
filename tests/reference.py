"""The oracle: every rule of zerodraft once more, in plain Python, importing nothing of the code under test.

Slow and obvious on purpose. Tests compare the fast code with this file, never this file with itself.
"""

from __future__ import annotations

from typing import NamedTuple

# ---- lookup: n-gram index, copy choice, session ----------------------------------------------------------------------

BARRIER = -1
LONG_GRAM = 4


def match_length(tokens: list[int], position: int, max_len: int) -> int:
    """How many tokens before ``position`` equal the end of the text, at most ``max_len``; a barrier equals nothing."""
    n = 0
    while n < min(position, max_len) and tokens[-1 - n] == tokens[position - 1 - n] and tokens[-1 - n] != BARRIER:
        n += 1
    return n


def matches(tokens: list[int], limit: int, max_len: int) -> list[tuple[int, int]]:
    """(position, match length) of the newest occurrences of the end of the text, long matches first."""
    places = [(p, match_length(tokens, p, 10**9)) for p in range(len(tokens) - 1, 0, -1)]
    places = [(p, n) for p, n in places if n >= 1]
    long = [(p, n) for p, n in places if n >= LONG_GRAM and tokens[p] != BARRIER]
    short = [(p, n) for p, n in places[:limit] if n < LONG_GRAM and tokens[p] != BARRIER]
    return [(p, min(n, max_len)) for p, n in (long + short)[:limit]]


def find_copy(
    tokens: list[int], pointer: int, window: int, limit: int, min_len: int, max_len: int, score_cap: int = 32
) -> tuple[int, int]:
    """The position to copy from and its match length; (-1, 0) if there is none."""
    from fractions import Fraction

    places = [(p, match_length(tokens, p, max_len)) for p in range(1, len(tokens))]
    places = [(p, n) for p, n in places if n >= 1]
    near = [p for p, _ in places if abs(p - pointer) <= window]
    newest = [p for p, _ in places][-limit:]
    long = [p for p in range(1, len(tokens)) if match_length(tokens, p, LONG_GRAM) == LONG_GRAM][-limit:]
    length_at = {p: match_length(tokens, p, max_len) for p in {*near, *newest, *long}}
    allowed = [p for p, n in length_at.items() if n >= min_len and tokens[p] != BARRIER]
    if not allowed:
        return -1, 0

    def score(p: int) -> tuple[Fraction, int]:
        return Fraction(32 ** min(length_at[p], score_cap), 1 + abs(p - pointer)), p

    best = max(allowed, key=score)
    return best, length_at[best]


def copy_on(tokens: list[int], position: int, length: int) -> list[int]:
    """``length`` tokens from ``position`` on, going on into the copy itself, ended by a barrier."""
    text = list(tokens)
    copied: list[int] = []
    while len(copied) < length and text[position + len(copied)] != BARRIER:
        copied.append(text[position + len(copied)])
        text.append(copied[-1])
    return copied


class Session:
    """The session's rules: one arena, one pointer."""

    def __init__(self, prompt: list[int], prediction: list[int], window: int, limit: int) -> None:
        self.tokens = [*prediction, BARRIER, *prompt] if prediction else list(prompt)
        self.num_predicted = len(prediction)
        self.pointer = 0
        self.window, self.limit = window, limit

    def propose(self, room: int, max_draft: int, factor: float, min_len: int, max_len: int) -> dict[str, list[int]]:
        """Token ids, origins, match lengths and whether they come from the prediction."""
        position, n = find_copy(self.tokens, self.pointer, self.window, self.limit, min_len, max_len)
        if position < 0:
            return {"token_ids": [], "origin": [], "match_len": [], "predicted": []}
        copied = copy_on(self.tokens, position, min(room, max_draft, max(1, int(factor * n))))
        return {
            "token_ids": copied,
            "origin": [position + i for i in range(len(copied))],
            "match_len": [n] * len(copied),
            "predicted": [int(position < self.num_predicted)] * len(copied),
        }

    def commit(self, origin: list[int], path: list[int], new_ids: list[int]) -> None:
        """Append what was emitted; the pointer follows the accepted copy."""
        self.tokens += new_ids
        if path and origin[path[-1]] >= 0:
            self.pointer = origin[path[-1]] + 1


# ---- verification: processed distributions, Algorithm 1, sequential rejection, masks, ragged cache -------------------

Distribution = list[float]


def softmax(scores: list[float]) -> Distribution:
    """exp(x) / sum, over finite scores; -inf has probability 0."""
    import math

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


def path_to(node: int, parents: list[int]) -> list[int]:
    """Nodes from the root's child down to ``node``, itself included; empty for the root."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def greedy_walk(
    picks: list[int], token_ids: list[int], parents: list[int], verify: list[bool]
) -> tuple[list[int], int]:
    """(accepted nodes, next token); ``picks[0]`` is the target's token after the root, ``picks[i + 1]`` after i."""
    node, path = -1, []
    while True:
        token = picks[node + 1]
        children = [i for i, up in enumerate(parents) if up == node and verify[i] and token_ids[i] == token]
        if not children:
            return path, token
        node = children[-1]
        path.append(node)


def tree_rules(
    lengths: list[int], parents: list[list[int]], window: int | None
) -> tuple[list[list[int]], list[list[list[bool]]]]:
    """Per row: the position of each place of one forward, and for each place which columns of the cache it sees.

    Columns are the cached tokens, then the forward's own places. Places beyond a row's draft stand where the root
    stands and see what it sees. A window of w sees w positions, its own included.
    """
    width = 1 + max(len(up) for up in parents)
    need = max(lengths) + width
    all_positions, all_seen = [], []
    for length, up in zip(lengths, parents):
        place = {t: t if t <= len(up) else 0 for t in range(width)}  # whose eyes a place looks through
        position = [length + len(path_to(place[t] - 1, up)) for t in range(width)]
        seen = []
        for t in range(width):
            family = {0, *(node + 1 for node in path_to(place[t] - 1, up))}
            row = []
            for column in range(need):
                if column < length:
                    visible, at = True, column
                else:
                    other = column - length
                    visible = other in family
                    at = position[other] if other <= len(up) else -1
                if window is not None:
                    visible = visible and position[t] - at < window
                row.append(visible)
            seen.append(row)
        all_positions.append(position)
        all_seen.append(seen)
    return all_positions, all_seen


class RaggedLists:
    """The ragged cache as lists of entries: per row what is committed, and the last forward's entries."""

    def __init__(self, num_rows: int) -> None:
        self.committed: list[list[object]] = [[] for _ in range(num_rows)]
        self.fresh: list[list[object]] = [[] for _ in range(num_rows)]

    def update(self, entries: list[list[object]]) -> None:
        self.fresh = [list(row) for row in entries]

    def keep(self, row: int, places: list[int]) -> None:
        self.committed[row] += [self.fresh[row][place] for place in places]
        self.fresh[row] = []

    def select_rows(self, rows: list[int]) -> None:
        self.committed = [list(self.committed[row]) for row in rows]
        self.fresh = [[] for _ in rows]


# ---------------------------------------------------------------------------------------------------------------------
# SuffixTree: a text is a list of ids with None for a barrier, and everything is found by looking at every position.


class SuffixOracle:
    """The text of a suffix tree; every question is answered by brute force from the definitions."""

    def __init__(self, text: list[int | None] | None = None) -> None:
        self.text: list[int | None] = list(text or [])

    def match_len(self) -> int:
        """Length of the longest suffix without a barrier that also ends earlier."""
        n = len(self.text)
        length = 0
        while length < n and self.text[n - length - 1] is not None and self._ends_earlier(length + 1):
            length += 1
        return length

    def _ends_earlier(self, length: int) -> bool:
        n = len(self.text)
        suffix = self.text[n - length :]
        return any(self.text[start : start + length] == suffix for start in range(n - length))

    def starts(self, pattern: list[int]) -> list[int]:
        """Positions where the pattern occurs at the beginning of an explicit suffix: one longer than the match."""
        num_explicit = len(self.text) - self.match_len()
        return [j for j in range(num_explicit) if self.text[j : j + len(pattern)] == pattern]

    def true_count(self, pattern: list[int]) -> int:
        """All occurrences of the pattern."""
        return sum(self.text[j : j + len(pattern)] == pattern for j in range(len(self.text)))

    def branches(self, pattern: list[int], limit: int) -> list[tuple[int, int, int]]:
        """What follows the pattern: (token, count, latest start), by count, then recency, then smallest token."""
        after: dict[int, list[int]] = {}
        for j in self.starts(pattern):
            token = self.text[j + len(pattern)]
            if token is not None:
                after.setdefault(token, []).append(j)
        found = [(token, len(where), max(where)) for token, where in after.items()]
        return sorted(found, key=lambda branch: (-branch[1], -branch[2], branch[0]))[:limit]

    def propose(
        self, max_tokens: int, max_branches: int, min_prob: float, max_depth: int = 4096
    ) -> list[tuple[int, int, float, int]]:
        """The draft as (token, parent, probability, start of the latest occurrence), best first."""
        match_len = self.match_len()
        match: list[int] = [token for token in self.text[len(self.text) - match_len :] if token is not None]
        drafted: list[tuple[int, int, float, int]] = []
        candidates: list[tuple[int, int, float, int]] = []

        def follow(parent: int, path: list[int], prob: float) -> None:
            if len(path) == max_depth:
                return
            where = self.starts(match + path) or [drafted[parent][3]]  # none: the copy has run past the end
            if len(where) == 1:  # one occurrence is copied, past the end of the text into the draft
                longer = [*self.text, *path]
                token = longer[where[0] + match_len + len(path)]
                if token is not None:
                    candidates.append((token, parent, prob, where[0]))
                return
            for token, count, latest in self.branches(match + path, max_branches):
                share = prob * (count / len(where))
                if share < min_prob:
                    break
                candidates.append((token, parent, share, latest))

        if match_len == 0:
            return []
        follow(-1, [], 1.0)
        while candidates and len(drafted) < max_tokens:
            best = max(candidates, key=lambda candidate: candidate[2])  # max keeps the first among equals
            candidates.remove(best)
            drafted.append(best)
            path, node = [], len(drafted) - 1
            while node >= 0:
                path.append(drafted[node][0])
                node = drafted[node][1]
            follow(len(drafted) - 1, path[::-1], best[2])
        return drafted


# ---- lookup: the memory of earlier texts -----------------------------------------------------------------------------


class Memory:
    """Texts in the order they came; the oldest leave first."""

    def __init__(self, max_tokens: int, min_len: int, min_prob: float) -> None:
        self.max_tokens, self.min_len, self.min_prob = max_tokens, min_len, min_prob
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

    def propose(self, context: list[int], max_tokens: int, namespace: str | None, score_cap: int = 32) -> list[int]:
        """What followed the longest match of the end of the context, the newest among equals and the very long."""
        best: tuple[int, list[int]] = (0, [])
        for _, owner, text in self.texts:
            for place in range(1, len(text)):
                n = 0
                while n < min(place, len(context)) and text[place - 1 - n] == context[-1 - n]:
                    n += 1
                if owner == namespace and n >= self.min_len and min(n, score_cap) >= min(best[0], score_cap):
                    best = n, text[place:]
        n, rest = best
        return [token for i, token in enumerate(rest[:max_tokens]) if n / (n + i + 1.0) >= self.min_prob]


def find_stored(
    arena: list[int], context: list[int], floor: int, pointer: int, window: int, limit: int, min_len: int, max_len: int
) -> tuple[int, int, int]:
    """The position to copy from, its match length and its distance from the pointer; (-1, 0, 0) if there is none."""
    from fractions import Fraction

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


# ---- lookup: phrases -------------------------------------------------------------------------------------------------


def phrase_match(phrases: list[list[int]], text: list[int], min_match: int) -> tuple[int, list[list[int]]]:
    """The longest beginning of a phrase that the text ends with, and what follows it, one phrase per next token."""
    best = 0
    for phrase in phrases:
        for n in range(min_match, len(phrase)):
            if len(text) >= n and text[len(text) - n :] == phrase[:n]:
                best = max(best, n)
    rests: dict[int, list[int]] = {}
    for phrase in phrases:
        if best and len(phrase) > best and phrase[:best] == text[len(text) - best :]:
            rests.setdefault(phrase[best], phrase[best:])
    return best, list(rests.values())[:4]


# ---- lookup: several drafts into one ---------------------------------------------------------------------------------

Path = tuple[int, ...]


def merge_trees(trees: list[list[tuple[Path, float]]]) -> list[list[tuple[Path, float]]]:
    """What each tree adds to those before it; a node is its path of tokens from the root and its probability."""
    merged: dict[Path, float] = {(): 1.0}
    added = []
    for tree in trees:
        before, own, news = dict(merged), dict([((), 1.0), *tree]), []
        for path, prob in tree:
            if path in before:
                continue
            parent = path[:-1]
            taken = sum(p for q, p in before.items() if q and q[:-1] == parent)
            left = max(0.0, merged[parent] - taken) if parent in before else merged[parent]
            merged[path] = left * (prob / own[parent])
            news.append((path, merged[path]))
        added.append(news)
    return added


def nodes_that_pay(
    added: list[list[tuple[Path, float]]],
    max_nodes: int,
    worth_of: dict[Path, float],
    costs: list[float],
    min_prob: float,
    min_gain: float,
) -> list[Path]:
    """Take the likeliest next node of any source, parents first; stop where worth exceeds the extra cost most."""
    queues, taken, gain, best, best_n = [list(a) for a in added], [], 0.0, min_gain, 0
    while len(taken) < max_nodes:
        heads = [q[0] for q in queues if q and q[0][1] >= min_prob and (len(q[0][0]) == 1 or q[0][0][:-1] in taken)]
        if not heads:
            break
        head = max(heads, key=lambda node: node[1])
        queue = next(q for q in queues if q and q[0] == head)
        queue.pop(0)
        taken.append(head[0])
        gain += worth_of[head[0]]
        if gain - (costs[1 + len(taken)] - costs[1]) > best:
            best, best_n = gain - (costs[1 + len(taken)] - costs[1]), len(taken)
    return taken[:best_n]


# ---- lookup: the adaptive policy -------------------------------------------------------------------------------------

SINGLE, PAIR, MANY, CONTESTED, OUTVOTED = range(5)


def tolls_and_prices(breaks: list[float], costs: list[float], max_nodes: int) -> tuple[list[float], list[float]]:
    """Per matched length: least expected cost of verifying a run until it breaks; what one token less saves of it."""
    last = len(breaks) - 1

    def stays(m: int, count: int) -> float:
        chance = 1.0
        for i in range(count):
            chance *= 1.0 - breaks[min(m + i, last)]
        return chance

    tolls = [0.0] * len(breaks)
    tolls[last] = min(costs[1 + n] / (1.0 - stays(last, n + 1)) for n in range(max_nodes + 1))
    for m in range(last - 1, 0, -1):
        tolls[m] = min(costs[1 + n] + stays(m, n + 1) * tolls[min(m + n + 1, last)] for n in range(max_nodes + 1))
    prices = [0.0] + [tolls[m] - (1.0 - breaks[m]) * tolls[min(m + 1, last)] for m in range(1, len(breaks))]
    return tolls, prices


class Run(NamedTuple):
    """A copy that was right so far: where it goes on, for how many tokens it was, what of a replacement is to come."""

    length: int
    at: int
    match: int
    left: int = 0
    back: int = 0


def find_copies(
    tokens: list[int], pointer: int, window: int, limit: int, min_len: int, max_len: int, room: int, run: Run
) -> list[tuple[int, int, int]]:
    """(position, match length, evidence) of the best place to copy from for each next token, best first."""
    from fractions import Fraction

    cap = min(max_len, 32)
    length_at = {p: match_length(tokens, p, cap) for p in range(1, len(tokens)) if tokens[p] != BARRIER}
    going = run.at if run.length == len(tokens) and run.at in length_at and 0 < run.match >= min_len else -1
    seen_at = dict(length_at)
    if going >= 0:
        length_at[going] = min(run.match, cap)

    def whole_length(p: int) -> int:
        return max(match_length(tokens, p, max_len), min(run.match, max_len) if p == going else 0)

    def score(p: int) -> tuple[Fraction, int]:
        return Fraction(32 ** length_at[p], 1 + abs(p - pointer)), p

    def best_per_token(places: set[int]) -> list[int]:
        best: list[int] = []
        for p in sorted(places, key=score, reverse=True):
            if length_at[p] >= max(min_len, 1) and tokens[p] not in [tokens[q] for q in best]:
                best.append(p)
        return best[:room]

    near: set[int] = {going} - {-1}
    for distance in range(window + 1):
        best = best_per_token(near)
        if best and length_at[best[0]] == cap:
            break
        near |= {p for p in (pointer - distance, pointer + distance) if p in length_at}
    best = best_per_token(near)
    if best and length_at[best[0]] == cap:
        return [(best[0], whole_length(best[0]), SINGLE)]
    ends = [p for p in range(1, len(tokens)) if match_length(tokens, p, 1)]
    newest = [p for p in ends[-limit:] if p in length_at]
    long = [p for p in [p for p in ends if match_length(tokens, p, LONG_GRAM) == LONG_GRAM][-limit:] if p in length_at]
    found = []
    for p in best_per_token({*near, *newest, *long}):
        rivals = [q for q in (long if length_at[p] >= LONG_GRAM else newest) if q != p and seen_at[q] >= length_at[p]]
        same = 1 + sum(tokens[q] == tokens[p] for q in rivals)
        different = sum(tokens[q] != tokens[p] for q in rivals)
        if length_at[p] == 32 or (not different and same == 1):
            evidence = SINGLE
        elif not different:
            evidence = PAIR if same == 2 else MANY
        else:
            evidence = CONTESTED if same >= different else OUTVOTED
        found.append((p, whole_length(p) if length_at[p] == 32 else length_at[p], evidence))
    return found


def right_at_first(breaks: float, evidence: int) -> float:
    """Chance that a candidate's first token is right."""
    return [1 - breaks, 1 - 0.7 * breaks, 1 - 0.35 * breaks, 0.33, 0.2][evidence]


def believed(log_weights: list[float], doubt: float = 6.0) -> dict[int, float]:
    """Probability of each kind of text that is not ruled out."""
    import math

    top = max(log_weights)
    kept = {kind: math.exp(w - top) for kind, w in enumerate(log_weights) if w > top - doubt}
    return {kind: chance / sum(kept.values()) for kind, chance in kept.items()}


class Replacement:
    """What a text once had in place of what, after which token, and how often it was met again."""

    def __init__(self, left: int, old: list[int], new: list[int], new_at: int) -> None:
        self.left, self.old, self.new, self.new_at = left, old, new, new_at
        self.hits, self.misses = 1, 0


class Replacements:
    """Replacements learned from one text: at most 16, a new one in the place of the oldest."""

    def __init__(self) -> None:
        self.run = Run(-1, -1, 0)
        self.kept: list[Replacement] = []
        self.num_kept = 0
        self.site: tuple[int, int] | None = None
        self.first = {False: [0.6, 1.4], True: [1.6, 0.4]}  # by "the same token stood before": hits, misses

    def find(self, text: list[int], position: int) -> Replacement | None:
        fitting = [r for r in self.kept if r.hits > r.misses and text[position : position + len(r.old)] == r.old]
        return max(fitting, key=lambda r: len(r.old)) if position < len(text) and fitting else None

    def _counts(self, r: Replacement, text: list[int], position: int) -> list[float] | None:
        return self.first[text[position - 1] == r.left] if (r.hits, r.misses) == (1, 0) else None

    def chance(self, r: Replacement, text: list[int], position: int) -> float:
        counts = self._counts(r, text, position)
        return counts[0] / sum(counts) if counts else (r.hits - 0.5) / (r.hits + 4 * r.misses)

    def count(self, r: Replacement, text: list[int], position: int, is_hit: bool) -> None:
        counts = self._counts(r, text, position)
        if counts:
            counts[0 if is_hit else 1] += 1
        if is_hit:
            r.hits += 1
        else:
            r.misses += 1

    def watch(self, source: int, output: int) -> None:
        self.site = self.site or (source, output)

    def close(self, text: list[int], before: int) -> int:
        """The site ends where two tokens of source and text agree again; returns where the copy goes on, or -1."""
        there = self._closed(text, before)
        if there >= 0 and self.run.length != len(text):
            self.run = Run(len(text), there, 8)
        return there

    def _closed(self, text: list[int], before: int) -> int:
        if self.site is None:
            return -1
        source, output = self.site
        for end in range(max(before + 1, output + 2), len(text) + 1):
            for there in range(source + 2, min(source + 16, output) + 1):
                if BARRIER in text[source:there]:
                    break
                if text[there - 2 : there] == text[end - 2 : end]:
                    self._keep(text, source, there - 2, output, end - 2)
                    self.site = None
                    return there if end == len(text) else -1
        if len(text) - output > 24:
            self.site = None
        return -1

    def _keep(self, text: list[int], source: int, source_end: int, output: int, output_end: int) -> None:
        more = 2 if source == source_end or output == output_end else 0
        old, new = text[source : source_end + more], text[output : output_end + more]
        if max(len(old), len(new)) > 8:
            return
        made = Replacement(text[source - 1], old, new, output)
        for place, r in enumerate(self.kept):
            if r.old == old:
                if r.new == new:
                    r.hits += 1
                else:
                    self.kept[place] = made
                return
        place = self.num_kept % 16
        self.num_kept += 1
        self.kept[place : place + 1] = [made]


class Branch:
    """One way of drafting on: along a copy, or into a replacement and then on along the copy."""

    def __init__(self, start: int, match: int, chances: dict[int, float]) -> None:
        self.start, self.cursor, self.match, self.chances = start, start, match, chances
        self.left, self.back, self.seen = 0, 0, -1
        self.tip, self.depth = -1, 0

    def token(self, text: list[int]) -> int:
        at = self.cursor
        return text[at] if at < len(text) else text[self.start + (at - self.start) % (len(text) - self.start)]

    def into(self, r: Replacement) -> None:
        self.back, self.cursor, self.left = self.cursor + len(r.old), r.new_at, len(r.new)

    def go_on(self) -> None:
        self.depth += 1
        self.cursor += 1
        self.left -= self.left > 0
        if self.back and not self.left:
            self.cursor, self.back = self.back, 0

    def scaled(self, share: float) -> dict[int, float]:
        return {kind: chance * share for kind, chance in self.chances.items()}


def adaptive_draft(
    tokens: list[int],
    copies: list[tuple[int, int, int]],
    belief: dict[int, float],
    breaks: list[list[float]],
    prices: list[list[float]],
    costs: list[float],
    max_nodes: int,
    max_depth: int,
    replacements: Replacements,
    max_branches: int,
) -> list[tuple[int, int, float, int, int]]:
    """Nodes (token, parent, probability, match length, origin), taken by worth as long as they pay.

    Where no number of them does, as many as give the most expected tokens per cost, if these are more than 1.05.
    """
    last = len(breaks[0]) - 1
    least_slope = [
        min(((costs[k] - costs[r]) / (k - r) for k in range(r + 1, len(costs))), default=0.0) for r in range(len(costs))
    ]
    rest, branches = dict(belief), []
    for rank, (position, match, evidence) in enumerate(copies):
        chance = {
            kind: rest[kind] * right_at_first(breaks[kind][min(match, last)], evidence) / (1 + 0.5 * rank)
            for kind in rest
        }
        rest = {kind: rest[kind] - chance[kind] for kind in rest}
        branches.append(Branch(position, match, chance))
        if replacements.run.length == len(tokens) and replacements.run.at == position and replacements.run.left:
            branches[-1].left, branches[-1].back = replacements.run.left, replacements.run.back

    def worth(branch: Branch) -> float:
        after = min(branch.match + branch.depth + 1, last)
        return sum(chance * prices[kind][after] for kind, chance in branch.chances.items())

    nodes: list[tuple[int, int, float, int, int]] = []
    gain, best_gain, best_n = 0.0, 0.01, 0
    rates = {0: 1.05}
    while len(nodes) < max_nodes:
        open_ones = [b for b in branches if sum(b.chances.values()) >= 0.01 and b.depth < max_depth]
        if not open_ones or max(map(worth, open_ones)) * 1.1 < least_slope[1 + len(nodes)]:
            break
        branch = max(open_ones, key=worth)
        if not branch.left and branch.seen != branch.cursor:
            branch.seen = branch.cursor
            r = replacements.find(tokens, branch.cursor)
            if r is not None:
                waiting = [b.token(tokens) for b in branches if b.tip == branch.tip]
                drafted = [node[0] for node in nodes if node[1] == branch.tip]
                if r.new[0] in waiting + drafted:
                    continue
                share = replacements.chance(r, tokens, branch.cursor)
                if len(branches) < max_branches:
                    other = Branch(branch.start, branch.match, branch.scaled(share))
                    other.cursor, other.tip, other.depth, other.seen = (
                        branch.cursor, branch.tip, branch.depth, branch.seen,
                    )  # fmt: skip
                    other.into(r)
                    branches.append(other)
                    branch.chances = branch.scaled(1 - share)
                elif share < 0.5:
                    branch.chances = branch.scaled(1 - share)
                else:
                    branch.chances = branch.scaled(share)
                    branch.into(r)
                continue
        if branch.token(tokens) == BARRIER:
            branch.chances = {}
            continue
        gain += 1.1 * worth(branch)
        prob = sum(branch.chances.values())
        nodes.append((branch.token(tokens), branch.tip, prob, branch.match, branch.cursor))
        branch.tip = len(nodes) - 1
        branch.go_on()
        state = min(branch.match + branch.depth, last)
        branch.chances = {kind: chance * (1 - breaks[kind][state]) for kind, chance in branch.chances.items()}
        net = gain - (costs[1 + len(nodes)] - costs[1])
        if net > best_gain:
            best_gain, best_n = net, len(nodes)
        rates[len(nodes)] = (1.0 + sum(node[2] for node in nodes)) / costs[1 + len(nodes)]
    return nodes[: best_n or max(rates, key=lambda n: rates[n])]


def learned(
    log_weights: list[float],
    breaks: list[list[float]],
    text: list[int],
    came: list[int],
    copied: tuple[int, int, int],
    may_break: bool,
    replacements: Replacements,
) -> tuple[list[float], int]:
    """Log weights of the kinds after ``came`` followed ``text`` where a copy was expected, and where that goes on."""
    import math

    position, match, evidence = copied
    weights, last = list(log_weights), len(breaks[0]) - 1
    whole, run = text + came, replacements.run
    cursor, i, left, back, site = position, 0, 0, 0, None
    if run.length == len(text) and run.at == position:
        left, back = run.left, run.back
    while i < len(came):
        r = None if left else replacements.find(text, cursor)
        if r is not None and came[i] == r.new[0]:
            replacements.count(r, text, cursor, True)
            site = (cursor, len(text) + i)
            cursor, left, back = r.new_at, len(r.new), cursor + len(r.old)
        is_same = whole[cursor] == came[i]
        if not is_same and not may_break:
            break
        if not left:
            if r is not None and is_same:
                replacements.count(r, text, cursor, False)
            for kind in range(len(weights)):
                right = 1 - breaks[kind][min(match + i, last)]
                right = right_at_first(1 - right, evidence) if i == 0 else right
                weights[kind] += math.log(right if is_same else 1 - right)
        if not is_same:
            if not left and match + i >= 4:
                replacements.watch(cursor, len(text) + i)
            if left and site is not None:
                replacements.watch(*site)
            break
        cursor, i = cursor + 1, i + 1
        if left:
            left -= 1
            cursor = cursor if left else back
    replacements.run = Run(len(whole) if i == len(came) else -1, cursor, match + i, left, back)
    there = replacements.close(whole, len(text))
    if there >= 0 and i < len(came):
        cursor, i = there, 1
    return [max(w, max(weights) - 6.0) for w in weights], cursor if i else -1


# ---- lookup: recycled successors, Lookahead --------------------------------------------------------------------------


class SuccessorTable:
    """What the target named after one token and after two, without bounds: dictionaries."""

    def __init__(self) -> None:
        self.lists: dict[tuple[int, ...], list[int]] = {}
        self.levels: dict[tuple[int, ...], int] = {}

    def write(self, key: tuple[int, ...], successors: list[int]) -> None:
        if key in self.lists:
            same = self.lists[key][0] == successors[0]
            self.levels[key] = min(3, self.levels[key] + 1) if same else 0
        else:
            self.levels[key] = 0
        self.lists[key] = list(successors)

    def update(self, context: list[int], tokens: list[int], parents: list[int], path: list[int], topk) -> None:
        """Rejected nodes first, then the root and the accepted path."""
        order = [node for node in range(len(tokens)) if node not in path] + [-1, *sorted(path)]
        for node in order:
            text = context + [tokens[above] for above in path_to(node, parents)]
            self.write((text[-1],), topk[node + 1])
            if len(text) > 1:
                self.write((text[-2], text[-1]), topk[node + 1])

    def read(self, text: list[int]) -> None:
        """What follows what in a text, the latest first, eight at most."""
        for i in range(1, len(text)):
            for key in [(text[i - 1],)] + ([(text[i - 2], text[i - 1])] if i > 1 else []):
                rest = [token for token in self.lists.get(key, []) if token != text[i]]
                self.write(key, [text[i], *rest][:8])

    def asked(self, text: list[int], common: list[int]) -> list[tuple[list[int], int]]:
        """The lists to ask, in order, each with its class: of two tokens, of one, and the common tokens."""
        found = []
        two, one = tuple(text[-2:]), (text[-1],)
        if len(two) == 2 and two in self.lists:
            found.append((self.lists[two], 4 + self.levels[two]))
        if one in self.lists:
            found.append((self.lists[one], 8 if found else self.levels[one]))
        found.append((common, 10 if found else 9))
        return found


def ranks_counted(table: SuccessorTable, context: list[int], common: list[int], came: list[int]):
    """(class, rank) for every list asked about every token that came; rank 8: not in it, or in an earlier list."""
    counted, text = [], list(context)
    for token in came:
        is_found = False
        for successors, kind in table.asked(text, common):
            hit = not is_found and token in successors
            counted.append((kind, successors.index(token) if hit else 8))
            is_found = is_found or hit
        text.append(token)
    return counted


def recycled_tree(
    table: SuccessorTable,
    chances: list[list[float]],
    context: list[int],
    common: list[int],
    held: list[tuple[int, int, float]],
    max_nodes: int,
    max_depth: int,
    min_prob: float,
) -> list[tuple[tuple[int, ...], float]]:
    """Nodes as (path of tokens, probability), likeliest first: those of ``held`` (token, parent, probability) and the
    recycled ones, where children that ``held`` has take their share first."""
    paths: list[tuple[int, ...]] = []
    for token, parent, _ in held:
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    given = {path: prob for path, (_, _, prob) in zip(paths, held)}
    reach: dict[tuple[int, ...], float] = {(): 1.0}
    taken: list[tuple[tuple[int, ...], float]] = []
    while len(taken) < max_nodes:
        best, best_prob = None, 0.0
        for path, prob in reach.items():
            if len(path) >= max_depth:
                continue
            here = {p[-1]: q for p, q in given.items() if p[:-1] == path} if path in given or path == () else {}
            left = 1.0 - sum(here.values()) / prob
            for successors, kind in table.asked(context + list(path), common):
                for rank, token in enumerate(successors):
                    child = (*path, token)
                    if child in reach or token in here or left <= 0:
                        continue
                    chance = prob * left * chances[kind][rank]
                    if chance >= min_prob and chance > best_prob:
                        best, best_prob = child, chance
                    break
        for path, prob in given.items():
            if path not in reach and path[:-1] in reach and prob > best_prob:
                best, best_prob = path, prob
        if best is None:
            return taken
        reach[best] = best_prob
        taken.append((best, best_prob))
    return taken


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


# ---- theory: the published formulas, by the sum over what can happen -------------------------------------------------


def expected_tokens_by_cases(alpha, gamma):
    """Sum over the number of accepted tokens k: k are accepted and the next one is not, or all of them are."""
    total = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma))
    return total + (gamma + 1) * alpha**gamma


def speedups_by_trial(alpha, cost, most):
    """The speed-up of every gamma from 0 to ``most``; exact where alpha and cost are fractions."""
    return [sum(alpha**k for k in range(gamma + 1)) / (gamma * cost + 1) for gamma in range(most + 1)]


# ---- serving: the rows of an engine's batch --------------------------------------------------------------------------


class EngineBatch:
    """A serving engine's batch as its proposer sees it: rows of one buffer that is never cleared.

    ``requests`` holds every request's text by number, ``order`` the request of every row. Requests enter, leave, swap
    and move; what a row held before stays in it behind the text that stands there now, as it does in the engine.
    """

    def __init__(self, max_rows: int, width: int) -> None:
        self.buffer = [[0] * width for _ in range(max_rows)]
        self.requests: dict[int, list[int]] = {}
        self.order: list[int] = []
        self.width = width

    def enter(self, number: int, text: list[int] | None = None) -> None:
        """A new request, or one that was out for a while, takes the next row."""
        if text is not None:
            self.requests[number] = list(text)
        self.order.append(number)
        self.write()

    def leave(self, row: int) -> None:
        """The request of a row goes; the last row moves into its place."""
        self.order[row] = self.order[-1]
        self.order.pop()
        self.write()

    def swap(self, a: int, b: int) -> None:
        self.order[a], self.order[b] = self.order[b], self.order[a]
        self.write()

    def sample(self, new: list[list[int]]) -> None:
        """Every row gets its new tokens."""
        for number, ids in zip(self.order, new):
            self.requests[number] += ids
        self.write()

    def write(self) -> None:
        for row, number in enumerate(self.order):
            text = self.requests[number]
            self.buffer[row][: len(text)] = text

    def lengths(self) -> list[int]:
        return [len(self.requests[number]) for number in self.order]


def copies_own_text(text: list[int], draft: list[int]) -> bool:
    """True if the draft goes on as some earlier occurrence of the text's last token does, past the end into itself."""
    for start in range(1, len(text)):
        if text[start - 1] == text[-1] and copy_on(text, start, len(draft)) == draft:
            return True
    return not draft


def num_stretches(text: list[int], draft: list[int]) -> int:
    """Of how few stretches of the text, which may run past its end into themselves, the draft is made; 99: of none."""
    whole, place, stretches = text + draft, len(text), 0
    while place < len(whole):
        longest = 0
        for start in range(place):
            length = 0
            while place + length < len(whole) and whole[start + length] == whole[place + length]:
                length += 1
            longest = max(longest, length)
        if longest == 0:
            return 99
        place, stretches = place + longest, stretches + 1
    return stretches
