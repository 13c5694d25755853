# SPDX-License-Identifier: MIT
"""The operators nprf::attention and nprf::attention_backward, and the function that calls them. For plain tensors it calls
what they compute, since PyTorch adds 95 us to forward and backward by operators (an Intel Xeon). Tensors on a GPU go to
_gpu.py.

The operators' arguments that are not tensors are one string, so that a graph can hold them (and since PyTorch takes 2 us
for each argument); a feature map is the integer under which it is registered, in this string, or as a tensor. key_mask is bool [batch, n_k], False is
padding, or lengths, int64 [batch], on the CPU or on a GPU. forward returns y and a `token`, a tensor of one byte whose
storage is a part of what the C++ forward saved. It lives as long as autograd or a compiled graph keeps that tensor. If a
hook has copied the tensor, there is nothing at its address, and backward computes forward again. The report of a call is
left where its thread finds it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, TypedDict, Union, overload

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad
from torch.utils.dlpack import from_dlpack, to_dlpack

from .._attention import Normalization
from .._native import Native, core, float32, float64
from .._value import index_of
from ..features import Features, FeaturesLike, by_identity, features_of
from . import _gpu
from ._integers import Integers, per_sequence
from ._masks import padding_of
from ._options import Options, Position, attention_of, options_of, position_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._core import Report

_natives = {torch.float32: float32, torch.float64: float64}
_halves = (torch.float16, torch.bfloat16)
_saved: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_calls: dict[Any, Any] = {}
_of_thread = threading.local()


def _call_of(key_mask: Optional[Tensor], options: Options) -> Any:
    key = (options.tokens_first, options.offset, options.tolerance, torch.get_num_threads())

    def made(mask: Any, lengths: list[int]) -> Any:
        tokens_first, offset, tolerance, threads = key
        return core.Call(mask, lengths, [], [], offset, tolerance, 0, 0, False, tokens_first, threads)

    if key_mask is not None:
        if key_mask.dtype != torch.bool:
            return made(None, key_mask.tolist())
        return made(to_dlpack(key_mask.contiguous()), [])
    call = _calls.get(key)
    if call is None:
        if len(_calls) > 1000:
            _calls.clear()
        call = _calls[key] = made(None, [])
    return call


def _native_of(q: Tensor) -> Native:
    if q.device.type != "cpu":
        raise ValueError(f"queries: expected a tensor on the CPU, got one on {q.device}")
    native = _natives.get(q.dtype)
    if native is None:
        raise TypeError(f"queries: expected float32 or float64, got {q.dtype}")
    return native


class Arguments(NamedTuple):
    """The tensors of a call."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Optional[Tensor]
    extra: Optional[Tensor]
    key_mask: Optional[Tensor]


def _forward(x: Arguments, options: Options, save: bool) -> tuple[Tensor, Any]:
    native = _native_of(x.q)
    attention = attention_of(native, x.bias, x.extra, options)
    call = _call_of(x.key_mask, options)
    y = x.q.new_empty((*x.q.shape[:-1], x.v.shape[-1]))
    arrays = (to_dlpack(x.q), to_dlpack(x.k), to_dlpack(x.v), to_dlpack(y))
    if not save:
        _of_thread.report = attention(*arrays, call)
        return y, None
    saved, _of_thread.report = attention.forward(*arrays, call)
    return y, saved


def _forward_and_token(x: Arguments, options: Options, save: bool) -> tuple[Tensor, Tensor]:
    if x.q.device.type == "cuda":
        y = _gpu.forward(*x, options)
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
    features: Optional[Tensor],
    options: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    return _forward_and_token(Arguments(q, k, v, bias, extra, key_mask), _with_features(options, features), save)


@attention_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    features: Optional[Tensor],
    options: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    y = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return y, torch.empty(1 if save else 0, dtype=torch.uint8, device=q.device)


