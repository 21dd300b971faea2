"""The oracle: every rule of zerodraft once more, in plain Python, importing nothing of the code under test.

Slow and obvious on purpose. Tests compare the fast code with this file, never this file with itself.
"""

from __future__ import annotations
