# SPDX-License-Identifier: MIT
"""The operators nprf::attention and nprf::attention_backward, and the function that calls them. For plain tensors it
calls what they compute, since PyTorch adds 95 us to forward and backward by operators (an Intel Xeon). Tensors on a GPU
go to _gpu.py.

A graph may be stored and run by another process, so that it has nothing that only this process understands: a feature
map is a name, and a tensor or None (_maps.py). The operators' other arguments that are not tensors are one string,
whose first line is that name (since PyTorch takes 2 us for each argument), but for the offset, which differs from call
to call: an integer, or with `offset_tensor` that tensor's. key_mask is bool [batch, n_k], False is padding, or lengths,
int64 [batch], on the CPU or on a GPU. packing is int64 [1 or 2, sequences + 1], the cumulative lengths of packed
sequences, and those of their keys if they differ. forward returns y and a `token`, a tensor of one byte whose storage
is a part of what the C++ forward saved. It lives as long as autograd or a compiled graph keeps that tensor. If a hook
has copied the tensor, there is nothing at its address, and backward computes forward again, with a copy of the map's
tensor, which may have changed since. The report of a call is left where its thread finds it.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, TypedDict, Union, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.dlpack import from_dlpack, to_dlpack

from .._attention import check_offset, unknown_option
from .._native import Native, core, float32, float64
from .._normalization import Normalization, radius_of, unit
from .._value import bool_of, index_of, name_of, seed_of
from ..features import Features, FeaturesLike, features_of
from ..positions import has_heads_last
from . import _gpu
from ._checks import check_context_parallel, check_derivatives, check_tensors
from ._integers import Integers, check_integers, per_sequence
from ._maps import NamedMap, features_in, named
from ._masks import padding_of
from ._options import Arguments, Options, PositionKind, attention_of, heads_of, options_of, position_name, tokens_of
from ._plain import is_plain

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._core import GradientReport, Report

_natives = {torch.float32: float32, torch.float64: float64}
_halves = (torch.float16, torch.bfloat16)
_saved: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_calls: dict[Any, Any] = {}
_of_thread = threading.local()

ReportGradients = Callable[["GradientReport"], Any]


def _native_call(key_mask: Optional[Tensor], packing: Optional[Tensor], options: Options) -> Any:
    def made(mask: Any, lengths: Optional[list[int]], packed: list[list[int]]) -> Any:
        return core.Call(
            mask, lengths, packed[0] if packed else [], packed[1] if len(packed) > 1 else [], options.offset,
            options.tolerance, options.softmax_samples, options.softmax_seed, options.check_finite,
            options.tokens_first, torch.get_num_threads(),
        )  # fmt: skip

    packed = [] if packing is None else packing.tolist()
    if key_mask is not None:
        if key_mask.dtype != torch.bool:
            return made(None, key_mask.tolist(), packed)
        return made(to_dlpack(key_mask.contiguous()), None, packed)
    if packed:
        return made(None, None, packed)
    key = (options, torch.get_num_threads())
    call = _calls.get(key)
    if call is None:
        if len(_calls) > 1000:
            _calls.clear()
        call = _calls[key] = made(None, None, [])
    return call


def _native_of(q: Tensor) -> Native:
    if not q.is_cpu:
        raise ValueError(f"queries: expected a tensor on the CPU, got one on {q.device}")
    native = _natives.get(q.dtype)
    if native is None:
        raise TypeError(f"queries: expected float32 or float64, got {q.dtype}")
    return native


def _empty_like(x: Tensor) -> Tensor:
    """Contiguous; faster than x.new_empty(x.shape)."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _forward(x: Arguments, features: Features, options: Options, save: bool) -> tuple[Tensor, Any]:
    native = _native_of(x.q)
    attention = attention_of(native, features, x.bias, x.extra, options)
    call = _native_call(x.key_mask, x.packing, options)
    q, d_v = x.q, x.v.shape[-1]
    y = _empty_like(q) if q.shape[-1] == d_v else q.new_empty((*q.shape[:-1], d_v))
    arrays = (to_dlpack(x.q), to_dlpack(x.k), to_dlpack(x.v), to_dlpack(y))
    if not save:
        _of_thread.report = attention(*arrays, call)
        return y, None
    saved, _of_thread.report = attention.forward(*arrays, call)
    return y, saved


