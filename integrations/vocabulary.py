"""Tokenizers: loaded from what a user names, and told apart by the ids that they give to text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zerodraft.lookup.checks import first_line

Encode = Callable[[str], list[int]]

# What tokenizers of one vocabulary may still cut differently: blanks, line ends, digits, case, scripts, signs. No text
# that is not NFC: one tokenizer's folder and its tokenizer.json, loaded alone, differ in nothing else at times.
_PROBE: Final = (
    "def naïve_sum(xs: list[int]) -> int:\n    # Über 1234567\n\ttotal  =   0\r\n    return 'Straße' + \"don't WE'LL\""
    " <= 3.14e-10\n\n\n日本語の文 한국어 русский עברית \U0001f469\u200d\U0001f4bb"
)


def fingerprint(tokenizer: Any) -> str:
    """What a tokenizer's ids mean, in one line: two that agree in it may share a memory.

    It is made of the vocabulary, added tokens included, and of how a fixed text is cut. How the tokenizer is written
    down does not count, nor its name, nor truncation and padding: a folder, its copy, the tokenizer.json in it and the
    slow and fast forms of one tokenizer agree unless they cut text differently. Cost: about 3 us per token of the
    vocabulary, half a second for 150,000.

    Args:
        tokenizer: of transformers or of tokenizers: anything with ``get_vocab()`` and ``encode(text,
            add_special_tokens=False)`` that returns ids or has ``.ids``.

    Raises:
        ValueError: something else.
    """
    if not callable(getattr(tokenizer, "get_vocab", None)) or not callable(getattr(tokenizer, "encode", None)):
        raise ValueError(f"tokenizer must have get_vocab and encode, got {type(tokenizer).__name__}")
    vocabulary = sorted((int(token_id), str(token)) for token, token_id in tokenizer.get_vocab().items())
    content = json.dumps([vocabulary, encoder_of(tokenizer)(_PROBE)]).encode()
    return f"{len(vocabulary)} tokens, sha256 {hashlib.sha256(content).hexdigest()[:32]}"


def encoder_of(tokenizer: Any) -> Encode:
    """What turns a text into ids, without special tokens around it."""

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return list(getattr(ids, "ids", ids))

    return encode


def load_tokenizer(source: str | Path, *, as_model: bool = False) -> Any:
    """Return a tokenizer from a folder, a tokenizer.json or a hub id.

    Args:
        as_model: load a model's folder as its model is loaded, by transformers where that is installed: it may know
            tokens that tokenizer.json alone does not. Else tokenizer.json is read alone, which is quicker.

    Raises:
        ValueError: there is none. ModuleNotFoundError: neither package can be imported.
    """
    path = Path(source)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists() and (path.is_absolute() or len(path.parts) > 2 or path.parts[:1] in ((), ("..",))):
        raise ValueError(f"no tokenizer at {source}: no such file or folder")  # nor could it be a hub id
    is_plain = file.is_file() and not (as_model and (path / "tokenizer_config.json").is_file() and _has_transformers())
    try:
        if is_plain:
            from tokenizers import Tokenizer

            fast = Tokenizer.from_file(str(file))
            fast.no_truncation()  # a file may ask for them: texts are wanted whole
            fast.no_padding()
            return fast
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(source))
    except ModuleNotFoundError:
        raise
    except Exception as error:  # whatever a foreign file or a hub that does not answer raises
        raise ValueError(f"no tokenizer at {source}: {first_line(error)}") from None


def _has_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("transformers") is not None
