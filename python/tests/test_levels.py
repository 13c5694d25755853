# SPDX-License-Identifier: MIT
"""The choice of the compiled code at import, also among levels that are not compiled here."""

import importlib.util
import os
import pathlib
import pickle
import subprocess
import sys
import types

import nprf
import numpy as np
import pytest
from nprf import _native

all_levels = [2, 3, 4]


@pytest.mark.parametrize(
    "processor, compiled, variable, expected",
    [
        (4, all_levels, None, 4),
        (3, all_levels, None, 3),
        (2, all_levels, None, 2),
        (4, [2, 3], None, 3),
        (3, [2, 4], None, 2),
        (4, [2], None, 2),
        (4, all_levels, "v4", 4),
        (4, all_levels, "v3", 3),
        (4, all_levels, "v2", 2),
        (3, all_levels, "v2", 2),
        (4, [2, 4], "v3", 2),
    ],
)
def test_the_best_level_that_the_processor_has(processor, compiled, variable, expected):
    assert _native._level_of(processor, compiled, variable) == expected
    assert _native._level_of(processor, compiled[::-1], variable) == expected


@pytest.mark.parametrize(
    "processor, compiled, variable, text",
    [
        (3, [4], None, "compiled for x86-64-v4 processors, and may run code of v3: .*NPRF_PYTHON_LEVELS='v2;v3;v4'"),
        (2, [4, 3], None, "compiled for x86-64-v3 processors, and may run code of v2"),
        (1, all_levels, None, "nprf needs a processor with x86-64-v2, and this one has v1"),
        (4, [4], "v2", "compiled for x86-64-v4 processors, and may run code of v2"),
        (4, [], None, "NPRF_PYTHON_LEVELS"),
        (3, all_levels, "v4", "NPRF_CPU_LEVEL: expected v2, v3 or v4, at most v3, got 'v4'"),
        (4, all_levels, "v5", "NPRF_CPU_LEVEL: expected v2, v3 or v4, at most v4, got 'v5'"),
        (4, all_levels, "", "NPRF_CPU_LEVEL: expected v2, v3 or v4, at most v4, got ''"),
        (4, all_levels, "generic", "got 'generic'"),
    ],
)
def test_levels_that_cannot_run(processor, compiled, variable, text):
    with pytest.raises(ImportError, match=text):
        _native._level_of(processor, compiled, variable)


@pytest.mark.parametrize(
    "processor, variable, expected",
    [(4, None, "_core_v4"), (3, None, "_core_v3"), (4, "v2", "_core_v2"), (0, None, "_core_generic")],
)
def test_the_module_of_a_level(monkeypatch, processor, variable, expected):
    """With a module for each level, as in a wheel."""
    names = [f"._core_v{level}" for level in all_levels] + ["._core_generic"]
    modules = {name: types.ModuleType(f"nprf{name}") for name in names}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package: modules.get(name))
    monkeypatch.setattr(importlib, "import_module", lambda name, package: modules[name])
    monkeypatch.setattr(_native, "_cpu_level", processor)
    monkeypatch.delenv("NPRF_CPU_LEVEL", raising=False)
    if variable is not None:
        monkeypatch.setenv("NPRF_CPU_LEVEL", variable)
    assert _native._load() is modules["." + expected]


def compiled_levels():
    """Those of the installed package that this processor can run, from the lowest on; none if it is not x86-64."""
    folder = pathlib.Path(nprf._native.core.__file__).parent
    levels = sorted(path.name[len("_core_") :][:2] for path in folder.glob("_core_v*"))
    return [level for level in levels if level <= f"v{_native._cpu_level}"]


def run(level, code):
    """In a new process."""
    environment = {**os.environ, "NPRF_CPU_LEVEL": level}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)


def test_the_level_of_this_processor():
    levels = compiled_levels()
    if not levels:
        pytest.skip("not an x86-64 processor")
    code = "import nprf; print(nprf.cpu_level())"
    for level in levels:
        assert run(level, code).stdout.decode().strip() == level
    assert b"ImportError: NPRF_CPU_LEVEL: expected v2, v3 or v4" in run("v5", code).stderr
    if levels[0] != "v2":
        assert f"compiled for x86-64-{levels[0]} processors, and may run code of v2" in run("v2", code).stderr.decode()


def results():
    """Outputs, gradients and reports of both scalar types. The map's vectors are given, since those that a level draws
    may differ in their last bits."""
    found = []
    for dtype in ("float32", "float64"):
        rng = np.random.default_rng(0)
        q, k, v, dy = (rng.standard_normal((2, 300, 16)).astype(dtype) for _ in range(4))
        features = nprf.ProjectedFeatures("positive", rng.standard_normal((24, 16)))
        for position in (nprf.T5(rng.standard_normal((2, 32))), nprf.RelativePosition(rng.standard_normal((2, 599)))):
            attention = nprf.Attention(features, position, near=8)
            y, saved, report = attention.forward(q, k, v, report=True)
            gradients = attention.backward(saved, dy)
            found.append((report, [y, gradients.queries, gradients.keys, gradients.values, gradients.bias]))
        decoder = nprf.Decoder(features, nprf.Alibi([0.1, 0.2]), near=8, dtype=dtype)
        found.append((None, [decoder.prefill(*(x[None] for x in (q, k, v)))]))
    return found


@pytest.mark.parametrize("level", compiled_levels()[:-1])
def test_each_level_has_the_results_of_the_best_one(level):
    """Up to roundings, in pickles that any level can read."""
    path = [str(pathlib.Path(__file__).parent)]
    code = f"import pickle, sys; sys.path += {path}; import test_levels; "
    code += "sys.stdout.buffer.write(pickle.dumps(test_levels.results()))"
    process = run(level, code)
    assert process.returncode == 0, process.stderr.decode()
    for (report, found), (own_report, own) in zip(pickle.loads(process.stdout), results()):
        if report is not None:  # rows that are recomputed by exact softmax would differ by more
            assert report.repaired_rows == own_report.repaired_rows == 0
        for x, expected in zip(found, own):
            assert x.dtype == expected.dtype
            # sums of 300 terms, and the condition of exponents and of quotients
            bound = 1000 * np.finfo(x.dtype).eps * np.abs(expected).max()
            assert np.abs(x - expected).max() <= bound
