"""``zerodraft summarize``: several files at once; each one's failure is its own line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zerodraft.integrations.commands.options import (
    Device,
    Dtype,
    Json,
    Lookahead,
    MaxDraftTokens,
    Memory,
    Model,
    Namespace,
    NoDraft,
    Recycle,
    Remember,
    Seed,
    Temperature,
    TopP,
    drafting_of,
    sampling_of,
    save_memory,
)
from zerodraft.integrations.commands.terminal import load, one_line_errors, print_json, summary, talk, write_out


def summarize(
    files: Annotated[list[Path], typer.Argument(help="The texts, UTF-8; - for the standard input.")],
    preset: Annotated[str | None, typer.Option(help="bullets, abstract or headline.", show_default="bullets")] = None,
    instruction: Annotated[
        str | None, typer.Option("--instruction", "-i", help="What to ask for instead.", show_default="none")
    ] = None,
    model: Model = "demo",
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of each summary.")] = 256,
    max_part_tokens: Annotated[
        int | None, typer.Option(help="Split texts above so many tokens.", show_default="what the context holds")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Parts in one forward.")] = 4,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    no_draft: NoDraft = False,
    max_draft_tokens: MaxDraftTokens = None,
    recycle: Recycle = False,
    lookahead: Lookahead = None,
    memory: Memory = None,
    namespace: Namespace = None,
    remember: Remember = False,
    as_json: Json = False,
) -> None:
    """Summarize files of any length. Long ones go in parts, whose summaries are merged."""
    with one_line_errors():
        from zerodraft.integrations.pipelines.source_file import SourceFile
        from zerodraft.integrations.pipelines.summarizing import Summary, check_request, summarize_texts

        check_request(instruction, preset, max_new_tokens, max_part_tokens, batch_size)
        sampling = sampling_of(temperature, top_p, seed)
        make_drafting = drafting_of(
            recycle=recycle, lookahead=lookahead, memory=memory, namespace=namespace, remember=remember,
            no_draft=no_draft, max_draft_tokens=max_draft_tokens
        )  # fmt: skip
        texts: dict[Path, str] = {}
        results: dict[Path, Any] = {}
        for file in dict.fromkeys(files):
            try:
                texts[file] = SourceFile.read(file).text
            except (ValueError, OSError) as error:
                results[file] = error
        if texts:
            loaded = load(model, dtype, device)
            drafting = make_drafting(loaded.tokenizer)
            found = summarize_texts(
                loaded.model,
                loaded.tokenizer,
                list(texts.values()),
                instruction=instruction,
                preset=preset,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                max_part_tokens=max_part_tokens,
                batch_size=batch_size,
                drafting=drafting,
                progress=lambda done, total: talk(f"{done} of {total} parts"),
            )
            results |= zip(texts, found)
            save_memory(drafting)
        if as_json:
            origin = loaded.origin if texts else None
            print_json(_document(files, results, origin))
        else:
            write_out(_text(files, results))
        for file in dict.fromkeys(files):
            if not isinstance(results[file], Summary):
                talk(f"{file}: {results[file]}")
        done = [result for result in results.values() if isinstance(result, Summary)]
        if done:
            limit = sum(result.hit_limit for result in done)
            summary(done[0].stats, None, f"{limit} stopped at --max-new-tokens; " if limit else "")
    if len(done) < len(results):
        raise typer.Exit(1)


def _text(files: list[Path], results: dict[Path, Any]) -> str:
    """The summaries, under their files' names where there are several."""
    from zerodraft.integrations.pipelines.summarizing import Summary

    done = [file for file in dict.fromkeys(files) if isinstance(results[file], Summary)]
    head = "==> {} <==\n" if len(results) > 1 else ""
    return "\n".join(f"{head.format(file)}{results[file].text}\n" for file in done)


def _document(files: list[Path], results: dict[Path, Any], origin: str | None) -> dict[str, Any]:
    from zerodraft.integrations.pipelines.summarizing import Summary

    entries: list[dict[str, Any]] = []
    stats = None
    for file in dict.fromkeys(files):
        result = results[file]
        if isinstance(result, Summary):
            stats = result.stats.as_dict()
            fields = {name: getattr(result, name) for name in ("text", "num_parts", "num_rounds", "hit_limit")}
            entries.append({"file": str(file), **fields, "num_tokens": result.num_tokens, "error": None})
        else:
            entries.append({"file": str(file), "text": None, "error": str(result)})
    return {"summaries": entries, "model": origin, "stats": stats}
