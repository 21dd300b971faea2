"""Verification is exact: by enumeration against the oracle, and a few times by counting."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
import reference.tree
import reference.verify
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from zerodraft.kernels.verify import (
    accept_probability,
    acceptance_rate,
    pick,
    residual,
    verify_sampled,
    walk,
)

V = 8
Model = Callable[[tuple[int, ...]], list[float]]


# ---- toy targets: logits from a table keyed by the last two tokens ---------------------------------------------------

SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"top_k": 3},
    {"temperature": 0.7, "top_k": 2},
    {"top_p": 0.8},
    {"temperature": 1.5, "top_p": 0.6},
    {"min_p": 0.2},
    {"min_p": 0.9},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
]


def table_logits(context: tuple[int, ...], seed: int = 0) -> list[float]:
    rng = random.Random(f"{seed}:{context[-2:]}")
    return [rng.gauss(0.0, 1.5) for _ in range(V)]


def oracle_model(**settings: float) -> Model:
    return lambda context: reference.verify.processed(table_logits(context), **settings)


def warpers(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> LogitsProcessorList:
    """The real processors, in the order in which generate lists them."""
    found = LogitsProcessorList()
    if temperature != 1.0:
        found.append(TemperatureLogitsWarper(temperature))
    if top_k is not None:
        found.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        found.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        found.append(MinPLogitsWarper(min_p))
    return found


def real_model(dtype: torch.dtype = torch.float64, **settings: float) -> Model:
    """The same distributions by way of torch and the real processors."""
    processors = warpers(**settings)  # type: ignore[arg-type]

    def model(context: tuple[int, ...]) -> list[float]:
        scores = processors(torch.tensor([context]), torch.tensor([table_logits(context)], dtype=dtype))
        return torch.softmax(scores, -1)[0].tolist()

    return model


class Tree:
    """A draft as plain lists."""

    def __init__(self, token_ids: list[int], parents: list[int], verify: list[bool] | None = None) -> None:
        self.token_ids, self.parents = token_ids, parents
        self.verify = [True] * len(token_ids) if verify is None else verify

    def context_at(self, context: tuple[int, ...], node: int) -> tuple[int, ...]:
        """What the target has read at a node of the forward."""
        return (*context, *(self.token_ids[i] for i in reference.tree.path_to(node, self.parents)))


Drafter = Callable[[tuple[int, ...], int, Model], Tree]


def ranked(model: Model, context: tuple[int, ...]) -> list[int]:
    """Tokens by falling probability, ties by id."""
    p = model(context)
    return sorted(range(V), key=lambda token: (-p[token], token))


def chain_of(choose: Callable[[list[int]], int]) -> Drafter:
    def draft(context: tuple[int, ...], depth: int, model: Model) -> Tree:
        ids: list[int] = []
        for _ in range(depth):
            ids.append(choose(ranked(model, (*context, *ids))))
        return Tree(ids, list(range(-1, depth - 1)))

    return draft


def tree_of(num_siblings: int, *, windows: bool = False) -> Drafter:
    """The likeliest token, then the least likely, then random ones, below every node; window nodes in between."""

    def draft(context: tuple[int, ...], depth: int, model: Model) -> Tree:
        rng = random.Random(f"{context}")
        tree = Tree([], [])
        level = [-1]
        for _ in range(depth):
            below = []
            for node in level:
                order = ranked(model, tree.context_at(context, node))
                ids = list(dict.fromkeys([order[0], order[-1], *rng.sample(range(V), V)]))[:num_siblings]
                for token in rng.sample(ids, len(ids)):
                    if windows:  # computed, never accepted: here even the likeliest token
                        tree.token_ids.append(order[0])
                        tree.parents.append(node)
                        tree.verify.append(False)
                    below.append(len(tree.token_ids))
                    tree.token_ids.append(token)
                    tree.parents.append(node)
                    tree.verify.append(True)
            level = below[:2]
        return tree

    return draft


DRAFTERS: dict[str, Drafter] = {
    "likeliest": chain_of(lambda order: order[0]),
    "second": chain_of(lambda order: order[1]),
    "least likely or impossible": chain_of(lambda order: order[-1]),
    "empty": lambda context, depth, model: Tree([], []),
    "two siblings": tree_of(2),
    "three siblings": tree_of(3),
    "four siblings": tree_of(4),
    "window nodes": tree_of(2, windows=True),
}


# ---- every sequence of picks through the real walk -------------------------------------------------------------------


class _NeedsPickError(Exception):
    pass


def block_outcomes(
    model: Model, context: tuple[int, ...], tree: Tree
) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
    """Probability of every (path, new_ids) of ``walk``, found by trying every possible pick at every step."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        weight, taken, open_p = 1.0, 0, [0.0]

        def step(node: int, script: tuple[int, ...] = script) -> tuple[int, None]:
            nonlocal weight, taken, open_p
            p = model(tree.context_at(context, node))  # what the forward computed at this node, and nowhere else
            if taken == len(script):
                open_p = p
                raise _NeedsPickError
            weight *= p[script[taken]]
            taken += 1
            return script[taken - 1], None

        try:
            done = walk(tree.token_ids, tree.parents, tree.verify, step)
        except _NeedsPickError:
            scripts += [(*script, token) for token in range(V) if open_p[token] > 0]
            continue
        key = (done.path, done.new_ids)
        assert key not in found
        found[key] = weight
    return found


