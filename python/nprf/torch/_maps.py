# SPDX-License-Identifier: MIT
"""Feature maps as graphs, stored programs and state dicts hold them, which another process may read: a name
(features.Content), and a tensor for what the name does not have. Without a tensor the name is the whole map. A tensor
int64 [] is the seed of the map of that name, and uint8 [n] is a whole map with its constants (bytes_of)."""

from __future__ import annotations

import base64
import functools
import json
import re
import threading
from collections import OrderedDict
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils.dlpack import from_dlpack

from .. import features as maps
from .._attention import memory_owners
from .._value import Value, described
from ..features import EluFeatures, Features, RandomFeatures, TaylorFeatures, contents

# all values of that module but the base class of maps
_classes: dict[str, Any] = {
    name: each
    for name, each in vars(maps).items()
    if isinstance(each, type) and issubclass(each, Value) and each not in (Value, Features)
}


class NamedMap(NamedTuple):
    """A feature map by its name and a tensor."""

    name: str
    tensor: Optional[Tensor] = None

    def features(self) -> Features:
        return features_in(self.name, self.tensor)


def has_constants(features: Features) -> bool:
    """Whether it is a map of this package that has other numbers than its sizes and one seed."""
    if type(features) is RandomFeatures:
        return features.tilt is not None
    return type(features) in _classes.values() and not isinstance(features, (EluFeatures, TaylorFeatures))