def _gradients(
    dy: Tensor, token: Tensor, x: Arguments, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of q, k, v, bias and extra; empty ones for None."""
    q, k, v, bias, extra, _ = x
    dims = options.bias_dims()
    if q.device.type == "cuda":
        dq, dk, dv, dparameters = _gpu.backward(dy, *x, options)
        dbias, dextra = _split(dparameters, bias, extra)
        return dq, dk, dv, _like(dbias, bias, dims), _like(dextra, extra, 2)
    saved = _saved.get(token.data_ptr())
    if saved is None:
        saved = _forward(x, options, True)[1]
    dq, dk, dv = (each.new_empty(each.shape) for each in (q, k, v))
    by_head, extra_by_head, _ = saved.backward(
        to_dlpack(dy), to_dlpack(dq), to_dlpack(dk), to_dlpack(dv), _call_of(None, options)
    )
    of_bias = None if bias is None else torch.from_numpy(by_head)
    of_extra = None if extra is None else torch.from_numpy(extra_by_head)
    return dq, dk, dv, _like(of_bias, bias, dims), _like(of_extra, extra, 2)


def _split(
    dparameters: Optional[Tensor], bias: Optional[Tensor], extra: Optional[Tensor]
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradients of biases and of those of extra tokens from those of _gpu.backward."""
    if dparameters is None or extra is None:
        return dparameters, None
    table = dparameters.shape[1] - extra.shape[-2] * extra.shape[-1]
    return dparameters[:, :table], dparameters[:, table:]


def _like(by_head: Optional[Tensor], x: Optional[Tensor], dims: int) -> Tensor:
    """The gradient of `x` from that of each head [heads, p]; empty without x."""
    if x is None or by_head is None:
        return torch.empty(0)
    if by_head.shape[0] == 0:  # no heads
        return torch.zeros_like(x)
    rows = by_head if x.dim() > dims and x.shape[0] > 1 else by_head.sum(0)
    return rows.reshape(x.shape)


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
    features: Optional[Tensor],
    options: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _gradients(dy, token, Arguments(q, k, v, bias, extra, key_mask), _with_features(options, features))


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
    features: Optional[Tensor],
    options: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(x: Optional[Tensor]) -> Tensor:
        return torch.empty(0) if x is None else x.new_empty(x.shape)

    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), like(bias), like(extra)


