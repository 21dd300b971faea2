"""summarize_text: texts of any length in, summaries out. What does not fit the context is summarized in parts first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from zerodraft.integrations.pipelines.call import context_size, end_ids, generate_options, is_attached
from zerodraft.integrations.pipelines.settings import Drafting, Sampling, check_door, check_length, check_ways
from zerodraft.integrations.pipelines.splitting import split_text
from zerodraft.integrations.pipelines.text_ids import chat_ids, check_text, text_ids
from zerodraft.lookup.checks import first_line, shown
from zerodraft.lookup.measure.stats import GenerationStats

PRESETS: Final = {
    "bullets": "Summarize the text in at most seven bullet points, one line each, beginning with '- '. "
    "Answer with the bullet points and nothing else.",
    "abstract": "Summarize the text in one paragraph of three to five sentences. "
    "Answer with the paragraph and nothing else.",
    "headline": "Write a headline of at most twelve words for the text. Answer with the headline and nothing else.",
}
DEFAULT_PRESET: Final = "bullets"
_PARTS_NOTE: Final = "These are summaries of the consecutive parts of one text. Treat them as that text. "
_MARGIN: Final = 16  # tokens that the borders of pieces may add
_MAX_ROUNDS: Final = 8

Progress = Callable[[int, int], None]


class SummaryError(ValueError):
    """There is no summary of this text; the message says why in one line."""


@dataclass(frozen=True)
class Summary:
    """What became of one text.

    Attributes:
        text: the summary.
        num_parts: parts the text was split into; 1: it was summarized whole.
        num_rounds: 1, and one more for every time that parts' summaries were merged.
        hit_limit: True if ``max_new_tokens`` ended the summary, or one of a part.
        num_tokens: tokens of the source text.
        stats: what the whole call did and cost, shared by the texts that were summarized together.
    """

    text: str
    num_parts: int
    num_rounds: int
    hit_limit: bool
    num_tokens: int
    stats: GenerationStats


def summarize_text(
    model: Any,
    tokenizer: Any,
    text: str,
    *,
    instruction: str | None = None,
    preset: str | None = None,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    max_part_tokens: int | None = None,
    batch_size: int = 4,
    drafting: Drafting | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Summarize one text; arguments as in ``summarize_texts``.

    Raises:
        SummaryError: an empty text, or one whose parts' summaries do not get shorter.
        ValueError: an argument outside its range.
    """
    check_text("the text", text)
    (found,) = summarize_texts(
        model,
        tokenizer,
        [text],
        instruction=instruction,
        preset=preset,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        max_part_tokens=max_part_tokens,
        batch_size=batch_size,
        drafting=drafting,
        progress=progress,
    )
    if isinstance(found, SummaryError):
        raise found
    return found


def summarize_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    instruction: str | None = None,
    preset: str | None = None,
    max_new_tokens: int = 256,
    sampling: Sampling | None = None,
    max_part_tokens: int | None = None,
    batch_size: int = 4,
    drafting: Drafting | None = None,
    progress: Progress | None = None,
    plain: bool = False,
) -> list[Summary | SummaryError]:
    """Summarize several texts, whose parts share the model's forwards.

    A text that does not fit the context beside the instruction and the answer is split at paragraph borders (inside a
    paragraph only where one alone is too long); the parts are summarized by themselves and their summaries together,
    again in parts if need be. Every row of a batch has its part as the prediction to draft from.

    Args:
        model: a decoder-only language model, attached or not; an attached one keeps its own drafter.
        tokenizer: the model's tokenizer.
        texts: what to summarize.
        instruction: what to ask for, in the place of a preset.
        preset: "bullets" (the default), "abstract" or "headline".
        max_new_tokens: most tokens of each summary, those of parts included.
        sampling: how tokens are chosen; greedily by default. Every part draws from a seed of its own.
        drafting: how much is drafted, and from where.
        max_part_tokens: split texts above so many tokens even if more would fit.
        batch_size: parts in one forward.
        progress: told (done, total) parts after every batch; the total grows when summaries are merged.
        plain: decode without drafting, to compare with.

    Returns:
        For every text its Summary, or the SummaryError that says why there is none; one never stops the others.

    Raises:
        ValueError: an argument outside its range.
    """
    check_request(instruction, preset, max_new_tokens, max_part_tokens, batch_size)
    check_ways(None, plain=plain)
    check_door(model, tokenizer, sampling, drafting)
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValueError(f"texts must be a list of texts, got {shown(texts)}: summarize_text takes one")
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be callable, got {shown(progress)}")
    asked, for_parts = instructions(instruction, preset)
    room = _room(model, tokenizer, (asked, for_parts), max_new_tokens)
    if max_part_tokens is not None:
        room = min(room, max_part_tokens)
    stats = GenerationStats()
    work = [_Text(text) for text in texts]
    options = generate_options(model, sampling or Sampling(), max_new_tokens)
    writer = _Writer(
        model, tokenizer, options, sampling or Sampling(), drafting or Drafting(), plain, batch_size, stats, progress
    )
    for _ in range(_MAX_ROUNDS):
        jobs = [job for each in work for job in each.begin_round(tokenizer, room, asked, for_parts)]
        if not jobs:
            break
        writer.write(jobs)
        for each in work:
            each.end_round()
    return [each.result(stats) for each in work]


