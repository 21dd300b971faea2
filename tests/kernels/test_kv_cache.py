"""The ragged cache against lists: whatever is written, kept, selected, loaded, stored, rows hold their own history."""

from __future__ import annotations

import random

import pytest
import reference.kv_cache
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicCache

from zerodraft.kernels.kv_cache import RaggedCache

LAYERS, HEADS, DIM = 2, 3, 2


def states_of(numbers: list[list[int]], layer: int, kind: int) -> torch.Tensor:
    """(B, heads, T, head_dim), every element of its own: number, head, layer ... can be read off."""
    base = torch.tensor(numbers, dtype=torch.float64)[:, None, :, None] * 1000
    heads = torch.arange(HEADS, dtype=torch.float64)[None, :, None, None] * 10
    dims = torch.arange(DIM, dtype=torch.float64)[None, None, None, :]
    return base + heads + dims + layer * 400 + kind * 200


def forward(cache: RaggedCache, numbers: list[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [cache.update(states_of(numbers, i, 0), states_of(numbers, i, 1), i) for i in range(LAYERS)]


def assert_holds(cache: RaggedCache, rows: list[list[object]]) -> None:
    assert cache.lengths == [len(row) for row in rows]
    for layer, content in enumerate(cache.layers):
        for row, numbers in enumerate(rows):
            for kind, states in enumerate((content.keys, content.values)):
                expected = states_of([numbers], layer, kind)[0]  # type: ignore[list-item]
                assert torch.equal(states[row, :, : len(numbers)], expected)


class Machine:
    """The cache and its oracle, driven together; entries are numbers that are never used twice."""

    def __init__(self, num_rows: int) -> None:
        self.cache, self.lists = RaggedCache(num_rows), reference.kv_cache.RaggedLists(num_rows)
        self.next_number = 1

    def write(self, width: int) -> None:
        rows = len(self.lists.committed)
        numbers = [[self.next_number + row * width + i for i in range(width)] for row in range(rows)]
        self.next_number += rows * width
        self.lists.update(numbers)
        need = max(self.cache.lengths) + width
        for layer, (keys, values) in enumerate(forward(self.cache, numbers)):
            for row, fresh in enumerate(numbers):
                seen = [*self.lists.committed[row], *fresh]
                for kind, states in enumerate((keys, values)):
                    assert states.shape == (rows, HEADS, need, DIM)
                    assert torch.equal(states[row, :, : len(seen)], states_of([seen], layer, kind)[0])  # type: ignore[list-item]

    def write_packed(self, counts: list[int]) -> None:
        """Each row writes as many entries as it needs, one row behind the other."""
        numbers = [
            [self.next_number + i for i in range(sum(counts[:row]), sum(counts[: row + 1]))]
            for row in range(len(counts))
        ]
        self.next_number += sum(counts)
        self.lists.update(numbers)
        seen = [[entry for row, fresh in zip(self.lists.committed, numbers) for entry in (*row, *fresh)]]
        self.cache.pack(counts)
        for layer, pair in enumerate(forward(self.cache, [[number for row in numbers for number in row]])):
            for kind, states in enumerate(pair):
                assert torch.equal(states, states_of(seen, layer, kind))  # type: ignore[arg-type]
        self.cache.pack()

    def keep(self, row: int, places: list[int]) -> None:
        self.cache.keep(row, places)
        self.lists.keep(row, places)

    def select(self, rows: list[int]) -> None:
        self.cache.select_rows(rows)
        self.lists.select_rows(rows)


@settings(max_examples=150)
@given(st.data())
def test_random_histories(data: st.DataObject) -> None:
    machine = Machine(data.draw(st.integers(1, 4)))
    for _ in range(data.draw(st.integers(1, 8))):
        rows = len(machine.lists.committed)
        widths = data.draw(st.lists(st.sampled_from([1, 2, 5, 9, 70]), min_size=rows, max_size=rows))
        if machine.cache.layers and data.draw(st.booleans()):
            machine.write_packed(widths)
        else:
            machine.write(widths[0])
            widths = [widths[0]] * rows
        for row, width in enumerate(widths):
            chosen = data.draw(st.lists(st.booleans(), min_size=min(width, 9), max_size=min(width, 9)))
            places = [place for place, kept in enumerate(chosen) if kept]
            if data.draw(st.booleans()):
                places = list(range(len(places)))
            machine.keep(row, places)
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(rows)))
            machine.select(list(order[: data.draw(st.integers(1, rows))]))
        assert_holds(machine.cache, machine.lists.committed)
        assert machine.cache.get_seq_length() == max(machine.cache.lengths)


def test_keeping_a_tree_path_moves_only_the_accepted_entries() -> None:
    machine = Machine(2)
    machine.write(6)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in machine.cache.layers]
    machine.keep(1, [0, 2, 5])
    for (keys, values), layer in zip(before, machine.cache.layers):
        for old, new in ((keys, layer.keys), (values, layer.values)):
            changed = (old != new).any(dim=3).any(dim=1).nonzero().tolist()
            assert changed == [[1, 1], [1, 2]]
    assert_holds(machine.cache, [[], machine.lists.committed[1]])


def test_keeping_a_prefix_moves_nothing() -> None:
    machine = Machine(1)
    machine.write(5)
    before = machine.cache.layers[0].keys.clone()
    machine.keep(0, [0, 1, 2])
    assert torch.equal(machine.cache.layers[0].keys, before)
    assert machine.cache.lengths == [3]
    machine.write(2)
    machine.keep(0, [])
    assert_holds(machine.cache, machine.lists.committed)


