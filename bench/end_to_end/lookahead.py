"""Tokens per forward and per cost of Lookahead, logit recycling, copies, and all of them, where little can be copied.

The target's own greedy text is written once by plain decoding; then every setting drafts along that text, and the
target computes what it would say at every drafted node: the acceptance is the one ``generate`` would see, free of the
noise of a busy machine. Nodes that one setting had computed are not computed again for the next (``--store``).

    python bench lookahead --model qwen --kind code --count 20 --out bench/results/lookahead_qwen_code.csv \
        copies recycle merged lookahead:15,5,15 merged+lookahead:5,4,8
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

from zerodraft.integrations import weights
from zerodraft.integrations.hf.target import Target
from zerodraft.integrations.models import load_model
from zerodraft.kernels.verify import walk
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import SOURCE_NAMES, Draft, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.lookahead.beside import Beside
from zerodraft.lookup.lookahead.lookahead import Lookahead
from zerodraft.lookup.policy import DraftPolicy

NUM_TOPK = 8
FREE = CostCurve([(1, 1.0), (1001, 1.01)])  # "at most so many nodes", whatever they cost
Step = tuple[int, int, list[int]]  # drafted nodes, emitted tokens, sources of the accepted ones
Path_ = tuple[int, ...]
Known = dict[str, Any]  # a text's tokens, and by node the target's best tokens there


def make_drafter(setting: str, max_nodes: int, curve: CostCurve) -> Any:
    """The drafter of a setting by name; a ``-shared`` one must be made once for all prompts."""
    name, _, numbers = setting.partition(":")
    parts = numbers.split(",") if numbers else []
    window = Lookahead(*map(int, parts), pool_from_prompt=name != "lookahead") if parts else None
    if name == "lookahead":
        return window
    options: dict[str, Any] = {"max_draft_tokens": max_nodes, "cost": curve}
    if name.startswith("recycle"):
        options |= {"prompt_lookup_min": 4096, "prompt_lookup_max": 4096}  # nothing is ever copied
    recycle: Any = "shared" if "-shared" in name else not name.startswith("copies")
    drafter = Drafter(policy=DraftPolicy(**options), recycle=recycle)
    return Beside(drafter, window) if window is not None else drafter


def prompts_of(kind: str) -> list[dict[str, str]]:
    """The prompts written for this bench: chat messages, or beginnings of code to be completed."""
    lines = Path(__file__).with_name(f"prompts_{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def encode(tokenizer: Any, entry: dict[str, str]) -> list[int]:
    """Token ids: a message inside the model's chat template, a beginning of code as it is."""
    if "prefix" in entry:
        return list(tokenizer(entry["prefix"])["input_ids"])
    talk = [{"role": "user", "content": entry["message"]}]
    return list(tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False))


def write_known(file: Path, known: dict[str, Known]) -> None:
    """Keep texts and nodes as plain arrays, five per text: nothing of the file is ever unpickled."""
    arrays = {"names": np.array(list(known), dtype=str)}
    for i, one in enumerate(known.values()):
        keys = list(one["nodes"])
        arrays[f"text_{i}"] = np.array(one["text"], np.int32)
        arrays[f"at_{i}"] = np.array([at for at, _ in keys], np.int32)
        arrays[f"depth_{i}"] = np.array([len(path) for _, path in keys], np.int32)
        arrays[f"paths_{i}"] = np.array([token for _, path in keys for token in path], np.int32)
        arrays[f"best_{i}"] = np.array(list(one["nodes"].values()), np.int32).reshape(len(keys), NUM_TOPK)
    whole = file.with_suffix(".new.npz")
    np.savez(whole, **arrays)
    whole.replace(file)


def read_known(file: Path) -> dict[str, Known]:
    """What ``write_known`` wrote."""
    known: dict[str, Known] = {}
    with np.load(file, allow_pickle=False) as arrays:
        for i, name in enumerate(arrays["names"].tolist()):
            paths = np.split(arrays[f"paths_{i}"], np.cumsum(arrays[f"depth_{i}"])[:-1])
            keys = zip(arrays[f"at_{i}"].tolist(), (tuple(path.tolist()) for path in paths))
            known[name] = {"text": arrays[f"text_{i}"].tolist(), "nodes": dict(zip(keys, arrays[f"best_{i}"]))}
    return known


