"""Doctests are collected from here; modules of Triton kernels are left out where Triton is not installed."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["zerodraft/kernels/*_triton.py"]
