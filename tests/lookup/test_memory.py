"""DraftMemory against the oracle: adding, evicting, clearing, saving, loading, refreshing (cases 1, 4, 6, 7, 29)."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import reference.memory
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from zerodraft.lookup.copy._text import WINDOW
from zerodraft.lookup.cost import CostCurve
from zerodraft.lookup.draft import MEMORY, Outcome
from zerodraft.lookup.drafter import Drafter
from zerodraft.lookup.memory import _stored
from zerodraft.lookup.memory.draft_memory import DraftMemory
from zerodraft.lookup.memory.manifest import TokenizerError
from zerodraft.lookup.memory.segment import Segment
from zerodraft.lookup.memory.segment_file import MemoryFileError, open_segment
from zerodraft.lookup.memory.view import MemoryView
from zerodraft.lookup.policy import DraftPolicy

FREE = DraftPolicy(cost=CostCurve([(1, 1.0), (2, 1.0001)]))  # nodes cost next to nothing
namespaces = st.sampled_from([None, "", "a", "ä/../b"])
texts = st.lists(st.integers(0, 3), max_size=40)


class MemoryMachine(RuleBasedStateMachine):
    """One writer with a session on it, and a reader that sees what was saved when it refreshes."""

    contexts = Bundle("contexts")

    @initialize(max_tokens=st.integers(5, 400), min_len=st.integers(1, 4), min_prob=st.sampled_from([0.0, 0.2, 0.5]))
    def start(self, max_tokens, min_len, min_prob):
        self.directory = Path(tempfile.mkdtemp())
        self.options = {"max_tokens": max_tokens, "min_match_len": min_len, "min_prob": min_prob}
        self.memory = DraftMemory(**self.options)
        self.model = reference.memory.Memory(max_tokens)
        self.disk: list = []
        self.session = None
        self.is_bound = False
        self.reader = DraftMemory(**self.options, directory=self.directory)
        self.reader_model = reference.memory.Memory(max_tokens)

    @rule(target=contexts, tokens=texts, namespace=namespaces)
    def add(self, tokens, namespace):
        self.memory.add(tokens, namespace)
        self.model.add(tokens, namespace)
        return tokens

    @rule(context=contexts, cut=st.integers(0, 30), n=st.integers(0, 12), namespace=namespaces)
    def propose(self, context, cut, n, namespace):
        context = context[: len(context) - cut]
        for memory, model in ((self.memory, self.model), (self.reader, self.reader_model)):
            draft = memory.propose(context, n, namespace)
            draft.check()
            arenas = [(segment.index.token_ids.tolist(), segment.floor) for segment in memory._shelf.of(namespace)]
            assert reference.memory.live_texts(arenas) == model.of(namespace)
            options = _stored.LIMIT, self.options["min_match_len"], self.options["min_prob"]
            assert draft.token_ids.tolist() == reference.memory.propose_stored(arenas, context, n, *options)
            assert set(draft.source.tolist()) <= {MEMORY}
            assert set(draft.origin.tolist()) <= {-1}

    @rule(num_tokens=st.integers(0, 60))
    def evict(self, num_tokens):
        before = self.model.num_tokens
        self.model.evict_to(max(0, before - num_tokens))
        assert self.memory.evict(num_tokens) == before - self.model.num_tokens

    @rule(namespace=namespaces)
    def clear(self, namespace):
        gone = sum(len(tokens) for _, owner, tokens in self.model.texts if owner == namespace)
        assert self.memory.clear(namespace) == gone
        if self.is_bound:  # what was evicted here before leaves the files on the same occasion
            self.disk = [text for text in self.disk if text in self.model.texts]
        self.model.texts = [text for text in self.model.texts if text[1] != namespace]
        self.disk = [text for text in self.disk if not self.is_bound or text[1] != namespace]

    @rule()
    def save(self):
        self.memory.save(self.directory)
        self.is_bound = True
        self.disk = list(self.model.texts)

    @precondition(lambda self: self.is_bound)
    @rule()
    def load(self):
        self.memory = DraftMemory.load(self.directory, **self.options, verify=True)
        self.model.texts = list(self.disk)

    @rule(prompt=texts, prediction=texts, namespace=namespaces)
    def begin(self, prompt, prediction, namespace):
        drafter = Drafter(policy=FREE, memory=self.memory)
        self.session, self.namespace = drafter.begin(prompt, prediction, namespace), namespace
        self.text = [*prediction, -1, *prompt] if prediction else list(prompt)
        self.output, self.prompt = [], prompt

    @precondition(lambda self: self.session is not None)
    @rule(num_accepted=st.integers(0, 9), new=texts, n=st.integers(0, 12))
    def step(self, num_accepted, new, n):
        draft = self.session.propose(n)
        draft.check()
        assert len(draft) <= n
        path, children = [], draft.parents.tolist()
        while len(path) < num_accepted and (path[-1] if path else -1) in children:
            path.append(children.index(path[-1] if path else -1))
        ids = [*draft.token_ids[path].tolist(), *new]
        self.session.commit(draft, Outcome(path=tuple(path), new_ids=tuple(ids), stop="rejected"))
        self.text += ids
        self.output += ids

    @precondition(lambda self: self.session is not None)
    @rule(remember=st.sampled_from([False, True, "output", "both"]))
    def finish(self, remember):
        self.session.finish(remember)
        if remember and self.session._drafter.memory is self.memory:
            self.model.add([*self.prompt, *self.output] if remember == "both" else self.output, self.namespace)
        self.session = None

    @rule()
    def refresh(self):
        self.reader.refresh()
        self.reader_model.texts = list(self.disk)

    @invariant()
    def is_sound(self):
        if not hasattr(self, "memory"):
            return
        self.memory.check_integrity()
        self.reader.check_integrity()
        if self.session is not None:
            self.session.index.check_integrity()
            assert self.session.index.token_ids.tolist() == self.text
        assert self.memory.num_tokens == self.model.num_tokens <= self.options["max_tokens"]
        assert set(self.memory.namespaces) == {owner for _, owner, _ in self.model.texts}

    def teardown(self):
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def text_of(seed: int, length: int = 300) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50_000, length).tolist()


@pytest.fixture
def saved(tmp_path):
    """A directory with texts 0 to 39 under two namespaces."""
    memory = DraftMemory(100_000)
    for seed in range(40):
        memory.add(text_of(seed), "even" if seed % 2 == 0 else None)
    memory.save(tmp_path)
    return tmp_path


def continues(memory: DraftMemory, seed: int, namespace: str | None) -> bool:
    text = text_of(seed)
    return memory.propose(text[100:110], 8, namespace).token_ids.tolist() == text[110:118]


def test_a_saved_memory_drafts_the_same_after_loading(saved):
    memory = DraftMemory.load(saved)
    assert memory.num_tokens == 40 * 300
    for seed in range(40):
        assert continues(memory, seed, "even") == (seed % 2 == 0)
        assert continues(memory, seed, None) == (seed % 2 == 1)
        assert not continues(memory, seed, "odd")
    memory.check_integrity()


@pytest.mark.parametrize("part", [0, 0.01, 0.25, 0.5, 0.75, 0.999])
@pytest.mark.parametrize("pattern", ["*.zdseg", "manifest.json"])
def test_a_cut_file_is_refused_as_a_whole(saved, part, pattern):
    for path in saved.glob(pattern):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(MemoryFileError):
        DraftMemory.load(saved)


def test_every_flipped_byte_is_noticed(saved):
    path = max(saved.glob("*.zdseg"), key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    places = {*range(160), *np.linspace(160, len(content) - 1, 40).astype(int).tolist()}
    for place in sorted(places):
        content[place] ^= 0x10
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(MemoryFileError):
            DraftMemory.load(saved, verify=True)
        content[place] ^= 0x10


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"version": 1', '"version": 3', "version 3"),
        ("first_live", "last_live", "damaged"),
        ("zerodraft", "x", "not a"),
    ],
)
def test_a_foreign_manifest_is_named(saved, old, new, named):
    path = saved / "manifest.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(MemoryFileError, match=named):
        DraftMemory.load(saved)


@pytest.mark.parametrize("name", ["../manifest.json", "/etc/passwd", "x.zdseg", "", 3, None])
def test_a_manifest_cannot_point_elsewhere(saved, name):
    from zerodraft.lookup.memory import manifest

    entries = [{"name": name, "first_live": 0}]
    content = {"format": manifest.FORMAT, "version": 1, "segments": entries, "crc32": manifest._sum(entries)}
    (saved / "manifest.json").write_text(manifest.json.dumps(content))
    with pytest.raises(MemoryFileError, match="impossible entry"):
        DraftMemory.load(saved)


def test_another_version_of_the_file_is_named(saved):
    path = next(saved.glob("*.zdseg"))
    content = bytearray(path.read_bytes())
    content[8] = 9
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(MemoryFileError, match="version 9"):
        DraftMemory.load(saved)


def test_a_missing_file_is_named(saved):
    next(saved.glob("*.zdseg")).unlink()
    with pytest.raises(MemoryFileError, match="missing"):
        DraftMemory.load(saved)


def test_no_memory_is_named(tmp_path):
    with pytest.raises(MemoryFileError, match="no memory"):
        DraftMemory.load(tmp_path)


def forged(saved: Path, change) -> None:
    """Alter the arrays of every file and make its checksums right again, as a stranger could."""
    import zlib

    from zerodraft.lookup.memory import segment_file

    for path in saved.glob("*.zdseg"):
        content = bytearray(path.read_bytes())
        fields = list(segment_file._HEADER.unpack_from(content))
        header_bytes = fields[2]
        offsets, num_blocks = segment_file._layout(*fields[3:7])
        payload = np.frombuffer(bytes(content[header_bytes : header_bytes + offsets[5]]), np.int32).copy()
        change(payload, [offset // 4 for offset in offsets[:6]])
        content[header_bytes : header_bytes + offsets[5]] = payload.tobytes()
        size = segment_file.BLOCK_BYTES
        sums = [zlib.crc32(content[at : at + size]) for at in range(header_bytes, len(content), size)]
        content[header_bytes - 4 * num_blocks : header_bytes] = np.array(sums, "<u4").tobytes()
        content[segment_file._HEADER.size - 4 : segment_file._HEADER.size] = bytes(4)
        segment_file._HEADER.pack_into(content, 0, *fields[:-1], zlib.crc32(content[:header_bytes]))
        path.unlink()
        path.write_bytes(content)


@pytest.mark.parametrize("value", [-(2**31), -2, 0, 1, 5000, 2**31 - 1, None])
@pytest.mark.parametrize("array", [0, 1, 2, 3, 4])
def test_hostile_numbers_never_leave_the_file(saved, array, value):
    rng = np.random.default_rng(0)

    def change(payload, offsets):
        part = payload[offsets[array] : offsets[array + 1]]
        part[:] = rng.integers(-(2**31), 2**31, len(part)) if value is None else value

    forged(saved, change)
    memory = DraftMemory.load(saved, min_match_len=1)
    for seed in range(40):
        for namespace in (None, "even"):
            draft = memory.propose(text_of(seed)[:120], 16, namespace)
            draft.check()
            assert (draft.token_ids >= 0).all()
    if array == 0:
        with pytest.raises(MemoryFileError, match="impossible"):
            DraftMemory.load(saved, verify=True)
    memory.add(text_of(60, 20_000))  # long enough to be merged with the forged files, were they sound
    memory.save()
    text = text_of(60, 20_000)
    fresh = DraftMemory.load(saved, min_match_len=8)
    assert fresh.propose(text[100:120], 4).token_ids.tolist() == text[120:124]


def test_a_damaged_block_is_refused_once_and_never_used_again(saved):
    for path in saved.glob("*.zdseg"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()
        path.write_bytes(content)
    memory = DraftMemory.load(saved)
    num_refusals = 0
    for seed in range(40):
        for namespace in (None, "even"):
            try:
                continues(memory, seed, namespace)
            except MemoryFileError:
                num_refusals += 1
    assert num_refusals == 2  # one per file
    assert memory.num_tokens == 0
    memory.check_integrity()
    memory.add(text_of(99), "even")
    memory.save()
    assert continues(DraftMemory.load(saved, verify=True), 99, "even")


def test_two_writers_lose_nothing(tmp_path):
    writers = [DraftMemory(10**6, directory=tmp_path) for _ in range(2)]
    for seed in range(30):
        writers[seed % 2].add(text_of(seed))
        if seed % 3 == 0:
            writers[seed % 2].save()
    for writer in writers:
        writer.save()
    writers[0].refresh()
    for memory in (writers[0], DraftMemory.load(tmp_path)):
        assert all(continues(memory, seed, None) for seed in range(30))
        memory.check_integrity()
    assert len(list(tmp_path.glob("*.zdseg"))) < 8


def test_many_saves_leave_few_files(tmp_path):
    memory = DraftMemory(50_000, directory=tmp_path)
    for seed in range(100):
        memory.add(text_of(seed))
        memory.save()
        assert len(list(tmp_path.glob("*"))) < 20
    fresh = DraftMemory.load(tmp_path, 50_000)
    assert fresh.num_tokens == 30_000
    assert all(continues(fresh, seed, None) for seed in range(100))


def test_the_directory_is_capped_too(tmp_path):
    memory = DraftMemory(3_000, directory=tmp_path)
    for seed in range(40):
        memory.add(text_of(seed))
        memory.save()
    fresh = DraftMemory.load(tmp_path)
    assert fresh.num_tokens == 3_000
    assert [seed for seed in range(40) if continues(fresh, seed, None)] == list(range(30, 40))


def test_what_was_evicted_stays_away_after_a_save(saved):
    memory = DraftMemory.load(saved)
    memory.evict(35 * 300)
    memory.save()
    for fresh in (memory, DraftMemory.load(saved)):
        assert [s for s in range(40) if continues(fresh, s, None) or continues(fresh, s, "even")] == [*range(35, 40)]


def test_the_cap_holds_at_all_times():
    memory = DraftMemory(20_000)
    for seed in range(500):
        memory.add(text_of(seed, 1000), "x" if seed % 3 else None)
        assert memory.num_tokens <= 20_000
        assert memory.nbytes < 30 * 20_000 * 2
    memory.check_integrity()
    alive = []
    for seed in range(500):
        text = text_of(seed, 1000)
        draft = memory.propose(text[100:110], 8, "x" if seed % 3 else None)
        alive += [seed] if draft.token_ids.tolist() == text[110:118] else []
    assert alive == list(range(480, 500))


def test_threads_share_a_memory():
    memory = DraftMemory(50_000)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for seed in range(number, 200, 4):
                memory.add(text_of(seed, 200), str(number % 2))
                memory.propose(text_of(seed, 200)[:20], 8, str(number % 2))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert memory.num_tokens == 200 * 200
    memory.check_integrity()


def test_preload_reports_progress():
    memory, calls = DraftMemory(), []
    assert memory.preload([[1, 2], [3]], progress=lambda done, total: calls.append((done, total))) == 3
    memory.preload(iter([[1], [2]]), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2), (1, None), (2, None)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 10**10},
        {"max_tokens": 1.5},
        {"min_match_len": 0},
        {"min_match_len": 4097},
        {"min_prob": -0.1},
        {"min_prob": 1.1},
        {"min_prob": float("nan")},
        {"min_prob": "x"},
        {"min_prob": True},
        {"min_prob": None},
        {"max_tokens": "x"},
        {"max_tokens": None},
        {"max_tokens": 1},  # holds no text that is longer than the shortest match
        {"max_tokens": 100, "min_match_len": 100},
        {"directory": ""},
        {"directory": 5},
        {"directory": b"bytes"},
        {"directory": "a\0b"},
        {"tokenizer": ""},
        {"tokenizer": 5},
        {"tokenizer": "x" * 1025},
    ],
)
def test_impossible_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DraftMemory(**options)


def test_calls_with_wrong_types_are_refused_by_name(tmp_path):
    memory = DraftMemory()
    for call, named in (
        (lambda: memory.propose([1], "x"), "max_tokens"),
        (lambda: memory.propose([1], 1.5), "max_tokens"),
        (lambda: memory.evict("x"), "num_tokens"),
        (lambda: memory.save(""), "directory"),
        (lambda: memory.save(5), "directory"),
        (lambda: DraftMemory.load(""), "directory"),
        (lambda: memory.preload(5), "texts"),
        (lambda: memory.preload([[1]], 5), "namespace"),
        (lambda: memory.preload([[1]], progress=5), "progress"),
        (lambda: memory.contains("x"), "token ids"),
        (lambda: memory.contains([1], 5), "namespace"),
        (lambda: memory.bind_tokenizer(None), "tokenizer"),
    ):
        with pytest.raises(ValueError, match=named):
            call()
    (tmp_path / "file").write_text("not a folder")
    for place in ("file", "file/below"):
        with pytest.raises(ValueError, match="directory must be a folder"):
            DraftMemory(directory=tmp_path / place)
    assert memory.num_tokens == 0
    assert memory.directory is None


def test_a_foreign_folder_is_not_written_to(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    memory = DraftMemory()
    with pytest.raises(MemoryFileError, match="not a manifest"):
        memory.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_texts_that_are_known_are_skipped(tmp_path):
    memory = DraftMemory(1000, directory=tmp_path)
    texts = [text_of(seed, 100) for seed in range(8)]
    assert all(memory.add(text, "a", skip_known=True) for text in texts)
    assert not memory.add(texts[3], "a", skip_known=True)
    assert memory.add(texts[3], "b", skip_known=True), "another namespace's"
    assert memory.add([*texts[3], 1], "a", skip_known=True), "a longer one"
    assert not memory.add([], "a", skip_known=True)
    assert memory.num_tokens == 1000 - 99, "the oldest went for the last"
    memory.save()
    fresh = DraftMemory(1000, directory=tmp_path)
    for held in (memory, fresh):
        assert [held.contains(text, "a") for text in texts] == [False, *[True] * 7]
        assert [held.contains(text, None) for text in texts] == [False] * 8
    before = {path.name for path in tmp_path.iterdir()}
    fresh.preload(texts[1:], "a", skip_known=True)
    fresh.save()
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing new, nothing written"
    long = text_of(99, 2500)
    assert fresh.add(long, skip_known=True)
    assert not fresh.add(long, skip_known=True), "of which the end is kept"
    fresh.check_integrity()
    assert fresh.add(texts[5], "a", skip_known=True), "it was evicted"
    assert fresh.add(texts[5], "a"), "only where asked for"


def test_dropped_texts_of_a_segment_that_lives_are_not_known():
    memory = DraftMemory(1000)
    texts = [text_of(seed, 10) for seed in range(4)]
    memory.preload(texts)
    assert memory.contains(texts[0])
    memory.evict(10)
    assert len(list(memory._shelf)) == 1
    assert [memory.contains(text) for text in texts] == [False, True, True, True]
    assert memory.add(texts[0], skip_known=True)
    assert memory.contains(texts[0])


def test_a_first_save_that_is_killed_leaves_an_empty_memory(tmp_path, monkeypatch):
    from zerodraft.lookup.memory import shared_texts as module

    class Killed(BaseException):
        pass

    def die(*args):
        raise Killed

    memory = DraftMemory(directory=tmp_path)
    memory.add(text_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "list_files", die)
        with pytest.raises(Killed):
            memory.save()
    assert list(tmp_path.glob("*.zdseg")), "what was written and not published"
    fresh = DraftMemory(directory=tmp_path)
    assert fresh.num_tokens == 0
    fresh.add(text_of(2))
    fresh.save()
    assert len(list(tmp_path.glob("*.zdseg"))) == 1


def test_a_memory_knows_its_tokenizer(tmp_path):
    memory = DraftMemory(directory=tmp_path)
    memory.add(text_of(1))
    memory.save()
    assert memory.tokenizer is None
    reader, other = DraftMemory(directory=tmp_path), DraftMemory(directory=tmp_path, tokenizer="theirs")
    memory.bind_tokenizer("ours")
    memory.bind_tokenizer("ours")
    memory.save()
    assert reader.refresh()
    assert reader.tokenizer == "ours"
    assert DraftMemory.load(tmp_path, tokenizer="ours").tokenizer == "ours"
    other.add(text_of(2))
    for refused in (
        lambda: reader.bind_tokenizer("theirs"),
        lambda: DraftMemory(directory=tmp_path, tokenizer="theirs"),
        lambda: DraftMemory.load(tmp_path, tokenizer="theirs"),
        other.refresh,
        other.save,
    ):
        with pytest.raises(TokenizerError, match=r"ours.*theirs|theirs.*ours") as caught:
            refused()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, MemoryFileError)
    assert other.has_unsaved, "what could not be saved is not lost"
    reader.clear(None)
    assert DraftMemory(directory=tmp_path, tokenizer="theirs").num_tokens == 0, "an empty one is anybody's"


def test_a_memory_without_a_tokenizer_is_read_by_earlier_versions(saved):
    content = (saved / "manifest.json").read_text()
    assert '"version": 1' in content
    assert "tokenizer" not in content
    DraftMemory.load(saved, tokenizer="ours").save()
    path = saved / "manifest.json"
    assert '"version": 2' in path.read_text()
    path.write_text(path.read_text().replace("ours", "OURS"))
    with pytest.raises(MemoryFileError, match="damaged"):
        DraftMemory.load(saved)


def test_ids_above_any_vocabulary_are_stored_and_drafted(tmp_path):
    memory = DraftMemory(directory=tmp_path)
    memory.add([5, 6, 7, 2**31 - 1, 2**31 - 2])
    memory.save()
    draft = DraftMemory.load(tmp_path, verify=True).propose([5, 6, 7], 4)
    assert draft.token_ids.tolist() == [2**31 - 1, 2**31 - 2]


@pytest.mark.parametrize("bad", [[-1], [2**31], [1.5], [[1]]])
def test_bad_ids_leave_the_memory_unchanged(bad):
    memory = DraftMemory()
    memory.add([1, 2, 3, 4, 5])
    with pytest.raises(ValueError):
        memory.add(bad)
    with pytest.raises(ValueError):
        memory.propose(bad, 4)
    with pytest.raises(ValueError, match="namespace"):
        memory.add([1], namespace=3)
    assert memory.num_tokens == 5
    memory.check_integrity()


def test_directories_are_asked_for(tmp_path):
    with pytest.raises(ValueError, match="directory"):
        DraftMemory().save()
    with pytest.raises(ValueError, match="directory"):
        DraftMemory().refresh()
    memory = DraftMemory(directory=tmp_path / "a")
    with pytest.raises(ValueError, match="kept in"):
        memory.save(tmp_path / "b")


@pytest.mark.parametrize(("option", "first", "second"), [("min_match_len", 4, 6), ("min_prob", 0.2, 0.6)])
def test_every_option_has_an_effect(option, first, second):
    drafts = []
    for value in (first, second):
        memory = DraftMemory(**{option: value})
        memory.add(list(range(60)))
        drafts.append(memory.propose([5, 6, 7, 8], 32).token_ids.tolist())
    assert drafts[0] != drafts[1]


def test_a_namespace_that_was_cleared_and_filled_again_is_young():
    memory = DraftMemory(1000)
    memory.add(text_of(1), "a")
    memory.clear("a")
    memory.add(text_of(2), "b")
    memory.add(text_of(3), "a")
    memory.evict(1)
    assert memory.namespaces == ("a",)
    assert continues(memory, 3, "a")


def test_among_equal_matches_the_newest_text_wins_in_every_segment(tmp_path):
    memory = DraftMemory(10_000, directory=tmp_path)
    for newest in range(10, 16):
        memory.add([1, 2, 3, 4, newest, 5])
        if newest % 2:
            memory.save()
        assert memory.propose([1, 2, 3, 4], 1).token_ids.tolist() == [newest]
    memory.add(text_of(0, 5000))  # a segment of its own follows
    memory.add([1, 2, 3, 4, 99, 5])
    assert memory.propose([1, 2, 3, 4], 1).token_ids.tolist() == [99]
    assert len(list(memory._shelf)) > 1


def test_queue_entries_of_cleared_namespaces_do_not_pile_up():
    memory = DraftMemory(1000)
    for _ in range(1000):
        memory.add([1, 2, 3], "a")
        memory.clear("a")
    assert len(memory._shelf._queue) < 200


stored_texts = st.one_of(
    st.lists(st.integers(0, 2), min_size=1, max_size=15),
    st.builds(lambda run, times: run * times, st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 60)),
    st.builds(lambda run, n: [*run, *range(9, 9 + n)], st.lists(st.integers(0, 2), max_size=6), st.integers(1, 200)),
)


@given(
    st.lists(stored_texts, min_size=1, max_size=6),
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(0, 5),
    st.one_of(st.just(-1), st.integers(0, 800)),
    st.integers(1, 6),
)
def test_a_segment_finds_what_the_oracle_finds(stored, context, num_dropped, pointer, min_len):
    segment = Segment(None)
    for number, text in enumerate(stored):
        segment.add(np.array(text, np.int32), number)
    for _ in range(min(num_dropped, len(stored))):
        segment.drop_oldest()
    arena = segment.index.token_ids.tolist()
    best = np.empty(5, np.int64)
    own = segment.serial if pointer >= 0 else -1
    _stored.find_in_all(np.array(context, np.int32), MemoryView([segment]).records, min_len, own, pointer, best)
    expected = reference.memory.find_stored(
        arena, context, segment.floor, pointer, WINDOW, _stored.LIMIT, min_len, _stored.MAX_MATCH
    )
    assert tuple(best[:3].tolist()) == expected
    assert best[3:].tolist() == [0 if expected[0] >= 0 else -1, -1]  # in the only segment, and nothing to be checked


def test_a_file_that_was_replaced_meanwhile_is_looked_up_again(saved, monkeypatch):
    from zerodraft.lookup.memory import files as module

    missing = 3

    def open_late(path):
        nonlocal missing
        if missing:
            missing -= 1
            raise FileNotFoundError(2, "replaced just now", str(path))
        return open_segment(path)

    monkeypatch.setattr(module, "open_segment", open_late)
    assert DraftMemory.load(saved).num_tokens == 40 * 300
    assert missing == 0


def test_nearness_to_the_copy_counts_in_a_session():
    memory = DraftMemory()
    memory.add([1, 2, 3, 50, 51, *range(100, 130), 8, 9, 70, 71, 72])  # followed from here
    memory.add([8, 9, 80, 81, 82])  # newer, and matches as long
    session = Drafter(memory=memory).begin([7, 1, 2, 3])
    for new in ([50, 51, *range(100, 130)], [77, 8, 9]):  # the 77 is not in the memory
        draft = session.propose(64)
        path = tuple(range(min(len(draft), len(new))))
        agreed = draft.token_ids[list(path)].tolist() == new[: len(path)]
        session.commit(draft, Outcome(path=path if agreed else (), new_ids=tuple(new), stop="full"))
    assert session.propose(64).token_ids.tolist()[0] == 70
    assert memory.propose([8, 9], 1).token_ids.tolist() == [80]


@pytest.mark.parametrize("bad", [3, b"a", "\ud800", "x" * 70_000])
def test_impossible_namespaces_are_refused(bad):
    memory = DraftMemory()
    for call in (lambda: memory.add([1], bad), lambda: memory.propose([1], 1, bad), lambda: memory.clear(bad)):
        with pytest.raises(ValueError, match="namespace"):
            call()


def test_what_is_evicted_while_files_are_read_stays_evicted(saved, monkeypatch):
    memory = DraftMemory.load(saved)
    other = DraftMemory.load(saved)
    other.add(text_of(50))
    other.save()
    read = memory._open_listed

    def read_slowly(directory):
        segments = read(directory)
        memory.evict(40 * 300)
        return segments

    monkeypatch.setattr(memory, "_open_listed", read_slowly)
    assert memory.refresh()
    assert memory.num_tokens == 300 * (1 + len([s for s in range(1, 40, 2) if continues(memory, s, None)]))
    assert not any(continues(memory, seed, "even") for seed in range(0, 40, 2))
    assert continues(memory, 50, None)
    memory.check_integrity()


def test_long_texts_are_segments_of_their_own(tmp_path):
    memory = DraftMemory(100_000, min_match_len=4)
    memory.add(text_of(1))
    memory.add(text_of(2, 40_000), "a")
    memory.add(text_of(3, 70_000), "a")  # pushes out the others
    assert memory.num_tokens == 70_000
    memory.add(text_of(4, 150_000))
    assert memory.num_tokens == 100_000
    memory.check_integrity()
    text = text_of(4, 150_000)
    memory.save(tmp_path)
    for held in (memory, DraftMemory.load(tmp_path, min_match_len=4)):
        assert held.propose(text[60_000:60_010], 4).token_ids.tolist() == text[60_010:60_014]
        assert len(held.propose(text[100:110], 4)) == 0
        held.check_integrity()


def test_more_namespaces_than_file_descriptors(tmp_path):
    resource = pytest.importorskip("resource")
    memory = DraftMemory()
    for number in range(150):
        memory.add(text_of(number, 30), str(number))
    memory.save(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    try:
        fresh = DraftMemory.load(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(fresh.namespaces) == 150
    assert fresh.propose(text_of(7, 30)[:20], 4, "7").token_ids.tolist() == text_of(7, 30)[20:24]


def test_a_large_file_is_mapped(tmp_path):
    memory = DraftMemory()
    memory.add(text_of(1, 80_000))
    memory.save(tmp_path)
    fresh = DraftMemory.load(tmp_path)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) > 1 << 20
    assert continues_at(fresh, text_of(1, 80_000), 50_000)
    for path in tmp_path.glob("*.zdseg"):
        path.unlink()
    assert continues_at(fresh, text_of(1, 80_000), 70_000)  # what is mapped outlives its name


def continues_at(memory: DraftMemory, text: list[int], place: int) -> bool:
    return memory.propose(text[place : place + 20], 8).token_ids.tolist() == text[place + 20 : place + 28]
