"""The demo's edit with the demo's model: the rename comes out right, and it is the model's own greedy text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from zerodraft.integrations import models, weights
from zerodraft.integrations.pipelines.editing import Edit, edit_text

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("zerodraft_demo", BENCH / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("fetch_models", None)


def test_the_file_is_short_and_the_rename_touches_several_places(demo: Any) -> None:
    text = demo.FILE.read_text("utf-8")
    old, new = demo.RENAME
    assert text.count("\n") <= 60
    assert text.count(old) >= 5
    assert new not in text
    compile(text, "till.py", "exec")


def test_the_demo_says_what_it_does_and_falls_back(
    demo: Any, scripted: Any, tokenizer: Any, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """No hub, no qwen: SmolLM2 with a note. Whatever the model, the diff is stdout and the rest is stderr."""
    text = demo.FILE.read_text("utf-8")
    loaded = models.LoadedModel(scripted(text.replace(*demo.RENAME) + "```"), tokenizer, "scripted", "a script")

    def fetch(name: str, **_: Any) -> Path:
        if name == "qwen":
            raise weights.WeightsError("no index")
        return tiny_folder

    monkeypatch.setattr(weights, "find", lambda name, **_: None)
    monkeypatch.setattr(weights, "fetch", fetch)
    monkeypatch.setattr(models, "load_from_hub", lambda *_, **__: None)
    monkeypatch.setattr(models, "load_model", lambda *_, **__: loaded)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", 1500)  # a token is a byte here
    demo.main()
    out, err = capsys.readouterr()
    assert out.startswith("--- a/")
    assert "falling back to SmolLM2" in err
    assert "478 MB" in err
    assert "state no licence of their own" in err
    assert "the text is identical" in err


def test_without_a_diff_there_is_still_the_comparison(
    demo: Any, scripted: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    loaded = models.LoadedModel(scripted("I would rather not."), tokenizer, "scripted", "a script")
    monkeypatch.setattr(demo, "load", lambda name: loaded)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    demo.main()
    out, err = capsys.readouterr()
    assert out == ""
    assert "no complete code block" in err
    assert "the text is identical" in err


@pytest.mark.real_model
@pytest.mark.slow
def test_the_rename_comes_out_right_with_qwen(demo: Any) -> None:
    import torch

    folder = weights.find("qwen")
    if folder is None:
        pytest.skip("qwen is not in the cache: python bench/fetch_models.py qwen")
    loaded = models.load_model(str(folder), dtype="float32")
    text = demo.FILE.read_text("utf-8")
    result = edit_text(loaded.model, loaded.tokenizer, text, demo.INSTRUCTION, language="python")
    assert result.text == text.replace(*demo.RENAME)
    assert result.stats.tokens_per_forward >= 5
    call = Edit.of(loaded.model, loaded.tokenizer, text, demo.INSTRUCTION, language="python").call
    ids = torch.tensor([[*call.prompt_ids, *result.token_ids]])
    with torch.no_grad():
        logits = loaded.model(input_ids=ids, logits_to_keep=len(result.token_ids) + 1).logits
    assert logits[0, :-1].argmax(-1).tolist() == list(result.token_ids), "not the model's own greedy text"
