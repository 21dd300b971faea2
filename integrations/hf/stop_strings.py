"""Stop strings as a stopping criterion, wherever a call set them."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedModel
from transformers.generation.stopping_criteria import StopStringCriteria

from zerodraft.lookup.checks import shown


def take_stop_strings(model: PreTrainedModel, call: dict[str, Any]) -> list[StopStringCriteria]:
    """Turn stop strings, wherever they were set, into a criterion: ``generate`` gives a callable no tokenizer for them.

    ``stop_strings=None`` in the call is the only way to silence a default of the model's own configuration.
    """
    given = call.get("generation_config")
    strings = (given and given.stop_strings) or model.generation_config.stop_strings
    strings = call.get("stop_strings", strings)
    tokenizer = call.get("tokenizer")
    if not strings:
        return []
    if tokenizer is None:
        raise ValueError(f"stop_strings={strings!r} need the tokenizer: generate(..., tokenizer=tokenizer)")
    criterion = stop_criterion(tokenizer, strings)
    if given is not None:
        call["generation_config"] = copy.deepcopy(given)
        call["generation_config"].stop_strings = None
    if call.get("stop_strings") is not None or model.generation_config.stop_strings:
        call["stop_strings"] = None
    return [criterion]


def stop_criterion(tokenizer: Any, strings: Any) -> StopStringCriteria:
    """The criterion for one string or several; a ValueError for what is neither, and for what is no tokenizer."""
    listed = [strings] if isinstance(strings, str) else strings
    if not isinstance(listed, (list, tuple)) or not listed or not all(isinstance(s, str) and s for s in listed):
        raise ValueError(
            f"stop_strings must be a string or a list of strings, none of them empty, got {shown(strings)}"
        )
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise ValueError(f"tokenizer must be a transformers tokenizer, got {shown(tokenizer)}")
    return StopStringCriteria(tokenizer, list(listed))
