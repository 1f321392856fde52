"""What ptxas makes of the kernels, and how fast that can be.

    python tests/kernels/instructions.py

Prints a line for each kernel and architecture: registers, stack and spills; then, for the loop of wc_hash_full_leaves,
what each pipe gets for a block of 64 bytes, and the speed that an H200 cannot exceed because of it.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from build import SOURCES, run_tool

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

H200 = 132 * 1.98e9
"""Multiprocessors times the clock of an H200, whose architecture is sm_90."""

LANES = {"integer": 64, "multiply": 64, "issue": 128}
"""What a multiprocessor of sm_90 does per clock, by the throughput table of the CUDA C++ Programming Guide."""

BLOCK = 64
"""Bytes that SHA-256 takes at a time."""

# Everything else is counted as work of the integer pipe, so what is not known here cannot make the count look better.
MULTIPLY = re.compile(r"IMAD|FFMA|FMUL|FADD|HFMA2|HADD2|HMUL2")
ELSEWHERE = re.compile(
    r"LD|ST|ATOM|RED\b|MEMBAR|CCTL|"  # memory
    r"BRA|BRX|JMP|CALL|RET|EXIT|NOP|BSSY|BSYNC|BREAK|WARPSYNC|YIELD|BAR|DEPBAR|"  # control
    r"U[A-Z]|S2R|S2UR|CS2R|R2UR"  # the uniform datapath, special registers
)
TWO_TURNS = re.compile(r"IMAD\.(WIDE|HI)")
"""A product of 64 bits is counted as two turns of its pipe. The table does not tell the two kinds of products apart."""


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of a multiprocessor."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Instruction:
    address: int
    opcode: str
    operands: str


@dataclass(frozen=True)
class Work:
    """What each pipe gets for one block of 64 bytes."""

    integer: float
    multiply: float
    issue: float
    loads: tuple[str, ...]
    opcodes: Counter[str]

    def gigabytes(self, pipe: str) -> float:
        """The speed of an H200 if nothing but this pipe limits it."""
        return H200 * LANES[pipe] / getattr(self, pipe) * BLOCK / 1e9


def assembled(ptx: Path, architecture: str) -> tuple[dict[str, Resources], dict[str, list[Instruction]]]:
    """What ptxas says of each kernel of a .ptx file, and the instructions of each."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        said = run_tool("ptxas", "-v", f"-arch={architecture}", ptx, "-o", cubin)
        listing = run_tool("nvdisasm", "-c", cubin)
    properties = (
        r"Function properties for (wc_\w+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r"\n.*?Used (\d+) registers"
    )
    resources = {
        name: Resources(int(registers), *map(int, numbers))
        for name, *numbers, registers in re.findall(properties, said)
    }
    return resources, parsed(listing)


def parsed(listing: str) -> dict[str, list[Instruction]]:
    """The instructions of each kernel; labels in operands become addresses."""
    kernels: dict[str, list[Instruction]] = {}
    for section in re.split(r"^\s*\.section\s", listing, flags=re.MULTILINE)[1:]:
        name = re.match(r"\.text\.(\w+)", section)
        if name is None:
            continue
        waiting: list[str] = []
        labels: dict[str, int] = {}
        found: list[Instruction] = []
        for line in section.splitlines():
            if label := re.match(r"(\.L_x_\d+):", line):
                waiting.append(label[1])
            elif code := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", line):
                labels.update(dict.fromkeys(waiting, int(code[1], 16)))
                waiting.clear()
                found.append(Instruction(int(code[1], 16), code[2], code[3]))
        kernels[name[1]] = [replace(one, operands=resolved(one.operands, labels)) for one in found]
    return kernels


def resolved(operands: str, labels: dict[str, int]) -> str:
    """The operands with addresses for the labels of their kernel."""
    return re.sub(r"`\((\.L_x_\d+)\)", lambda label: hex(labels[label[1]]), operands)


def loop_with_loads(code: list[Instruction]) -> list[Instruction]:
    """The only loop of a kernel that reads global memory, from the target of its backward branch to the branch."""
    loops = []
    for end, branch in enumerate(code):
        target = re.search(r"0x[0-9a-f]+", branch.operands) if branch.opcode.startswith("BRA") else None
        if target and int(target[0], 16) < branch.address:
            body = [one for one in code[: end + 1] if one.address >= int(target[0], 16)]
            if any(one.opcode.startswith(("LDG", "LD.")) for one in body):
                loops.append(body)
    assert len(loops) == 1, f"{len(loops)} loops with loads"
    return loops[0]


def work_of(loop: list[Instruction]) -> Work:
    """The work of a loop that reads its blocks by loads of 16 bytes."""
    loads = tuple(one.opcode for one in loop if one.opcode.startswith(("LDG", "LD.")))
    blocks = len(loads) * 16 / BLOCK
    elsewhere = [one for one in loop if ELSEWHERE.match(one.opcode)]
    multiply = [one for one in loop if MULTIPLY.match(one.opcode)]
    turns = len(multiply) + sum(1 for one in multiply if TWO_TURNS.match(one.opcode))
    opcodes = Counter(".".join(one.opcode.split(".")[: 2 if one.opcode.startswith("IMAD") else 1]) for one in loop)
    integer = len(loop) - len(elsewhere) - len(multiply)
    return Work(integer / blocks, turns / blocks, len(loop) / blocks, loads, opcodes)


def main() -> None:
    for ptx in sorted(SOURCES.glob("*.ptx")):
        for architecture in ARCHITECTURES:
            resources, code = assembled(ptx, architecture)
            for kernel, taken in resources.items():
                print(f"{ptx.stem:12} {architecture:6} {kernel:20} {taken}")
            if "wc_hash_full_leaves" in code:
                work = work_of(loop_with_loads(code["wc_hash_full_leaves"]))
                counts = ", ".join(f"{count} {name}" for name, count in work.opcodes.most_common())
                print(f"  a block: {counts}")
                for pipe in LANES:
                    speed = f", at most {work.gigabytes(pipe):5.0f} GB/s on an H200" if architecture == "sm_90" else ""
                    print(f"  {pipe:8} {getattr(work, pipe):6.0f}{speed}")


if __name__ == "__main__":
    main()