@dataclass
class _Job:
    """One row of a batch: a part, what is asked about it, and the summary once it is written."""

    message: str
    part: str
    summary: str = ""
    hit_limit: bool = False
    error: Exception | None = None


@dataclass
class _Text:
    """A text on its way: its source, then its parts' summaries, then its summary."""

    source: str
    text: str = ""
    num_tokens: int = 0
    num_parts: int = 0
    num_rounds: int = 0
    hit_limit: bool = False
    is_done: bool = False
    error: SummaryError | None = None
    jobs: list[_Job] = field(default_factory=list)
    num_last_parts: int = 0

    def __post_init__(self) -> None:
        try:
            self.text = check_text("the text", self.source)
        except ValueError as error:
            self.error = SummaryError(str(error))
            return
        if not self.text.strip():
            self.error = SummaryError("there is nothing to summarize: the text is empty")

    def begin_round(self, tokenizer: Any, room: int, asked: str, for_parts: str) -> list[_Job]:
        """The parts that are to be summarized next; none once the text is done."""
        self.jobs = []
        if self.is_done or self.error is not None:
            return []
        parts = split_text(self.text, room, lambda piece: len(text_ids(tokenizer, piece)))
        parts = [part for part in parts if part.strip()]
        if self.num_rounds and len(parts) >= max(2, self.num_last_parts):
            self.error = SummaryError(f"the summaries of its {len(parts)} parts do not get shorter")
            return []
        if not self.num_rounds:
            self.num_parts = len(parts)
            self.num_tokens = len(text_ids(tokenizer, self.text))
        self.num_last_parts = len(parts)
        ask = (_PARTS_NOTE if self.num_rounds else "") + (asked if len(parts) == 1 else for_parts)
        self.jobs = [_Job(f"{part.strip()}\n\n{ask}", part) for part in parts]
        return self.jobs

    def end_round(self) -> None:
        """Take the summaries in."""
        if not self.jobs:
            return
        self.num_rounds += 1
        failed = next((job.error for job in self.jobs if job.error is not None), None)
        if failed is not None:
            self.error = SummaryError(first_line(failed))
            return
        self.hit_limit = self.hit_limit or any(job.hit_limit for job in self.jobs)
        self.text = "\n\n".join(job.summary.strip() for job in self.jobs)
        self.is_done = len(self.jobs) == 1
        if not self.text.strip():
            self.error = SummaryError("the model gave an empty summary")

    def result(self, stats: GenerationStats) -> Summary | SummaryError:
        """What became of it."""
        if self.error is None and not self.is_done:
            self.error = SummaryError(f"not done after {_MAX_ROUNDS} rounds")
        if self.error is not None:
            return self.error
        return Summary(self.text, self.num_parts, self.num_rounds, self.hit_limit, self.num_tokens, stats)


