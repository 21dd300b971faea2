"""Doctests are collected from here, without the modules that need a package which is not installed."""

from __future__ import annotations

import importlib.util

_NEEDS = {"triton": "zerodraft/kernels/*_triton.py", "vllm": "zerodraft/integrations/vllm.py"}
collect_ignore_glob = [modules for package, modules in _NEEDS.items() if importlib.util.find_spec(package) is None]
