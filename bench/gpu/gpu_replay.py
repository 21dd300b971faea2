"""Forced replay: known outputs written through a model of real size whose weights are random.

The forwards, the verification and the lookups are real and timed. What the target "chose" is not: it is the next token
of the known output. So the wall clock is that of a model which writes exactly this text.
"""

from __future__ import annotations

import itertools
import json
import re
import sysconfig
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

_PIECE = re.compile(r"\w+|\s+|[^\w\s]")


class Trace(NamedTuple):
    """Token ids of what was asked, of the text to be edited, and of what was written."""

    prompt: list[int]
    prediction: list[int]
    output: list[int]


def tokens(text: str, vocab: int) -> list[int]:
    """Words, runs of blanks and signs, each hashed into the vocabulary."""
    return [zlib.crc32(piece.encode()) % vocab for piece in _PIECE.findall(text)]


def read_traces(path: Path | None, vocab: int, count: int, least: int) -> tuple[str, list[Trace]]:
    """(what they are, traces whose output has at least ``least`` tokens).

    Without a file: modules of the standard library in which the most frequent long name is renamed everywhere.
    A file holds one JSON object per line with "prompt", "output" and optionally "prediction", all text.
    """
    found = []
    if path is not None:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found.append([entry["prompt"], entry.get("prediction", ""), entry["output"]])
    else:
        for module in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            text = module.read_text(encoding="utf-8", errors="replace")[:12_000]
            names = Counter(name for name in re.findall(r"\b[a-z_]{5,}\b", text))
            if names:
                name = names.most_common(1)[0][0]
                edited = re.sub(rf"\b{name}\b", f"new_{name}", text)
                found.append([f"{text}\nRename {name} to new_{name}.\n", text, edited])
    traces = [Trace(*(tokens(part, vocab) for part in parts)) for parts in found]
    traces = [trace for trace in traces if len(trace.output) > least][:count]
    name = path.name if path is not None else "renames made in modules of the standard library"
    return name, traces


class NoDrafts:
    """Plain decoding."""

    def __init__(self, trace: Trace, use_prediction: bool) -> None:
        pass

    def propose(self, room: int) -> Any:
        from zerodraft.lookup.draft import Draft

        return Draft.empty()

    def commit(self, draft: Any, outcome: Any) -> None:
        pass


class PromptLookup(NoDrafts):
    """transformers' own prompt lookup, 10 tokens, as ``generate(prompt_lookup_num_tokens=10)`` uses it."""

    def __init__(self, trace: Trace, use_prediction: bool) -> None:
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self._ids = list(trace.prompt)
        self._generator = PromptLookupCandidateGenerator(num_output_tokens=10, max_length=2**30)

    def propose(self, room: int) -> Any:
        from zerodraft.lookup.draft import Draft

        ids = torch.tensor([self._ids])
        candidates, _ = self._generator.get_candidates(ids)
        return Draft.chain(candidates[0, len(self._ids) :].tolist()[:room])

    def commit(self, draft: Any, outcome: Any) -> None:
        self._ids += outcome.new_ids


def zerodraft_with(curve: Any) -> Callable[[Trace, bool], Any]:
    """Our drafter at a measured cost curve."""
    from zerodraft.lookup.drafter import Drafter
    from zerodraft.lookup.policy import DraftPolicy

    drafter = Drafter(policy=DraftPolicy(cost=curve))

    class Ours(NoDrafts):
        def __init__(self, trace: Trace, use_prediction: bool) -> None:
            self._session = drafter.begin(trace.prompt, trace.prediction if use_prediction else None)

        def propose(self, room: int) -> Any:
            return self._session.propose(room, room)

        def commit(self, draft: Any, outcome: Any) -> None:
            self._session.commit(draft, outcome)

    return Ours


