"""Every family that transformers can build: does an attached model write what plain ``generate`` writes?

    make test-families                              # all of them; what was done before is not done again
    python bench families --only qwen3_next,lfm2 # these, anew
    python bench families --fresh                # forget what was done before
    python bench families --table                # only the CSV and the table of docs/models.md, from what is there

Tiny random models, nothing is downloaded and no code of others is run. Per class: plain ``generate`` against ours with
drafts that are right, wrong and mixed, greedy and seeded, a batch, a second turn in the cache handed back, long texts
with windows that the trial of a model sees and does not see. Each class runs in a process of its own with a time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families_models as tiny
import measure
import torch
from families_table import write_page

from zerodraft.integrations.hf.support import Unsupported, check_model

sys.path.insert(0, str(measure.ROOT / "tests"))
import support

PAGE = measure.ROOT / "docs" / "models.md"
NEW = 32
FACTORS = (4.0, 2.0, 8.0, 1.0, 16.0)  # on the weights, tried until the text is varied
LONG = ((64, 150), (600, 700))  # window and prompt: as the trial sees it, and longer
COLUMNS = (
    *("family", "class", "kinds", "encoder", "plain", "way", "exact", "why", "right", "wrong", "mixed"),
    *("tokens_per_forward", "seeded", "batch", "second_turn", "long", "seconds"),
)
Result = dict[str, Any]


def prompt(seed: int, length: int) -> torch.Tensor:
    """Token ids (1, length) with repeated parts."""
    rng = random.Random(seed)
    part = [rng.randrange(3, 90) for _ in range(min(length - length // 3, 40))]
    return torch.tensor([(part * (length // len(part) + 1))[:length]])


def text_of(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.sequences


def differs(got: torch.Tensor, expected: torch.Tensor) -> str:
    """ "=" or where the first row that differs does so."""
    if torch.equal(got, expected):
        return "="
    width = min(got.shape[1], expected.shape[1])
    places = (got[:, :width] != expected[:, :width]).nonzero()
    return f"differs at {int(places[0, 1]) if len(places) else width}"


def reason(error: BaseException) -> str:
    """One line that says what went wrong, and where if it was no refusal."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, Unsupported):
        return "refused: " + said.removeprefix("zerodraft cannot decode ").split(". Use plain")[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said[:160]} ({Path(place.filename).name}:{place.lineno})"


class Rows:
    """A scripted drafter for several rows: each begins with its prompt and drafts what ``make`` says of its text."""

    def __init__(self, texts: list[list[int]], make: Callable[[list[int]], support.Scripted]) -> None:
        self._texts, self._make = texts, make

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Any:
        ids = [int(token) for token in prompt_ids]
        known = next((text for text in self._texts if text[: len(ids)] == ids), None)
        if known is None:  # an encoder has read the prompt; its own text begins with one token
            return self._make(self._texts[0]).begin(ids[-1:])
        return self._make(known).begin(ids)


DRAFTS: dict[str, Callable[[list[int]], support.Scripted]] = {
    "right": lambda text: support.oracle(text),
    "wrong": lambda text: support.adversary(text),
    "mixed": lambda text: support.bushy(text, seed=3),
}


