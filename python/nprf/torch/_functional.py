# SPDX-License-Identifier: MIT
"""The operators nprf::attention and nprf::attention_backward, and the function that calls them.

The operators' arguments that are not tensors are one string, so that a graph can hold them (and since PyTorch takes 2 us
for each argument); a feature map is the integer under which it is registered. forward returns y and a `token`, a tensor
of one byte whose storage is a part of what the C++ forward saved. It lives as long as autograd or a compiled graph keeps
that tensor. If a hook has copied the tensor, there is nothing at its address, and backward computes forward again.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

from .._attention import Normalization
from .._native import Native, core, float32, float64
from ..features import Features, FeaturesLike, by_identity, features_of

_natives = {torch.float32: float32, torch.float64: float64}
_halves = (torch.float16, torch.bfloat16)
_saved: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

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
            f"position: expected 'table', 'alibi', 't5', ('t5', max_distance) or ('grid', height, width), got {position!r}"
        )
    return name


_no_positions = {native.name: native.Positions.none() for native in (float32, float64)}
_t5_buckets: dict[Any, Any] = {}  # positions that other weights are put into


def _positions_of(native: Native, bias: Optional[Tensor], extra: Optional[Tensor], position: str, causal: bool) -> Any:
    if bias is None:
        return _no_positions[native.name]
    kind, *sizes = position.split(":")
    dims = _dims[kind]
    if bias.dim() not in (dims, dims + 1):
        raise ValueError(f"bias: expected {dims} dimensions, or {dims + 1} with heads, got {bias.dim()}")
    if bias.numel() == 0:
        raise ValueError(f"bias: expected at least one number, got the shape {tuple(bias.shape)}")
    rows = bias.reshape(bias.shape[0] if bias.dim() > dims else 1, -1)
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
    tokens = extra.shape[-2]
    borders = extra.expand(rows.shape[0], tokens, tokens + 2).reshape(rows.shape[0], -1)
    return native.Positions.grid(height, width, to_dlpack(rows), to_dlpack(borders), tokens)


class Options(NamedTuple):
    """The arguments of the operators that are not tensors, which a graph holds as one string."""

    features: int  # the identity of a feature map
    position: str
    causal: bool
    near: int
    radius: float
    engine: str
    tokens_first: bool
    offset: int

    def text(self) -> str:
        x = self
        return f"{x.features} {x.position} {x.causal:d} {x.near} {x.radius} {x.engine} {x.tokens_first:d} {x.offset}"


_parsed: dict[str, Options] = {}


def _options_of(text: str) -> Options:
    found = _parsed.get(text)
    if found is None:
        if len(_parsed) > 1000:
            _parsed.clear()
        features, position, causal, near, radius, engine, tokens_first, offset = text.split(" ")
        found = _parsed[text] = Options(
            int(features), position, causal == "1", int(near), float(radius), engine, tokens_first == "1", int(offset)
        )
    return found


def _attention_of(native: Native, bias: Optional[Tensor], extra: Optional[Tensor], options: Options) -> Any:
    features = by_identity.get(options.features)
    if features is None:
        raise RuntimeError("features: the feature map of this graph no longer exists")
    positions = _positions_of(native, bias, extra, options.position, options.causal)
    return native.Attention.make(
        features._native(native), positions, options.causal, options.radius, options.engine, options.near
    )


_calls: dict[Any, Any] = {}


def _call_of(key_mask: Optional[Tensor], tokens_first: bool, offset: int) -> Any:
    key = (tokens_first, offset, torch.get_num_threads())

    def made(mask: Any) -> Any:
        return core.Call(mask, [], [], [], offset, 0.0, 0, 0, False, tokens_first, key[2])

    if key_mask is not None:
        return made(to_dlpack(key_mask.contiguous()))
    call = _calls.get(key)
    if call is None:
        if len(_calls) > 1000:
            _calls.clear()
        call = _calls[key] = made(None)
    return call


def _native_of(q: Tensor) -> Native:
    if q.device.type != "cpu":
        raise ValueError(f"queries: expected a tensor on the CPU, got one on {q.device}")
    native = _natives.get(q.dtype)
    if native is None:
        raise TypeError(f"queries: expected float32 or float64, got {q.dtype}")
    return native


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    options: Options,
    save: bool,
) -> tuple[Tensor, Any]:
    native = _native_of(q)
    attention = _attention_of(native, bias, extra, options)
    call = _call_of(key_mask, options.tokens_first, options.offset)
    y = q.new_empty((*q.shape[:-1], v.shape[-1]))
    arrays = (to_dlpack(q), to_dlpack(k), to_dlpack(v), to_dlpack(y))
    if not save:
        attention(*arrays, call)
        return y, None
    return y, attention.forward(*arrays, call)[0]


@torch.library.custom_op("nprf::attention", mutates_args=())
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    options: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    y, saved = _forward(q, k, v, bias, extra, key_mask, _options_of(options), save)
    if saved is None:
        return y, torch.empty(0, dtype=torch.uint8)
    _saved[saved.address] = saved
    return y, from_dlpack(saved.token())


@attention_op.register_fake
def _(q, k, v, bias, extra, key_mask, options, save):
    y = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return y, torch.empty(1 if save else 0, dtype=torch.uint8, device=q.device)


@torch.library.custom_op("nprf::attention_backward", mutates_args=())
def backward_op(
    dy: Tensor,
    token: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    options: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    parsed = _options_of(options)
    saved = _saved.get(token.data_ptr())
    if saved is None:
        saved = _forward(q, k, v, bias, extra, key_mask, parsed, True)[1]
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    by_head, extra_by_head, _ = saved.backward(
        to_dlpack(dy), to_dlpack(dq), to_dlpack(dk), to_dlpack(dv), _call_of(None, parsed.tokens_first, parsed.offset)
    )
    dims = _dims[parsed.position.split(":")[0]]
    return dq, dk, dv, _like(by_head, bias, dims), _like(extra_by_head, extra, 2)


def _like(by_head: np.ndarray, x: Optional[Tensor], dims: int) -> Tensor:
    """The gradient of `x` from that of each head [heads, p]; empty without x."""
    if x is None:
        return torch.empty(0)
    if by_head.shape[0] == 0:  # no heads
        return torch.zeros(x.shape, dtype=x.dtype)
    rows = torch.from_numpy(by_head)
    return (rows if x.dim() > dims and x.shape[0] > 1 else rows.sum(0)).reshape(x.shape)


@backward_op.register_fake
def _(dy, token, q, k, v, bias, extra, key_mask, options):
    def like(x: Optional[Tensor]) -> Tensor:
        return torch.empty(0) if x is None else x.new_empty(x.shape)

    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), like(bias), like(extra)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, bias, extra, key_mask, options, _ = inputs
    ctx.save_for_backward(output[1], q, k, v, bias, extra, key_mask)
    ctx.options = options
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Optional[Tensor], _: Any) -> tuple[Any, ...]:
    none = (None,) * 8
    if dy is None:
        return none
    token, q, k, v, bias, extra, key_mask = ctx.saved_tensors
    gradients = backward_op(dy, token, q, k, v, bias, extra, key_mask, ctx.options)
    needed = ctx.needs_input_grad
    return (*(g if needed[i] else None for i, g in enumerate(gradients)), *none[5:])


attention_op.register_autograd(_backward, setup_context=_setup_context)


def _of_type(x: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """x in the type in which the call is computed: halves, and parameters of float32, become it."""
    if x.dtype == dtype:
        return x
    if x.dtype in _halves or (x.dtype == torch.float32 and name in ("bias", "extra")):
        return x.to(dtype)
    raise TypeError(f"{name}: expected {dtype}, as the queries, got {x.dtype}")


@attention_op.register_vmap
def _(info: Any, dims: Any, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Any:
    """A mapped axis of queries, keys and values becomes a part of the batch."""
    for name, of, dim in zip(("bias", "extra", "key_padding_mask"), others, dims[3:]):
        if dim is not None and of is not None:
            raise NotImplementedError(f"{name}: expected a tensor that vmap does not map, got one that it does")
    if others[2] is not None:
        raise NotImplementedError("key_padding_mask: expected none under vmap, got one")

    def in_batch(x: Tensor, dim: Optional[int]) -> Tensor:
        x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        x = x[:, None] if x.dim() == 4 else x
        if x.dim() != 5:
            raise NotImplementedError(f"vmap: expected arrays of 3 or 4 dimensions, got {x.dim() - 1}")
        return x.flatten(0, 1)

    y, token = attention_op(*(in_batch(x, dim) for x, dim in zip((q, k, v), dims)), *others)
    y = y.unflatten(0, (info.batch_size, -1))
    rank = q.dim() - (dims[0] is not None)
    return (y.squeeze(1) if rank == 3 else y, token), (0, None)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor] = None,
    *,
    features: FeaturesLike,
    position: Position = "table",
    causal: bool = False,
    near: int = 0,
    normalization: Normalization = Normalization.unit(),
    engine: str = "automatic",
    key_padding_mask: Optional[Tensor] = None,
    extra: Optional[Tensor] = None,
    layout: str = "heads_first",
    offset: int = 0,
) -> Tensor:
    """Kernelized attention with a relative position bias, with gradients of q, k, v, bias and extra.

    q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v]; with
    layout="tokens_first" [batch, tokens, heads, d]. Any strides; tensors whose d numbers of a token are not contiguous
    are copied. float32 and float64; float16 and bfloat16 are computed in float32, and y has q's type.

    bias: the parameters of `position`, each with or without a leading axis of heads: "table" [2R+1], "t5" or
    ("t5", max_distance) [buckets], "alibi" [], ("grid", H, W) [2H-1, 2W-1] with extra [E, E+2] for E extra tokens.
    key_padding_mask: bool [batch, n_k], True is padding, as in nn.MultiheadAttention. Others as in nprf.Attention.

    ValueError for shapes and options that do not fit, TypeError for other types. Second derivatives are not supported.
    """
    if not isinstance(features, Features):
        features = features_of(features)
    if layout not in ("heads_first", "tokens_first"):
        raise ValueError(f"layout: expected heads_first or tokens_first, got {layout!r}")
    key_mask = None
    if key_padding_mask is not None:
        if key_padding_mask.dtype != torch.bool:
            raise TypeError(f"key_padding_mask: expected bool, got {key_padding_mask.dtype}")
        key_mask = ~key_padding_mask
    dtype = q.dtype
    if dtype in _halves:
        q = q.float()
    k, v = _of_type(k, "keys", q.dtype), _of_type(v, "values", q.dtype)
    bias = bias if bias is None else _of_type(bias, "bias", q.dtype)
    extra = extra if extra is None else _of_type(extra, "extra", q.dtype)
    save = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (extra is not None and extra.requires_grad)
    )
    options = Options(
        features._identity, position_name(position), causal, near, normalization.radius, engine,
        layout == "tokens_first", offset,
    )  # fmt: skip
    y, _ = attention_op(q, k, v, bias, extra, key_mask, options.text(), save)
    return y if y.dtype == dtype else y.to(dtype)