class Texts:
    """The target's greedy continuations of the prompts, and what it says after nodes that were drafted along them."""

    def __init__(self, model_name: str, dtype: str, kind: str, new_tokens: int, folder: Path) -> None:
        self.loaded = load_model(str(weights.find(model_name)), dtype=dtype)
        self.model, self.tokenizer = self.loaded.model, self.loaded.tokenizer
        self.kind, self.new_tokens = kind, new_tokens
        self._file = folder / f"{model_name}-{dtype}-{kind}-{new_tokens}.npz"
        self._known = read_known(self._file) if self._file.exists() else {}
        self.num_computed = 0

    def prompts(self) -> list[tuple[str, list[int]]]:
        """(id, token ids) of the kind's prompts."""
        return [(entry["id"], encode(self.tokenizer, entry)) for entry in prompts_of(self.kind)]

    def texts(self, prompts: list[tuple[str, list[int]]]) -> list[Text]:
        """The prompts' texts, decoded plainly, a dozen side by side, the first time."""
        missing = [(name, ids) for name, ids in prompts if name not in self._known]
        missing.sort(key=lambda prompt: len(prompt[1]))
        for start in range(0, len(missing), 12):
            self._decode(missing[start : start + 12])
            self.save()
        entries = [self._known[name] for name, _ in prompts]
        return [Text(self, ids, entry["text"], entry["nodes"]) for (_, ids), entry in zip(prompts, entries)]

    def _decode(self, prompts: list[tuple[str, list[int]]]) -> None:
        width = max(len(ids) for _, ids in prompts)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (width - len(ids)) + ids for _, ids in prompts])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for _, ids in prompts])
        options = {"max_new_tokens": self.new_tokens, "do_sample": False, "repetition_penalty": 1.0}
        output = self.model.generate(ids, attention_mask=mask, **options)
        eos = self.model.generation_config.eos_token_id
        ends = set(eos if isinstance(eos, list) else [eos])
        for (name, _), new in zip(prompts, output[:, width:].tolist()):
            length = next((at + 1 for at, token in enumerate(new) if token in ends), len(new))
            self._known[name] = {"text": new[:length], "nodes": {}}

    def save(self) -> None:
        """Keep what is known for the next setting."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_known(self._file, self._known)


class Text:
    """One text: drafters are played along it."""

    def __init__(self, texts: Texts, prompt: list[int], new: list[int], nodes: dict[Any, Any]) -> None:
        self._texts, self._prompt, self._full, self._nodes = texts, prompt, [*prompt, *new], nodes
        self._target: Target | None = None
        if (len(prompt), ()) not in nodes:
            with torch.no_grad():
                logits = texts.model(torch.tensor([self._full]), logits_to_keep=len(new) + 1).logits[0]
            for at, row in enumerate(_best(logits)):
                nodes[(len(prompt) + at, ())] = row

    def play(self, drafter: Any) -> list[Step]:
        """Decode the text with a drafter; per forward: nodes, tokens, sources."""
        full, at = self._full, len(self._prompt)
        session = drafter.begin(self._prompt)
        k = getattr(session, "num_topk", 0)
        first = self._nodes[(at, ())][None, :k] if k else None
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(full[at],), stop="full", topk=first))
        at += 1
        steps: list[Step] = []
        while at < len(full):
            depth = len(full) - at - 1
            draft = session.propose(512, depth) if depth else Draft.empty()
            position = iter(range(at, len(full)))

            def step(_: int, position: Any = position) -> tuple[int, str | None]:
                here = next(position)
                return full[here], "length" if here == len(full) - 1 else None

            done = walk(draft.token_ids.tolist(), draft.parents.tolist(), draft.verify.tolist(), step)
            topk = self._after(at, draft)[:, :k] if k else None
            stop: Any = done.stop
            session.commit(draft, Outcome(path=done.path, new_ids=done.new_ids, stop=stop, topk=topk))
            steps.append((len(draft), len(done.new_ids), draft.source[list(done.path)].tolist()))
            at += len(done.new_ids)
        session.finish()
        return steps

    def _after(self, at: int, draft: Draft) -> Any:
        """The target's best tokens after the first ``at`` tokens and after every node, int32 (1 + n, NUM_TOPK)."""
        ids, parents = draft.token_ids.tolist(), draft.parents.tolist()
        paths: list[Path_] = []
        for token, parent in zip(ids, parents):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        keys = [self._key(at, path) for path in paths]
        wanted: set[int] = set()
        for node, key in enumerate(keys):
            while key not in self._nodes and node >= 0 and node not in wanted:
                wanted.add(node)  # and all its ancestors: the forward needs them
                node = parents[node]
        if wanted:
            everything = sorted({above for node in wanted for above in _ancestors(node, parents)})
            for node, row in zip(everything, self._compute(at, everything, ids, parents)):
                self._nodes[keys[node]] = row
        return np.stack([self._nodes[(at, ())], *(self._nodes[key] for key in keys)])

    def _key(self, at: int, path: Path_) -> tuple[int, Path_]:
        """A node by the text before it and the path that leaves the text there."""
        agreed = 0
        while agreed < len(path) and at + agreed < len(self._full) and path[agreed] == self._full[at + agreed]:
            agreed += 1
        return at + agreed, path[agreed:]

    @torch.no_grad()
    def _compute(self, at: int, nodes: list[int], ids: list[int], parents: list[int]) -> Any:
        if self._target is None:
            self._target = Target(self._texts.model, 1)
            self._target.prefill([torch.tensor(self._full[: at - 1])])
        unread = self._full[self._target.cache.lengths[0] : at]  # up to the root: steps whose nodes were all known
        trunk = len(unread) - 1
        place = {-1: trunk - 1} | {node: trunk + i for i, node in enumerate(nodes)}
        tree_ids = [*unread[1:], *(ids[node] for node in nodes)]
        tree_parents = [*range(-1, trunk - 1), *(place[parents[node]] for node in nodes)]
        tree = Draft.tree(tree_ids, np.array(tree_parents, np.int32), verify=[False] * len(tree_ids))
        logits = self._target.check([unread[0]], [tree])[0]
        self._target.cache.keep(0, list(range(trunk + 1)))
        self._texts.num_computed += len(nodes)
        return _best(logits[trunk + 1 :])