def emitted_joint(
    model: Model, context: tuple[int, ...], length: int, drafter: Drafter
) -> dict[tuple[int, ...], float]:
    """Joint distribution of the first ``length`` emitted tokens, step after step with a new draft each."""
    if length <= 0:
        return {(): 1.0}
    joint: dict[tuple[int, ...], float] = {}
    tree = drafter(context, length - 1, model)
    for (_, new_ids), weight in block_outcomes(model, context, tree).items():
        for rest, p in emitted_joint(model, (*context, *new_ids), length - len(new_ids), drafter).items():
            key = (*new_ids, *rest)
            joint[key] = joint.get(key, 0.0) + weight * p
    return joint


def assert_same(got: dict, expected: dict, tolerance: float = 1e-12) -> None:
    assert got.keys() == expected.keys()
    assert max(abs(got[key] - expected[key]) for key in expected) < tolerance
    assert math.isclose(sum(got.values()), 1.0, abs_tol=1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_processors_agree_with_the_oracle(settings: dict[str, float]) -> None:
    real, oracle = real_model(**settings), oracle_model(**settings)
    for context in itertools.product(range(V), repeat=2):
        assert real(context) == pytest.approx(oracle(context), abs=1e-13)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_emitted_text_is_distributed_as_the_target_alone_writes_it(settings: dict[str, float], drafter: str) -> None:
    context = (3, 5)
    got = emitted_joint(real_model(**settings), context, 3, DRAFTERS[drafter])
    assert_same(got, reference.verify.autoregressive_joint(oracle_model(**settings), context, 3))


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_walk_equals_sequential_rejection_over_siblings(settings: dict[str, float], drafter: str) -> None:
    """Not only the text: which nodes are accepted has the same distribution too."""
    for context in [(0, 1), (7, 7)]:
        oracle = oracle_model(**settings)
        tree = DRAFTERS[drafter](context, 2, oracle)
        got = block_outcomes(real_model(**settings), context, tree)
        expected = reference.verify.sequential_rejection(oracle, context, tree.token_ids, tree.parents, tree.verify)
        assert_same(got, expected)


def test_impossible_drafts_are_never_accepted() -> None:
    model = oracle_model(top_k=2)
    tree = DRAFTERS["least likely or impossible"]((1, 2), 3, model)
    assert model((1, 2))[tree.token_ids[0]] == 0
    assert {path for path, _ in block_outcomes(model, (1, 2), tree)} == {()}


# Critical value of chi-square with 26 degrees of freedom at 1e-4 (27 cells: top_k = 3, three tokens).
# From the regularised incomplete gamma function: 1 - P(26 / 2, x / 2) = 1e-4.
CHI_SQUARE_26 = 61.657


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "temperature"),
    [
        ("likeliest", 1.0),
        ("second", 1.5),
        ("least likely or impossible", 1.0),
        ("three siblings", 1.5),
        ("four siblings", 1.0),
        ("window nodes", 1.5),
    ],
)
def test_counts_of_three_emitted_tokens(drafter: str, temperature: float) -> None:
    """The same with real draws (``pick`` in float32 from a seeded generator) instead of enumeration."""
    num_runs, context = 12_000, (2, 6)
    processors = warpers(temperature, top_k=3)
    oracle = oracle_model(temperature=temperature, top_k=3)
    generator = torch.Generator().manual_seed(20)
    scores = {
        (*context, *tokens): processors(torch.tensor([context]), torch.tensor([table_logits((*context, *tokens))]))
        for n in range(3)
        for tokens in itertools.product(range(V), repeat=n)
    }
    trees: dict[tuple[int, ...], Tree] = {}
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(num_runs):
        text = context
        while len(text) < len(context) + 3:
            if text not in trees:
                trees[text] = DRAFTERS[drafter](text, len(context) + 2 - len(text), oracle)
            tree = trees[text]

            def step(node: int, text: tuple[int, ...] = text, tree: Tree = tree) -> tuple[int, None]:
                return int(pick(scores[tree.context_at(text, node)], do_sample=True, generator=generator)), None

            text += walk(tree.token_ids, tree.parents, tree.verify, step).new_ids
        counts[text[len(context) :]] += 1
    expected = reference.verify.autoregressive_joint(oracle, context, 3)
    assert len(expected) == 27
    assert min(expected.values()) * num_runs >= 5
    assert set(counts) <= set(expected)
    statistic = sum((counts[key] - num_runs * p) ** 2 / (num_runs * p) for key, p in expected.items())
    assert statistic < CHI_SQUARE_26