@torch.no_grad()
def replay(
    model: Any, traces: list[Trace], make: Callable[[Trace, bool], Any], limit: int, sync: Callable[[], None]
) -> dict[str, Any]:
    """Write the first ``limit`` tokens of every trace side by side; prefill not timed. Seconds by phase, and counts."""
    from zerodraft.integrations.hf.target import Target
    from zerodraft.lookup.draft import Draft, Outcome

    target = Target(model, len(traces))
    target.prefill([torch.tensor(trace.prompt, device=model.device) for trace in traces], chunk_size=2048)
    running = list(range(len(traces)))
    sessions = [make(trace, True) for trace in traces]
    written = [1] * len(traces)
    for session, trace in zip(sessions, traces):
        session.commit(Draft.empty(), Outcome(path=(), new_ids=(trace.output[0],), stop="full"))
    spent = {"lookup_seconds": 0.0, "forward_seconds": 0.0, "verify_seconds": 0.0, "commit_seconds": 0.0}
    forwards = positions = accepted = 0
    sync()
    started = time.perf_counter()
    while running:
        marks = [time.perf_counter()]
        rooms = [limit - written[row] - 1 for row in running]
        drafts = [sessions[row].propose(room) if room > 0 else Draft.empty() for row, room in zip(running, rooms)]
        marks.append(time.perf_counter())
        logits = target.check([traces[row].output[written[row] - 1] for row in running], drafts)
        sync()
        marks.append(time.perf_counter())
        verify_as_the_loop_does(logits, drafts)
        outcomes = [forced(draft, traces[row].output[written[row] :]) for row, draft in zip(running, drafts)]
        marks.append(time.perf_counter())
        target.cache.keep_all([[0, *(node + 1 for node in done.path)] for done in outcomes])
        sync()
        marks.append(time.perf_counter())
        for row, draft, outcome in zip(running, drafts, outcomes):
            sessions[row].commit(draft, outcome)
            written[row] += len(outcome.new_ids)
            accepted += len(outcome.path)
        alive = [index for index, row in enumerate(running) if written[row] < limit]
        if 0 < len(alive) < len(running):
            target.cache.select_rows(alive)
        running = [running[index] for index in alive]
        marks.append(time.perf_counter())
        for name, (begin, end) in zip(
            ("lookup", "forward", "verify", "commit", "lookup"), itertools.pairwise(marks), strict=True
        ):
            spent[f"{name}_seconds"] += end - begin
        forwards += 1
        positions += sum(len(row) for row in logits)
    seconds = time.perf_counter() - started
    emitted = len(traces) * (limit - 1)
    return {
        "tokens": emitted,
        "seconds": seconds,
        "tokens_per_second": emitted / seconds,
        "forwards": forwards,
        "tokens_per_forward_and_row": emitted / max(forwards, 1) / len(traces),
        "positions": positions,
        "accepted": accepted,
        **spent,
    }


def forced(draft: Any, text: Sequence[int]) -> Any:
    """The outcome of a draft where the target says ``text``, whatever its logits."""
    from zerodraft.kernels.verify import walk
    from zerodraft.lookup.draft import Outcome

    said = iter(text)
    tree = (draft.token_ids.tolist(), draft.parents.tolist(), draft.verify.tolist())
    done = walk(*tree, lambda node: (next(said), None))
    return Outcome(path=done.path, new_ids=done.new_ids, stop=done.stop)


def verify_as_the_loop_does(logits: Sequence[torch.Tensor], drafts: list[Any]) -> list[Any]:
    """Pick and walk at all nodes: the verification that a greedy call pays, its result not used."""
    from zerodraft.kernels.verify import pick_and_walk

    most = max(len(draft) for draft in drafts)
    trees = np.full((2, len(drafts), most), -1, np.int32)
    may = np.zeros((len(drafts), most), np.bool_)
    for index, draft in enumerate(drafts):
        trees[:, index, : len(draft)] = draft.token_ids, draft.parents
        may[index, : len(draft)] = draft.verify
    device = logits[0].device
    ids, parents = torch.from_numpy(trees).to(device)
    scores = pad_sequence([row[: 1 + len(draft)] for row, draft in zip(logits, drafts)], batch_first=True)
    return pick_and_walk(scores, ids, parents, torch.from_numpy(may).to(device))
