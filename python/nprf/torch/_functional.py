# SPDX-License-Identifier: MIT
"""The operators nprf::attention and nprf::attention_backward, and the function that calls them. For plain tensors it
calls what they compute, since PyTorch adds 95 us to forward and backward by operators (an Intel Xeon). Tensors on a GPU
go to _gpu.py.

The operators' arguments that are not tensors are one string, so that a graph can hold them (and since PyTorch takes 2
us for each argument); a feature map is the integer under which it is registered, in this string, or as a tensor.
key_mask is bool [batch, n_k], False is padding, or lengths, int64 [batch], on the CPU or on a GPU. packing is int64 [1
or 2, sequences + 1], the cumulative lengths of packed sequences, and those of their keys if they differ. forward
returns y and a `token`, a tensor of one byte whose storage is a part of what the C++ forward saved. It lives as long as
autograd or a compiled graph keeps that tensor. If a hook has copied the tensor, there is nothing at its address, and
backward computes forward again. The report of a call is left where its thread finds it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, TypedDict, Union, overload

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad
from torch.utils.dlpack import from_dlpack, to_dlpack

from .._native import Native, core, float32, float64
from .._normalization import Normalization, radius_of, unit
from .._value import index_of, name_of, seed_of
from ..features import Features, FeaturesLike, by_identity, features_of
from . import _gpu
from ._integers import Integers, check_integers, per_sequence
from ._masks import padding_of
from ._options import Arguments, Options, PositionKind, attention_of, options_of, position_name

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


def _forward(x: Arguments, options: Options, save: bool) -> tuple[Tensor, Any]:
    native = _native_of(x.q)
    attention = attention_of(native, x.bias, x.extra, options)
    call = _native_call(x.key_mask, x.packing, options)
    q, d_v = x.q, x.v.shape[-1]
    y = _empty_like(q) if q.shape[-1] == d_v else q.new_empty((*q.shape[:-1], d_v))
    arrays = (to_dlpack(x.q), to_dlpack(x.k), to_dlpack(x.v), to_dlpack(y))
    if not save:
        _of_thread.report = attention(*arrays, call)
        return y, None
    saved, _of_thread.report = attention.forward(*arrays, call)
    return y, saved


def _forward_and_token(x: Arguments, options: Options, save: bool) -> tuple[Tensor, Tensor]:
    if x.q.is_cuda:
        y = _gpu.forward(x, options)
        return y, torch.empty(1 if save else 0, dtype=torch.uint8, device=x.q.device)
    y, saved = _forward(x, options, save)
    if saved is None:
        return y, torch.empty(0, dtype=torch.uint8)
    _saved[saved.address] = saved
    return y, from_dlpack(saved.token())


def _with_features(options: str, features: Optional[Tensor]) -> Options:
    """The options of an operator, whose feature map is that of `features` if that is not None."""
    found = options_of(options)
    return found if features is None else found._replace(features=str(int(features)))


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
    options: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    x = Arguments(q, k, v, bias, extra, key_mask, packing)
    return _forward_and_token(x, _with_features(options, features), save)


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
    options: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    y = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return y, torch.empty(1 if save else 0, dtype=torch.uint8, device=q.device)


def _gradients(
    dy: Tensor, token: Tensor, x: Arguments, options: Options
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """Of q, k, v, bias and extra."""
    q, k, v, bias, extra, *_ = x
    dims = options.bias_dims()
    if q.is_cuda:
        dq, dk, dv, dparameters = _gpu.backward(dy, x, options)
        dbias, dextra = _split(dparameters, bias, extra)
        return dq, dk, dv, _like(dbias, bias, dims), _like(dextra, extra, 2)
    saved = _saved.get(token.data_ptr())
    if saved is None:
        saved = _forward(x, options, True)[1]
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
    options: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Empty gradients of tensors that are None."""
    x = Arguments(q, k, v, bias, extra, key_mask, packing)
    dq, dk, dv, *of_parameters = _gradients(dy, token, x, _with_features(options, features))
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
    options: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(x: Optional[Tensor]) -> Tensor:
        return torch.empty(0) if x is None else x.new_empty(x.shape)

    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), like(bias), like(extra)


_types = (Tensor, torch.nn.Parameter)


def _is_plain(q: Tensor, *others: Optional[Tensor]) -> bool:
    """Whether PyTorch has nothing to do for a call on these tensors but autograd: they have numbers, which are in
    memory as they are, dense and on one device, and are not of a subclass; no graph is made, and no transform of
    torch.func and no mode is active."""
    if type(q) not in _types or q.is_meta:
        return False
    device, strided = q.device, torch.strided
    for x in (q, *others):
        if x is not None and (type(x) not in _types or x.device != device or x.layout is not strided or x.is_neg()):
            return False
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and not torch.jit.is_tracing()
    )