# ---- the rules of the walk itself ------------------------------------------------------------------------------------


def scripted(*picks: tuple[int | None, str | None]) -> tuple[Callable[[int], tuple[int | None, str | None]], list[int]]:
    """A step that gives these answers one after another, and the list of nodes it was asked at."""
    asked: list[int] = []

    def step(node: int) -> tuple[int | None, str | None]:
        asked.append(node)
        return picks[len(asked) - 1]

    return step, asked


BRANCHES = ([10, 11, 20, 21, 30], [-1, -1, 0, 0, 2], [True] * 5)


def test_step_is_asked_once_per_emitted_token_at_the_node_reached() -> None:
    step, asked = scripted((10, None), (20, None), (30, None), (99, None))
    done = walk(*BRANCHES, step)
    assert asked == [-1, 0, 2, 4]
    assert done == ((0, 2, 4), (10, 20, 30, 99), "full")


def test_every_sibling_can_be_taken() -> None:
    step, asked = scripted((11, None), (5, None))
    assert walk(*BRANCHES, step) == ((1,), (11, 5), "full")
    assert asked == [-1, 1]
    step, asked = scripted((10, None), (21, None), (5, None))
    assert walk(*BRANCHES, step) == ((0, 3), (10, 21, 5), "full")
    assert asked == [-1, 0, 3]


def test_a_token_that_was_not_drafted_ends_the_walk() -> None:
    step, asked = scripted((10, None), (30, None))
    assert walk(*BRANCHES, step) == ((0,), (10, 30), "rejected")
    assert asked == [-1, 0]
    step, asked = scripted((12, None))
    assert walk(*BRANCHES, step) == ((), (12,), "rejected")


def test_a_reason_to_stop_ends_it_on_an_accepted_node_or_on_the_bonus() -> None:
    step, asked = scripted((10, None), (20, "eos"))
    assert walk(*BRANCHES, step) == ((0, 2), (10, 20), "eos")
    assert asked == [-1, 0]
    step, _ = scripted((10, None), (77, "length"))
    assert walk(*BRANCHES, step) == ((0,), (10, 77), "length")