def _is_plain(*tensors: Optional[Tensor]) -> bool:
    """Whether PyTorch has nothing to do for a call on these tensors but autograd: they have numbers, which are in memory as
    they are, and are not of a subclass; no graph is made, and no transform of torch.func and no mode is active."""
    return (
        not torch.compiler.is_compiling()
        and all(
            x is None or (type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta and not x.is_neg()) for x in tensors
        )
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


def _backward(ctx: Any, dy: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    """Of q, k, v, bias and extra."""
    if dy is None:
        return (None,) * 5
    token, features, *tensors = ctx.saved_tensors
    x = Arguments(*tensors)
    # with create_graph=True call the operator, which raises if a second derivative is computed
    if features is None and not torch.is_grad_enabled() and _is_plain(dy, *x):
        gradients = _gradients(dy, token, x, ctx.options)
    else:
        gradients = backward_op(dy, token, *x, features, ctx.options.text())
    return tuple(g if ctx.needs_input_grad[i] else None for i, g in enumerate(gradients))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, features, options, _ = inputs
    _save(ctx, output[1], Arguments(*tensors), features, options_of(options))


def _backward_of_op(ctx: Any, dy: Optional[Tensor], _: Any) -> tuple[Any, ...]:
    return (*_backward(ctx, dy), None, None, None, None)


attention_op.register_autograd(_backward_of_op, setup_context=_setup_context)


class _Attention(torch.autograd.Function):
    """attention_op of plain tensors (_is_plain), with gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, options = inputs
        x = Arguments(*tensors)
        y, token = _forward_and_token(x, options, True)
        _save(ctx, token, x, None, options)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Optional[Tensor]) -> tuple[Any, ...]:
        return (*_backward(ctx, dy), None, None)


def _attend(x: Arguments, options: Options, save: bool) -> Tensor:
    """attention_op of plain tensors (_is_plain)."""
    y: Tensor = _Attention.apply(*x, options) if save else _forward_and_token(x, options, False)[0]
    return y


@functools.cache
def _untraced_attend() -> Any:
    """After a break of a graph dynamo would try to trace _attend. Made in the first call, since it imports dynamo."""
    return torch.compiler.disable(_attend)


def _check_tensors(q: Tensor, **others: Optional[Tensor]) -> None:
    """ValueError for tensors that are not on the queries' device, and for sparse ones."""
    for name, x in (("queries", q), *others.items()):
        if x is None:
            continue
        if x.device != q.device:
            raise ValueError(f"{name}: expected a tensor on {q.device}, as the queries, got one on {x.device}")
        if x.layout != torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, got one of layout {x.layout}")


def _check_derivatives(*tensors: Optional[Tensor]) -> None:
    """NotImplementedError for ways to differentiate that PyTorch's operators of Python do not support: it would return 0,
    or an error that does not name them."""
    if forward_ad._current_level >= 0 and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        raise NotImplementedError("attention: expected reverse-mode derivatives, got a call of torch.func.jvp or forward_ad")
    if torch._C._are_functorch_transforms_active():
        for each in torch._C._functorch.get_interpreter_stack() or ():
            if each.key() in (TransformType.Grad, TransformType.Jvp):
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
    if others[2] is not None:
        raise NotImplementedError("key_padding_mask and lengths: expected none under vmap, got one")

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


class AttentionOptions(TypedDict, total=False):
    """The options of attention(), which documents them."""

    position: Position
    causal: bool
    near: int
    normalization: Normalization
    engine: str
    key_padding_mask: Optional[Tensor]
    lengths: Optional[Integers]
    extra: Optional[Tensor]
    layout: str
    offset: int
    tolerance: float
    sinks: int


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
    position: Position = "table",
    causal: bool = False,
    near: int = 0,
    normalization: Normalization = Normalization.unit(),
    engine: str = "automatic",
    key_padding_mask: Optional[Tensor] = None,
    lengths: Optional[Integers] = None,
    extra: Optional[Tensor] = None,
    layout: str = "heads_first",
    offset: int = 0,
    tolerance: float = 0.0,
    sinks: int = 0,
    report: bool = False,
) -> Union[Tensor, tuple[Tensor, Report]]:
    """Kernelized attention with a relative position bias, with gradients of q, k, v, bias and extra.

    q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v]; with
    layout="tokens_first" [batch, tokens, heads, d]. Any strides; tensors whose d numbers of a token are not contiguous
    are copied. float32 and float64; float16 and bfloat16 are computed in float32, and y has q's type. On a GPU float32,
    float16 and bfloat16 (see the README).

    bias: the parameters of `position`, each with or without a leading axis of heads: "table" [2R+1], "t5" or
    ("t5", max_distance) [buckets], "alibi" [], ("grid", H, W) [2H-1, 2W-1] with extra [E, E+2] for E extra tokens.
    key_padding_mask: as in nn.MultiheadAttention [batch, n_k], bool, where True is padding, or of numbers, 0, or -inf or
    at most -1000 for padding. lengths: integers [batch], later keys are padding; they are checked if they are on the CPU,
    and clamped to 0 to n_k on a GPU. tolerance: of rounding errors, 0 on a GPU. With report=True
    (y, nprf.Report), on the CPU. Others as in nprf.Attention.

    Under torch.compile a call is one operator of the graph, whose options are constants: another tolerance, or new lengths
    unless they are a tensor, compile it anew. It has no report: report=True breaks the graph.

    ValueError for shapes and options that do not fit, TypeError for other types. Derivatives are those of torch.autograd:
    NotImplementedError for torch.func.grad, jvp and the like, for forward_ad, and from PyTorch 2.7 on for torch.export. Second derivatives are not supported.
    """
    if not isinstance(features, Features):
        features = features_of(features)
    if layout not in ("heads_first", "tokens_first"):
        raise ValueError(f"layout: expected heads_first or tokens_first, got {layout!r}")
    named = position_name(position)
    if bias is None and named != "table":
        raise ValueError(f"bias: expected the parameters of position={position!r}, got None")
    if extra is not None and not named.startswith("grid"):
        raise ValueError(f"extra: expected None without a grid, got biases with position={position!r}")
    if not torch.compiler.is_compiling():
        _check_derivatives(q, k, v, bias, extra)
        near, sinks, offset = index_of(near, "near"), index_of(sinks, "sinks"), index_of(offset, "offset")
    elif getattr(torch.compiler, "is_exporting", bool)():
        raise NotImplementedError("attention: torch.export is not supported: a program that it stores has no feature map")
    _check_tensors(q, keys=k, values=v, bias=bias, extra=extra, key_padding_mask=key_padding_mask)
    if report and (torch.compiler.is_compiling() or q.is_cuda):
        raise ValueError("report: expected False in a graph of torch.compile and on a GPU, got True")
    if tolerance != 0 and q.is_cuda:
        raise ValueError(f"tolerance: expected 0 on a GPU, got {tolerance}")
    key_mask = _key_mask(key_padding_mask, lengths, k, layout == "tokens_first")
    dtype = q.dtype
    of_parameters = torch.float32 if dtype in _halves else dtype
    if dtype in _halves and not q.is_cuda:
        q = q.float()
    k, v = _of_type(k, "keys", q.dtype), _of_type(v, "values", q.dtype)
    bias = bias if bias is None else _of_type(bias, "bias", of_parameters)
    extra = extra if extra is None else _of_type(extra, "extra", of_parameters)
    save = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (extra is not None and extra.requires_grad)
    )
    # a layer's map is a tensor in a graph, so that layers share one; on a GPU a tensor on the CPU would rule out CUDA graphs
    of_graph = getattr(features, "_of_graph", None) if torch.compiler.is_compiling() and not q.is_cuda else None
    options = Options(
        "0" if of_graph is not None else features._identity, named, causal, near, normalization.radius, engine,
        layout == "tokens_first", offset, tolerance, sinks,
    )  # fmt: skip
    if report:
        _of_thread.report = None
    x, text = Arguments(q, k, v, bias, extra, key_mask), options.text()
    y: Tensor
    if _is_plain(*x):
        y = _untraced_attend()(x, options_of(text), save)
    else:
        y = attention_op(*x, of_graph, text, save)[0]
    y = y if y.dtype == dtype else y.to(dtype)
    if not report:
        return y
    if _of_thread.report is None:
        raise ValueError("report: expected False for tensors without numbers (meta and fake ones), got True")
    return y, _of_thread.report
