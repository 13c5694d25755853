# SPDX-License-Identifier: MIT
"""The extension module for this processor."""

import copyreg
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from ._cpu import level as _cpu_level

__all__ = ["Native", "as_array", "check_types", "core", "float32", "float64", "native_of"]


def _level_of(processor: int, compiled: Sequence[int], variable: Optional[str]) -> int:
    """The best of the compiled x86-64 levels that the processor has, or at most that of the environment variable
    NPRF_CPU_LEVEL. ImportError if there is none, or for a variable that names no level of the processor."""
    if processor < 2:
        raise ImportError(f"nprf needs a processor with x86-64-v2, and this one has v{processor}")
    highest = processor
    if variable is not None:
        if variable not in ("v2", "v3", "v4") or int(variable[1]) > processor:
            raise ImportError(f"NPRF_CPU_LEVEL: expected v2, v3 or v4, at most v{processor}, got {variable!r}")
        highest = int(variable[1])
    found = [level for level in compiled if level <= highest]
    if not found:
        raise ImportError(
            f"nprf was compiled for x86-64-v{min(compiled, default='?')} processors, and may run code of v{highest}: "
            "install it with -C cmake.define.NPRF_PYTHON_LEVELS='v2;v3;v4'"
        )
    return max(found)


def _load() -> ModuleType:
    if _cpu_level == 0:  # not x86-64
        return importlib.import_module("._core_generic", __package__)
    compiled = [n for n in (2, 3, 4) if importlib.util.find_spec(f"._core_v{n}", __package__) is not None]
    level = _level_of(_cpu_level, compiled, os.environ.get("NPRF_CPU_LEVEL"))
    return importlib.import_module(f"._core_v{level}", __package__)


if TYPE_CHECKING:
    from . import _core as core
else:
    core = _load()
    sys.modules[f"{__package__}._core"] = core  # under one name, whatever the level


def _report(name: str, fields: tuple[Any, ...]) -> Any:
    """A Report or GradientReport that was pickled, maybe by the extension of another level."""
    return getattr(core, name)(*fields)


def _reduced(report: Any) -> tuple[Any, ...]:
    return _report, (type(report).__name__, report._fields())


copyreg.pickle(core.Report, _reduced)
copyreg.pickle(core.GradientReport, _reduced)


class Native:
    """The classes and functions of the extension for one scalar type."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(name)
        self.Features = getattr(core, f"Features_{name}")
        self.Positions = getattr(core, f"Positions_{name}")
        self.Attention = getattr(core, f"Attention_{name}")
        self.PlainAttention = getattr(core, f"PlainAttention_{name}")
        self.Decoder = getattr(core, f"Decoder_{name}")
        self.softmax_attention = getattr(core, f"softmax_attention_{name}")
        self.calibrate = getattr(core, f"calibrate_{name}")
        self.sderf_tilt = getattr(core, f"sderf_tilt_{name}")
        self.free_memory = getattr(core, f"free_memory_{name}")


float32, float64 = Native("float32"), Native("float64")
_natives = {np.dtype("float32"): float32, np.dtype("float64"): float64}


def native_of(dtype: Any, name: str) -> Native:
    """That of arrays of this type; TypeError for another than float32 and float64."""
    try:
        return _natives[dtype]
    except KeyError:
        raise TypeError(f"{name}: expected float32 or float64, got {dtype}") from None


def check_types(dtype: Any, **arrays: Any) -> None:
    """TypeError unless all have the type of the queries."""
    for name, x in arrays.items():
        if x.dtype != dtype:
            raise TypeError(f"{name}: expected {dtype}, as the queries, got {x.dtype}")


def as_array(x: Any, name: str) -> NDArray[Any]:
    """`x`, or a NumPy view of another array in the memory of the host."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array without a mask, got a MaskedArray (key_mask drops keys)")
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError) as error:
            raise TypeError(f"{name}: expected an array that NumPy can read in place: {error}") from error
    if hasattr(x, "__array__"):
        return np.asarray(x)
    raise TypeError(f"{name}: expected an array, got {type(x).__name__}")


# an extension's own threads do not survive a fork: the child computes on its one thread
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=core.after_fork)