def test_window_nodes_are_never_accepted() -> None:
    ids, parents, verify = [10, 20, 10, 30], [-1, 0, -1, 2], [False, False, True, False]
    step, asked = scripted((10, None), (30, None))
    assert walk(ids, parents, verify, step) == ((2,), (10, 30), "full")
    assert asked == [-1, 2]
    step, _ = scripted((10, None))
    assert walk([10], [-1], [False], step) == ((), (10,), "full")


def test_an_empty_draft_is_plain_decoding() -> None:
    step, asked = scripted((4, None))
    assert walk([], [], [], step) == ((), (4,), "full")
    assert asked == [-1]


def test_pick_draws_as_plain_decoding_does() -> None:
    scores = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    ours, plain = torch.Generator().manual_seed(9), torch.Generator().manual_seed(9)
    for _ in range(20):
        expected = torch.multinomial(torch.softmax(scores, -1), num_samples=1, generator=plain).squeeze(1)
        assert torch.equal(pick(scores, do_sample=True, generator=ours), expected)
    assert torch.equal(ours.get_state(), plain.get_state())
    assert pick(scores, do_sample=False).tolist() == [int(scores.argmax())]


# ---- the general rule: a drafter with a full distribution ------------------------------------------------------------

WORKED_Q, WORKED_P = [0.6, 0.3, 0.1], [0.4, 0.4, 0.2]


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_worked_example() -> None:
    q, p = double(WORKED_Q), double(WORKED_P)
    keep = accept_probability(p, q)
    assert keep.tolist() == pytest.approx([2 / 3, 1.0, 1.0], abs=1e-12)
    assert float((q * keep).sum()) == pytest.approx(0.8, abs=1e-12)
    assert float(acceptance_rate(p, q)) == pytest.approx(0.8, abs=1e-12)
    assert residual(p, q).tolist() == pytest.approx([0.0, 0.5, 0.5], abs=1e-12)
    output = q * keep + (1 - (q * keep).sum()) * residual(p, q)
    assert output.tolist() == pytest.approx(WORKED_P, abs=1e-12)


def random_distribution(rng: random.Random, size: int, num_zeros: int = 0) -> list[float]:
    weights = [rng.random() for _ in range(size)]
    for index in rng.sample(range(size), num_zeros):
        weights[index] = 0.0
    return [weight / math.fsum(weights) for weight in weights]


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_the_rule_agree_with_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    p = random_distribution(rng, V, rng.randrange(4))
    q = random_distribution(rng, V, rng.randrange(4))
    expected = [reference.verify.acceptance(a, b) for a, b in zip(p, q)]
    assert accept_probability(double(p), double(q)).tolist() == pytest.approx(expected, abs=1e-15)
    assert residual(double(p), double(q)).tolist() == pytest.approx(reference.verify.residual(p, q), abs=1e-13)
    assert residual(double(p), double(p)).tolist() == p
    overlap = sum(min(a, b) for a, b in zip(p, q))
    assert float(acceptance_rate(double(p), double(q))) == pytest.approx(overlap, abs=1e-13)