def _forward_and_token(x: Arguments, features: Features, options: Options, save: bool) -> tuple[Tensor, Tensor]:
    if x.q.is_cuda:
        y = _gpu.forward(x, features, options)
        return y, torch.empty(1 if save else 0, dtype=torch.uint8, device=x.q.device)
    y, saved = _forward(x, features, options, save)
    if saved is None:
        return y, torch.empty(0, dtype=torch.uint8)
    _saved[saved.address] = saved
    return y, from_dlpack(saved.token())


def _read(
    options: str, features: Optional[Tensor], offset: int, offset_tensor: Optional[Tensor]
) -> tuple[Features, Options]:
    """What these arguments of an operator mean."""
    name, _, others = options.partition("\n")
    of_call = options_of(others)._replace(offset=offset if offset_tensor is None else int(offset_tensor))
    return features_in(name, features), of_call


@torch.library.custom_op("nprf::attention", mutates_args=())
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    packing: Optional[Tensor],
    features: Optional[Tensor],
    offset_tensor: Optional[Tensor],
    options: str,
    offset: int,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x = Arguments(q, k, v, bias, extra, key_mask, packing)
    kept = features.clone() if save and features is not None else torch.empty(0, dtype=torch.uint8)
    return *_forward_and_token(x, *_read(options, features, offset, offset_tensor), save), kept


@attention_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    packing: Optional[Tensor],
    features: Optional[Tensor],
    offset_tensor: Optional[Tensor],
    options: str,
    offset: int,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    y = q.new_empty((*q.shape[:-1], v.shape[-1]))
    kept = torch.empty_like(features) if save and features is not None else torch.empty(0, dtype=torch.uint8)
    return y, torch.empty(1 if save else 0, dtype=torch.uint8, device=q.device), kept


