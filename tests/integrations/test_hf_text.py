"""Stop strings and streams: what a person reads ends and flows as in plain generation (cases 11 and 27)."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import support  # noqa: E402

import zerodraft  # noqa: E402

LETTERS = "abcdefghijklmnopqrstuvwxyz .,é中あ"


@pytest.fixture(scope="module")
def tokenizer():
    """BPE over bytes with some merges: round-trips any text, and characters may be split over tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    wanted = [c for c in alphabet if c in "abcdefghijklmnopqrstuvwxyzĠ.,"]
    wanted += [c for text in ("é", "中", "😀", "あ", "\u200d") for c in _byte_letters(text)]
    vocab = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *dict.fromkeys(wanted)])}
    merges = [("a", "b"), ("c", "d"), ("ab", "cd"), ("e", "f")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    assert len(vocab) <= support.VOCAB
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    assert fast.decode(fast("abcdef😀中").input_ids) == "abcdef😀中"
    return fast


def _byte_letters(text):
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


class _Says(transformers.LogitsProcessor):
    """Makes a random model write a given text."""

    def __init__(self, ids, start):
        self.ids, self.start = ids, start

    def __call__(self, input_ids, scores):
        at = input_ids.shape[1] - self.start
        scores = torch.full_like(scores, -50.0)
        scores[:, self.ids[at % len(self.ids)]] = 50.0
        return scores


TEXTS = {
    "plain": "abcdef abcd, the end. abcdef",
    "emoji": "a😀b😀😀c 中あ é 😀😀",
    "joined": "x\u200d😀\u200d😀 é中 y",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_streams_never_break_a_character(tokenizer, text, width):
    """Characters split over draft borders: the stream's pieces are plain's text in whole characters."""
    model = support.tiny("llama")
    ids = support.prompt(1)
    says = tokenizer(TEXTS[text]).input_ids
    options = {
        "max_new_tokens": len(says),
        "logits_processor": transformers.LogitsProcessorList([_Says(says, ids.shape[1])]),
    }
    whole = torch.tensor([*ids[0].tolist(), *says])

    def run(generate):
        streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=300)
        pieces = []
        thread = threading.Thread(target=lambda: pieces.extend(streamer))
        thread.start()
        result = generate(streamer)
        thread.join(timeout=300)
        assert not thread.is_alive()
        return pieces, result

    pieces, _ = run(lambda streamer: support.plain(model, ids, streamer=streamer, **options))
    got, (output, stats) = run(
        lambda streamer: support.ours(model, ids, support.oracle(whole, width), streamer=streamer, **options)
    )
    assert got == pieces
    assert "".join(got) == TEXTS[text] == tokenizer.decode(output[0, 12:])
    assert stats.num_decode_forwards < len(says) - 1
    decode = zerodraft.speculate(support.oracle(whole, width))

    def explicit(streamer):
        decode._streamer = streamer
        return type(model).generate(model, ids, custom_generate=decode, **options)

    got, _ = run(explicit)
    assert got == pieces
    assert decode.stats.num_decode_forwards < len(says) - 1


@pytest.mark.parametrize("stop", ["cd", "bcd", "def ", "d, t", ["zzz", "end"], "abcdef abcd"])
def test_stop_strings(tokenizer, stop):
    """Completed inside a draft or over its border: the same token ends the text, however it was asked for."""
    model = support.tiny("llama")
    ids = support.prompt(1)
    says = tokenizer("x" + TEXTS["plain"]).input_ids
    whole = torch.tensor([*ids[0].tolist(), *says])
    processor = transformers.LogitsProcessorList([_Says(says, ids.shape[1])])
    options = {"max_new_tokens": len(says), "logits_processor": processor}
    expected = support.plain(model, ids, stop_strings=stop, tokenizer=tokenizer, **options)
    assert expected.shape[1] < 12 + len(says)
    for width in range(1, 9):
        by_call, stats = support.ours(
            model, ids, support.oracle(whole, width), stop_strings=stop, tokenizer=tokenizer, **options
        )
        config = transformers.GenerationConfig(stop_strings=stop, max_new_tokens=len(says), pad_token_id=0)
        by_config, _ = support.ours(
            model,
            ids,
            support.oracle(whole, width),
            generation_config=config,
            tokenizer=tokenizer,
            logits_processor=processor,
        )
        decode = zerodraft.speculate(support.oracle(whole, width), tokenizer=tokenizer, stop_strings=stop)
        by_hand = type(model).generate(model, ids, custom_generate=decode, **options)
        for got in (by_call, by_config, by_hand):
            assert torch.equal(got, expected), width
        if expected.shape[1] > 15:
            assert stats.num_decode_forwards < expected.shape[1] - 13
        assert config.stop_strings == stop


def test_stop_strings_of_the_model_and_how_to_silence_them(tokenizer):
    model = support.tiny("llama")
    ids = support.prompt(1)
    says = tokenizer("x" + TEXTS["plain"]).input_ids
    whole = torch.tensor([*ids[0].tolist(), *says])
    options = {
        "max_new_tokens": len(says),
        "logits_processor": transformers.LogitsProcessorList([_Says(says, ids.shape[1])]),
        "tokenizer": tokenizer,
    }
    model.generation_config.stop_strings = ["end"]
    try:
        for extra in ({}, {"stop_strings": None}, {"stop_strings": "def"}):
            expected = support.plain(model, ids, **options, **extra)
            got, stats = support.ours(model, ids, support.oracle(whole), **options, **extra)
            assert torch.equal(got, expected)
            assert stats.num_decode_forwards < expected.shape[1] - 13
        del options["tokenizer"]
        with pytest.raises(ValueError, match="tokenizer"):
            support.ours(model, ids, support.silent(), **options)
    finally:
        model.generation_config.stop_strings = None


def test_stop_strings_and_tokenizer_need_each_other():
    with pytest.raises(ValueError, match="need each other"):
        zerodraft.speculate(stop_strings="x")