def _best(logits: torch.Tensor) -> Any:
    return logits.topk(NUM_TOPK).indices.to(torch.int32).numpy()


def _ancestors(node: int, parents: list[int]) -> list[int]:
    chain = []
    while node >= 0:
        chain.append(node)
        node = parents[node]
    return chain


def summary(runs: list[list[Step]]) -> dict[str, Any]:
    """Figures of one setting over its prompts."""
    steps = [step for run in runs for step in run]
    num_tokens = sum(tokens for _, tokens, _ in steps)
    each = [sum(tokens for _, tokens, _ in run) / len(run) for run in runs if run]
    low, middle, high = np.percentile(each, [20, 50, 80])
    sources = Counter(SOURCE_NAMES[source] for _, _, accepted in steps for source in accepted)
    row: dict[str, Any] = {
        "prompts": len(each),
        "tokens": num_tokens,
        "forwards": len(steps),
        "tokens_per_forward": num_tokens / len(steps),
        "p20": low,
        "p50": middle,
        "p80": high,
        "nodes_per_forward": float(np.mean([nodes for nodes, _, _ in steps])),
    }
    for name in measure.CURVES:
        costs = measure.curve(name).table(512)
        row[f"tokens_per_cost_{name}"] = num_tokens / sum(costs[1 + nodes] for nodes, _, _ in steps)
    return row | {f"accepted_{name}": sources[name] for name in ("context", "recycled", "window")}


def main() -> None:
    """Play every setting along every prompt's text and write one CSV row per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", help="copies, recycle, recycle-shared, merged, merged-shared, ...")
    parser.add_argument("--model", default="qwen", choices=sorted(weights.CATALOGUE))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kind", default="code", choices=("chat", "code"))
    parser.add_argument("--count", type=int, default=20, help="prompts")
    parser.add_argument("--skip", type=int, default=0, help="prompts to leave out before these")
    parser.add_argument("--shortest", action="store_true", help="take the shortest prompts first")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--max-nodes", type=int, default=64)
    parser.add_argument("--curve", default="free", help="cost the drafter reckons with: free, or one of curves.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--store", type=Path, default=weights.cache_dir().parent / "bench-lookahead")
    parser.add_argument("--out", type=Path, help="CSV file to append to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    curve = FREE if args.curve == "free" else measure.curve(args.curve)
    texts = Texts(args.model, args.dtype, args.kind, args.new_tokens, args.store)
    prompts = texts.prompts()
    if args.shortest:
        prompts.sort(key=lambda prompt: len(prompt[1]))
    prompts = prompts[args.skip : args.skip + args.count]
    for setting in args.settings:
        started = time.process_time()
        drafter = make_drafter(setting, args.max_nodes, curve)
        runs = []
        for text in texts.texts(prompts):
            runs.append(text.play(drafter))
            texts.save()
        row = {"model": args.model, "dtype": args.dtype, "kind": args.kind, "new_tokens": args.new_tokens}
        row |= {"chosen": f"{'shortest ' if args.shortest else ''}{args.skip}:{args.skip + args.count}"}
        row |= {"setting": setting, "max_nodes": args.max_nodes, "curve": args.curve} | summary(runs)
        row = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
        print(json.dumps(row), flush=True)
        print(f"{texts.num_computed} nodes so far, {time.process_time() - started:.0f} s CPU", file=sys.stderr)
        if args.out is not None:
            measure.write_csv(args.out, [*measure.read_csv(args.out), row])
