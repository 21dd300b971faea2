"""generate_text: a prompt in, text and statistics out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zerodraft.integrations.pipelines.call import Call, context_size, settings_left_out
from zerodraft.integrations.pipelines.compare import Comparison, run_or_compare
from zerodraft.integrations.pipelines.settings import Drafting, Sampling, check_door, check_length, check_ways
from zerodraft.integrations.pipelines.text_ids import chat_ids, check_text, encode, text_ids
from zerodraft.lookup.measure.stats import GenerationStats


@dataclass(frozen=True)
class GenerateResult:
    """What ``generate_text`` wrote.

    Attributes:
        text: the new text, without the prompt and special tokens.
        token_ids: its tokens, an end-of-text token included.
        num_prompt_tokens: tokens of the prompt, chat template included.
        finish_reason: "eos", "length" (``max_new_tokens``) or "context" (the model's context was full).
        stats: what the call did and cost.
        left_out: settings of the checkpoint that had no say, as "name=value".
        comparison: the other ways of decoding beside it, where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    finish_reason: str
    stats: GenerationStats
    left_out: tuple[str, ...] = ()
    comparison: Comparison | None = None

    @property
    def hit_limit(self) -> bool:
        """True if the text was cut off."""
        return self.finish_reason != "eos"


def generate_text(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    prediction: str | None = None,
    raw: bool = False,
    drafting: Drafting | None = None,
    streamer: Any = None,
    compare: bool = False,
) -> GenerateResult:
    """Write what ``model`` would write after ``prompt``, in fewer forwards.

    Control tokens that the prompt spells are text, except in a raw one.

    Args:
        model: a causal language model, attached or not; an attached one keeps its own drafter.
        tokenizer: the model's tokenizer.
        prompt: a message for the chat template where the tokenizer has one, else the beginning of the text.
        max_new_tokens: at least 1; the text also ends where the model's context is full.
        sampling: how tokens are chosen; greedily by default.
        prediction: a guess at the whole output, to draft from.
        raw: continue ``prompt`` as it is, chat template or not.
        drafting: how much is drafted, and from where.
        streamer: a transformers streamer or ``TextStream``.
        compare: also decode plainly and with transformers' prompt lookup.

    Raises:
        ValueError: an argument outside its range, an empty prompt, or a prompt that leaves no room in the context.
    """
    check_ways(streamer, raw=raw, compare=compare)
    check_door(model, tokenizer, sampling, drafting)
    check_length(max_new_tokens)
    if not check_text("the prompt", prompt):
        raise ValueError("the prompt is empty")
    if prediction is not None:
        check_text("the prediction", prediction)
    prompt_ids = encode(tokenizer, prompt, special=True) if raw else chat_ids(tokenizer, prompt)
    context = context_size(model)
    if len(prompt_ids) >= context:
        raise ValueError(f"the prompt must leave room in the context of {context} tokens, got {len(prompt_ids)}")
    prediction_ids = None if prediction is None else text_ids(tokenizer, prediction)
    limit = min(max_new_tokens, context - len(prompt_ids))
    call = Call(model, prompt_ids, limit, sampling or Sampling(), prediction_ids, drafting or Drafting())
    written, comparison = run_or_compare(call, streamer, compare)
    cut_off = "length" if limit == max_new_tokens else "context"
    return GenerateResult(
        text=tokenizer.decode(written.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        token_ids=written.token_ids,
        num_prompt_tokens=len(prompt_ids),
        finish_reason=cut_off if written.hit_limit else "eos",
        stats=written.stats,
        left_out=tuple(settings_left_out(model)),
        comparison=comparison,
    )
