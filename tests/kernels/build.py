"""Compiles the CUDA kernels, src/cuda/*.cu, to the PTX that lies beside them and is part of the library.

    python tests/kernels/build.py

The compiler is that of tests/requirements.txt, in the site-packages of the Python that runs this. The text is the same
wherever it is made: no paths, dates or build numbers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "cuda"

ARCHITECTURE = "compute_75"
"""The lowest that this compiler knows."""

PTX_VERSION = "6.3"
"""The lowest with compute_75, of CUDA 10.0: drivers from 410.48 on load it. The compiler writes a version of its own,
9.0, which drivers before 580 refuse. That the text needs nothing newer, ptxas checks whenever it assembles it."""


def toolkit() -> Path:
    """The folder of the compiler and its tools."""
    for entry in sys.path:
        folder = Path(entry) / "nvidia" / "cu13"
        if (folder / "bin" / "nvcc").exists():
            return folder
    raise FileNotFoundError("nvidia/cu13/bin/nvcc is not in sys.path: install tests/requirements.txt")


def run_tool(name: str, *arguments: str | Path) -> str:
    """What a tool of the toolkit prints. Its complaints are those of the error when it fails."""
    done = subprocess.run([toolkit() / "bin" / name, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compiled(source: Path) -> str:
    """The PTX of a .cu file."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "kernel.ptx"
        run_tool("nvcc", "-ptx", f"-arch={ARCHITECTURE}", "-Werror", "all-warnings", source, "-o", written)
        text = written.read_text()
    lines = [line.split("//")[0].rstrip() for line in text.splitlines()]
    code = "".join(line + "\n" for line in lines if line)
    code, versions = re.subn(r"^\.version .*$", f".version {PTX_VERSION}", code, flags=re.MULTILINE)
    assert versions == 1, f"{versions} lines with a version"
    return f"// Made from {source.name} by tests/kernels/build.py.\n{code}"


def main() -> None:
    for source in sorted(SOURCES.glob("*.cu")):
        source.with_suffix(".ptx").write_text(compiled(source))


if __name__ == "__main__":
    main()
