"""edit_text: a file and an instruction in, the edited file out. Nearly all of it is a copy, which is why it is fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zerodraft.integrations.generating import Call, Sampling, Written, chat_ids, context_size, encode, end_ids
from zerodraft.lookup.stats import GenerationStats

if TYPE_CHECKING:
    from zerodraft.integrations.compare import Comparison

_MARGIN: Final = 256  # tokens an edited file may be longer than one and a half times the old one
_REQUEST: Final = "Answer with the whole file in one code block and nothing else."


class EditError(ValueError):
    """There is no edited file; the message says why in one line."""


@dataclass(frozen=True)
class EditResult:
    """What ``edit_text`` made.

    Attributes:
        text: the whole edited file, with the line ends of the old one.
        answer: what the model wrote, fence and all.
        token_ids: the answer's tokens.
        num_prompt_tokens: tokens of the prompt: the file, the instruction, the chat template.
        stats: what the call did and cost.
        comparison: the other ways of decoding beside it, where asked for.
    """

    text: str
    answer: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    stats: GenerationStats
    comparison: Comparison | None = None


def edit_text(
    model: Any,
    tokenizer: Any,
    code: str,
    instruction: str,
    *,
    language: str = "",
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    drafter: Any = None,
    streamer: Any = None,
    compare: bool = False,
    trace: bool = False,
) -> EditResult:
    """Return ``code`` as ``model`` rewrites it, with the old text as the prediction of the new one.

    The instruction goes after the code: small models then follow it, and a common beginning can be cached. The answer
    is begun with the opening fence, longer than any in the code, and ends where the model closes it. Line ends and
    the line breaks at the end of the text are kept.

    Args:
        model: a causal language model, attached or not; an attached one keeps its own drafter.
        tokenizer: the model's tokenizer.
        code: the whole old text, not empty.
        instruction: what to change.
        language: the fence's language tag, such as "python".
        max_new_tokens: by default one and a half times the code's tokens and 256, as far as the context goes.
        temperature, top_p, seed, drafter, streamer, compare, trace: as in ``generate_text``.

    Raises:
        EditError: an empty text, one that is too long for the context, an answer that hit the token limit, or one
            that does not close its code block.
        ValueError: an argument outside its range.
    """
    call, fence = edit_call(
        model,
        tokenizer,
        code,
        instruction,
        language=language,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        drafter=drafter,
        trace=trace,
    )
    comparison = None
    if compare:
        from zerodraft.integrations.compare import compare_ways

        comparison = compare_ways(call, streamer=streamer)
        written = comparison.zerodraft.written
    else:
        written = call.run(streamer=streamer)
    return edit_result(tokenizer, code, call, fence, written, comparison)


def edit_result(
    tokenizer: Any, code: str, call: Call, fence: str, written: Written, comparison: Comparison | None = None
) -> EditResult:
    """Take the edited file out of what was written for ``edit_call``'s request, or raise an EditError."""
    answer = tokenizer.decode(written.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    body = block_body(answer, fence)
    if body is None and written.hit_limit:
        raise EditError(
            f"the answer hit the limit of {call.sampling.max_new_tokens} tokens before the file was complete"
        )
    if body is None:
        raise EditError("the model gave no complete code block")
    if not body.strip():
        raise EditError("the model gave an empty code block")
    opening = tokenizer.decode(call.prompt_ids).rsplit(fence, 1)[1]
    return EditResult(
        text=LineEnds.of(code).restore(body),
        answer=f"{fence}{opening}{answer}",
        token_ids=written.token_ids,
        num_prompt_tokens=len(call.prompt_ids),
        stats=written.stats,
        comparison=comparison,
    )


def edit_call(
    model: Any,
    tokenizer: Any,
    code: str,
    instruction: str,
    *,
    language: str = "",
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    drafter: Any = None,
    trace: bool = False,
) -> tuple[Call, str]:
    """Return the request behind ``edit_text``, arguments and errors as there, and the fence that the answer closes."""
    if not code.strip():
        raise EditError("there is nothing to edit: the file is empty")
    if not instruction.strip():
        raise ValueError("the instruction is empty")
    source = code.replace("\r\n", "\n").rstrip("\n") + "\n"
    fence = fence_for(source)
    message = f"{fence}{language}\n{source}{fence}\n\n{instruction.strip()}\n{_REQUEST}"
    prompt_ids = chat_ids(tokenizer, message, answer=f"{fence}{language}\n")
    prediction_ids = encode(tokenizer, f"{source}{fence}") + sorted(end_ids(model))[:1]
    limit = _limit(model, len(prompt_ids), len(prediction_ids), max_new_tokens)
    call = Call(
        model,
        prompt_ids,
        Sampling(limit, temperature, top_p, seed),
        prediction_ids,
        drafter,
        criteria=lambda num_prompt_tokens: [fence_criterion(tokenizer, fence, num_prompt_tokens)],
        trace=trace,
    )
    return call, fence


def _limit(model: Any, num_prompt: int, num_code: int, wanted: int | None) -> int:
    """Tokens the answer may have; an EditError where the context cannot hold the file a second time."""
    if wanted is not None and wanted < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {wanted}")
    context = context_size(model)
    if num_prompt + num_code > context:
        raise EditError(
            f"the file is too long: prompt and answer need about {num_prompt + num_code} tokens, "
            f"the model's context holds {context}"
        )
    return min(context - num_prompt, num_code + num_code // 2 + _MARGIN if wanted is None else wanted)


def fence_for(code: str) -> str:
    """Return a fence of backticks longer than any run of them in ``code``.

    >>> fence_for("a ```` b")
    '`````'
    """
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    return "`" * max(3, longest + 1)


def block_body(answer: str, fence: str) -> str | None:
    """Return the lines before the closing fence, None if it never closes.

    The opening fence is part of the prompt; a model that opens the block once more is understood.

    >>> block_body("x = 1\\n```\\nDone.", "```")
    'x = 1\\n'
    """
    lines = answer.replace("\r\n", "\n").split("\n")
    if lines[0].startswith(fence) and lines[0].strip("` \t").isalnum():
        lines = lines[1:]
    for at, line in enumerate(lines):
        if is_closing(line, fence):
            return "".join(f"{line}\n" for line in lines[:at])
    return None


def is_closing(line: str, fence: str) -> bool:
    """True for a line that closes the block: nothing but backticks, at least as many as opened it."""
    return line.startswith(fence) and not line.strip("` \t\r")


def fence_criterion(tokenizer: Any, fence: str, num_prompt_tokens: int) -> Any:
    """Return a stopping criterion (batch 1) that is met where a closing fence's line is complete.

    Cost: one token decoded per step, the last few dozen where it brings a line break.
    """
    import torch
    from transformers import StoppingCriteria

    reach = 2 * len(fence) + 16

    class FenceClosed(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            new = input_ids[0, max(num_prompt_tokens, input_ids.shape[1] - reach) :]
            met = "\n" in tokenizer.decode(new[-1:])
            if met:
                lines = tokenizer.decode(new).split("\n")[:-1]
                met = any(is_closing(line, fence) for line in lines)
            return torch.full((input_ids.shape[0],), met, device=input_ids.device, dtype=torch.bool)

    return FenceClosed()


@dataclass(frozen=True)
class LineEnds:
    """How the lines of a text end, and what comes after its last one: what an edit must not change.

    Where the ends are mixed, lines that the edit leaves alone keep theirs and new ones get the commoner one.
    """

    old: str
    common: str
    is_mixed: bool
    tail: str

    @classmethod
    def of(cls, text: str) -> LineEnds:
        """Read them off a text."""
        windows, all_ends = text.count("\r\n"), text.count("\n")
        common = "\r\n" if 2 * windows > all_ends else "\n"
        tail = text[len(text.rstrip("\r\n")) :]
        return cls(text, common, 0 < windows < all_ends, tail)

    def restore(self, text: str) -> str:
        """Return ``text``, whose lines end in a bare line feed, with the old text's line ends and tail.

        >>> LineEnds.of("a\\r\\nb").restore("a\\nc\\n")
        'a\\r\\nc'
        """
        new = text.rstrip("\n").split("\n")
        ends = self._ends(new) if self.is_mixed else [self.common] * len(new)
        return "".join(line + end for line, end in zip(new[:-1], ends)) + new[-1] + self.tail

    def _ends(self, new: list[str]) -> list[str]:
        from difflib import SequenceMatcher

        old = self.old.split("\n")
        ends = [self.common] * len(new)
        matcher = SequenceMatcher(None, [line.removesuffix("\r") for line in old], new, autojunk=False)
        for at_old, at_new, size in matcher.get_matching_blocks():
            for k in range(size):
                ends[at_new + k] = "\r\n" if old[at_old + k].endswith("\r") else "\n"
        return ends
