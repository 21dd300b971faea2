"""Time a model's forwards once per model, dtype and device, and keep the cost curve on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from zerodraft.integrations.hf.chains import ChainTarget, behind_prompt
from zerodraft.integrations.hf.support import check_model
from zerodraft.integrations.hf.target import Target
from zerodraft.lookup.checks import flag, number_in, shown
from zerodraft.lookup.cost import DEFAULT_CURVE, CostCurve
from zerodraft.lookup.draft import Draft
from zerodraft.lookup.runtime.at_fork import NEVER, held_at_fork
from zerodraft.lookup.runtime.user_cache import not_kept, user_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
LONG_WIDTHS: Final = (1, 8, 32, 128)
CONTEXTS: Final = (512, 4096)
NUM_ROWS: Final = 4
ROW_WIDTHS: Final = (8, 32)  # positions of all rows together
MAX_ROUNDS: Final = 9
MIN_WIDTHS: Final = 4
ENOUGH_ROUNDS: Final = 3
FORMAT: Final = 3  # what is measured; a curve of an older kind is measured again
Job = tuple[int, int, int]
_timed_here: set[Path] = set()  # in this process: one call after another is not kept waiting
_unwritten: dict[Path, Times] = {}  # timed in this process, where the disk took nothing
_lock: Final = held_at_fork(threading.Lock(), NEVER)  # one measurement at a time
_log = logging.getLogger(__name__)


def measure_cost(model: PreTrainedModel, *, refresh: bool = False, max_seconds: float = 8.0) -> CostCurve:
    """Time the forwards of a Hugging Face model, or read what was timed earlier on this machine.

    Kept on disk by model, dtype, device and threads; ``DraftPolicy(cost="auto")`` does the same by itself.

    Args:
        model: a decoder-only model of transformers.
        refresh: time it even if there is a curve on disk: what ran beside the last measurement is in it.
        max_seconds: about how long it may take.

    Returns:
        The curve, for ``DraftPolicy(cost=...)``; costs in seconds at 512 and 4096 tokens of context.

    Raises:
        ValueError: an argument of another type or outside its range, named.
    """
    flag("refresh", refresh)
    number_in("max_seconds", max_seconds, 0.0, above=True)
    if not callable(getattr(model, "get_input_embeddings", None)):
        raise ValueError(f"model must be a transformers model, got {shown(model)}")
    return measured_curve(model, refresh=refresh, max_seconds=max_seconds)


def measured_curve(
    model: PreTrainedModel, *, cache_dir: Path | None = None, refresh: bool = False, max_seconds: float = 8.0
) -> CostCurve:
    """Return the cost of the model's forwards by number of positions, timed now or read from an earlier time.

    Timed on the path that drafts take (mask, positions, cache): at batch 1, for 1 to 128 positions at a context of 512
    tokens and for fewer widths at 4096, or less where the model's positions end before; for four rows with a quarter
    of the context each, which says what a row costs beside its positions. The cache is filled with zeros, so nothing is
    prefilled; a model that keeps a state of its own is timed at 512 tokens only, which it reads. The best of several
    interleaved rounds counts, since what disturbs a forward only adds time. What was
    timed is kept in ``cache_dir`` under a name made of the model's configuration, dtype, device, attention and threads;
    where the time was too short for ``ENOUGH_ROUNDS``, the next process goes on from there.

    Args:
        model: a decoder-only model; for an encoder-decoder ``DEFAULT_CURVE`` is returned.
        cache_dir: where curves are kept; None: ``curves`` in the platform's user cache for zerodraft. Where nothing
            can be written this process keeps the curve, and a warning says so once.
        refresh: measure even if there is a curve on disk, and forget that one.
        max_seconds: no forward starts after so many seconds, except that four widths are timed in any case; widths not
            reached go on with the last slope.
    """
    if model.config.is_encoder_decoder:
        return DEFAULT_CURVE
    path = (cache_dir or _default_folder() or Path()) / f"{_key(model)}.json"
    with _lock:
        times = Times({}, 0) if refresh else _known(path)
        if times.num_rounds >= ENOUGH_ROUNDS or (times.best and path in _timed_here and not refresh):
            return times.curve()
        _measure(model, times, max_seconds)
        _timed_here.add(path)
        _keep(path, times, f"{type(model).__name__}, {model.dtype}, {_device_name(model)}")
    return times.curve()


def _known(path: Path) -> Times:
    """What was timed before: in this process, where that could not be written, else what the file holds."""
    if path in _unwritten:
        return _unwritten[path]
    with contextlib.suppress(OSError, ValueError):
        return Times.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return Times({}, 0)


def _keep(path: Path, times: Times, about: str) -> None:
    """Write the times; where that fails this process keeps them, and the next one times again."""
    _unwritten[path] = times
    try:
        if not path.parent.name:
            raise OSError("no home")
        _write(path, {**times.as_dict(), "about": about})
        del _unwritten[path]
    except OSError as error:
        _log.info("cost curve not kept: %s", error)
        not_kept(error)


@dataclass
class Times:
    """The best seconds of each kind of forward, (rows, context, positions of all rows), and the number of rounds."""

    best: dict[Job, float]
    num_rounds: int

    def curve(self) -> CostCurve:
        """The cost curve; points at the longer context only if all of them were timed."""
        contexts = sorted({context for num_rows, context, _ in self.best if num_rows == 1})
        points, long_points = (
            [(n, self.best[1, c, n]) for _, c, n in self._of(c)] for c in (contexts[0], contexts[-1])
        )
        if len(contexts) == 1 or len(long_points) < len(LONG_WIDTHS):
            long_points, contexts = [], list(CONTEXTS)
        extra = [best - dict(points)[n] for (rows, _, n), best in self.best.items() if rows > 1 and n in dict(points)]
        return CostCurve(points, long_points, contexts, max(0.0, float(np.mean(extra or [0.0])) / (NUM_ROWS - 1)))

    def _of(self, context: int) -> list[Job]:
        return sorted(job for job in self.best if job[:2] == (1, context))

    def as_dict(self) -> dict[str, Any]:
        """The times, and the curve they make, as plain JSON-ready values."""
        timed = [[*job, seconds] for job, seconds in self.best.items()]
        return {**self.curve().as_dict(), "rounds": self.num_rounds, "timed": timed}

    @classmethod
    def from_dict(cls, entry: Any) -> Times:
        """The times described by ``as_dict``.

        Raises:
            ValueError: anything else.
        """
        try:
            best = {(int(rows), int(context), int(n)): float(seconds) for rows, context, n, seconds in entry["timed"]}
            times = cls(best, int(entry["rounds"]))
            times.curve()
        except (TypeError, KeyError, IndexError, OverflowError) as error:
            raise ValueError(f"expected the times of forwards, got {error!r}") from None
        return times


def _jobs(model: PreTrainedModel, *, keeps_own: bool) -> list[Job]:
    room = _positions(model)
    widths = [n for n in WIDTHS if n <= max(2, room // 4)]
    short, long = min(CONTEXTS[0], room // 4), min(CONTEXTS[1], room - widths[-1] - 1)
    jobs = [(1, short, n) for n in widths]
    if keeps_own:  # one row, and a context that is really read
        return jobs
    if long >= 2 * short and set(LONG_WIDTHS) <= set(widths):
        jobs += [(1, long, n) for n in LONG_WIDTHS]
    return jobs + [(NUM_ROWS, short // NUM_ROWS, n) for n in ROW_WIDTHS if n in widths]


def _measure(model: PreTrainedModel, times: Times, max_seconds: float) -> None:
    keeps_own = check_model(model) == "chains"
    jobs = _jobs(model, keeps_own=keeps_own)
    ids = np.random.default_rng(0).integers(0, _vocab_size(model), max(*WIDTHS, jobs[0][1])).tolist()
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            if keeps_own:
                behind_prompt(
                    model, ids[: jobs[0][1]], lambda target: _take_times({1: target}, jobs, times, ids, max_seconds)
                )
                return
            targets = {num_rows: Target(model, num_rows) for num_rows in (1, NUM_ROWS)}
            for num_rows, target in targets.items():
                target.prefill([torch.tensor(ids[:2])] * num_rows)
            _take_times(targets, jobs, times, ids, max_seconds)
    finally:
        model.train(was_training)


def _take_times(
    targets: Mapping[int, Target | ChainTarget], jobs: list[Job], times: Times, ids: list[int], max_seconds: float
) -> None:
    """Round after round, until the time is over."""
    best = times.best
    end = time.perf_counter() + max_seconds
    _seconds(targets[1], jobs[0][1], ids[:2])  # warms up
    for done in range(MAX_ROUNDS):
        for number, job in enumerate(jobs):
            if (done or number >= MIN_WIDTHS) and time.perf_counter() > end:
                times.num_rounds += max(done, 1)
                return
            num_rows, context, n = job
            best[job] = min(best.get(job, math.inf), _seconds(targets[num_rows], context, ids[: n // num_rows]))
    times.num_rounds += MAX_ROUNDS


def _seconds(target: Target | ChainTarget, context: int, ids: list[int]) -> float:
    """One forward over ``ids`` in every row, behind ``context`` cached tokens; it leaves nothing committed behind."""
    num_rows = 1
    if isinstance(target, Target):
        num_rows = len(target.cache.lengths)
        target.cache.set_lengths([context] * num_rows)
    draft = Draft.chain(ids[1:]) if len(ids) > 1 else Draft.empty()
    _wait(target.model)
    start = time.perf_counter()
    target.check([ids[0]] * num_rows, [draft] * num_rows)
    _wait(target.model)
    seconds = time.perf_counter() - start
    if isinstance(target, ChainTarget):
        target.keep([[0] if len(draft) == 0 else []])  # a narrow forward has no state to go back to
    return seconds


def _wait(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _positions(model: PreTrainedModel) -> int:
    config = model.config.get_text_config(decoder=True)
    room = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return int(room) if isinstance(room, int) and room > 0 else CONTEXTS[1] + max(WIDTHS) + 1


def _vocab_size(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _device_name(model: PreTrainedModel) -> str:
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    return f"{model.device.type}, {torch.get_num_threads()} threads, {_cpu_name()}"


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    import platform

    return platform.processor() or platform.machine()


def _key(model: PreTrainedModel) -> str:
    config: dict[str, Any] = {k: v for k, v in model.config.to_dict().items() if not k.startswith("_")}
    facts = [
        FORMAT,
        config,
        str(model.dtype),
        _device_name(model),
        model.config._attn_implementation,
        torch.__version__,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _default_folder() -> Path | None:
    folder = user_cache()
    return None if folder is None else folder / "curves"


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write atomically: another process reads the old curve or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