def _save(ctx: Any, token: Tensor, x: Arguments, features: Optional[Tensor], options: Options) -> None:
    ctx.save_for_backward(token, features, *x)
    ctx.options = options
    ctx.features = by_identity.get(options.features)  # which backward needs if it computes forward again
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Optional[Tensor], report: Optional[ReportGradients]) -> tuple[Optional[Tensor], ...]:
    """Of q, k, v, bias and extra."""
    if dy is None:
        return (None,) * 5
    token, features, *tensors = ctx.saved_tensors
    x = Arguments(*tensors)
    _of_thread.gradient_report = None
    gradients: tuple[Optional[Tensor], ...]
    # with create_graph=True call the operator, which raises if a second derivative is computed
    if features is None and not torch.is_grad_enabled() and _is_plain(dy, *x[:5]):
        gradients = _gradients(dy, token, x, ctx.options)
    else:
        gradients = backward_op(dy, token, *x, features, ctx.options.text())
    if report is not None and _of_thread.gradient_report is not None:
        report(_of_thread.gradient_report)
    return tuple(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, features, options, _ = inputs
    _save(ctx, output[1], Arguments(*tensors), features, options_of(options))


def _backward_of_op(ctx: Any, dy: Optional[Tensor], _: Any) -> tuple[Any, ...]:
    return (*_backward(ctx, dy, None), *(None,) * 5)


attention_op.register_autograd(_backward_of_op, setup_context=_setup_context)


class _Attention(torch.autograd.Function):
    """attention_op of plain tensors (_is_plain), with gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, options, ctx.gradient_report = inputs
        x = Arguments(*tensors)
        y, token = _forward_and_token(x, options, True)
        _save(ctx, token, x, None, options)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Optional[Tensor]) -> tuple[Any, ...]:
        return (*_backward(ctx, dy, ctx.gradient_report), *(None,) * 4)


def _check_tensors(q: Tensor, **others: Optional[Tensor]) -> None:
    """TypeError for other than tensors, ValueError for those that are not on the queries' device, and for sparse
    ones."""
    for name, x in (("queries", q), *others.items()):
        if x is None and name not in ("queries", "keys", "values"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if x.device != q.device:
            raise ValueError(f"{name}: expected a tensor on {q.device}, as the queries, got one on {x.device}")
        if x.layout != torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, got one of layout {x.layout}")


def _has_derivatives_of_func() -> bool:
    """Whether a transform of torch.func that differentiates is active, also while dynamo traces a call in it."""
    if not torch._C._are_functorch_transforms_active():
        return False
    differentiates = (TransformType.Grad, TransformType.Jvp)
    return any(each.key() in differentiates for each in torch._C._functorch.get_interpreter_stack() or ())


# dynamo calls it and takes the result as a constant, as after torch.compiler.assume_constant_result, which imports
# dynamo
_has_derivatives_of_func._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _check_derivatives(*tensors: Optional[Tensor]) -> None:
    """NotImplementedError for ways to differentiate that PyTorch's operators of Python do not support: it would return
    0, or an error that does not name them."""
    if forward_ad._current_level >= 0:
        for x in tensors:
            if x is not None and forward_ad.unpack_dual(x).tangent is not None:
                raise NotImplementedError(
                    "attention: expected reverse-mode derivatives, got a call of torch.func.jvp or forward_ad"
                )
    if _has_derivatives_of_func():
        raise NotImplementedError(
            "attention: expected derivatives by torch.autograd (backward, grad), got a call of torch.func"
        )


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


def _needs_gradients(x: Arguments) -> bool:
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
    padding: Optional[Tensor]
    lengths: Optional[Integers]
    cumulative_lengths: Optional[Integers]
    key_cumulative_lengths: Optional[Integers]
    options: tuple[Any, ...]  # those of Options, as the caller gave them
    report: bool
    gradient_report: Optional[ReportGradients]

    def check_tensors(self) -> None:
        _check_tensors(
            self.q, keys=self.k, values=self.v, bias=self.bias, extra=self.extra, key_padding_mask=self.padding
        )

    def check_derivatives(self) -> None:
        _check_derivatives(self.q, self.k, self.v, self.bias, self.extra)

    def arguments(self, options: Options) -> Arguments:
        """The tensors of the operators, in the types in which the call is computed."""
        q, k, v, bias, extra = self[:5]
        packing = _packing(self.cumulative_lengths, self.key_cumulative_lengths)
        if q.is_cuda:
            _check_options_on_gpu(options)
            packing = None if packing is None else packing.cpu()  # waits for it once; it has no place in CUDA graphs
        key_mask = _key_mask(self.padding, self.lengths, k, options.tokens_first)
        of_parameters = torch.float32 if q.dtype in _halves else q.dtype
        if q.dtype in _halves and not q.is_cuda:
            q = q.float()
        k, v = _of_type(k, "keys", q.dtype), _of_type(v, "values", q.dtype)
        bias = bias if bias is None else _of_type(bias, "bias", of_parameters)
        extra = extra if extra is None else _of_type(extra, "extra", of_parameters)
        return Arguments(q, k, v, bias, extra, key_mask, packing)


def _attend_in_a_graph(call: _Call, features: Features) -> Tensor:
    """attention() that dynamo traces: one operator."""
    if getattr(torch.compiler, "is_exporting", bool)():
        raise NotImplementedError(
            "attention: torch.export is not supported: a program that it stores has no feature map"
        )
    if call.report:
        raise ValueError("report: expected False in a graph of torch.compile or on a GPU, got True")
    if call.gradient_report is not None:
        raise ValueError("gradient_report: expected None in a graph of torch.compile or on a GPU, got a function")
    call.check_tensors()
    call.check_derivatives()
    if forward_ad._current_level >= 0:  # a graph would not find tangents of its inputs
        raise NotImplementedError("attention: expected no level of forward_ad around a graph of torch.compile")
    # a layer's map is a tensor in a graph, so that layers share one; on a GPU a tensor on the CPU would rule out CUDA
    # graphs
    of_graph = None if call.q.is_cuda else getattr(features, "_of_graph", None)
    options = Options(features._identity if of_graph is None else "0", *_checked_options(*call.options))
    x = call.arguments(options)
    y: Tensor = attention_op(*x, of_graph, options.text(), _needs_gradients(x))[0]
    return y if y.dtype == call.q.dtype else y.to(call.q.dtype)


_known_options = functools.lru_cache(maxsize=1024)(Options)  # calls with the same ones make them once


def _checked_options(
    position: str,
    causal: bool,
    near: int,
    radius: float,
    engine: str,
    tokens_first: bool,
    offset: int,
    tolerance: float,
    sinks: int,
    softmax_samples: int,
    softmax_seed: int,
    check_finite: bool,
) -> tuple[Any, ...]:
    """Those of Options but the map. TypeError for numbers that are not integers, and for an engine that is not a
    str."""
    return (
        position, bool(causal), index_of(near, "near"), radius, name_of(engine, "engine"), tokens_first,
        index_of(offset, "offset"), float(tolerance), index_of(sinks, "sinks"),
        index_of(softmax_samples, "softmax_samples"), seed_of(softmax_seed, "softmax_seed"), bool(check_finite),
    )  # fmt: skip


def _attend(call: _Call, features: Features) -> Union[Tensor, tuple[Tensor, Report]]:
    """attention() outside of graphs."""
    q = call.q
    has_values = call.k is not None and call.v is not None
    is_plain = has_values and _is_plain(q, call.k, call.v, call.bias, call.extra, call.padding)
    if not is_plain:
        call.check_tensors()
    if not is_plain or forward_ad._current_level >= 0:
        call.check_derivatives()
    if call.report and q.is_cuda:
        raise ValueError("report: expected False in a graph of torch.compile or on a GPU, got True")
    if call.gradient_report is not None and (q.is_cuda or not is_plain):
        raise ValueError("gradient_report: expected None on a GPU, under transforms or under modes, got a function")
    options = _known_options(features._identity, *_checked_options(*call.options))
    x = call.arguments(options)
    save = _needs_gradients(x)
    if call.report:
        _of_thread.report = None
    y: Tensor
    if not is_plain:
        y = attention_op(*x, None, options.text(), save)[0]
    elif save:
        y = _Attention.apply(*x, options, call.gradient_report)
    else:
        y = _forward_and_token(x, options, False)[0]
    y = y if y.dtype == q.dtype else y.to(q.dtype)
    if not call.report:
        return y
    if _of_thread.report is None:
        raise ValueError("report: expected False for tensors without numbers (meta and fake ones), got True")
    return y, _of_thread.report


@functools.cache
def _untraced_attend() -> Any:
    """After a break of a graph dynamo would try to trace _attend. Made in the first call, since it imports dynamo."""
    return torch.compiler.disable(_attend)


class AttentionOptions(TypedDict, total=False):
    """The options of attention(), which documents them."""

    position: PositionKind
    causal: bool
    near: int
    normalization: Normalization
    engine: str
    key_padding_mask: Optional[Tensor]
    lengths: Optional[Integers]
    cumulative_lengths: Optional[Integers]
    key_cumulative_lengths: Optional[Integers]
    extra: Optional[Tensor]
    layout: str
    offset: int
    tolerance: float
    sinks: int
    softmax_samples: int
    softmax_seed: int
    check_finite: bool
    gradient_report: Optional[ReportGradients]


# fmt: off
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor] = None, *, features: FeaturesLike,
    report: Literal[False] = False, **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor] = None, *, features: FeaturesLike,
    report: Literal[True], **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Report]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor] = None, *, features: FeaturesLike,
    report: bool, **options: Unpack[AttentionOptions],
) -> Union[Tensor, tuple[Tensor, Report]]: ...
# fmt: on
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor] = None,
    *,
    features: FeaturesLike,
    position: PositionKind = "table",
    causal: bool = False,
    near: int = 0,
    normalization: Normalization = unit,
    engine: str = "automatic",
    key_padding_mask: Optional[Tensor] = None,
    lengths: Optional[Integers] = None,
    cumulative_lengths: Optional[Integers] = None,
    key_cumulative_lengths: Optional[Integers] = None,
    extra: Optional[Tensor] = None,
    layout: str = "heads_first",
    offset: int = 0,
    tolerance: float = 0.0,
    sinks: int = 0,
    softmax_samples: int = 0,
    softmax_seed: int = 0,
    check_finite: bool = False,
    report: bool = False,
    gradient_report: Optional[ReportGradients] = None,
) -> Union[Tensor, tuple[Tensor, Report]]:
    """Kernelized attention with a relative position bias, with gradients of q, k, v, bias and extra.

    q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v];
    with layout="tokens_first" [batch, tokens, heads, d]. Any strides; tensors whose d numbers of a token are not
    contiguous are copied. float32 and float64; float16 and bfloat16 are computed in float32, and y has q's type. On a
    GPU float32, float16 and bfloat16 (see the README).

    bias: the parameters of `position`, each with or without a leading axis of heads: "table" [2R+1], "t5" or ("t5",
    max_distance) [buckets], "alibi" [], ("grid", H, W) [2H-1, 2W-1] with extra [E, E+2] for E extra tokens; None, for
    position="table" or None: there are no biases. key_padding_mask: as in nn.MultiheadAttention [batch, n_k], bool,
    where True is padding, or of numbers, 0, or -inf or at most -1000 for padding. lengths: integers [batch], later keys
    are padding; they are checked if they are on the CPU, and clamped to 0 to n_k on a GPU. cumulative_lengths: 0, n_1,
    n_1 + n_2, ... of sequences packed into one, and key_cumulative_lengths of their keys, if these differ; integers, a
    tensor or a list. A GPU computes them padded to about the longest one, and a call waits for lengths that are on it.
    tolerance: of rounding errors. check_finite: ValueError for inputs that are not finite.

    With report=True (y, nprf.Report), with softmax_samples rows of each sequence of each head compared with exact
    softmax. gradient_report: a function that each backward calls with its nprf.GradientReport, such as the append of a
    list; ValueError for subclasses of tensors, and under transforms and modes, a default device among them. Others as
    in nprf.Attention. A tolerance, check_finite and both reports are of the CPU: ValueError on a GPU.

    Under torch.compile a call is one operator of the graph, whose options are constants: another tolerance, or new
    lengths unless they are a tensor, compile it anew. It has no reports: report=True and a gradient_report break the
    graph.

    ValueError for shapes and options that do not fit, TypeError for other types. Derivatives are those of
    torch.autograd: NotImplementedError for torch.func.grad, jvp and the like, for forward_ad, and from PyTorch 2.7 on
    for torch.export. Second derivatives are not supported.
    """
    if not isinstance(features, Features):
        features = features_of(features)
    if layout not in ("heads_first", "tokens_first"):
        raise ValueError(f"layout: expected heads_first or tokens_first, got {layout!r}")
    named = position_name(position)
    if position is None and bias is not None:
        raise ValueError("bias: expected None without a position, got parameters")
    if bias is None and named != "table":
        raise ValueError(f"bias: expected the parameters of position={position!r}, got None")
    if extra is not None and not named.startswith("grid"):
        raise ValueError(f"extra: expected None without a grid, got biases with position={position!r}")
    if gradient_report is not None and not callable(gradient_report):
        raise TypeError(f"gradient_report: expected a function, got {type(gradient_report).__name__}")
    if softmax_samples != 0 and not report:
        raise ValueError(f"softmax_samples: expected 0 without report=True, got {softmax_samples}")
    options = (
        named, causal, near, radius_of(normalization), engine, layout == "tokens_first", offset, tolerance, sinks,
        softmax_samples, softmax_seed, check_finite,
    )  # fmt: skip
    call = _Call(
        q, k, v, bias, extra, key_padding_mask, lengths, cumulative_lengths, key_cumulative_lengths, options, report,
        gradient_report,
    )  # fmt: skip
    if torch.compiler.is_compiling():
        return _attend_in_a_graph(call, features)
    found: Union[Tensor, tuple[Tensor, Report]] = _untraced_attend()(call, features)
    return found
