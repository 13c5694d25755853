# SPDX-License-Identifier: MIT
"""The arguments of the operators that are not tensors, and the native attention that they and the biases describe."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import numpy as np
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from .._native import Native, float32, float64
from ..features import Features, by_identity

# what the parameters of each kind of position are without an axis of heads
_dims = {"table": 1, "t5": 1, "alibi": 0, "grid": 2}

Position = Union[str, tuple[Any, ...]]


def position_name(position: Position) -> str:
    """ "table", "alibi", "t5:128" or "grid:4:5" for ("t5", 128) and ("grid", 4, 5)."""
    name = position if isinstance(position, str) else ":".join([str(each) for each in position])
    if name == "t5":
        return "t5:128"
    kind = name.split(":")[0]
    if kind not in _dims or name.count(":") != {"t5": 1, "grid": 2}.get(kind, 0):
        raise ValueError(
            "position: expected 'table', 'alibi', 't5', ('t5', max_distance) or ('grid', height, width), got "
            f"{position!r}"
        )
    return name


class Options(NamedTuple):
    """What a graph holds as one string."""

    features: str  # the identity of a feature map
    position: str
    causal: bool
    near: int
    radius: float
    engine: str
    tokens_first: bool
    offset: int
    tolerance: float = 0.0
    sinks: int = 0
    softmax_samples: int = 0
    softmax_seed: int = 0
    check_finite: bool = False

    def text(self) -> str:
        x = self
        of_attention = f"{x.features} {x.position} {x.causal:d} {x.near} {x.radius} {x.engine} {x.sinks}"
        of_call = f"{x.tokens_first:d} {x.offset} {x.tolerance} {x.softmax_samples} {x.softmax_seed} {x.check_finite:d}"
        return f"{of_attention} {of_call}"

    def feature_map(self) -> Features:
        features: Optional[Features] = by_identity.get(self.features)
        if features is None:
            raise RuntimeError("features: the feature map of this graph no longer exists")
        return features

    def bias_dims(self) -> int:
        """The dimensions of the parameters of the position without heads."""
        return _dims[self.position.split(":")[0]]


_parsed: dict[str, Options] = {}


def options_of(text: str) -> Options:
    found = _parsed.get(text)
    if found is None:
        if len(_parsed) > 1000:
            _parsed.clear()
        features, position, causal, near, radius, engine, sinks, *of_call = text.split(" ")
        tokens_first, offset, tolerance, samples, seed, check_finite = of_call
        found = _parsed[text] = Options(
            features, position, causal == "1", int(near), float(radius), engine, tokens_first == "1", int(offset),
            float(tolerance), int(sinks), int(samples), int(seed), check_finite == "1",
        )  # fmt: skip
    return found


_no_positions = {native.name: native.Positions.none() for native in (float32, float64)}
_t5_buckets: dict[Any, Any] = {}  # positions that other weights are put into


def check_extra(extra: Tensor, heads: int) -> None:
    """ValueError unless the biases of E extra tokens are [E, E + 2], or have heads in front, as many as `heads`
    biases."""
    shape = tuple(extra.shape)
    if len(shape) not in (2, 3) or shape[-1] != shape[-2] + 2:
        raise ValueError(
            f"extra: expected [E, E + 2] for E extra tokens, or heads in front of it, got the shape {shape}"
        )
    if len(shape) == 3 and heads > 1 and shape[0] not in (1, heads):
        raise ValueError(f"extra: expected {heads} heads, as the bias, got {shape[0]}")


def _positions_of(native: Native, bias: Optional[Tensor], extra: Optional[Tensor], position: str, causal: bool) -> Any:
    if bias is None:
        return _no_positions[native.name]
    kind, *sizes = position.split(":")
    dims = _dims[kind]
    if bias.dim() not in (dims, dims + 1):
        raise ValueError(f"bias: expected {dims} dimensions, or {dims + 1} with heads, got {bias.dim()}")
    if bias.numel() == 0:
        raise ValueError(f"bias: expected at least one number, got the shape {tuple(bias.shape)}")
    is_matrix = dims == 1 and bias.dim() == 2
    rows = bias if is_matrix else bias.reshape(bias.shape[0] if bias.dim() > dims else 1, -1)
    if kind == "table":
        return native.Positions.relative(to_dlpack(rows))
    if kind == "alibi":
        return native.Positions.alibi(to_dlpack(rows))
    if kind == "t5":
        key = (native.name, rows.shape[1], causal, sizes[0])
        buckets = _t5_buckets.get(key)
        if buckets is None:
            zeros = np.zeros((1, rows.shape[1]), native.dtype)
            buckets = _t5_buckets[key] = native.Positions.t5(zeros, causal, int(sizes[0]))
        return buckets.with_parameters(to_dlpack(rows))
    height, width = map(int, sizes)
    if extra is None:
        return native.Positions.grid(height, width, to_dlpack(rows), np.zeros((1, 1), native.dtype), 0)
    check_extra(extra, rows.shape[0])
    tokens, heads = extra.shape[-2], max(rows.shape[0], extra.shape[0] if extra.dim() > 2 else 1)
    rows = rows.expand(heads, -1).contiguous()
    borders = extra.expand(heads, tokens, tokens + 2).reshape(heads, -1)
    return native.Positions.grid(height, width, to_dlpack(rows), to_dlpack(borders), tokens)


def attention_of(native: Native, bias: Optional[Tensor], extra: Optional[Tensor], options: Options) -> Any:
    features = options.feature_map()
    positions = _positions_of(native, bias, extra, options.position, options.causal)
    return native.Attention.make(
        features._native(native), positions, options.causal, options.radius, options.engine, options.near, options.sinks
    )