class Study:
    """One class: a model, its plain texts, and what ours made of them."""

    def __init__(self, family: tiny.Family) -> None:
        self.family = family
        self.result: Result = {"family": family.name, "class": family.cls, "kinds": family.kinds, "plain": "not built"}
        self.model = tiny.tiny_model(family)
        self.is_encoder = bool(getattr(self.model.config, "is_encoder_decoder", False))
        self.result["encoder"] = "yes" if self.is_encoder else "no"
        self.prompts = [prompt(1, 24), prompt(2, 33), prompt(3, 9)]
        self.options: dict[str, Any] = {"max_new_tokens": NEW}

    def run(self) -> Result:
        """Fill in the result, as far as the class goes."""
        done = self.result
        try:
            self.factor = varied(self.model, self.prompts[0], self.options)
            self.texts = [text_of(support.plain(self.model, ids, **self.options)) for ids in self.prompts]
        except Exception as error:
            return done | {"plain": reason(error)}
        done["plain"] = "ok"
        try:
            done["way"] = check_model(self.model)
        except Unsupported as error:
            return done | {"way": "refused", "exact": "refused", "why": reason(error).removeprefix("refused: ")}
        checks: dict[str, Callable[[], str]] = {
            **{name: lambda make=make: self.greedy(make) for name, make in DRAFTS.items()},
            "seeded": self.seeded,
            "batch": self.batch,
            "second_turn": self.second_turn,
            "long": self.long,
        }
        for name, check in checks.items():
            try:
                done[name] = check()
            except Exception as error:
                done[name] = reason(error)
        return done | {"exact": self.verdict()}

    def verdict(self) -> str:
        """ "exact", "in part" where something is refused, "no" where anything differs or crashes."""
        said = [self.result[name] for name in (*DRAFTS, "seeded", "batch", "second_turn", "long")]
        if any(not value.startswith(("=", "refused", "-")) for value in said):
            return "no"
        if any(value.startswith("refused") for value in said[:4]):
            return "refused"
        if self.result.get("tokens_per_forward", 0) <= 1.5:
            return "no"
        return "in part" if any(value.startswith("refused") for value in said) else "exact"

    def ours(self, ids: torch.Tensor, drafter: Any, **options: Any) -> tuple[torch.Tensor, Any]:
        output, stats = support.ours(self.model, ids, drafter, **(self.options | options))
        return text_of(output), stats

    def greedy(self, make: Callable[[list[int]], support.Scripted]) -> str:
        """The three prompts; right drafts must save forwards."""
        forwards = tokens = 0
        for ids, text in zip(self.prompts, self.texts):
            got, stats = self.ours(ids, Rows([text[0].tolist()], make))
            if (found := differs(got, text)) != "=":
                return found
            forwards, tokens = forwards + stats.num_decode_forwards + 1, tokens + stats.num_emitted_tokens
        if make is DRAFTS["right"]:
            self.result["tokens_per_forward"] = round(tokens / forwards, 2)
        return "="

    def seeded(self) -> str:
        """Sampled: the same text, and the same state of the generator afterwards."""
        options = {"do_sample": True, "temperature": 0.9, "top_k": 20}
        text = text_of(support.plain(self.model, self.prompts[0], seed=11, **self.options, **options))
        state = torch.get_rng_state()
        for make in DRAFTS.values():
            got, _ = self.ours(self.prompts[0], Rows([text[0].tolist()], make), seed=11, **options)
            if (found := differs(got, text)) != "=":
                return found
            if not torch.equal(state, torch.get_rng_state()):
                return "another state of the generator"
        return "="

    def batch(self) -> str:
        """Two rows with left padding, against plain's batch; where plain's rows differ from their own runs, those."""
        long, short = self.prompts[0][0], self.prompts[2][0]
        pad = torch.zeros(len(long) - len(short), dtype=torch.long)
        ids = torch.stack([long, torch.cat([pad, short])])
        mask = torch.stack([torch.ones_like(long), torch.cat([pad, torch.ones_like(short)])])
        both = text_of(support.plain(self.model, ids, attention_mask=mask, **self.options))
        alone = torch.stack([self.texts[0][0, -NEW:], self.texts[2][0, -NEW:]])
        known = [text[0].tolist() for text in (self.texts[0], self.texts[2])]
        for make in DRAFTS.values():
            got, _ = self.ours(ids, Rows(known, make), attention_mask=mask)
            if (found := differs(got, both)) != "=" and differs(got[:, -NEW:], alone) != "=":
                return found
        return "=" if torch.equal(both[:, -NEW:], alone) else "= each row alone"

    def second_turn(self) -> str:
        """Going on in the cache that the first turn handed back."""
        if self.is_encoder:
            return "-"

        def turns(run: Callable[..., Any]) -> torch.Tensor:
            first = run(self.prompts[0], return_dict_in_generate=True)
            more = torch.cat([first.sequences, self.prompts[2]], dim=1)  # a token 0 in it is no padding
            return text_of(run(more, cache=first.cache, attention_mask=torch.ones_like(more)))

        try:
            text = turns(lambda ids, **more: support.plain(self.model, ids, **self.options, **more))
        except Exception:
            return "- plain fails"
        known = [text[0].tolist()]

        def run(ids: torch.Tensor, **more: Any) -> Any:
            return support.ours(self.model, ids, Rows(known, DRAFTS["wrong"]), **self.options, **more)[0]

        return differs(turns(run), text)

    def long(self) -> str:
        """Prompts beyond a window that the trial sees, and one that it does not see whole."""
        if self.is_encoder:
            return "-"
        for window, length in LONG:
            model = tiny.spread(tiny.tiny_model(self.family, window=window), self.factor)
            ids = prompt(5, length)
            text = text_of(support.plain(model, ids, **self.options))
            for make in DRAFTS.values():
                got, _ = support.ours(model, ids, Rows([text[0].tolist()], make), **self.options)
                if (found := differs(text_of(got), text)) != "=":
                    return f"{found} (window {window})"
        return "="