def array_of(features: Features, redraws: int = 0) -> NDArray[np.uint8]:
    """The map, and the number that its next redraw begins with, as bytes [n]: JSON, with arrays in base64, so that
    reading runs no code. Maps of one kind and of the same sizes have as many bytes, so that one can be written over
    another."""
    text, longest = (
        json.dumps({"map": described(features, of_leaf), "redraws": of_leaf(redraws)}) for of_leaf in (_leaf, _longest)
    )
    padded = text.encode().ljust(-(-len(longest) // 8) * 8)
    return np.frombuffer(bytearray(padded), np.uint8)


def bytes_of(features: Features, redraws: int = 0) -> Tensor:
    """array_of() as a tensor on the CPU. torch.jit.trace would record from_numpy(), in the first of its runs alone."""
    made: Tensor = from_dlpack(array_of(features, redraws))
    return made


def features_of_bytes(constants: Any) -> tuple[Features, int]:
    """What bytes_of() was called with. ValueError for other than its bytes."""
    if not isinstance(constants, Tensor) or constants.dtype != torch.uint8 or constants.dim() != 1:
        got = (
            f"{constants.dtype} {list(constants.shape)}" if isinstance(constants, Tensor) else type(constants).__name__
        )
        raise ValueError(f"features_constants: expected a tensor uint8 [n], got {got}")
    try:
        found = json.loads(constants.cpu().numpy().tobytes().decode())
        made, redraws = _made(found["map"]), int(found["redraws"])
    except Exception as error:  # of a file's contents, which may be anything
        described_error = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(
            f"features_constants: expected the bytes of a feature map, got others: {described_error}"
        ) from None
    if not isinstance(made, Features):
        raise ValueError(f"features_constants: expected a feature map, got {type(made).__name__}")
    return made, redraws


def _leaf(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    in_order = x.astype(x.dtype.newbyteorder("<"))
    return {"dtype": in_order.dtype.str, "shape": x.shape, "base64": base64.b64encode(in_order.tobytes()).decode()}


def _longest(x: Any) -> Any:
    """A leaf with as many characters as that of any map of this kind and of these sizes may have."""
    if isinstance(x, bool) or not isinstance(x, (int, str)):
        return _leaf(x)
    if isinstance(x, int):
        return -(2**63)
    if len(x) <= 100:
        return x
    # the text of a CalibratedFeatures of d numbers: 2 d^2 + 2 d numbers, and at most 2 d more
    d = int(re.search(r"\binput_dim 1 (\d+)", x)[1])  # type: ignore[index]
    return " " * (1000 + (2 * d * d + 4 * d) * (25 if "double" in x.split("\n", 1)[0] else 16))


def _made(x: Any) -> Any:
    if isinstance(x, list):
        return [_made(each) for each in x]
    if not isinstance(x, dict):
        return x
    if "base64" in x:
        return np.frombuffer(base64.b64decode(x["base64"]), x["dtype"]).reshape(x["shape"])
    return _classes[x["class"]](**{name: _made(each) for name, each in x.items() if name != "class"})


def _constants_of(name: str) -> Tensor:
    """bytes_of() a map that exists, the same tensor for all equal ones."""
    content = contents[name]
    if content.constants is None:
        content.constants = bytes_of(content.features())
    constants: Tensor = content.constants
    return constants


# dynamo calls it and takes the result as a constant of the graph
_constants_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def named(features: Features, q: Tensor) -> NamedMap:
    """A map that is not a module's, for a graph with these queries."""
    name = features._content.name
    if '"sha256"' not in name:
        return NamedMap(name)
    constants = _constants_of(name)
    if isinstance(q, FakeTensor) and not q.fake_mode.allow_non_fake_inputs:
        constants = q.fake_mode.from_tensor(constants)
    return NamedMap(name, constants)


class _Read(NamedTuple):
    constants: NDArray[np.int64]
    features: Features


_most_bytes = 2**28  # of the maps that are kept
_read: OrderedDict[Any, _Read] = OrderedDict()  # by where their bytes are, which may have changed since
_copies: OrderedDict[int, tuple[Tensor, Any, Tensor]] = OrderedDict()  # of tensors on a GPU, with their version
_lock = threading.Lock()


def _free() -> None:
    with _lock:
        _read.clear()
        _copies.clear()
    _of_name.cache_clear()
    _of_seed.cache_clear()


memory_owners.append(_free)


@functools.lru_cache(maxsize=1024)
def _of_name(name: str) -> Features:
    content = contents.get(name)
    made: Features = _made(json.loads(name)) if content is None else content.features()
    return made


@functools.lru_cache(maxsize=1024)
def _of_seed(name: str, seed: int) -> Features:
    return _of_name(name).redraw(seed)


def _on_host(x: Tensor) -> Tensor:
    """x, or of a GPU a copy that is made anew if x has changed, since a copy waits for the GPU. Changes are those that
    PyTorch counts, which are not those of x.data."""
    if x.is_cpu:
        return x
    version = None if x.is_inference() else x._version
    with _lock:
        known, of_version, copy = _copies.get(x.data_ptr(), (x, None, x))
    if version is not None and version == of_version and known.shape == x.shape:
        return copy
    copy = x.cpu()
    with _lock:
        _copies[x.data_ptr()] = (x.detach(), version, copy)  # which keeps its memory, so that no other has the address
        if len(_copies) > 1024:
            _copies.popitem(last=False)
    return copy


def _of_bytes(constants: Tensor) -> Features:
    """The map of these bytes, which is kept. They are compared each time, since not all that writes a tensor leaves a
    trace."""
    key = (constants.data_ptr(), constants.numel())
    numbers = np.ascontiguousarray(constants.detach().numpy())
    numbers = numbers.view(np.int64) if len(numbers) % 8 == 0 else numbers.astype(np.int64)
    with _lock:
        found = _read.get(key)
    if found is not None and np.array_equal(found.constants, numbers):
        return found.features
    features, _ = features_of_bytes(constants)
    with _lock:
        _read[key] = _Read(numbers.copy(), features)
        while len(_read) > 1 and sum(each.constants.nbytes for each in _read.values()) > _most_bytes:
            _read.popitem(last=False)
    return features


def features_in(name: str, tensor: Optional[Tensor]) -> Features:
    """The map of a name and a tensor, the same object while they stay the same."""
    if tensor is None:
        return _of_name(name)
    if tensor.is_meta:
        raise ValueError("features: expected a tensor with numbers, got one on meta (to_empty, load_state_dict)")
    on_host = _on_host(tensor)
    return _of_bytes(on_host) if on_host.dtype == torch.uint8 else _of_seed(name, int(on_host) % 2**64)
