"""Shared test set-up: only ``src`` goes on the path, so the bare ``kernels`` folder is never importable by name."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import hypothesis

hypothesis.settings.register_profile("zerodraft", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("zerodraft")

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != ROOT]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _load(name: str) -> None:
    """Make ``import name`` work in every test without putting ``tests/`` (and its ``kernels``) on the path.

    ``name`` is a file here or a folder with an ``__init__.py``. A folder's own files are then found in it and nowhere
    else, so ``import reference.policy`` needs no path either.
    """
    folder = Path(__file__).with_name(name)
    is_folder = folder.is_dir()
    file = folder / "__init__.py" if is_folder else folder.with_suffix(".py")
    places = [str(folder)] if is_folder else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_load("reference")
_load("support")
_load("stand_ins")
