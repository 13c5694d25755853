# SPDX-License-Identifier: MIT
"""Immutable values: repr, equality, hash and pickling from the arguments of the constructor."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._native import as_array


def _integer(x: Any, name: str) -> int:
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {x!r}") from None


def index_of(x: Any, name: str) -> int:
    """An integer, of Python or NumPy. TypeError for other numbers, which int() would round, and ValueError for one of
    more than 64 bits."""
    index = _integer(x, name)
    if not -(2**63) <= index < 2**63:
        raise ValueError(f"{name}: expected an integer of 64 bits, got {index}")
    return index


def seed_of(x: Any, name: str = "seed") -> int:
    """The seed of a random generator. TypeError unless it is an integer, and ValueError unless it is 0 to 2^64 - 1."""
    seed = _integer(x, name)
    if not 0 <= seed < 2**64:
        raise ValueError(f"{name}: expected 0 to 2^64 - 1, got {seed}")
    return seed


def bool_of(x: Any, name: str) -> bool:
    """TypeError for other than True and False, such as "no", which bool() would take for True."""
    # by the dtype, since dynamo takes numbers of NumPy for arrays
    if not isinstance(x, bool) and (getattr(x, "dtype", None) != np.bool_ or x.shape != ()):
        raise TypeError(f"{name}: expected True or False, got {x!r}")
    return bool(x)


def name_of(x: Any, name: str) -> str:
    """The name of a kind. TypeError unless it is a str."""
    if not isinstance(x, str):
        raise TypeError(f"{name}: expected a str, got {type(x).__name__}")
    return x


def frozen_array(x: Any, name: str, dims: tuple[int, ...]) -> NDArray[Any]:
    """A read-only copy in float32 or float64."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array without a mask, got a MaskedArray")
    is_dlpack = hasattr(x, "__dlpack__") and not hasattr(x, "__array__")
    array = as_array(x, name) if is_dlpack else np.asarray(x)
    if array.dtype != np.float32:
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name}: expected numbers, got {array.dtype}")
        array = array.astype(np.float64)
    if array.ndim not in dims:
        raise ValueError(f"{name}: expected {' or '.join(map(str, dims))} dimensions, got {array.ndim}")
    array = np.array(array, order="C", copy=True)
    array.flags.writeable = False
    return array


def described(x: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """A value as JSON has it: an object with its class and its arguments, a list of a tuple, and of_leaf() of
    others."""
    if isinstance(x, Value):
        return {"class": type(x).__name__, **{name: described(getattr(x, name), of_leaf) for name in x._arguments}}
    return [described(each, of_leaf) for each in x] if isinstance(x, tuple) else of_leaf(x)


def _key(x: Any) -> Any:
    return (x.shape, x.dtype.str, x.tobytes()) if isinstance(x, np.ndarray) else x


class Value:
    """A class whose constructor has the arguments `_arguments`, which are also its attributes. AttributeError for any
    attempt to set or delete an attribute: constructors use _set()."""

    _arguments: tuple[str, ...] = ()

    def _set(self, **attributes: Any) -> None:
        """Sets attributes, for constructors."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, _: Any) -> None:
        raise AttributeError(f"{name}: expected no change of a {type(self).__name__}, which is immutable, got one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: expected no change of a {type(self).__name__}, which is immutable, got one")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._arguments)

    def _hash_key(self) -> Any:
        return (type(self), *map(_key, self._values()))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._hash_key() == other._hash_key()

    def __hash__(self) -> int:
        return hash(self._hash_key())

    def __reduce__(self) -> Any:
        return type(self), self._values()

    def __repr__(self) -> str:
        def text(x: Any) -> str:
            return f"<{x.dtype} {list(x.shape)}>" if isinstance(x, np.ndarray) else repr(x)

        return f"{type(self).__name__}({', '.join(f'{n}={text(getattr(self, n))}' for n in self._arguments)})"
