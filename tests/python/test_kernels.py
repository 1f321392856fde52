"""The CUDA kernels as compiled: the PTX is that of the source, and what ptxas makes of it can be fast. Needs no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

from build import SOURCES, compiled  # noqa: E402
from instructions import ARCHITECTURES, LANES, assembled, loop_with_loads, work_of  # noqa: E402

KERNELS = sorted(SOURCES.glob("*.cu"))

MOST_INTEGER = 1_060
"""Instructions of the integer pipe for a block of 64 bytes. A plain kernel has 1,286."""


def test_there_are_kernels() -> None:
    assert "sha256_tree.cu" in [source.name for source in KERNELS]
    assert [source.with_suffix(".ptx") for source in KERNELS] == sorted(SOURCES.glob("*.ptx"))


@pytest.mark.parametrize("source", KERNELS, ids=lambda source: source.stem)
def test_committed_ptx_is_what_the_compiler_makes(source: Path) -> None:
    assert compiled(source) == source.with_suffix(".ptx").read_text(), "run tests/kernels/build.py"


@pytest.mark.parametrize("architecture", ["sm_75", *ARCHITECTURES])
@pytest.mark.parametrize("source", KERNELS, ids=lambda source: source.stem)
def test_kernels_fit_into_64_registers(source: Path, architecture: str) -> None:
    resources, code = assembled(source.with_suffix(".ptx"), architecture)
    assert resources.keys() == code.keys() and resources
    for kernel, taken in resources.items():
        assert taken.registers <= 64, (kernel, taken)
        assert taken.stack == taken.spill_stores == taken.spill_loads == 0, (kernel, taken)
        local = [one for one in code[kernel] if one.opcode.startswith(("LDL", "STL"))]
        assert local == [], (kernel, local)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_integer_pipe_gets_little(architecture: str) -> None:
    _, code = assembled(SOURCES / "sha256_tree.ptx", architecture)
    work = work_of(loop_with_loads(code["wc_hash_full_leaves"]))
    for pipe in LANES:
        print(f"{architecture} {pipe}: {getattr(work, pipe):.0f} a block, {work.gigabytes(pipe):.0f} GB/s on an H200")
    assert all(".128" in load and load.startswith("LDG") for load in work.loads), work.loads
    assert work.integer <= MOST_INTEGER
    # Nothing else is what limits it.
    assert work.multiply <= work.integer
    assert work.issue / 2 <= work.integer
