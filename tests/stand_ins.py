"""A user's machine in small: models that answer from a list, caches that hold them, texts, a copy of the repository.

What the documentation tells people to type is run here as it stands (``test_docs.py``), so everything
that it names has to be there: the models by name, in the caches where they would be looked for, and the files.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HUB_ID = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = 2
APP = """import json


def load(path):
    with open(path) as file:
        return json.load(file)


CONFIG = load("app.json")
"""
EDITED = [
    "import json\n\n\n",
    "def read_config(path):\n",
    "    with open(path) as file:\n",
    "        return json.load(file)\n\n\n",
    'CONFIG = read_config("app.json")\n',
    "````",
]
ANSWER = ["A call in tail position ", "needs no frame of its own, ", "so the stack does not grow."]
TURN, FENCE = "<|im_start|>assistant\n", "````python\n"
PIECES = [TURN, FENCE, *EDITED, *ANSWER]
TEXT = "The committee met on Monday. It agreed to plant trees.\n\nThe trees will be lindens. Work begins in spring.\n\n"


def byte_tokenizer(pieces: Sequence[str] = ()) -> Any:
    """A tokenizer with one token per byte, and one for each of these pieces of text.

    Every text comes back as it was, and characters can be cut anywhere.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=SPECIAL[END],
        pad_token=SPECIAL[0],
        additional_special_tokens=list(SPECIAL[:2]),
        chat_template=CHAT,
    )


_LETTERS = [chr(code) for code in range(33, 127)] + list("éèüßñäö你好世界")


def llama2_style_tokenizer() -> Any:
    """As Llama 2's: a blank is put before a text, and decoding drops the first one; what it does not know is bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocab = {piece: i for i, piece in enumerate(["<unk>", "<s>", "</s>", *_BYTES, "▁", *_LETTERS])}
    inner = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(inner, "{{ bos_token }}{% for m in messages %}[INST] {{ m.content | trim }} [/INST]{% endfor %}")


def metaspace_tokenizer() -> Any:
    """Blanks as ▁, one before a text, accents composed (NFC): an untouched line may come out of it as other bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {piece: i for i, piece in enumerate(["<unk>", "<s>", "</s>", *_BYTES, "▁", *_LETTERS])}
    inner = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    inner.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    return _wrapped(inner, "{% for m in messages %}{{ bos_token }}user\n{{ m.content }}{{ eos_token }}\n{% endfor %}")


_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _wrapped(inner: Any, template: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=template
    )


CONTEXT = 4096


