"""Doctests are collected from here, without the modules that need a package which is not installed."""

from __future__ import annotations

import importlib.util

_NEEDS = {
    "triton": ["zerodraft/kernels/*_triton.py"],
    "vllm": ["zerodraft/integrations/vllm.py", "zerodraft/integrations/serving/vllm.py"],
}
collect_ignore_glob = [
    path for package, paths in _NEEDS.items() if importlib.util.find_spec(package) is None for path in paths
]
