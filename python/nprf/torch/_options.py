# SPDX-License-Identifier: MIT
"""The arguments of the operators, and the native attention that they describe."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Union, get_type_hints

import numpy as np
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from .._native import Native, float32, float64
from .._value import index_of
from ..features import Features
from ..positions import T5, Alibi, Grid, Position, RelativePosition


class Arguments(NamedTuple):
    """The tensors of a call. extra: the biases of a grid's extra tokens; or, without a grid, vectors of lags
    [rank, lags], with or without heads in front, whose queries have rank more channels."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Optional[Tensor]
    extra: Optional[Tensor]
    key_mask: Optional[Tensor] = None
    packing: Optional[Tensor] = None


# what the parameters of each kind of position are without an axis of heads
_dims = {"table": 1, "smooth_table": 1, "t5": 1, "alibi": 0, "grid": 2}

PositionKind = Union[None, str, tuple[Any, ...]]


def position_name(position: PositionKind) -> str:
    """ "table", also for None, "smooth_table", "alibi", "t5:128" or "grid:4:5" for ("t5", 128) and ("grid", 4, 5)."""
    if position is None:
        return "table"
    if not isinstance(position, (str, tuple, list)):
        raise TypeError(f"position: expected a str, a tuple or None, got {type(position).__name__}")
    kind, *sizes = position.split(":") if isinstance(position, str) else position or [""]  # a layer has the name
    if kind == "t5" and not sizes:
        return "t5:128"
    if kind not in _dims or len(sizes) != {"t5": 1, "grid": 2}.get(kind, 0):
        raise ValueError(
            "position: expected 'table', 'smooth_table', 'alibi', 't5', ('t5', max_distance) or "
            f"('grid', height, width), got {position!r}"
        )
    if isinstance(position, str):
        sizes = [int(each) if each.isdecimal() else each for each in sizes]
    return ":".join([kind, *[str(index_of(each, "position")) for each in sizes]])


def position_with(name: str, parameters: Any) -> Position:
    """The position of this name (position_name), without extra tokens."""
    kind, *numbers = name.split(":")
    sizes = [int(each) for each in numbers]
    if kind == "t5":
        return T5(parameters, sizes[0], "heads_first")
    if kind == "grid":
        height, width = sizes
        return Grid(height, width, parameters)
    return Alibi(parameters) if kind == "alibi" else RelativePosition(parameters, "heads_first")


class Options(NamedTuple):
    """What a graph holds as one string, but for the offset, which may differ from call to call."""

    position: str
    causal: bool
    near: int
    radius: float
    engine: str
    tokens_first: bool
    tolerance: float = 0.0
    sinks: int = 0
    salient: int = 0
    softmax_samples: int = 0
    softmax_seed: int = 0
    check_finite: bool = False
    offset: int = 0

    def text(self) -> str:
        return "\n".join([f"{x}" for x in self[:-1]])  # dynamo has no str() of a number that varies

    def grid_tokens(self, extra: Optional[Tensor]) -> int:
        """The tokens of a grid."""
        height, width = map(int, self.position.split(":")[1:])
        return height * width + (0 if extra is None else extra.shape[-2])

    def bias_dims(self) -> int:
        """The dimensions of the parameters of the position without heads."""
        return _dims[self.position.split(":")[0]]


def heads_of(x: Tensor, options: Options) -> int:
    return x.shape[-2 if options.tokens_first else -3] if x.dim() > 2 else 1


def tokens_of(x: Tensor, options: Options) -> int:
    return x.shape[-3 if options.tokens_first and x.dim() > 2 else -2]


_readers: dict[type, Callable[[str], Any]] = {str: str, int: int, float: float, bool: lambda text: text == "True"}
_types = list(get_type_hints(Options).values())[:-1]
_parsed: dict[str, Options] = {}


def options_of(text: str) -> Options:
    """Those that text() wrote, with offset 0."""
    found = _parsed.get(text)
    if found is None:
        if len(_parsed) > 1000:
            _parsed.clear()
        parts = text.split("\n")
        if len(parts) != len(_types):
            raise ValueError("engine: expected a name in one line, got several")
        found = _parsed[text] = Options(*(_readers[of](each) for of, each in zip(_types, parts)))
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
    if extra is not None and not position.startswith("grid"):
        found = _positions_of(native, bias, None, position, causal)
        return found.with_lag_vectors(to_dlpack(extra.reshape(-1, extra.shape[-2] * extra.shape[-1])), extra.shape[-2])
    if bias is None:
        return _no_positions[native.name]
    kind, *sizes = position.split(":")
    dims = _dims[kind]
    if bias.dim() not in (dims, dims + 1):
        of_pairs = kind in ("table", "smooth_table") and bias.dim() > 2
        hint = "; the table of a matrix [heads, n, n] is nprf.RelativePosition.of_matrix(bias).b" if of_pairs else ""
        raise ValueError(f"bias: expected {dims} dimensions, or {dims + 1} with heads, got {bias.dim()}{hint}")
    if bias.numel() == 0:
        raise ValueError(f"bias: expected at least one number, got the shape {tuple(bias.shape)}")
    is_matrix = dims == 1 and bias.dim() == 2
    rows = bias if is_matrix else bias.reshape(bias.shape[0] if bias.dim() > dims else 1, -1)
    if kind in ("table", "smooth_table"):
        return native.Positions.relative(to_dlpack(rows), kind == "smooth_table")
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


def attention_of(
    native: Native, features: Features, bias: Optional[Tensor], extra: Optional[Tensor], options: Options
) -> Any:
    positions = _positions_of(native, bias, extra, options.position, options.causal)
    return native.Attention.make(
        features._native(native), positions, options.causal, options.radius, options.engine, options.near,
        options.sinks, options.salient,
    )  # fmt: skip
