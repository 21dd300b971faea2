"""edit_text: a file and an instruction in, the edited file out. Nearly all of it is a copy, which is why it is fast.

Text in, ids, answer, text out, and at each border a look whether something was lost: a text that the tokenizer cannot
carry, an answer without an end, lines that a placeholder stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from zerodraft.integrations.pipelines.call import Call, Written, context_size, end_ids, settings_left_out
from zerodraft.integrations.pipelines.compare import Comparison, run_or_compare
from zerodraft.integrations.pipelines.fence import Answer, Block, fence_for
from zerodraft.integrations.pipelines.line_diff import unified_diff
from zerodraft.integrations.pipelines.losses import has_shrunk, placeholder, remarks
from zerodraft.integrations.pipelines.original import Original
from zerodraft.integrations.pipelines.settings import Drafting, Sampling, check_door, check_length, check_ways
from zerodraft.integrations.pipelines.streaming import Detokenizer
from zerodraft.integrations.pipelines.text_ids import (
    TextError,
    chat_ids,
    check_text,
    has_more_tokens,
    text_behind,
    text_ids,
)
from zerodraft.lookup.measure.stats import GenerationStats

_MARGIN: Final = 256  # tokens an edited file may be longer than one and a half times the old one
_REQUEST: Final = "Answer with the whole file in one code block and nothing else."
_NUM_BEFORE: Final = 4  # tokens of the prompt that the answer is decoded behind; the opening fence has no fewer


class EditError(ValueError):
    """There is no edited file; the message says why in one line.

    Attributes:
        answer: what the model wrote, empty where it was not asked.
        text: what of it is a file, None where nothing is: of an answer that broke off, the lines before that.
        completed: ``text`` and, behind an answer that broke off, the rest of the old text; None like ``text``.
        diff: from the old text to ``completed``, with names "a/file" and "b/file".
    """

    def __init__(
        self, message: str, *, answer: str = "", text: str | None = None, completed: str | None = None, old: str = ""
    ) -> None:
        super().__init__(message)
        self.answer, self.text, self.completed, self._old = answer, text, completed, old

    @property
    def diff(self) -> str:
        """See above; empty where nothing is a file."""
        return "" if self.completed is None else unified_diff(self._old, self.completed, "a/file", "b/file")


@dataclass(frozen=True)
class EditResult:
    """What ``edit_text`` made.

    Attributes:
        text: the whole edited file. Lines that did not change, line ends and the end of the file are the old one's.
        answer: what the model wrote, fence and all.
        token_ids: the answer's tokens.
        num_prompt_tokens: tokens of the prompt: the file, the instruction, the chat template.
        stats: what the call did and cost.
        remarks: what a reader of the edit should know, a phrase each: lines gone unasked, Python that does not parse.
        left_out: settings of the checkpoint that had no say, as "name=value".
        comparison: the other ways of decoding beside it, where asked for.
    """

    text: str
    answer: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    stats: GenerationStats
    remarks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    comparison: Comparison | None = None


def edit_text(
    model: Any,
    tokenizer: Any,
    code: str,
    instruction: str,
    *,
    language: str = "",
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    drafting: Drafting | None = None,
    streamer: Any = None,
    compare: bool = False,
    allow_loss: bool = False,
) -> EditResult:
    """Return ``code`` as ``model`` rewrites it, with the old text as the prediction of the new one.

    The instruction goes after the code: small models then follow it, and a common beginning can be cached. The answer
    is begun with the opening fence, longer than any in the code and the instruction, and ends where the model closes
    it. Control tokens that the code or the instruction spell are text. Lines that the model leaves alone come back as
    they were, also where the tokenizer cannot carry them.

    Args:
        model: a causal language model, attached or not; an attached one keeps its own drafter.
        tokenizer: the model's tokenizer.
        code: the whole old text, not empty.
        instruction: what to change.
        language: the fence's language tag, such as "python".
        max_new_tokens: by default one and a half times the code's tokens and 256, as far as the context goes.
        sampling: how tokens are chosen; greedily by default.
        drafting: how much is drafted, and from where.
        streamer: a transformers streamer.
        compare: also decode plainly and with transformers' prompt lookup.
        allow_loss: take an answer that holds a placeholder for code ("rest unchanged"), or less than half of the file.

    Raises:
        EditError: an empty text, one that is too long for the context or that the tokenizer cannot carry, an answer
            that hit the token limit or does not close its code block, one that loses code. It holds what was written.
        ValueError: an argument outside its range.
    """
    check_ways(streamer, compare=compare, allow_loss=allow_loss)
    edit = Edit.of(
        model,
        tokenizer,
        code,
        instruction,
        language=language,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        drafting=drafting,
    )
    written, comparison = run_or_compare(edit.call, streamer, compare)
    return edit.result(written, comparison, allow_loss=allow_loss)


@dataclass(frozen=True)
class Edit:
    """The request behind ``edit_text``, and the way back from what is written for it to a file."""

    tokenizer: Any
    code: str
    instruction: str
    language: str
    original: Original
    fence: str
    call: Call

    @classmethod
    def of(
        cls,
        model: Any,
        tokenizer: Any,
        code: str,
        instruction: str,
        *,
        language: str = "",
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        drafting: Drafting | None = None,
    ) -> Edit:
        """Make the request; arguments and errors as in ``edit_text``."""
        check_request(code, instruction, language, max_new_tokens)
        check_door(model, tokenizer, sampling, drafting)
        _check_size(model, tokenizer, code)
        fence = fence_for(code, instruction)
        try:
            original = Original.of(code, tokenizer)
            source = original.source
            message = f"{fence}{language}\n{source}{fence}\n\n{instruction.strip()}\n{_REQUEST}"
            prompt_ids = chat_ids(tokenizer, message, answer=f"{fence}{language}\n")
        except TextError as error:
            raise EditError(str(error)) from None
        prediction_ids = text_ids(tokenizer, f"{source}{fence}") + sorted(end_ids(model))[:1]
        limit = _limit(model, len(prompt_ids), len(prediction_ids), max_new_tokens)
        call = Call(
            model,
            prompt_ids,
            limit,
            sampling or Sampling(),
            prediction_ids,
            drafting or Drafting(),
            lambda _: [_closed_criterion(tokenizer, prompt_ids, Block(fence, language, original.seen))],
        )
        return cls(tokenizer, code, instruction, language, original, fence, call)

    def result(self, written: Written, comparison: Comparison | None = None, *, allow_loss: bool = False) -> EditResult:
        """Take the edited file out of what was written, or raise an EditError that holds what there is of it."""
        ends = end_ids(self.call.model)
        ids = written.token_ids
        is_ended = bool(ids) and ids[-1] in ends
        body_ids = ids[:-1] if is_ended else ids
        text = text_behind(self.tokenizer, self.call.prompt_ids[-_NUM_BEFORE:], body_ids)
        block = Block(self.fence, self.language, self.original.seen)
        *lines, last = text.split("\n")
        for line in lines:
            block.feed(line)
        if last and (not written.hit_limit or last.startswith(self.fence)):  # else the line was cut off
            block.feed(last)
        found = block.answer(is_ended=is_ended)
        answer = f"{self.fence}{self.language}\n{text}"
        try:
            new, completed = self._files(found, written.hit_limit)
        except TextError as error:
            raise EditError(str(error), answer=answer) from None
        if why := self._refusal(found, new, written.hit_limit, allow_loss):
            raise EditError(why, answer=answer, text=new, completed=completed, old=self.code)
        assert new is not None
        return EditResult(
            text=new,
            answer=answer,
            token_ids=ids,
            num_prompt_tokens=len(self.call.prompt_ids),
            stats=written.stats,
            remarks=tuple(remarks(self.original.lines, Original.of(new).lines, self.instruction, self.language)),
            left_out=tuple(settings_left_out(self.call.model)),
            comparison=comparison,
        )

    def _files(self, found: Answer, hit_limit: bool) -> tuple[str | None, str | None]:
        """The new text as far as there is one, and with the rest of the old one behind it where it broke off."""
        original, lines = self.original, list(filter(str.strip, found.lines))
        is_file = found.is_whole or hit_limit or any(line.startswith("```") or line in original.seen for line in lines)
        if not lines or not is_file:  # nothing, or talk
            return None, None
        text = original.restore(found.lines)
        return text, text if found.is_whole else original.restore(original.completed(found.lines))

    def _refusal(self, found: Answer, new: str | None, hit_limit: bool, allow_loss: bool) -> str | None:
        """Why there is no edited file, None if there is one."""
        if not found.is_whole and hit_limit:
            return f"the answer hit the limit of {self.call.max_new_tokens} tokens before the file was complete"
        if not found.is_whole:
            return "the model gave no complete code block"
        if new is None:
            return "the model gave an empty code block"
        if allow_loss:
            return None
        old, lines = self.original.lines, Original.of(new).lines
        if stands_for := placeholder(old, lines):
            return f"line {stands_for[0]} of the answer stands for code that is left out: {stands_for[1][:60]!r}"
        if has_shrunk(old, lines, self.instruction):
            return (
                f"the answer has {len(lines)} lines for the file's {len(old)}, which the instruction does not ask for"
            )
        return None


def check_request(code: Any, instruction: Any, language: Any = "", max_new_tokens: Any = None) -> None:
    """Refuse what is wrong in itself, whatever the model is: ``edit_text`` with it would raise the same."""
    if not check_text("the text", code).strip():
        raise EditError("there is nothing to edit: the file is empty")
    if not check_text("the instruction", instruction).strip():
        raise ValueError("the instruction is empty")
    if not isinstance(language, str) or not all(char.isalnum() or char in "+-#._" for char in language):
        raise ValueError(f"language must be the tag of a code fence, such as 'python', got {language!r}")
    if max_new_tokens is not None:
        check_length(max_new_tokens)


def _check_size(model: Any, tokenizer: Any, code: str) -> None:
    """Refuse a text that is far too long, at the cost of what would fit."""
    context = context_size(model)
    if has_more_tokens(tokenizer, code, context // 2):
        raise EditError(
            f"the file is too long: it has more than {context // 2} tokens, and the model's context of {context} "
            f"must hold it twice"
        )


def _limit(model: Any, num_prompt: int, num_code: int, wanted: int | None) -> int:
    """Tokens the answer may have; an EditError where the context cannot hold the file a second time."""
    context = context_size(model)
    if num_prompt + num_code > context:
        raise EditError(
            f"the file is too long: prompt and answer need about {num_prompt + num_code} tokens, "
            f"the model's context holds {context}"
        )
    return min(context - num_prompt, num_code + num_code // 2 + _MARGIN if wanted is None else wanted)


def _closed_criterion(tokenizer: Any, prompt_ids: list[int], block: Block) -> Any:
    """Return a stopping criterion (batch 1) that is met where the line that closes the block is complete.

    Cost: linear in the tokens that come.
    """
    import torch
    from transformers import StoppingCriteria

    class BlockClosed(StoppingCriteria):  # type: ignore[misc]
        def __init__(self) -> None:
            self._text = Detokenizer(tokenizer, prompt_ids[-_NUM_BEFORE:])
            self._num_seen, self._line, self._is_met = len(prompt_ids), "", False

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            new = input_ids[0, self._num_seen :].tolist()
            self._num_seen += len(new)
            *lines, self._line = (self._line + self._text.push(new)).split("\n")
            for line in lines:
                self._is_met = block.feed(line)
            return torch.full((input_ids.shape[0],), self._is_met, device=input_ids.device, dtype=torch.bool)

    return BlockClosed()
