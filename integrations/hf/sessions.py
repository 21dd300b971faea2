"""What the loop needs of a drafter and of its sessions, and the drafter that drafts nothing."""

from __future__ import annotations

from typing import Any, Protocol

from zerodraft.lookup.draft import Draft, Outcome


class Session(Protocol):
    """What the loop needs of a draft session; ``zerodraft.DraftSession`` is the one people use.

    A session with an attribute ``num_topk`` > 0 gets that many of the target's likeliest tokens at every computed
    position in ``Outcome.topk``.
    """

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft: ...

    def commit(self, draft: Draft, outcome: Outcome) -> None: ...

    def finish(self, remember: Any = False) -> None: ...


class SessionMaker(Protocol):
    """What the loop needs of a drafter; ``propose_batch`` as of ``zerodraft.Drafter`` is used where there is one."""

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Session: ...


class Silent:
    """Drafter and session of a call that drafts nothing and keeps nothing."""

    def begin(self, prompt_ids: Any, prediction_ids: Any = None, namespace: Any = None) -> Silent:
        return self

    def propose(self, max_tokens: int, max_depth: int | None = None) -> Draft:
        return Draft.empty()

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        pass

    def finish(self, remember: Any = False) -> None:
        pass
