"""Shelf: the segments of all namespaces in the order their texts came, never more tokens than the cap."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from zerodraft.lookup.draft import IntArray
from zerodraft.lookup.memory.segment import Segment

Namespace = str | None


class Shelf:
    """Segments by namespace, oldest first. Evicts the oldest text of all first. Not thread-safe.

    Invariants: every listed segment has a live text, every listed namespace a segment; ``num_tokens`` is the sum over
    the segments and at most ``max_tokens``. The queue holds the oldest stamp of every namespace; entries that are out
    of date are skipped when they come up.
    """

    def __init__(self, max_tokens: int, segments: Iterable[Segment] = ()) -> None:
        self.max_tokens = max_tokens
        # Segments are sealed at this length: few to search, yet what was dropped frees its bytes before long.
        self.max_segment_tokens = max(64, max_tokens // 4)
        self.num_tokens = 0
        self.version = 0  # another one after every change
        self._segments: dict[Namespace, list[Segment]] = {}
        self._queue: list[tuple[int, int, Namespace]] = []
        self._count = 0
        for segment in segments:
            self.append(segment)

    def __iter__(self) -> Iterator[Segment]:
        """All segments, namespace by namespace, oldest first."""
        for segments in self._segments.values():
            yield from segments

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Namespaces with at least one live text."""
        return tuple(self._segments)

    def of(self, namespace: Namespace) -> list[Segment]:
        """The segments of a namespace, oldest first; not to be changed."""
        return self._segments.get(namespace, [])

    def add(self, ids: IntArray, namespace: Namespace, stamp: int) -> None:
        """Append one text of at least one token, evicting as much as its place needs. Cost: O(len(ids))."""
        ids = ids[-self.max_tokens :]
        self.evict_to(self.max_tokens - len(ids))
        segments = self._segments.setdefault(namespace, [])
        is_new = not segments
        if is_new or segments[-1].name is not None or len(segments[-1].index) >= self.max_segment_tokens:
            segments.append(Segment(namespace))
        segments[-1].add(ids, stamp)
        self.num_tokens += len(ids)
        self.version += 1
        if is_new:
            self._queue_oldest(namespace)

    def append(self, segment: Segment) -> None:
        """Append a whole segment, evicting as much as it needs. Nothing happens with one that has no live text."""
        if segment.is_empty:
            return
        self.evict_to(max(0, self.max_tokens - segment.num_live_tokens))
        segments = self._segments.setdefault(segment.namespace, [])
        segments.append(segment)
        self.num_tokens += segment.num_live_tokens
        self.version += 1
        if len(segments) == 1:
            self._queue_oldest(segment.namespace)
        self.evict_to(self.max_tokens)

    def evict_to(self, max_tokens: int) -> None:
        """Drop the oldest texts until at most ``max_tokens`` are left. Cost per text: O(log number of namespaces)."""
        while self.num_tokens > max_tokens:
            stamp, _, namespace = heapq.heappop(self._queue)
            segments = self._segments.get(namespace)
            if segments is None or segments[0].oldest_stamp != stamp:
                continue
            self.num_tokens -= segments[0].drop_oldest()
            self.version += 1
            if segments[0].is_empty:
                del segments[0]
            if segments:
                self._queue_oldest(namespace)
            else:
                del self._segments[namespace]

    def clear(self, namespace: Namespace) -> int:
        """Drop a namespace with all its bytes; return its number of tokens."""
        num_tokens = sum(segment.num_live_tokens for segment in self._segments.pop(namespace, []))
        self.num_tokens -= num_tokens
        self.version += 1
        return num_tokens

    def remove(self, segment: Segment) -> None:
        """Take one segment off the shelf."""
        segments = self._segments.get(segment.namespace, [])
        if segment in segments:
            segments.remove(segment)
            self.num_tokens -= segment.num_live_tokens
            self.version += 1
            if segments:
                self._queue_oldest(segment.namespace)
            else:
                del self._segments[segment.namespace]

    def discard(self, segment: Segment) -> None:
        """Take a segment off the shelf and mark all its texts as dropped: it is not to be used again."""
        self.remove(segment)
        segment.first_live = segment.num_texts

    def check_integrity(self) -> None:
        """Recount everything; AssertionError if something contradicts."""
        for namespace, segments in self._segments.items():
            assert segments, f"namespace {namespace!r} has no segment"
            for segment in segments:
                assert segment.namespace == namespace, "a segment lies in another namespace"
                assert not segment.is_empty, "an empty segment was kept"
                segment.check_integrity()
            oldest = segments[0].oldest_stamp
            is_queued = any(entry[0] == oldest and entry[2] == namespace for entry in self._queue)
            assert is_queued, f"{namespace!r} would never be evicted"
        total = sum(segment.num_live_tokens for segment in self)
        assert total == self.num_tokens, f"{total} tokens, counted as {self.num_tokens}"
        assert total <= self.max_tokens, f"{total} tokens, more than the cap of {self.max_tokens}"

    def _queue_oldest(self, namespace: Namespace) -> None:
        """Queue a namespace whose oldest text is another one than before."""
        self._count += 1
        heapq.heappush(self._queue, (self._segments[namespace][0].oldest_stamp, self._count, namespace))
        if len(self._queue) > 2 * len(self._segments) + 64:  # mostly entries of cleared namespaces
            self._queue = [(s[0].oldest_stamp, i, name) for i, (name, s) in enumerate(self._segments.items())]
            heapq.heapify(self._queue)
