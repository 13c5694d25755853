# SPDX-License-Identifier: MIT
"""What the extension modules show the other libraries of the process."""

import pathlib
import shutil
import subprocess
import sys

import nprf
import pytest

modules = sorted(pathlib.Path(nprf._native.core.__file__).parent.glob("_*.so"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a library's symbols are its own")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed: apt install binutils")
@pytest.mark.parametrize("module", modules, ids=lambda module: module.name.split(".")[0])
def test_a_module_shows_only_what_python_calls(module):
    """Else one that is linked with a libstdc++ of its own shares variables with NumPy's, and ends the process."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", module]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in found.splitlines()] == [f"PyInit_{module.name.split('.')[0]}"]
