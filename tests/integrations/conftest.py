"""A tiny model and tokenizer on disk, and one that answers from a script: what the command line is tested with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stand_ins import byte_tokenizer, scripted_llama, tiny_llama


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    return tiny_llama()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any, tiny_model: Any) -> Path:
    """The tiny model and its tokenizer, saved as a user would have them."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def scripted(tokenizer: Any) -> Any:
    """``scripted(answer)`` is a model that gives that answer."""
    return lambda answer: scripted_llama(tokenizer, answer)