def varied(model: Any, ids: torch.Tensor, options: dict[str, Any]) -> float:
    """The factor on the weights for which greedy text is most varied; the model is left with it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    best = (-1, 1.0)
    for factor in FACTORS:
        model.load_state_dict(before)
        try:
            text = text_of(support.plain(tiny.spread(model, factor), ids, **options))[0, -NEW:].tolist()
        except Exception:
            if factor == 1.0 and best[0] < 0:
                raise
            continue
        best = max(best, (len(set(text)), factor), key=lambda pair: pair[0])
        if best[0] >= 12:
            break
    model.load_state_dict(before)
    tiny.spread(model, best[1])
    return best[1]


def study(family: tiny.Family) -> Result:
    try:
        return Study(family).run()
    except Exception as error:
        return {
            "family": family.name,
            "class": family.cls,
            "kinds": family.kinds,
            "plain": f"not built: {reason(error)}",
        }


def start(family: tiny.Family, seconds: int) -> tuple[int, int]:
    """Study one class in a child process: (process id, where its result can be read)."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    signal.alarm(seconds)
    with os.fdopen(write, "w") as file:
        json.dump(study(family), file)
    os._exit(0)


def run_all(todo: list[tiny.Family], workers: int, seconds: int, keep: Callable[[Result], None]) -> None:
    """Study classes in a few processes; ``keep`` gets each result as it comes."""
    running: dict[int, tuple[int, tiny.Family, float, bytes]] = {}
    while todo or running:
        while todo and len(running) < workers:
            family = todo.pop(0)
            process, place = start(family, seconds)
            running[place] = (process, family, time.monotonic(), b"")
        with selectors.DefaultSelector() as ready:
            for place in running:
                ready.register(place, selectors.EVENT_READ)
            places = [key.fd for key, _ in ready.select()]
        for place in places:
            process, family, begun, data = running[place]
            chunk = os.read(place, 1 << 16)
            if chunk:
                running[place] = (process, family, begun, data + chunk)
                continue
            del running[place]
            os.close(place)
            _, status = os.waitpid(process, 0)
            spent = round(time.monotonic() - begun, 1)
            ended = {"family": family.name, "class": family.cls, "kinds": family.kinds}
            ended |= {"plain": "ok", "exact": "no", "why": f"not done in {seconds} s" if status else "no result"}
            keep({**(json.loads(data) if data and not status else ended), "seconds": spent})


def write_results(rows: list[Result]) -> None:
    ordered = sorted(rows, key=lambda row: (row["family"], row["class"]))
    measure.write_csv("families", [{**dict.fromkeys(COLUMNS, ""), **row} for row in ordered])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="families by name, separated by commas, studied anew")
    parser.add_argument("--failed", action="store_true", help="those that were not exact, anew")
    parser.add_argument("--fresh", action="store_true", help="all of them anew")
    parser.add_argument("--table", action="store_true", help="only write the table, from what is there")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=240, help="most that one class may take")
    options = parser.parse_args()
    rows = {} if options.fresh else {(row["family"], row["class"]): row for row in measure.read_csv("families")}
    if not options.table:
        torch.set_num_threads(1)
        names = options.only.split(",") if options.only else []
        again = {key for key, row in rows.items() if options.failed and row["exact"] not in ("exact", "in part")}
        todo = [
            family
            for family in tiny.families()
            if (family.name in names if names else (family.name, family.cls) not in rows.keys() - again)
        ]

        def keep(result: Result) -> None:
            rows[result["family"], result["class"]] = result
            write_results(list(rows.values()))
            print(*(result.get(name, "") for name in ("family", "class", "way", "exact", "seconds")), flush=True)

        study(tiny.Family("qwen3", "Qwen3ForCausalLM"))  # compiles and imports, once for all
        run_all(todo, options.workers, options.seconds, keep)
    write_page(list(rows.values()), PAGE)