class Dice:
    """Takes the place of torch's randomness in ``verify_sampled``: chosen uniforms, and sight of what is drawn from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uniforms: list[float] = []
        self.drawn_from: list[float] = []
        monkeypatch.setattr(torch, "rand", lambda n, **_: double(self.uniforms[:n]))
        monkeypatch.setattr(torch, "multinomial", self._multinomial)

    def _multinomial(self, probs: torch.Tensor, num: int, **_: object) -> torch.Tensor:
        self.drawn_from = probs.tolist()
        return probs.argmax()[None]


def rule_outcomes(
    dice: Dice, draft: list[int], q: list[list[float]], ps: list[list[float]]
) -> dict[tuple[int, int], float]:
    """Probability of every (accepted, next token) of ``verify_sampled``, for one drafted chain.

    Its uniforms are set just below and exactly at each acceptance probability: below keeps the token, at it refuses.
    """
    keep = [reference.verify.acceptance(ps[i][token], q[i][token]) for i, token in enumerate(draft)]
    found: dict[tuple[int, int], float] = {}
    weight = 1.0
    for accepted in range(len(draft) + 1):
        here = weight * (1 - keep[accepted] if accepted < len(draft) else 1.0)
        if here > 0:
            below = [math.nextafter(k, 0.0) for k in keep[:accepted]]
            dice.uniforms = below + [keep[i] for i in range(accepted, len(draft))]
            got, _ = verify_sampled(torch.tensor(draft, dtype=torch.long), double(q).reshape(-1, V), double(ps))
            assert got == accepted
            for token, p in enumerate(dice.drawn_from):
                if here * p > 0:
                    found[accepted, token] = here * p
        weight *= keep[accepted] if accepted < len(draft) else 1.0
        if weight == 0:
            break
    return found


def drafter_distribution(kind: str, context: tuple[int, ...], p: list[float]) -> list[float]:
    rng = random.Random(f"q{context}")
    if kind == "same as p":
        return list(p)
    if kind == "one-hot":
        token = rng.randrange(V)
        return [float(i == token) for i in range(V)]
    return random_distribution(rng, V, 4 if kind == "with zeros" else 0)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("kind", ["random", "with zeros", "same as p", "one-hot"])
@pytest.mark.parametrize("settings", [{"temperature": 1.5}, {"top_k": 3}, {"top_p": 0.7}], ids=str)
def test_the_general_rule_emits_exactly_p(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, float], kind: str, length: int
) -> None:
    """Over every chain the drafter could draw: block outcomes as in Algorithm 1, joint of n + 1 tokens as p."""
    dice = Dice(monkeypatch)
    model, context = oracle_model(**settings), (4, 1)
    joint: dict[tuple[int, ...], float] = {}

    def draw(ids: tuple[int, ...], weight: float, q: list[list[float]]) -> None:
        if len(ids) < length:
            here = (*context, *ids)
            row = drafter_distribution(kind, here, model(here))
            for token in range(V):
                if row[token] > 0:
                    draw((*ids, token), weight * row[token], [*q, row])
            return
        ps = [model((*context, *ids[:i])) for i in range(length + 1)]
        got = rule_outcomes(dice, list(ids), q, ps)
        expected = reference.verify.algorithm_one(ps, q, list(ids))
        assert got.keys() == expected.keys()
        for (accepted, token), p in got.items():
            assert p == pytest.approx(expected[accepted, token], abs=1e-13)
            key = (*ids[:accepted], token)
            joint[key] = joint.get(key, 0.0) + weight * p

    draw((), 1.0, [])
    complete: dict[tuple[int, ...], float] = {}
    for tokens, weight in joint.items():
        rest = reference.verify.autoregressive_joint(model, (*context, *tokens), length + 1 - len(tokens))
        for more, p in rest.items():
            complete[(*tokens, *more)] = complete.get((*tokens, *more), 0.0) + weight * p
    assert_same(complete, reference.verify.autoregressive_joint(model, context, length + 1))


def test_verify_sampled_draws_from_its_generator() -> None:
    p, q = double([WORKED_P, WORKED_P]), double([WORKED_Q])
    draft = torch.tensor([0])
    first = [verify_sampled(draft, q, p, generator=torch.Generator().manual_seed(s)) for s in range(40)]
    again = [verify_sampled(draft, q, p, generator=torch.Generator().manual_seed(s)) for s in range(40)]
    assert first == again
    assert {accepted for accepted, _ in first} == {0, 1}


@pytest.mark.parametrize(
    ("draft", "q", "p"),
    [((2,), (2, V), (2, V)), ((2,), (1, V), (3, V)), ((1, 2), (2, V), (3, V)), ((2,), (2, V), (3, V + 1))],
)
def test_shapes_that_do_not_fit_are_refused(draft: tuple, q: tuple, p: tuple) -> None:
    with pytest.raises(ValueError, match=r"expected draft_ids \(n,\), q \(n, V\), p \(n \+ 1, V\), got"):
        verify_sampled(torch.zeros(draft, dtype=torch.long), torch.ones(q), torch.ones(p))
