"""``transformers serve`` with an attached model: its server answers what it answered before, in fewer forwards."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zerodraft

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")


@pytest.fixture
def server(tiny_folder: Path) -> Iterator[tuple[str, Any]]:
    """(URL, the model it serves), as docs/faq.md makes it."""
    from transformers.cli.serve import Serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = Serve(force_model=str(tiny_folder), device="cpu", host="127.0.0.1", port=port, non_blocking=True)
    manager = serve._model_manager
    model, _ = manager.load_model_and_processor(manager.process_model_name(str(tiny_folder)))
    try:
        while not serve.server.started:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1/chat/completions", model
    finally:
        serve.kill_server()


def ask(url: str, model: str, *, stream: bool, **options: Any) -> str:
    message = {"role": "user", "content": "one two three one two three one two"}
    body = {"model": model, "messages": [message], "stream": stream, "max_tokens": 40} | options
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        text = answer.read().decode()
    if not stream:
        return str(json.loads(text)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


def test_the_server_answers_the_same_in_fewer_forwards(server: tuple[str, Any], tiny_folder: Path) -> None:
    url, model = server
    sampled = {"seed": 3, "generation_config": json.dumps({"do_sample": True, "eos_token_id": 2})}
    calls: list[dict[str, Any]] = [{"stream": False}, {"stream": True}, {"stream": False} | sampled]
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    model.register_forward_pre_hook(count)
    plain = [ask(url, str(tiny_folder), **call) for call in calls]
    plain_forwards, forwards = forwards, 0
    zerodraft.attach(model)
    assert [ask(url, str(tiny_folder), **call) for call in calls] == plain
    assert plain[0].startswith(plain[1][:20]), "streamed or not; only half a character at the end is not sent"
    assert plain[2] != plain[0]
    assert 0 < forwards < plain_forwards
