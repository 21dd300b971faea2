"""ServingOptions: what a JSON or TOML file tells a serving engine's proposer; refused at start where it is wrong."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from zerodraft.lookup.checks import int_in, number_in, one_of
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory.draft_memory import DraftMemory, check_namespace
from zerodraft.lookup.policy import MAX_LOOKUP, DraftPolicy
from zerodraft.lookup.sources.phrases import PhraseBook

# A forward waits for the weights up to about 200 positions and is bound by arithmetic beyond, with a soft corner
# between: (1 + (n / 200)³)^⅓ at n positions. A model of an accelerator, not a measurement.
ACCELERATOR: Final = CostCurve(
    [(1, 1.0), (65, 1.01), (129, 1.08), (193, 1.24), (257, 1.46), (385, 2.01), (513, 2.61), (1025, 5.14)]
)


@dataclass(frozen=True)
class ServingOptions:
    """Options of a proposer.

    Attributes:
        max_draft_tokens: upper bound on the tokens of a draft, below the engine's own; None: the engine's.
        prompt_lookup_min: shortest match that is drafted from, at least 1.
        prompt_lookup_max: matches are measured up to this many tokens, at most 4096.
        cost: what a forward costs by its positions: "accelerator" (a model of one: about 200 positions are
            nearly free), or a curve as {"points": [[1, 1.0], [28, 2.0]]} or as ``CostCurve.as_dict`` gives it; it
            decides how long drafts get.
        memory_tokens: cap of the memory of finished texts, in tokens; 0: none, the default: requests share nothing.
        memory_directory: where the memory is kept and shared with other processes; None: in this process only.
        namespace: whose texts the memory's are; processes that name another one do not see them.
        remember: what a finished request leaves in the memory: "output", "both" (the prompt too), "nothing".
        sync_seconds: how often what is new is published in the directory and that of others taken in.
        phrases: a file that ``PhraseBook.save`` wrote; None: no stock phrases.
        finish_after: steps after which a request that is missing from the batch counts as finished.

    Raises:
        ValueError: an option outside its range or of another type, named with the value given.
    """

    max_draft_tokens: int | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 512
    cost: Mapping[str, Any] | Literal["accelerator"] = "accelerator"
    memory_tokens: int = 0
    memory_directory: str | None = None
    namespace: str | None = None
    remember: Literal["output", "both", "nothing"] = "output"
    sync_seconds: float = 10.0
    phrases: str | None = None
    finish_after: int = 64

    def __post_init__(self) -> None:
        if self.max_draft_tokens is not None:
            int_in("max_draft_tokens", self.max_draft_tokens, 1, 4096)
        int_in("prompt_lookup_min", self.prompt_lookup_min, 1, MAX_LOOKUP)
        int_in("prompt_lookup_max", self.prompt_lookup_max, self.prompt_lookup_min, MAX_LOOKUP)
        int_in("memory_tokens", self.memory_tokens, 0, 2**30)
        if 0 < self.memory_tokens <= self.prompt_lookup_min:
            lengths = f"{self.memory_tokens} and {self.prompt_lookup_min}"
            raise ValueError(f"memory_tokens must be 0 or above prompt_lookup_min, or nothing matches, got {lengths}")
        int_in("finish_after", self.finish_after, 1, 2**31)
        check_namespace(self.namespace)
        one_of("remember", self.remember, ("output", "both", "nothing"))
        for name in ("memory_directory", "phrases"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{name} must be a path, got {value!r}")
        if self.memory_directory is not None and not self.memory_tokens:
            raise ValueError("memory_directory needs memory_tokens above 0, got 0")
        number_in("sync_seconds", self.sync_seconds, 0.01, 86400)
        _ = self.curve

    @property
    def curve(self) -> CostCurve:
        """The cost curve in force."""
        if isinstance(self.cost, str) and self.cost == "accelerator":
            return ACCELERATOR
        if not isinstance(self.cost, Mapping):
            raise ValueError(f'cost must be "accelerator" or {{"points": [[1, 1.0], ...]}}, got {self.cost!r}')
        known = [field.name for field in dataclasses.fields(CostCurve)]
        unknown = sorted(set(map(str, self.cost)) - set(known))
        if unknown:
            raise ValueError(f"cost must have {', '.join(known)} only, got {unknown}")
        return CostCurve.from_dict(dict(self.cost))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ServingOptions:
        """Read a .json or .toml file.

        Raises:
            ValueError: no such file, not such a file, or wrong options; the message names the file.
        """
        file = Path(path)
        try:
            fields = _read(file)
            known = [field.name for field in dataclasses.fields(cls)]
            unknown = sorted(set(fields) - set(known))
            if unknown:
                raise ValueError(f"unknown options {unknown}, known are {known}")
            return cls(**fields)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: {getattr(error, 'strerror', None) or error}") from None

    def drafter(self, max_draft_tokens: int) -> Drafter:
        """The drafter that these options ask for; it drafts chains.

        Args:
            max_draft_tokens: the engine's bound on the tokens of a draft.

        Raises:
            ValueError: the phrases cannot be read. MemoryFileError: the memory's directory is unsound.
            ModuleNotFoundError: phrases without pyahocorasick.
        """
        memory = None
        if self.memory_tokens:
            memory = DraftMemory(self.memory_tokens, directory=self.memory_directory)
        try:
            phrases = None if self.phrases is None else PhraseBook.load(self.phrases)
        except OSError as error:
            raise ValueError(f"phrases cannot be read: {error}") from None
        policy = DraftPolicy(
            cost=self.curve,
            max_draft_tokens=self.longest(max_draft_tokens),
            max_branches=1,
            prompt_lookup_min=self.prompt_lookup_min,
            prompt_lookup_max=self.prompt_lookup_max,
        )
        return Drafter(policy=policy, memory=memory, phrases=phrases)

    def longest(self, max_draft_tokens: int) -> int:
        """The bound on the tokens of a draft, of these options and of the engine."""
        return min(max_draft_tokens, self.max_draft_tokens or max_draft_tokens)


def _read(file: Path) -> dict[str, Any]:
    if file.suffix == ".json":
        content = json.loads(file.read_text(encoding="utf-8"))
    elif file.suffix == ".toml":
        try:
            tomllib = importlib.import_module("tomllib")
        except ModuleNotFoundError:
            raise ValueError("TOML needs Python 3.11 or newer: write the options as JSON") from None
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    else:
        raise ValueError("the file's name must end in .json or .toml")
    if not isinstance(content, dict):
        raise ValueError(f"options must be an object of names and values, got {type(content).__name__}")
    return content
