"""Compile every Triton kernel for real cards, with no card present, and report what the compiler made of it.

    python bench compile_kernels [--json] [--arch 80 90 100]

Prints one line per kernel, variant and architecture: registers per thread, bytes spilled to local memory, shared
memory, size of the cubin. Exits with 1 if anything spills.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
ARCHITECTURES = (80, 90, 100)


class Variant(NamedTuple):
    """One kernel at one set of types and constants, as a launch of real size has them."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int


def variants() -> list[Variant]:
    """What the library launches for a vocabulary of 32k tokens and more, and heads of 128."""
    import triton.language as tl

    from zerodraft.kernels import kv_cache_triton, verify_triton

    tree = {"token_ids": "*i32", "parents": "*i32", "verify": "*i8", "picks": "*i32", "chances": "*fp32"}
    tree |= {"arrived": "*i32", "packed": "*i32", "noise": "*fp32"}
    found = []
    for scores in ("fp32", "fp16", "bf16"):
        for noisy, block in ((False, verify_triton._BLOCK), (True, verify_triton._NOISY_BLOCK)):
            for t_block in (16, 128, 1024):
                found.append(
                    Variant(
                        f"pick_and_walk {scores} {'sampled' if noisy else 'argmax'} T<={t_block}",
                        verify_triton.pick_and_walk_kernel,
                        tree | {"scores": f"*{scores}"},
                        {"T_BLOCK": t_block, "BLOCK": block, "NOISY": noisy},
                        8,
                    )
                )
    for bits, word in ((8, tl.int8), (16, tl.int16), (32, tl.int32), (64, tl.int64)):
        pointers = dict.fromkeys(("new_keys", "new_values", "keys", "values"), f"*i{bits}")
        constants = {"BLOCK": kv_cache_triton._APPEND_BLOCK}
        found.append(
            Variant(f"append i{bits}", kv_cache_triton.append_kernel, pointers | {"starts": "*i32"}, constants, 4)
        )
        found.append(
            Variant(
                f"commit i{bits}",
                kv_cache_triton.commit_kernel,
                {"addresses": "*i64", "moves": "*i32"},
                {"WORD": word, "CHUNK": kv_cache_triton._CHUNK, "D_BLOCK": 64},
                4,
            )
        )
    return found


def compile_one(variant: Variant, architecture: int) -> dict[str, Any]:
    """Compile to a cubin and read its resources; pointers are taken as 16-byte aligned, as torch's are."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    signature = {name: "constexpr" if name in variant.constants else variant.types.get(name, "i32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(
        variant.kernel,
        signature,
        {(names.index(name),): value for name, value in variant.constants.items()},
        aligned,
    )
    options = {"num_warps": variant.num_warps, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    resources = read_resources(compiled.asm["cubin"])
    return {
        "kernel": variant.name,
        "sm": architecture,
        "registers": resources["REG"],
        "spilled_bytes": resources["LOCAL"] + resources["STACK"],
        "shared_bytes": max(resources["SHARED"], compiled.metadata.shared),
        "cubin_bytes": len(compiled.asm["cubin"]),
    }


def read_resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack, shared and local memory of the one kernel in a cubin, from cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        report = subprocess.run(
            [tool, "--dump-resource-usage", path], check=True, capture_output=True, text=True
        ).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", report)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, help="compute capabilities, times ten")
    options = parser.parse_args()
    rows = [compile_one(variant, sm) for variant in variants() for sm in options.arch]
    if options.json:
        print(json.dumps(rows))
    else:
        print(f"{'kernel':<34}{'sm':>5}{'registers':>11}{'spilled B':>11}{'shared B':>10}{'cubin B':>9}")
        for row in rows:
            print(
                f"{row['kernel']:<34}{row['sm']:>5}{row['registers']:>11}{row['spilled_bytes']:>11}"
                f"{row['shared_bytes']:>10}{row['cubin_bytes']:>9}"
            )
    return int(any(row["spilled_bytes"] for row in rows))
