"""Builds libweight_checker.so with cargo and ships it beside the Python files, in a wheel for any Python 3."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools_rust import Binding, RustExtension, Strip

CARGO_TOML = Path(__file__).resolve().parent.parent / "Cargo.toml"


def crate_version() -> str:
    package = CARGO_TOML.read_text(encoding="utf-8").split("[package]", 1)[1]
    found = re.search(r'^version = "([^"]+)"$', package, re.MULTILINE)
    if not found:
        raise ValueError(f"{CARGO_TOML} has no version in [package]")
    return found[1]


class PlainLibraryName(build_ext):
    """ctypes loads the library under one name, whatever Python builds it."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"


class AnyPython3(bdist_wheel):
    """The library is no extension module, so one wheel of a platform serves every Python 3."""

    def run(self) -> None:
        # What an earlier build left would be packed again, also a file that has gone from the sources.
        shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    version=crate_version(),
    cmdclass={"build_ext": PlainLibraryName, "bdist_wheel": AnyPython3},
    rust_extensions=[
        RustExtension(
            "vllm_weight_checker.libweight_checker",
            path=str(CARGO_TOML),
            binding=Binding.NoBinding,
            strip=Strip.Debug,
            debug=False,
            cargo_manifest_args=["--locked"],
        )
    ],
)
