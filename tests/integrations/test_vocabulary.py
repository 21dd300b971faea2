"""What tells tokenizers apart, and memories that are opened for a model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_ins import byte_tokenizer

from zerodraft.integrations.memories import open_memory
from zerodraft.integrations.vocabulary import encoder_of, fingerprint, load_tokenizer
from zerodraft.lookup.memory.manifest import TokenizerError
from zerodraft.lookup.memory.segment_file import MemoryFileError


def test_the_same_tokenizer_wherever_it_lies(tiny_folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    copy = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    expected = fingerprint(tokenizer)
    for source in (tiny_folder, copy, copy / "tokenizer.json"):
        for as_model in (False, True):
            assert fingerprint(load_tokenizer(source, as_model=as_model)) == expected
    loaded = AutoTokenizer.from_pretrained(copy)
    loaded("a text that is cut and filled up", truncation=True, max_length=3, padding="max_length")
    assert fingerprint(loaded) == expected
    call = (
        "import sys; from zerodraft.integrations.vocabulary import *; print(fingerprint(load_tokenizer(sys.argv[1])))"
    )
    told = subprocess.run([sys.executable, "-c", call, str(copy)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == expected
    assert "259 tokens" in expected or f"{len(tokenizer)} tokens" in expected


def test_tokenizers_that_give_other_ids_differ(tiny_folder: Path, tmp_path: Path) -> None:
    changed = {"as it is": fingerprint(byte_tokenizer()), "a token more": fingerprint(byte_tokenizer(["return"]))}
    content = json.loads((tiny_folder / "tokenizer.json").read_text())
    swapped = json.loads(json.dumps(content))
    vocab = swapped["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    lowered = content | {"normalizer": {"type": "Lowercase"}}
    for name, written in (("ids swapped", swapped), ("cut differently", lowered)):
        (tmp_path / "tokenizer.json").write_text(json.dumps(written))
        changed[name] = fingerprint(load_tokenizer(tmp_path))
    assert len(set(changed.values())) == len(changed)


def test_texts_are_encoded_whole_whatever_the_file_says(tiny_folder: Path, tmp_path: Path) -> None:
    content = json.loads((tiny_folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert len(encoder_of(tokenizer)("more than four")) == 14
    assert fingerprint(tokenizer) == fingerprint(load_tokenizer(tiny_folder))


@pytest.mark.parametrize("bad", [None, "gpt2", 5, object()])
def test_what_is_no_tokenizer_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="tokenizer must have get_vocab and encode"):
        fingerprint(bad)


def test_a_memory_is_opened_for_one_tokenizer(tokenizer: Any, tmp_path: Path) -> None:
    place = tmp_path / "my memory"
    memory = open_memory(place, tokenizer)
    memory.add([1, 2, 3, 4])
    memory.save()
    assert open_memory(place, tokenizer).propose([1, 2], 2).token_ids.tolist() == [3, 4]
    assert open_memory(place).tokenizer == fingerprint(tokenizer)
    with pytest.raises(TokenizerError) as caught:
        open_memory(place, byte_tokenizer(["return"]))
    for named in (str(place), fingerprint(tokenizer), fingerprint(byte_tokenizer(["return"]))):
        assert named in str(caught.value)
    (place / "manifest.json").write_bytes(b"")
    with pytest.raises(MemoryFileError, match=r"zerodraft memory repair '.*my memory'$"):
        open_memory(place, tokenizer)
