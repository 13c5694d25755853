# SPDX-License-Identifier: MIT
"""The stub of the extension module is that of the module, and the package's types are complete. Where mypy and nanobind
are installed: pip install mypy nanobind. NPRF_WRITE_STUB=1 writes the stub anew."""

import os
import pathlib
import subprocess
import sys

import nprf
import pytest

package = pathlib.Path(__file__).parents[1] / "nprf"


def test_the_stub_of_the_extension():
    stubgen = pytest.importorskip("nanobind.stubgen", reason="nanobind is not installed")
    stub = package / "_core.pyi"
    head, separator, found = stub.read_text().partition("\n\n")
    generator = stubgen.StubGen(module=nprf._native.core)
    generator.put(nprf._native.core)
    if "NPRF_WRITE_STUB" in os.environ:
        stub.write_text(head + separator + generator.get())
        return
    # other versions of nanobind may write the same types in another way
    names = [line.split("(")[0].strip() for line in generator.get().splitlines() if "def " in line or "class " in line]
    assert [line.split("(")[0].strip() for line in found.splitlines() if "def " in line or "class " in line] == names


def test_types():
    pytest.importorskip("mypy", reason="mypy is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    command = [sys.executable, "-m", "mypy", "--config-file", package.parent / "pyproject.toml", package]
    done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent)
    assert done.returncode == 0, done.stdout
