# SPDX-License-Identifier: MIT
"""The choice of the compiled code at import, also among levels that are not compiled here."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import types

import nprf
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


def test_the_level_of_this_processor():
    """An import in a new process, of what is installed."""

    def imported(level):
        command = [sys.executable, "-c", "import nprf; print(nprf.cpu_level())"]
        return subprocess.run(command, env={**os.environ, "NPRF_CPU_LEVEL": level}, capture_output=True, text=True)

    own = nprf.cpu_level()
    if own == "generic":
        pytest.skip("not an x86-64 processor")
    assert imported(own).stdout.strip() == own
    assert "ImportError: NPRF_CPU_LEVEL: expected v2, v3 or v4" in imported("v5").stderr
    folder = pathlib.Path(nprf._native.core.__file__).parent
    lowest = min(path.name[len("_core_") :][:2] for path in folder.glob("_core_v*"))
    lower = imported("v2")
    if lowest == "v2":
        assert lower.stdout.strip() == "v2"
    else:
        assert f"compiled for x86-64-{lowest} processors, and may run code of v2" in lower.stderr
