# SPDX-License-Identifier: MIT
"""The programs of the README run."""

import pathlib
import re

import nprf
import pytest

PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
package = pathlib.Path(__file__).parents[1]
programs = PROGRAM.findall((package / "README.md").read_text())
readme_of_project = package.parent / "README.md"  # which an sdist does not have
short_programs = PROGRAM.findall(readme_of_project.read_text()) if readme_of_project.exists() else []


def import_what_it_needs(program):
    if "torch" in program:
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    if "jax" in program:
        pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
        pytest.importorskip("nprf._jax", reason="nprf was not compiled for JAX: -D NPRF_PYTHON_JAX=ON")


@pytest.mark.parametrize("program", short_programs)
def test_program_of_the_project(program):
    import_what_it_needs(program)
    names = {}
    exec(compile(program, "README.md", "exec"), names)
    assert names["y"].shape[-2] == 1000


@pytest.mark.parametrize("program", programs, ids=["numpy", "decoding", "torch", "layer", "jax"])
def test_program(program, capsys):
    import_what_it_needs(program)
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
