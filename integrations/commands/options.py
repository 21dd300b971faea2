"""The options that several commands share, and what is made of them. Only typer is imported here."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from zerodraft.integrations.pipelines.settings import Drafting, Sampling

Model = Annotated[str, typer.Option(help="Folder, hub id, or 'demo': a small model that is fetched once.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16; auto is float32 on a CPU.")]
Device = Annotated[str, typer.Option(help="A torch device; auto takes the accelerator where there is one.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy decoding.")]
TopP = Annotated[float, typer.Option(help="Nucleus, in (0, 1]; only with a temperature.")]
Seed = Annotated[int | None, typer.Option(help="Seed for sampling; only with a temperature.", show_default="none")]
Compare = Annotated[bool, typer.Option("--compare", help="Also decode plainly and with HF's prompt lookup.")]
ShowDrafts = Annotated[bool, typer.Option("--show-drafts", help="Colour the text by where it was drafted from.")]
Recycle = Annotated[bool, typer.Option("--recycle", help="Also draft what the model itself nearly said before.")]
Lookahead = Annotated[
    str | None,
    typer.Option(
        "--lookahead", help="Also guess by Lookahead: window, n-gram size, guesses; 4,4,8.", show_default="none"
    ),
]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Draft nothing: plain decoding.")]
MaxDraftTokens = Annotated[
    int | None, typer.Option(help="Most drafted tokens per forward.", show_default="as many as pay")
]
Memory = Annotated[
    Path | None,
    typer.Option("--memory", help="Draft from the texts kept in this directory, too.", show_default="none"),
]
Namespace = Annotated[
    str | None, typer.Option(help="Whose texts of the memory.", show_default="those of nobody in particular")
]
Remember = Annotated[bool, typer.Option("--remember", help="Keep what is written in the memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object with text and statistics.")]


def sampling_of(temperature: float, top_p: float, seed: int | None) -> Sampling:
    """The sampling that the options ask for; one without effect is an error here, where nobody reads warnings."""
    from zerodraft.integrations.pipelines.settings import Sampling

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            return Sampling(temperature, top_p, seed)
        except UserWarning as warning:
            raise ValueError(f"{warning}; give --temperature, too") from None


def drafting_of(
    *,
    recycle: bool,
    lookahead: str | None,
    memory: Path | None,
    namespace: str | None,
    remember: bool,
    no_draft: bool,
    max_draft_tokens: int | None,
    trace: bool = False,
) -> Callable[[Any], Drafting]:
    """Refuse what is wrong, before a model is loaded for it; return what makes the drafting for a tokenizer."""
    if memory is None and (namespace is not None or remember):
        raise ValueError(f"{'--remember' if remember else '--namespace'} needs --memory")
    if no_draft and (recycle or lookahead is not None):
        raise ValueError("--no-draft drafts from no source: give no --recycle and no --lookahead with it")
    from zerodraft.integrations.pipelines.settings import Drafting

    asked, beside = Drafting(None, not no_draft, max_draft_tokens, namespace, remember, trace), _lookahead(lookahead)

    def made(tokenizer: Any) -> Drafting:
        if not recycle and beside is None and memory is None:
            return asked  # the default drafter
        from zerodraft.integrations.memories import open_memory
        from zerodraft.lookup.drafter import Drafter
        from zerodraft.lookup.lookahead.beside import Beside

        own = Drafter(recycle=recycle, memory=None if memory is None else open_memory(memory, tokenizer))
        return dataclasses.replace(asked, drafter=own if beside is None else Beside(own, beside))

    return made


def _lookahead(given: str | None) -> Any:
    if given is None:
        return None
    from zerodraft.lookup.lookahead.lookahead import Lookahead

    parts = given.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--lookahead must be three numbers, window, n-gram size and guesses, got {given!r}")
    return Lookahead(*map(int, parts))


def save_memory(drafting: Drafting) -> None:
    """Publish what a command remembered."""
    if drafting.remember:
        from zerodraft.integrations.memories import naming_repair

        drafter = getattr(drafting.drafter, "drafter", drafting.drafter)  # beside a Lookahead, if there is one
        with naming_repair(drafter.memory.directory):
            drafter.save()