def tiny_llama(cls: Any = None, *, seed: int = 0, tokenizer: Any = None) -> Any:
    """A random llama of two layers for ``byte_tokenizer``, or for another tokenizer."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(SPECIAL) + 256 if tokenizer is None else len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=END if tokenizer is None else tokenizer.eos_token_id,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    return (cls or transformers.LlamaForCausalLM)(config).eval()


def as_text(tokenizer: Any, text: str) -> list[int]:
    """What a model writes that means this text: no control tokens, and no blank put before it."""
    ids = [tokenizer.encode(t, add_special_tokens=False, split_special_tokens=True) for t in ("\n", f"\n{text}")]
    return ids[1][len(ids[0]) :]


def scripted_llama(tokenizer: Any, answer: str) -> Any:
    """A llama that answers any prompt with ``answer``, as text, and the end, however wide its forwards are.

    What comes next depends on the position alone; the answer begins behind the first forward's tokens, or behind the
    opening fence, the second line after the last ``<|im_start|>``: prompt lookup drafts in the first forward already.
    """
    import torch
    import transformers

    script = [*as_text(tokenizer, answer), tokenizer.eos_token_id]

    class ScriptedLlama(transformers.LlamaForCausalLM):
        start: int | None = None

        def forward(self, input_ids: Any = None, position_ids: Any = None, logits_to_keep: Any = 0, **rest: Any) -> Any:
            out = super().forward(input_ids=input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **rest)
            places = position_ids[0] if position_ids is not None else torch.arange(input_ids.shape[1])
            if int(places[0]) == 0:
                self.start = _answer_start(tokenizer, input_ids[0].tolist())
            assert self.start is not None
            kept = places[logits_to_keep] if torch.is_tensor(logits_to_keep) else places[-logits_to_keep or None :]
            for row, place in enumerate(kept.tolist()):
                at = place + 1 - self.start
                out.logits[0, row, script[at] if 0 <= at < len(script) else tokenizer.eos_token_id] += 1e4
            return out

    return tiny_llama(ScriptedLlama, tokenizer=tokenizer)


def _answer_start(tokenizer: Any, ids: list[int]) -> int:
    turn = tokenizer.convert_tokens_to_ids(SPECIAL[1])
    if turn is None or turn == tokenizer.unk_token_id or turn not in ids:
        return len(ids)
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    last = len(ids) - 1 - ids[::-1].index(turn)
    return ids.index(newline, ids.index(newline, last) + 1) + 1


def answering_llama(words: Any) -> Any:
    """A llama in which the last token alone decides: the answers' pieces follow each other, all else is random.

    An edit, begun by the opening fence, becomes ``EDITED`` and any other answer ``ANSWER``. Text that was not begun so
    never ends by itself. ``words`` is the tokenizer, with a token for each of ``PIECES``.
    """
    import torch
    import transformers

    width = 4 * (-(-len(words) // 4))
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=END,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.model.embed_tokens.weight.copy_(torch.eye(len(words), width))
        layer = made.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        follows = made.lm_head.weight  # (next token, last token), as the last layer passes the embedding on
        follows.normal_(std=0.1)
        follows[: len(SPECIAL)] = -10.0
        for pieces in ([TURN, *ANSWER], [FENCE, *EDITED]):
            chain = [*words.convert_tokens_to_ids(pieces), END]
            for last, then in itertools.pairwise(chain):
                follows[then, last] = 10.0
    return made


def save_models(cache: Path, hub: Path, folder: Path) -> None:
    """Put the model where it is looked for: the packages' cache, by both names, the hub's, and a folder of its own."""
    from zerodraft.integrations import weights

    words = byte_tokenizer(PIECES)
    answering_llama(words).save_pretrained(folder)
    words.save_pretrained(folder)
    for name, pinned in weights.CATALOGUE.items():
        place = cache / "zerodraft" / "models" / name
        shutil.copytree(folder, place)
        manifest = {"format": weights._FORMAT, "title": pinned.title, "source": pinned.source, "sha256": pinned.sha256}
        manifest["files"] = {path.name: path.stat().st_size for path in place.iterdir()}
        (place / weights.MANIFEST).write_text(json.dumps(manifest))
    revision = "0" * 40
    entry = hub / f"models--{HUB_ID.replace('/', '--')}"
    shutil.copytree(folder, entry / "snapshots" / revision)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(revision)


def save_workloads(bench: Path, cache: Path) -> None:
    """Wheels of the names and versions that ``bench/workloads.py`` fetches, each with one short module in it.

    Only the first package of a split changes from release to release, so there is little to replay.
    """
    sys.path.insert(0, str(bench))
    try:
        import workloads
    finally:
        sys.path.remove(str(bench))
    folder = cache / "wheels"
    folder.mkdir(parents=True)
    for packages in (workloads.TRAIN_PACKAGES, workloads.HELD_OUT_PACKAGES):
        for place, (name, versions) in enumerate(packages.items()):
            for number, version in enumerate(versions):
                changed = number if place == 0 else 0
                lines = [f"{name}_{line} = load('{line}', {line // 9 * changed})\n" for line in range(24)]
                _wheel(folder, name, version, {f"{name}/main.py": "".join(lines)})
    part = TEXT.replace("\n\n", " ").split(". ")
    paper = {
        "title": "Trees",
        "sentences": dict.fromkeys(("abstract", "introduction", "conclusion"), part),
        "summary": {"outcome": "The committee will plant trees: lindens. Work begins in spring."},
    }
    papers = {f"aclsum/dataset/{split}.jsonl": f"{json.dumps(paper)}\n" for split in ("train", "test")}
    _wheel(folder, *workloads.SUMMARIES, papers)


def _wheel(folder: Path, name: str, version: str, members: dict[str, str]) -> None:
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for member, text in members.items():
            wheel.writestr(member, text)


def save_checkout(folder: Path) -> None:
    """A copy of the repository, to be written to: bench scripts put their results under it."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("bench", "docs", "lookup"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out, dirs_exist_ok=True)
    for name in ("Makefile", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "bench" / "data" / "till.py").write_text(APP)  # of the length of what the stand-in answers


def save_texts(folder: Path) -> None:
    """The files that the documentation's commands name: sources, texts, recorded outputs, two memories."""
    from zerodraft.lookup.memory.draft_memory import DraftMemory

    (folder / "src").mkdir()
    for place in (folder, folder / "src"):
        (place / "app.py").write_text(APP)
    for name, times in (("report.txt", 3), ("minutes.txt", 2), ("book.txt", 60)):
        (folder / name).write_text(TEXT * times)
    (folder / "traces.jsonl").write_text(json.dumps({"prompt": APP, "output": "".join(EDITED)}) + "\n")
    ids = [*range(10, 60)]
    (folder / "TRACES.jsonl").write_text(json.dumps({"prompt": ids, "output": [5, *ids]}) + "\n")
    for name in ("memory", "other"):
        kept = DraftMemory(1000, directory=folder / name)
        kept.add(ids, "team")
        kept.save()


def virtual_environment(folder: Path) -> dict[str, str]:
    """Variables under which ``make`` takes this interpreter's environment for its own, installed and up to date."""
    folder.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    for stamp in (".torch", ".demo", ".test", ".bench", ".lint"):
        (folder / stamp).touch()
    return {"VENV": str(folder)}


def environment(home: Path, programs: Path) -> dict[str, str]:
    """Variables for commands: nobody's caches but these, no network for models, programs as they are installed here.

    Compiled kernels may come from the cache beside their source, as on any machine where they were used before.
    """
    programs.mkdir()
    script = programs / "zerodraft"  # where only ``python -m zerodraft`` is there; an installed one comes first
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zerodraft "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(programs), os.environ["PATH"]])
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "HF_HOME": str(home / ".cache" / "huggingface")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTEST_"))}
    return kept | own | {"PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
