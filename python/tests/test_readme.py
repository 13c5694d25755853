# SPDX-License-Identifier: MIT
"""The programs of the README run."""

import pathlib
import re

import nprf
import pytest

readme = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)


@pytest.mark.parametrize("program", programs, ids=["numpy", "decoding", "torch", "layer", "jax"])
def test_program(program, capsys):
    if "torch" in program:
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    if "jax" in program:
        pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
        pytest.importorskip("nprf._jax", reason="nprf was not compiled for JAX: -D NPRF_PYTHON_JAX=ON")
    exec(compile(program, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    if "Decoder" in program:
        assert printed.startswith("[1001, 1001] ")
        assert 1.9 < float(printed.split()[-1]) / 2**20 < 2.3  # about 2.1 MiB
    elif "jax" in program:
        assert printed == "(8, 32)\n"
    elif "torch" not in program:
        assert printed.startswith("Report(engine=")
        assert 0.002 < float(printed.split()[-1]) < 0.03  # about 0.01


def test_the_public_names():
    for name in nprf.__all__:
        assert getattr(nprf, name).__doc__, name
