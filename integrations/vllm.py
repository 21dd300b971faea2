"""The address under which vLLM's configuration names the proposer; it is made in serving/vllm.py."""

from __future__ import annotations

from zerodraft.integrations.serving.vllm import Proposer

__all__ = ["Proposer"]