@dataclass
class _Writer:
    """Writes the rows of batches; what one row does wrong costs no other its summary."""

    model: Any
    tokenizer: Any
    options: dict[str, Any]
    sampling: Sampling
    drafting: Drafting
    plain: bool
    batch_size: int
    stats: GenerationStats
    progress: Progress | None
    num_done: int = 0
    num_total: int = 0

    def write(self, jobs: list[_Job]) -> None:
        """Fill in every job's summary, or its error. Rows of like length stand together: little is padded."""
        self.num_total += len(jobs)
        numbered = sorted(enumerate(jobs, self.num_done), key=lambda item: len(item[1].message))
        for at in range(0, len(numbered), self.batch_size):
            batch = numbered[at : at + self.batch_size]
            try:
                self._write_batch(batch)
            except (ValueError, RuntimeError, IndexError):
                for one in batch:
                    try:
                        self._write_batch([one])
                    except (ValueError, RuntimeError, IndexError) as error:
                        one[1].error = error
            self.num_done += len(batch)
            if self.progress is not None:
                self.progress(self.num_done, self.num_total)

    def _write_batch(self, batch: list[tuple[int, _Job]]) -> None:
        prompts = [chat_ids(self.tokenizer, job.message) for _, job in batch]
        longest, context = max(map(len, prompts)), context_size(self.model)
        if longest + self.options["max_new_tokens"] > context:
            raise SummaryError(f"a part of {longest} tokens and its summary do not fit the context of {context}")
        rows = self._generate(prompts, [number for number, _ in batch], [job.part for _, job in batch])
        ends = end_ids(self.model)
        for (_, job), row in zip(batch, rows):
            stop = next((at for at, token in enumerate(row) if token in ends), None)
            ids = row if stop is None else row[:stop]
            job.hit_limit = stop is None
            job.summary = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _generate(self, prompts: list[list[int]], numbers: list[int], parts: list[str]) -> list[list[int]]:
        """New token ids per row, padded on the right where a row ended early."""
        import torch

        model, longest = self.model, max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts], device=model.device)
        options = dict(self.options)
        own = type(model).generate.__get__(model)
        if not self.plain:
            options |= self.drafting.options()
            options["prediction_ids"] = [text_ids(self.tokenizer, part) for part in parts]
            if self.sampling.seed is not None and self.sampling.temperature > 0:
                options["seeds"] = [self.sampling.seed + number for number in numbers]
        if self.plain:
            output = own(input_ids=ids, attention_mask=mask, **options)
        elif is_attached(model):
            output = model.generate(input_ids=ids, attention_mask=mask, **options)
            self.stats.merge(model.generate.stats)
        else:
            from zerodraft.integrations.hf.speculation import speculate

            decode = speculate(self.drafting.drafter, on_finish=self.stats.merge)
            output = own(input_ids=ids, attention_mask=mask, custom_generate=decode, **options)
        rows: list[list[int]] = output[:, longest:].tolist()
        return rows


def check_request(
    instruction: str | None, preset: str | None, max_new_tokens: Any, max_part_tokens: Any, batch_size: Any
) -> None:
    """Refuse what is wrong in itself, whatever the model and the texts are."""
    instructions(instruction, preset)
    check_length(max_new_tokens)
    check_length(batch_size, name="batch_size")
    if max_part_tokens is not None:
        check_length(max_part_tokens, name="max_part_tokens")


def instructions(instruction: str | None, preset: str | None) -> tuple[str, str]:
    """What to ask about a whole text, and about one of several parts."""
    if instruction is not None:
        if preset is not None:
            raise ValueError("give an instruction or a preset, not both")
        if not check_text("the instruction", instruction).strip():
            raise ValueError("the instruction is empty")
        return instruction.strip(), instruction.strip()
    name = DEFAULT_PRESET if preset is None else preset
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    # Headlines of parts say too little to make one of the whole.
    return PRESETS[name], PRESETS["abstract" if name == "headline" else name]


def _room(model: Any, tokenizer: Any, asked: Sequence[str], max_new_tokens: int) -> int:
    """Tokens of text that fit the context beside the longest instruction and the answer."""
    around = max(len(chat_ids(tokenizer, f"\n\n{_PARTS_NOTE}{ask}")) for ask in asked)
    room = context_size(model) - around - max_new_tokens - _MARGIN
    if room < 1:
        raise ValueError(
            f"the context of {context_size(model)} tokens must hold the instruction ({around}), the answer "
            f"({max_new_tokens}) and some text"
        )
    return room
