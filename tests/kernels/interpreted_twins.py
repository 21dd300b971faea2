"""The Triton kernels on the CPU, run by ``test_triton.py`` in a process of its own with TRITON_INTERPRET=1.

Small grids, poison around everything that a kernel may read or write.
"""

from __future__ import annotations

import ctypes
import mmap
import random

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import bushy, ours, plain, prompt, tiny, walk_case

from zerodraft.integrations.hf import fused
from zerodraft.kernels import kv_cache, kv_cache_triton, verify, verify_triton
from zerodraft.kernels.kv_cache import RaggedCache
from zerodraft.kernels.verify import pick_and_walk

few = settings(max_examples=25, deadline=None, phases=[Phase.generate])  # shrinking would take minutes here
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> object:
    """Blocks so small that every loop over blocks runs more than once, and the last block is a part of one."""
    patch = pytest.MonkeyPatch()
    patch.setattr(verify_triton, "_BLOCK", 16)
    patch.setattr(verify_triton, "_NOISY_BLOCK", 16)
    patch.setattr(kv_cache_triton, "_APPEND_BLOCK", 16)
    yield
    patch.undo()


def unpack(packed: torch.Tensor) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(row[2 : 2 + row[0]]), row[1]) for row in packed.tolist()]


def inside_poison(tensor: torch.Tensor, poison: float) -> torch.Tensor:
    """The same values as a view into a larger tensor whose other elements are poison; the last stride stays 1."""
    around = torch.full([size + 3 for size in tensor.shape], poison, dtype=tensor.dtype)
    view = around[tuple(slice(1, 1 + size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


_PAGES: list[mmap.mmap] = []


def at_the_edge(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, contiguous, ending where readable memory ends: one read further ends the process."""
    size = tensor.numel() * tensor.element_size()
    length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, length + mmap.PAGESIZE)
    _PAGES.append(pages)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + length), mmap.PAGESIZE, 0) == 0
    flat = torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=length - size) if size else torch.empty(0)
    edge = flat.view(tensor.dtype).view(tensor.shape) if size else tensor
    edge.copy_(tensor)
    return edge


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 40])
def test_nothing_is_read_or_written_past_the_end(vocab: int) -> None:
    scores, *tree = (at_the_edge(given) for given in walk_case(vocab, 2, 5, vocab))
    energy = at_the_edge(torch.empty(2, 5, vocab).exponential_())
    assert unpack(verify_triton.pick_and_walk(scores, *tree)[0]) == pick_and_walk(scores, *tree)
    assert unpack(verify_triton.pick_and_walk(scores, *tree, energy)[0]) == pick_and_walk(scores, *tree, energy)
    buffers = [at_the_edge(torch.randn(2, 2, 7, vocab)) for _ in range(2)]
    new = at_the_edge(torch.randn(2, 2, 3, vocab))
    kv_cache_triton.append(new, new, *buffers, at_the_edge(torch.tensor([0, 4], dtype=torch.int32)))
    assert torch.equal(buffers[0][1, :, 4:], new[1])
    moves = at_the_edge(torch.tensor([[2, 3, 0, 2, 4], [4, 2, 1, 2, 0]], dtype=torch.int32))
    want = buffers[1][0, :, [2, 4, 6]].clone(), buffers[1][1, :, [5, 6]].clone()
    kv_cache_triton.commit(buffers, moves)
    assert torch.equal(buffers[1][0, :, 2:5], want[0])
    assert torch.equal(buffers[1][1, :, 4:6], want[1])


# ---- pick and walk ---------------------------------------------------------------------------------------------------


@few
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 7),
    st.sampled_from([1, 2, 15, 16, 17, 40]),
    st.sampled_from(DTYPES),
)
def test_argmax_is_bit_equal(seed: int, rows: int, width: int, vocab: int, dtype: torch.dtype) -> None:
    scores, *tree = walk_case(seed, rows, width, vocab)
    scores = scores.to(dtype)
    got, _ = verify_triton.pick_and_walk(inside_poison(scores, torch.inf), *tree)
    assert unpack(got) == pick_and_walk(scores, *tree)


@few
@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 5, 16, 33]))
def test_noise_draws_the_same_tokens(seed: int, rows: int, width: int, depth: int, vocab: int) -> None:
    scores, *tree = walk_case(seed, rows, width, vocab)
    scores = scores * 3
    energy = torch.empty(rows, depth, vocab).exponential_(generator=torch.Generator().manual_seed(seed))
    got, chances = verify_triton.pick_and_walk(inside_poison(scores, 50.0), *tree, inside_poison(energy, 1e-30))
    assert unpack(got) == pick_and_walk(scores, *tree, energy)
    if depth >= width:
        probs = torch.softmax(scores, -1)
        picks = (probs / energy[:, _depths(tree[1])].diagonal(dim1=0, dim2=1).movedim(-1, 0)).argmax(-1)
        assert torch.allclose(chances, probs.gather(2, picks[:, :, None])[:, :, 0], atol=1e-6, rtol=1e-5)


def _depths(parents: torch.Tensor) -> torch.Tensor:
    depths = torch.zeros(parents.shape[0], parents.shape[1] + 1, dtype=torch.long)
    for row in range(parents.shape[0]):
        for node, up in enumerate(parents[row].tolist()):
            depths[row, node + 1] = depths[row, up + 1] + 1
    return depths


def test_equal_scores_give_the_first_and_masked_tokens_never_win() -> None:
    scores = torch.full((1, 1, 40), -torch.inf)
    empty = torch.zeros(1, 0, dtype=torch.int32), torch.zeros(1, 0, dtype=torch.int32), torch.zeros(1, 0).bool()
    assert unpack(verify_triton.pick_and_walk(scores, *empty)[0]) == [((), 0)]
    scores[0, 0, [35, 7, 21]] = 1.5
    assert unpack(verify_triton.pick_and_walk(scores, *empty)[0]) == [((), 7)]
    for seed in range(10):
        energy = torch.empty(1, 1, 40).exponential_(generator=torch.Generator().manual_seed(seed))
        [(_, token)] = unpack(verify_triton.pick_and_walk(scores, *empty, energy)[0])
        assert token in (35, 7, 21)
        assert [((), token)] == pick_and_walk(scores, *empty, energy)


def test_probabilities_keep_their_digits_far_below_the_top() -> None:
    scores = torch.tensor([0.0, -5.0, -20.0, -60.0, -80.0])
    empty = torch.zeros(1, 0, dtype=torch.int32), torch.zeros(1, 0, dtype=torch.int32), torch.zeros(1, 0).bool()
    for token in range(5):
        energy = torch.full((1, 1, 5), 1e30)
        energy[0, 0, token] = 1e-30
        got, chances = verify_triton.pick_and_walk(scores[None, None], *empty, energy)
        if token < 4:
            assert unpack(got) == [((), token)]
            assert float(chances) == pytest.approx(float(torch.softmax(scores.double(), 0)[token]), rel=2e-6)


def test_nothing_outside_the_outputs_is_written() -> None:
    rows, width, vocab = 2, 5, 21
    scores, token_ids, parents, verify = walk_case(3, rows, width, vocab)
    poison = 777

    def guarded(count: int, dtype: torch.dtype = torch.int32) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.full((count + 32,), poison, dtype=dtype)
        return whole, whole[16 : 16 + count]

    picks, chances, arrived, packed = (
        guarded(rows * width),
        guarded(rows * width, torch.float32),
        guarded(rows),
        guarded(rows * (width + 1)),
    )
    arrived[1].zero_()
    verify_triton.pick_and_walk_kernel[(width, rows)](
        scores, torch.ones(rows, width, vocab), token_ids, parents, verify.view(torch.int8),
        picks[1], chances[1], arrived[1], packed[1], width, vocab, width,
        *scores.stride()[:2], *scores.stride()[:2], T_BLOCK=16, BLOCK=16, NOISY=True,
    )  # fmt: skip
    for whole, _ in (picks, chances, arrived, packed):
        assert (whole[:16] == poison).all()
        assert (whole[-16:] == poison).all()
    assert unpack(packed[1].reshape(rows, -1)) == pick_and_walk(
        scores, token_ids, parents, verify, torch.ones(rows, width, vocab)
    )


def test_a_draft_that_is_no_tree_cannot_hang_or_leave_the_row() -> None:
    scores = torch.zeros(1, 4, 8)
    token_ids = torch.zeros(1, 3, dtype=torch.int32)
    parents = torch.tensor([[2, 0, 1]], dtype=torch.int32)  # a circle
    verify = torch.ones(1, 3, dtype=torch.bool)
    got, _ = verify_triton.pick_and_walk(scores, token_ids, parents, verify, torch.ones(1, 4, 8))
    assert unpack(got) == [((), 0)]


def test_what_the_walk_kernel_does_not_take_is_refused_by_name() -> None:
    scores, token_ids, parents, verify = walk_case(0, 2, 5, 8)
    launch = verify_triton.pick_and_walk
    with pytest.raises(ValueError, match=r"scores must have dtype .*, got torch.float64"):
        launch(scores.double(), token_ids, parents, verify)
    with pytest.raises(ValueError, match=r"scores must have a last stride of 1"):
        launch(scores.transpose(1, 2).contiguous().transpose(1, 2), token_ids, parents, verify)
    with pytest.raises(ValueError, match=r"token_ids must have dtype torch.int32, got torch.int64"):
        launch(scores, token_ids.long(), parents, verify)
    with pytest.raises(ValueError, match=r"parents must be contiguous"):
        launch(scores, token_ids, parents.T.contiguous().T, verify)
    with pytest.raises(ValueError, match=r"verify must have dtype torch.bool"):
        launch(scores, token_ids, parents, verify.int())
    with pytest.raises(ValueError, match=r"noise must have dtype torch.float32"):
        launch(scores, token_ids, parents, verify, torch.ones(2, 5, 8).double())
    with pytest.raises(ValueError, match=r"at most 1024 nodes per row, got 1025"):
        launch(torch.zeros(1, 1026, 2), *[torch.zeros(1, 1025, dtype=torch.int32)] * 2, torch.zeros(1, 1025).bool())


# ---- the cache -------------------------------------------------------------------------------------------------------

CACHE_DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8]


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(a band of 7s, a contiguous view of ``shape`` in its middle)."""
    count = torch.Size(shape).numel()
    whole = torch.full((count + 64,), 7, dtype=dtype)
    return whole, whole[32 : 32 + count].view(shape)


@few
@given(st.data())
def test_append_writes_only_each_rows_new_entries(data: st.DataObject) -> None:
    rows, heads, width = (data.draw(st.integers(1, most)) for most in (3, 3, 5))
    key_dim, value_dim = (data.draw(st.sampled_from([1, 3, 8, 16])) for _ in range(2))
    dtype = data.draw(st.sampled_from(CACHE_DTYPES))
    capacity = width + data.draw(st.integers(0, 6))
    starts = data.draw(st.lists(st.integers(-1, capacity), min_size=rows, max_size=rows))
    keys_whole, keys = poisoned((rows, heads, capacity, key_dim), dtype)
    values_whole, values = poisoned((rows, heads, capacity, value_dim), dtype)
    new_keys = torch.randint(-100, 100, (rows, width, heads, key_dim)).to(dtype).transpose(1, 2)
    new_values = inside_poison(torch.randint(-100, 100, (rows, heads, width, value_dim)).to(dtype), 9)
    want = keys.clone(), values.clone()
    for row, start in enumerate(starts):
        if 0 <= start <= capacity - width:  # a row that does not fit is left alone
            want[0][row, :, start : start + width] = new_keys[row]
            want[1][row, :, start : start + width] = new_values[row]
    kv_cache_triton.append(new_keys, new_values, keys, values, torch.tensor(starts, dtype=torch.int32))
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])
    for whole in (keys_whole, values_whole):
        assert (whole[:32] == 7).all()
        assert (whole[-32:] == 7).all()


@few
@given(st.data())
def test_commit_moves_what_the_torch_path_moves(data: st.DataObject) -> None:
    rows, heads = (data.draw(st.integers(1, most)) for most in (3, 2))
    dim = data.draw(st.sampled_from([1, 5, 64, 70]))
    dtype = data.draw(st.sampled_from(CACHE_DTYPES))
    width = data.draw(st.sampled_from([1, 4, 40]))
    capacity = width + data.draw(st.integers(0, 5))
    buffers, wholes, wants = [], [], []
    for _ in range(3):
        whole, buffer = poisoned((rows, heads, capacity, dim), dtype)
        buffer.copy_(torch.randint(-100, 100, buffer.shape).to(dtype))
        buffers.append(buffer)
        wholes.append(whole)
        wants.append(buffer.clone())
    moves = torch.zeros(rows, 2 + width, dtype=torch.int32)
    for row in range(rows):
        start = data.draw(st.integers(0, capacity - width))
        kept = data.draw(st.lists(st.integers(0, width - 1), unique=True, max_size=width).map(sorted))
        moves[row, 0], moves[row, 1] = start, len(kept)
        moves[row, 2 : 2 + len(kept)] = torch.tensor(kept, dtype=torch.int32)
        for want in wants:
            want[row, :, start : start + len(kept)] = want[row][:, [start + place for place in kept]]
    kv_cache_triton.commit(buffers, moves, kv_cache_triton.addresses_of(buffers))
    for buffer, whole, want in zip(buffers, wholes, wants):
        assert torch.equal(buffer, want)
        assert (whole[:32] == 7).all()
        assert (whole[-32:] == 7).all()


def test_commit_of_more_entries_than_a_chunk() -> None:
    """Every chunk's targets overlap what it and later ones read."""
    places = [0, 1, *range(3, 60)]
    buffer = torch.randn(1, 2, 70, 5)
    want = buffer.clone()
    want[0, :, 4 : 4 + len(places)] = buffer[0][:, [4 + place for place in places]]
    kv_cache_triton.commit([buffer], torch.tensor([[4, len(places), *places]], dtype=torch.int32))
    assert torch.equal(buffer, want)


def test_what_the_cache_kernels_do_not_take_is_refused_by_name() -> None:
    keys, new, starts = torch.zeros(2, 3, 10, 4), torch.zeros(2, 3, 5, 4), torch.zeros(2, dtype=torch.int32)
    append, commit = kv_cache_triton.append, kv_cache_triton.commit
    with pytest.raises(ValueError, match=r"new keys must have shape \(2, 3, 5, 4\), got \(2, 3, 5, 3\)"):
        append(new[..., :3], new, keys, keys.clone(), starts)
    with pytest.raises(ValueError, match=r"new values must have dtype torch.float32, got torch.float64"):
        append(new, new.double(), keys, keys.clone(), starts)
    with pytest.raises(ValueError, match=r"new keys must have a last stride of 1"):
        append(new.transpose(2, 3).contiguous().transpose(2, 3), new, keys, keys.clone(), starts)
    with pytest.raises(ValueError, match=r"starts must be contiguous int32"):
        append(new, new, keys, keys.clone(), starts.long())
    with pytest.raises(ValueError, match=r"buffers must be .*contiguous"):
        commit([keys.transpose(1, 2)], torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"buffers must be alike"):
        commit([keys, keys[:, :, :9].clone()], torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"elements of 1, 2, 4 or 8 bytes"):
        commit([keys.to(torch.complex64)], torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"moves must be contiguous int32"):
        commit([keys], torch.zeros(2, 3))


def test_the_cache_holds_the_same_with_and_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(with_triton: bool) -> RaggedCache:
        monkeypatch.setattr(kv_cache, "use_triton", lambda tensor: with_triton)
        rng, cache = random.Random(1), RaggedCache(2)
        for step in range(5):
            width = rng.randrange(1, 6)
            states = torch.randn(2, 2, width, 4, generator=torch.Generator().manual_seed(step))
            for layer in range(2):
                cache.update(states + layer, -states, layer)
            cache.keep_all([sorted(rng.sample(range(width), rng.randrange(width + 1))) for _ in range(2)])
        return cache

    ours, torchs = run(True), run(False)
    assert ours.lengths == torchs.lengths
    for a, b in zip(ours.layers, torchs.layers):
        for row, length in enumerate(ours.lengths):
            assert torch.equal(a.keys[row, :, :length], b.keys[row, :, :length])
            assert torch.equal(a.values[row, :, :length], b.values[row, :, :length])


def test_states_that_the_kernel_does_not_take_are_written_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "use_triton", lambda tensor: True)
    cache, states = RaggedCache(2), torch.randn(2, 3, 4, 5)
    cache.update(states, states[:, :1], 0)  # fewer heads for the values
    cache.update(states.transpose(2, 3).contiguous().transpose(2, 3), states, 1)  # last stride 4
    cache.update(states.half(), states, 2)
    cache.update(states, states, 2)  # another dtype than the buffer's
    cache.keep_all([[0, 2], [1, 3]])
    assert torch.equal(cache.layers[0].values[0, :, :2], states[0, :1, [0, 2]])
    assert torch.equal(cache.layers[1].keys[1, :, :2], states[1][:, [1, 3]])
    assert torch.equal(cache.layers[2].keys[0, :, :2], states[0][:, [0, 2]].half())


@pytest.mark.parametrize("sample", [False, True])
def test_a_model_writes_the_same_text_with_triton(monkeypatch: pytest.MonkeyPatch, sample: bool) -> None:
    """All three kernels in the loop, as on CUDA: rows walked together, cache appended and committed."""
    launches = set()

    def counted(module: object, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (launches.add(name), original(*args))[1])

    for module, name in ((kv_cache_triton, "append"), (kv_cache_triton, "commit"), (verify_triton, "pick_and_walk")):
        counted(module, name)
    for module in (kv_cache, verify):
        monkeypatch.setattr(module, "use_triton", lambda tensor: True)
    monkeypatch.setattr(fused, "serves", lambda logits: True)
    model, ids = tiny("llama"), prompt()
    options = {"max_new_tokens": 12, "do_sample": sample, "top_k": 0}
    expected = plain(model, ids, seed=3, **options)
    state = torch.get_rng_state()
    got, stats = ours(model, ids, bushy(expected[0], width=3), seed=3, **options)
    assert torch.equal(got, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert stats.num_decode_forwards < 11
    assert launches == {"append", "commit", "pick_and_walk"}