def _gradients(
    dy: Tensor, token: Tensor, x: Arguments, features: Features, options: Options
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """Of q, k, v, bias and extra."""
    q, k, v, bias, extra, *_ = x
    dims = options.bias_dims()
    if q.is_cuda:
        dq, dk, dv, dparameters = _gpu.backward(dy, x, features, options)
        dbias, dextra = _split(dparameters, bias, extra)
        return dq, dk, dv, _like(dbias, bias, dims), _like(dextra, extra, 2)
    saved = _saved.get(token.data_ptr())
    if saved is None:
        saved = _forward(x, features, options, True)[1]
    dq, dk, dv = _empty_like(q), _empty_like(k), _empty_like(v)
    by_head, extra_by_head, _of_thread.gradient_report = saved.backward(
        to_dlpack(dy), to_dlpack(dq), to_dlpack(dk), to_dlpack(dv), _native_call(None, None, options)
    )
    of_bias = None if bias is None else _like(torch.from_numpy(by_head), bias, dims)
    of_extra = None if extra is None else _like(torch.from_numpy(extra_by_head), extra, 2)
    return dq, dk, dv, of_bias, of_extra


def _split(
    dparameters: Optional[Tensor], bias: Optional[Tensor], extra: Optional[Tensor]
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradients of biases and of those of extra tokens from those of _gpu.backward."""
    if dparameters is None or extra is None:
        return dparameters, None
    table = dparameters.shape[1] - extra.shape[-2] * extra.shape[-1]
    return dparameters[:, :table], dparameters[:, table:]


def _like(by_head: Optional[Tensor], x: Optional[Tensor], dims: int) -> Optional[Tensor]:
    """The gradient of `x` from that of each head [heads, p]; None without x."""
    if x is None or by_head is None:
        return None
    if by_head.shape[0] == 0:  # no heads
        return torch.zeros_like(x)
    rows = by_head if x.dim() > dims and x.shape[0] > 1 else by_head.sum(0)
    return rows if rows.shape == x.shape else rows.reshape(x.shape)


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
    packing: Optional[Tensor],
    features: Optional[Tensor],
    offset_tensor: Optional[Tensor],
    options: str,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Empty gradients of tensors that are None."""
    x = Arguments(q, k, v, bias, extra, key_mask, packing)
    dq, dk, dv, *of_parameters = _gradients(dy, token, x, *_read(options, features, offset, offset_tensor))
    dbias, dextra = (torch.empty(0) if each is None else each for each in of_parameters)
    return dq, dk, dv, dbias, dextra


@backward_op.register_fake
def _(
    dy: Tensor,
    token: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    packing: Optional[Tensor],
    features: Optional[Tensor],
    offset_tensor: Optional[Tensor],
    options: str,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(x: Optional[Tensor]) -> Tensor:
        return torch.empty(0) if x is None else x.new_empty(x.shape)

    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), like(bias), like(extra)


def _text_of(features: NamedMap, options: Options) -> str:
    """What _read() reads."""
    return features.name + "\n" + options.text()


def _needed(ctx: Any, gradients: tuple[Optional[Tensor], ...]) -> tuple[Optional[Tensor], ...]:
    return tuple(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, features, offset_tensor, ctx.options, ctx.offset, save = inputs
    _, token, kept = output
    ctx.save_for_backward(token, *tensors, kept if save and features is not None else features, offset_tensor)
    ctx.set_materialize_grads(False)


def _backward_of_op(ctx: Any, dy: Optional[Tensor], *_: Any) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 12
    gradients = backward_op(dy, *ctx.saved_tensors, ctx.options, ctx.offset)
    return (*_needed(ctx, gradients), *(None,) * 7)


attention_op.register_autograd(_backward_of_op, setup_context=_setup_context)


class _Attention(torch.autograd.Function):
    """attention_op of plain tensors (is_plain), with gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.features, ctx.options, ctx.gradient_report = inputs
        y, token = _forward_and_token(Arguments(*tensors), ctx.features, ctx.options, True)
        ctx.save_for_backward(token, *tensors)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Optional[Tensor]) -> tuple[Any, ...]:
        if dy is None:
            return (None,) * 10
        token, *tensors = ctx.saved_tensors
        x = Arguments(*tensors)
        _of_thread.gradient_report = None
        gradients: tuple[Optional[Tensor], ...]
        # with create_graph=True call the operator, which raises if a second derivative is computed
        if not torch.is_grad_enabled() and is_plain(dy, *x[:5]):
            gradients = _gradients(dy, token, x, ctx.features, ctx.options)
        else:
            of_graph, options = named(ctx.features, x.q), ctx.options
            text = _text_of(of_graph, options)
            gradients = backward_op(dy, token, *x, of_graph.tensor, None, text, options.offset)
        if ctx.gradient_report is not None and _of_thread.gradient_report is not None:
            ctx.gradient_report(_of_thread.gradient_report)
        return (*_needed(ctx, gradients), *(None,) * 5)


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
    for name, of, dim in zip(("bias", "extra"), others, dims[3:]):
        if dim is not None and of is not None:
            raise NotImplementedError(f"{name}: expected a tensor that vmap does not map, got one that it does")
    if others[2] is not None or others[3] is not None:
        raise NotImplementedError("key_padding_mask, lengths and cumulative_lengths: expected none under vmap, got one")
    for name, dim in zip(("features", "offset"), dims[7:]):
        if dim is not None:
            raise NotImplementedError(f"{name}: expected a tensor that vmap does not map, got one that it does")

    def in_batch(x: Tensor, dim: Optional[int]) -> Tensor:
        x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        x = x[:, None] if x.dim() == 4 else x
        if x.dim() != 5:
            raise NotImplementedError(f"vmap: expected arrays of 3 or 4 dimensions, got {x.dim() - 1}")
        return x.flatten(0, 1)

    y, *others = attention_op(*(in_batch(x, dim) for x, dim in zip((q, k, v), dims)), *others)
    y = y.unflatten(0, (info.batch_size, -1))
    rank = q.dim() - (dims[0] is not None)
    return (y.squeeze(1) if rank == 3 else y, *others), (0, None, None)


def _key_mask(
    padding: Optional[Tensor], lengths: Optional[Integers], k: Tensor, tokens_first: bool
) -> Optional[Tensor]:
    """The operators' key_mask of a key_padding_mask [batch, n_k] (or [n_k] of one sequence) or of lengths [batch]; None
    without. ValueError for both or for other shapes, TypeError for other types."""
    if padding is None and lengths is None:
        return None
    batch = k.shape[0] if k.dim() == 4 else 1
    n_k = k.shape[-3 if tokens_first and k.dim() > 2 else -2] if k.dim() > 1 else 0
    if padding is not None:
        if lengths is not None:
            raise ValueError("lengths: expected none beside a key_padding_mask, got some")
        if padding.shape != (batch, n_k) and (batch > 1 or padding.shape != (n_k,)):
            raise ValueError(
                f"key_padding_mask: expected [{batch}, {n_k}] (sequences, keys), got the shape {list(padding.shape)}"
            )
        return ~padding_of(padding)
    return None if lengths is None else per_sequence("lengths", lengths, batch).to(torch.int64)


def _packing(cumulative: Optional[Integers], of_keys: Optional[Integers]) -> Optional[Tensor]:
    """The operators' packing of cumulative lengths [sequences + 1], and those of keys; None without. ValueError for
    other shapes and for those of keys alone, TypeError for other types."""
    if cumulative is None:
        if of_keys is not None:
            raise ValueError("key_cumulative_lengths: expected none without cumulative_lengths, got some")
        return None
    rows = [check_integers("cumulative_lengths", cumulative)]
    if of_keys is not None:
        rows.append(check_integers("key_cumulative_lengths", of_keys))
    for name, x in zip(("cumulative_lengths", "key_cumulative_lengths"), rows):
        if x.dim() != 1 or x.shape[0] == 0 or x.shape != rows[0].shape:
            expected = "[sequences + 1]" if x is rows[0] else f"{list(rows[0].shape)} (as cumulative_lengths)"
            raise ValueError(f"{name}: expected {expected}, got the shape {list(x.shape)}")
        if x.device != rows[0].device:
            raise ValueError(f"{name}: expected a tensor on {rows[0].device}, got one on {x.device}")
    return torch.stack([x.to(torch.int64) for x in rows])


def _saves(x: Arguments) -> bool:
    """Whether forward saves what backward needs: not in a graph that is stored, as a rule for calls without gradients,
    where backward would compute forward again."""
    if torch.jit.is_tracing() or getattr(torch.compiler, "is_exporting", bool)():
        return False
    return torch.is_grad_enabled() and (
        x.q.requires_grad
        or x.k.requires_grad
        or x.v.requires_grad
        or (x.bias is not None and x.bias.requires_grad)
        or (x.extra is not None and x.extra.requires_grad)
    )


def _check_options_on_gpu(options: Options) -> None:
    """ValueError for what the plans do not have."""
    if options.tolerance != 0:
        raise ValueError(f"tolerance: expected 0 on a GPU, got {options.tolerance}")
    if options.check_finite:
        raise ValueError("check_finite: expected False on a GPU, got True")


class _Call(NamedTuple):
    """The arguments of attention()."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Optional[Tensor]
    extra: Optional[Tensor]
    bias_layout: Optional[str]
    padding: Optional[Tensor]
    lengths: Optional[Integers]
    cumulative_lengths: Optional[Integers]
    key_cumulative_lengths: Optional[Integers]
    offset: Union[None, int, Tensor]
    options: tuple[Any, ...]  # those of Options, as the caller gave them
    report: bool
    gradient_report: Optional[ReportGradients]

    def check_tensors(self) -> None:
        check_tensors(
            self.q, keys=self.k, values=self.v, bias=self.bias, extra=self.extra, key_padding_mask=self.padding
        )

    def check_derivatives(self) -> None:
        check_derivatives(self.q, self.k, self.v, self.bias, self.extra)

    def arguments(self, options: Options) -> Arguments:
        """The tensors of the operators, in the types in which the call is computed."""
        q, k, v, bias, extra = self[:5]
        if q.dim() > 1 and k.dim() > 1:
            of_keys = self.key_cumulative_lengths is not None
            check_offset(options.causal, self.offset, tokens_of(q, options), tokens_of(k, options), of_keys)
        packing = _packing(self.cumulative_lengths, self.key_cumulative_lengths)
        if q.is_cuda:
            _check_options_on_gpu(options)
            if extra is not None and not options.position.startswith("grid"):
                raise ValueError("query_bias: expected None on a GPU, got one")
            packing = None if packing is None else packing.cpu()  # waits for it once; it has no place in CUDA graphs
        key_mask = _key_mask(self.padding, self.lengths, k, options.tokens_first)
        of_parameters = torch.float32 if q.dtype in _halves else q.dtype
        if bias is not None:
            if has_heads_last(bias.shape, options.bias_dims(), self.bias_layout, heads_of(q, options)):
                bias = bias.movedim(-1, 0)
            bias = _of_type(bias, "bias", of_parameters)
        if q.dtype in _halves and not q.is_cuda:
            q = q.float()
        k, v = _of_type(k, "keys", q.dtype), _of_type(v, "values", q.dtype)
        extra = extra if extra is None else _of_type(extra, "extra", of_parameters)
        return Arguments(q, k, v, bias, extra, key_mask, packing)

    def offset_tensor(self) -> Optional[Tensor]:
        """The offset, if it is a tensor. TypeError unless that has integers, and ValueError unless it has one."""
        if not isinstance(self.offset, Tensor):
            return None
        found = check_integers("offset", self.offset)
        if found.numel() != 1:
            raise ValueError(f"offset: expected one integer, got the shape {list(found.shape)}")
        return found


def _with_query_bias(q: Tensor, query_bias: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """q with the channels of r, and the vectors of lags."""
    if not isinstance(query_bias, (tuple, list)) or len(query_bias) != 2:
        raise TypeError(f"query_bias: expected (r, R), got {type(query_bias).__name__}")
    r, lag_vectors = query_bias
    for name, x in (("queries", q), ("query_bias", r), ("query_bias", lag_vectors)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if q.dim() == 0 or r.shape[:-1] != q.shape[:-1]:
        raise ValueError(
            f"query_bias: expected r of the shape {[*q.shape[:-1], 'rank']}, as the queries, got {list(r.shape)}"
        )
    if lag_vectors.dim() not in (2, 3) or lag_vectors.shape[-2] != r.shape[-1]:
        raise ValueError(
            f"query_bias: expected vectors of lags of the shape [{r.shape[-1]}, lags], or with heads in front, got "
            f"{list(lag_vectors.shape)}"
        )
    return torch.cat([q, _of_type(r, "query_bias", q.dtype)], -1), lag_vectors


def _attend_in_a_graph(call: _Call, features: Union[Features, NamedMap]) -> Tensor:
    """attention() that dynamo traces: one operator."""
    if call.report:
        raise ValueError("report: expected False in a graph of torch.compile or on a GPU, got True")
    if call.gradient_report is not None:
        raise ValueError("gradient_report: expected None in a graph of torch.compile or on a GPU, got a function")
    call.check_tensors()
    call.check_derivatives()
    if forward_ad._current_level >= 0:  # a graph would not find tangents of its inputs
        raise NotImplementedError("attention: expected no level of forward_ad around a graph of torch.compile")
    options = Options(*_checked_options(*call.options))
    x, offset_tensor = call.arguments(options), call.offset_tensor()
    offset = 0 if call.offset is None or offset_tensor is not None else call.offset
    if not isinstance(offset, (int, torch.SymInt)):
        offset = index_of(offset, "offset")  # which would make a constant of a number that varies
    of_graph = features if isinstance(features, NamedMap) else named(features, x.q)
    text, save = _text_of(of_graph, options), _saves(x)
    y: Tensor = attention_op(*x, of_graph.tensor, offset_tensor, text, offset, save)[0]
    return y if y.dtype == call.q.dtype else y.to(call.q.dtype)


_known_options = functools.lru_cache(maxsize=1024)(Options)  # calls with the same ones make them once


def _checked_options(
    position: str,
    causal: bool,
    near: int,
    radius: float,
    engine: str,
    tokens_first: bool,
    tolerance: float,
    sinks: int,
    salient: int,
    softmax_samples: int,
    softmax_seed: int,
    check_finite: bool,
) -> tuple[Any, ...]:
    """Those of Options but the offset. TypeError for numbers that are not integers, for an engine that is not a str,
    and for other than True and False."""
    return (
        position, bool_of(causal, "causal"), index_of(near, "near"), radius, name_of(engine, "engine"), tokens_first,
        float(tolerance), index_of(sinks, "sinks"), index_of(salient, "salient"),
        index_of(softmax_samples, "softmax_samples"), seed_of(softmax_seed, "softmax_seed"),
        bool_of(check_finite, "check_finite"),
    )  # fmt: skip


def _attend(call: _Call, features: Union[Features, NamedMap]) -> Union[Tensor, tuple[Tensor, Report]]:
    """attention() outside of graphs."""
    q = call.q
    has_values = call.k is not None and call.v is not None
    plain = has_values and is_plain(q, call.k, call.v, call.bias, call.extra, call.padding)
    if not plain:
        call.check_tensors()
    if not plain or forward_ad._current_level >= 0:
        call.check_derivatives()
    if call.report and q.is_cuda:
        raise ValueError("report: expected False in a graph of torch.compile or on a GPU, got True")
    if call.gradient_report is not None and (q.is_cuda or not plain):
        raise ValueError("gradient_report: expected None on a GPU, under transforms or under modes, got a function")
    offset_tensor = call.offset_tensor()
    offset = 0 if call.offset is None else call.offset
    if offset_tensor is not None:
        offset = int(offset_tensor) if plain else 0
    options = _known_options(*_checked_options(*call.options), index_of(offset, "offset"))
    x = call.arguments(options)
    save = _saves(x)
    if call.report:
        _of_thread.report = None
    y: Tensor
    if not plain:
        of_graph = features if isinstance(features, NamedMap) else named(features, q)
        text = _text_of(of_graph, options)
        y = attention_op(*x, of_graph.tensor, offset_tensor, text, options.offset, save)[0]
    else:
        made = features if isinstance(features, Features) else features.features()
        if save:
            y = _Attention.apply(*x, made, options, call.gradient_report)
        else:
            y = _forward_and_token(x, made, options, False)[0]
    y = y if y.dtype == q.dtype else y.to(q.dtype)
    if not call.report:
        return y
    if _of_thread.report is None:
        raise ValueError("report: expected False for tensors without numbers (meta and fake ones), got True")
    return y, _of_thread.report


@functools.cache
def _disabled_attend() -> Any:
    return torch.compiler.disable(_attend)


def _untraced_attend() -> Any:
    """_attend, which dynamo, once it is imported, would try to trace after a break of a graph."""
    return _disabled_attend() if "torch._dynamo" in sys.modules else _attend


class AttentionOptions(TypedDict, total=False):
    """The options of attention(), which documents them."""

    position: PositionKind
    causal: bool
    near: int
    normalization: Normalization
    engine: str
    bias_layout: Optional[str]
    key_padding_mask: Optional[Tensor]
    lengths: Optional[Integers]
    cumulative_lengths: Optional[Integers]
    key_cumulative_lengths: Optional[Integers]
    extra: Optional[Tensor]
    query_bias: Optional[tuple[Tensor, Tensor]]
    layout: str
    offset: Union[None, int, Tensor]
    tolerance: float
    sinks: int
    salient: int
    softmax_samples: int
    softmax_seed: int
    check_finite: bool
    gradient_report: Optional[ReportGradients]


Biases = Union[None, Tensor, torch.nn.Embedding]


# fmt: off
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Biases = None, *, features: FeaturesLike, report: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Biases = None, *, features: FeaturesLike, report: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Report]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Biases = None, *, features: FeaturesLike, report: bool,
    **options: Unpack[AttentionOptions],
) -> Union[Tensor, tuple[Tensor, Report]]: ...
# fmt: on
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Biases = None,
    *,
    features: FeaturesLike,
    position: PositionKind = None,
    causal: bool = False,
    near: int = 0,
    normalization: Normalization = unit,
    engine: str = "automatic",
    bias_layout: Optional[str] = None,
    key_padding_mask: Optional[Tensor] = None,
    lengths: Optional[Integers] = None,
    cumulative_lengths: Optional[Integers] = None,
    key_cumulative_lengths: Optional[Integers] = None,
    extra: Optional[Tensor] = None,
    query_bias: Optional[tuple[Tensor, Tensor]] = None,
    layout: str = "heads_first",
    offset: Union[None, int, Tensor] = None,
    tolerance: float = 0.0,
    sinks: int = 0,
    salient: int = 0,
    softmax_samples: int = 0,
    softmax_seed: int = 0,
    check_finite: bool = False,
    report: bool = False,
    gradient_report: Optional[ReportGradients] = None,
    **unknown: Any,
) -> Union[Tensor, tuple[Tensor, Report]]:
    """Kernelized attention with a relative position bias, with gradients of q, k, v, bias, extra and query_bias.

    q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v];
    with layout="tokens_first" [batch, tokens, heads, d]. Any strides; tensors whose d numbers of a token are not
    contiguous are copied. float32 and float64; float16 and bfloat16 are computed in float32, and y has q's type. On a
    GPU float32, float16 and bfloat16 (see the README).

    bias, with its `position`: the parameters of it, each with or without an axis of heads: "table" [2R+1], "t5" or
    ("t5", max_distance) [buckets], "alibi" [], ("grid", H, W) [2H-1, 2W-1] with extra [E, E+2] for E extra tokens; both
    None: there are no biases. "smooth_table" is a table [2R+1] that is smooth far from lag 0, which the caller computes
    from a few parameters, such as a SplineBias or FIRE's network; its gradient may be that of a smooth table near it.
    query_bias: (r, R), r_i . R[j - i] is added to the bias of pairs less than `near` tokens apart, r [batch, heads, n_q,
    rank] as q, R [rank, lags] or [heads, rank, lags] with a column for each near lag, from 1 - near to 0 if causal, else
    to near - 1; with gradients of both; not with a grid, and ValueError on a GPU.
    bias_layout: "heads_first", such as [heads, buckets], or "heads_last", as the weight of an nn.Embedding has them,
    which may also be given itself; None: heads first, ValueError if they may be last. key_padding_mask: as in
    nn.MultiheadAttention [batch, n_k], bool, where True is padding, or of numbers, 0, or -inf or at most -1000 for
    padding. lengths: integers [batch], later keys are padding; they are checked if they are on the CPU, and clamped to
    0 to n_k on a GPU. cumulative_lengths: 0, n_1, n_1 + n_2, ... of sequences packed into one, and
    key_cumulative_lengths of their keys, if these differ; integers, a tensor or a list. A GPU computes them padded to
    about the longest one, and a call waits for lengths that are on it. offset: query i has position i + offset, an
    integer, or a tensor with one, for which a call waits if it is on a GPU; a causal call needs it unless queries are
    as many as keys. tolerance: of rounding errors. check_finite: ValueError for inputs that are not finite.

    With report=True (y, nprf.Report), with softmax_samples rows of each sequence of each head compared with exact
    softmax. gradient_report: a function that each backward calls with its nprf.GradientReport, such as the append of a
    list; ValueError for subclasses of tensors, and under transforms and modes, a default device among them. Others as
    in nprf.Attention. A tolerance, check_finite, salient keys and both reports are of the CPU: ValueError on a GPU.

    Under torch.compile a call is one operator of the graph. Its options are constants, so that another tolerance
    compiles it anew, but for masks, lengths and the offset, which may differ from call to call, as sizes may. It has no
    reports: report=True and a gradient_report break the graph. A stored graph, of torch.export or torch.jit.trace, has
    the feature map, and runs where nprf.torch is imported.

    ValueError for shapes and options that do not fit, TypeError for other types. Derivatives are those of
    torch.autograd: NotImplementedError for torch.func.grad, jvp and the like, and for forward_ad; for DTensors, and in
    context_parallel, where a tensor is a part of the sequences. Second derivatives are not supported.
    """
    for name in unknown:
        raise unknown_option(name, "attention", "key_padding_mask")
    check_context_parallel()
    if not isinstance(features, (Features, NamedMap)):
        features = features_of(features)
    if layout not in ("heads_first", "tokens_first"):
        raise ValueError(f"layout: expected heads_first or tokens_first, got {layout!r}")
    if isinstance(bias, torch.nn.Embedding):
        if bias_layout not in (None, "heads_last"):
            raise ValueError(f"bias_layout: expected 'heads_last', as an nn.Embedding has them, got {bias_layout!r}")
        bias, bias_layout = bias.weight, "heads_last"
    named_position = position_name(position)
    if bias is not None and position is None:
        raise ValueError(
            "position: expected 'table', 'smooth_table', 't5', ('t5', max_distance), 'alibi' or "
            "('grid', height, width) beside a bias, got None"
        )
    if bias is None and position is not None:
        raise ValueError(f"bias: expected the parameters of position={position!r}, got None")
    if extra is not None and not named_position.startswith("grid"):
        raise ValueError(f"extra: expected None without a grid, got biases with position={position!r}")
    if query_bias is not None:
        if named_position.startswith("grid"):
            raise ValueError("query_bias: expected None with a grid, got one")
        q, extra = _with_query_bias(q, query_bias)
    if gradient_report is not None and not callable(gradient_report):
        raise TypeError(f"gradient_report: expected a function, got {type(gradient_report).__name__}")
    if softmax_samples != 0 and not bool_of(report, "report"):
        raise ValueError(f"softmax_samples: expected 0 without report=True, got {softmax_samples}")
    options = (
        named_position, causal, near, radius_of(normalization), engine, layout == "tokens_first", tolerance, sinks,
        salient, softmax_samples, softmax_seed, check_finite,
    )  # fmt: skip
    call = _Call(
        q, k, v, bias, extra, bias_layout, key_padding_mask, lengths, cumulative_lengths, key_cumulative_lengths,
        offset, options, bool_of(report, "report"), gradient_report,
    )  # fmt: skip
    if torch.compiler.is_compiling():
        return _attend_in_a_graph(call, features)
    found: Union[Tensor, tuple[Tensor, Report]] = _untraced_attend()(call, features)
    return found
