"""The suffix tree: a text is a list of ids with None for a barrier, and every position is looked at."""

from __future__ import annotations


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
