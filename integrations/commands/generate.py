"""``zerodraft generate``: a prompt in, the text streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerodraft.integrations.commands.options import (
    Compare,
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
    ShowDrafts,
    Temperature,
    TopP,
    drafting_of,
    sampling_of,
    save_memory,
)
from zerodraft.integrations.commands.terminal import (
    json_values,
    load,
    one_line_errors,
    print_json,
    print_spans,
    spans_of,
    summary,
    talk,
    write_out,
)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt.", show_default="from --file or stdin")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the prompt from this file.", show_default="none"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    model: Model = "demo",
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    compare: Compare = False,
    no_draft: NoDraft = False,
    max_draft_tokens: MaxDraftTokens = None,
    recycle: Recycle = False,
    lookahead: Lookahead = None,
    memory: Memory = None,
    namespace: Namespace = None,
    remember: Remember = False,
    show_drafts: ShowDrafts = False,
    as_json: Json = False,
) -> None:
    """Let a model answer a prompt, and stream the text."""
    with one_line_errors():
        from zerodraft.integrations.pipelines.generating import generate_text
        from zerodraft.integrations.pipelines.settings import check_length
        from zerodraft.integrations.pipelines.streaming import TextStream

        check_length(max_new_tokens)
        sampling = sampling_of(temperature, top_p, seed)
        make_drafting = drafting_of(
            recycle=recycle, lookahead=lookahead, memory=memory, namespace=namespace, remember=remember,
            no_draft=no_draft, max_draft_tokens=max_draft_tokens, trace=show_drafts or as_json,
        )  # fmt: skip
        message = _read_prompt(prompt, file)
        loaded = load(model, dtype, device)
        is_traced = show_drafts or as_json
        drafting = make_drafting(loaded.tokenizer)
        result = generate_text(
            loaded.model,
            loaded.tokenizer,
            message,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            raw=raw,
            drafting=drafting,
            streamer=None if is_traced else TextStream(loaded.tokenizer, write_out),
            compare=compare,
        )
        if as_json:
            values = {"text": result.text, "hit_limit": result.hit_limit, "finish_reason": result.finish_reason}
            print_json(json_values(loaded, result, **values))
        if show_drafts:
            print_spans(spans_of(loaded, result), stderr=as_json)
        elif not as_json:
            write_out("\n")
        save_memory(drafting)
        if result.left_out:
            talk(f"the checkpoint's own {', '.join(result.left_out)} had no say")
        stopped = {"length": "stopped at --max-new-tokens; ", "context": "stopped, the model's context is full; "}
        summary(result.stats, result.comparison, stopped.get(result.finish_reason, ""))


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    from zerodraft.integrations.pipelines.source_file import STDIN, SourceFile
    from zerodraft.integrations.pipelines.text_ids import check_text

    if prompt is not None and file is not None:
        raise ValueError("give the prompt as an argument or with --file, not both")
    if prompt is None:
        prompt = SourceFile.read(STDIN if file is None else file).text
    if not check_text("the prompt", prompt).strip():
        raise ValueError("the prompt is empty")
    return prompt