def test_a_rejected_draft_is_overwritten_by_the_next_forward() -> None:
    machine = Machine(1)
    machine.write(4)
    machine.keep(0, [0])
    machine.write(2)
    machine.keep(0, [0, 1])
    assert_holds(machine.cache, machine.lists.committed)


def test_growth_keeps_the_content() -> None:
    machine = Machine(2)
    machine.write(3)
    machine.keep(0, [0, 1, 2])
    machine.keep(1, [0])
    machine.write(600)
    machine.keep(0, list(range(600)))
    machine.keep(1, [0, 599])
    assert machine.cache.layers[0].keys.shape[2] >= 603
    assert_holds(machine.cache, machine.lists.committed)
    capacity = machine.cache.layers[0].keys.shape[2]
    for _ in range(5):
        machine.write(10)
        machine.keep(0, list(range(10)))
        machine.keep(1, [0, 3])
        assert_holds(machine.cache, machine.lists.committed)
    assert machine.cache.layers[0].keys.shape[2] in (capacity, 2 * capacity)


def test_load_and_store_round_trip() -> None:
    given_cache = DynamicCache()
    numbers = [[11, 12, 13], [21, 22, 23]]
    for layer in range(LAYERS):
        given_cache.update(states_of(numbers, layer, 0), states_of(numbers, layer, 1), layer)
    cache = RaggedCache(2)
    cache.load(given_cache)
    assert_holds(cache, numbers)
    forward(cache, [[14, 15], [24, 25]])
    for row in range(2):
        cache.keep(row, [0])
    cache.store(given_cache)
    assert given_cache.get_seq_length() == 4
    for layer in range(LAYERS):
        assert torch.equal(given_cache.layers[layer].keys, states_of([[11, 12, 13, 14], [21, 22, 23, 24]], layer, 0))
        assert torch.equal(given_cache.layers[layer].values, states_of([[11, 12, 13, 14], [21, 22, 23, 24]], layer, 1))


def test_stored_entries_are_copies() -> None:
    cache, target = RaggedCache(1), DynamicCache()
    forward(cache, [[1, 2]])
    cache.keep(0, [0, 1])
    for layer in range(LAYERS):
        target.update(states_of([[9]], layer, 0), states_of([[9]], layer, 1), layer)
    cache.store(target)
    cache.layers[0].keys.zero_()
    assert torch.equal(target.layers[0].keys, states_of([[1, 2]], 0, 0))


def test_load_fills_what_a_sliding_layer_dropped_with_zeros() -> None:
    full, sliding = states_of([[1, 2, 3, 4, 5]], 0, 0), states_of([[4, 5]], 1, 0)

    class Layer:
        def __init__(self, states: torch.Tensor) -> None:
            self.keys = self.values = states

    class Source:
        layers = (Layer(full), Layer(sliding))

        def get_seq_length(self) -> int:
            return 5

    cache = RaggedCache(1)
    cache.load(Source())  # type: ignore[arg-type]
    assert cache.lengths == [5]
    assert torch.equal(cache.layers[1].keys[:, :, 3:5], sliding)
    assert not cache.layers[1].keys[:, :, :3].any()
    assert torch.equal(cache.layers[0].keys[:, :, :5], full)


def test_rows_of_different_lengths_cannot_be_stored() -> None:
    cache = RaggedCache(2)
    forward(cache, [[1, 2], [3, 4]])
    cache.keep(0, [0])
    with pytest.raises(AssertionError):
        cache.store(DynamicCache())


def test_mask_sizes_and_limits() -> None:
    machine = Machine(2)
    machine.write(4)
    machine.keep(0, [0, 1, 2, 3])
    machine.keep(1, [0])
    assert machine.cache.layers[0].get_mask_sizes(3) == (7, 0)
    assert machine.cache.layers[0].get_max_length() == -1
    assert machine.cache.lengths is not machine.cache.rows.of_row


def test_a_long_random_run() -> None:
    """Hundreds of steps of one request: no entry is ever lost or mixed up between rows."""
    rng = random.Random(5)
    machine = Machine(3)
    for _ in range(200):
        width = rng.randrange(1, 8)
        machine.write(width)
        for row in range(3):
            machine.keep(row, [0, *sorted(rng.sample(range(1, width), rng.randrange(width)))])
    assert_holds(machine.cache, machine.lists.committed)


@given(st.integers(0, 10**6))
def test_keeping_all_rows_at_once_is_keeping_them_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    together, single = Machine(3), Machine(3)
    for _ in range(3):
        width = rng.randrange(1, 7)
        places = [sorted(rng.sample(range(width), rng.randrange(width + 1))) for _ in range(3)]
        together.write(width)
        single.write(width)
        together.cache.keep_all(places)
        for row, kept in enumerate(places):
            together.lists.keep(row, kept)
            single.keep(row, kept)
    assert_holds(together.cache, together.lists.committed)
    for ours, theirs in zip(together.cache.layers, single.cache.layers):
        assert torch.equal(ours.keys, theirs.keys)


def test_lengths_on_a_device_follow_the_rows() -> None:
    machine = Machine(2)
    first = machine.cache.rows.on(torch.device("cpu"))
    assert first.tolist() == [0, 0]
    assert first.dtype == torch.int32
    machine.write(3)
    machine.keep(1, [0, 1])
    assert machine.cache.rows.on(torch.device("cpu")).tolist() == [0, 2]
    assert machine.cache.rows.on(torch.device("cpu")) is machine.cache.rows.on(torch.device("cpu"))
