# SPDX-License-Identifier: MIT
"""Tensors on a GPU: the plans of nprf's CUDA headers, by the extension module nprf._cuda, if it was compiled
(NPRF_PYTHON_CUDA). A plan is for fixed sizes, and is kept for later calls of the same ones in the same stream."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from types import ModuleType
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from .._native import float32
from ._integers import check_range, for_kernels
from ._options import Options, attention_of, check_extra

_scalars = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_alignment = 256  # of a workspace
_most_plans = 64


def _module() -> ModuleType:
    try:
        return importlib.import_module("nprf._cuda")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "queries: expected a tensor on the CPU, got one on a GPU, for which nprf was not compiled: install it with "
            "-C cmake.define.NPRF_PYTHON_CUDA=ON, which needs CUDA's nvcc"
        ) from error


class _Entry(NamedTuple):
    """A plan, with the feature map whose address is a part of its key."""

    plan: Any
    features: Any


_plans: OrderedDict[Any, _Entry] = OrderedDict()


def _scalar_name(dtype: torch.dtype, name: str) -> str:
    scalar = _scalars.get(dtype)
    if scalar is None:
        raise TypeError(f"{name}: expected float32, float16 or bfloat16 on a GPU, got {dtype}")
    return scalar


def _stream(x: Tensor) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0


def _heads(x: Tensor, options: Options) -> int:
    return x.shape[-2 if options.tokens_first else -3] if x.dim() > 2 else 1


def _tokens(x: Tensor, options: Options) -> int:
    return x.shape[-3 if options.tokens_first and x.dim() > 2 else -2]


def _plan_of(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], extra: Optional[Tensor], options: Options, gradients: bool
) -> Any:
    scalar = _scalar_name(q.dtype, "queries")
    features = options.feature_map()._native(float32)
    batch = q.shape[0] if q.dim() == 4 else 1
    heads, tokens = (_heads(q, options), _heads(k, options)), (_tokens(q, options), _tokens(k, options))
    sizes = (batch, *heads, *tokens, v.shape[-1], options.offset)
    shapes = tuple(None if x is None else x.shape for x in (bias, extra))
    others = options._replace(features=str(id(features)))
    key = (others, scalar, sizes, shapes, gradients, q.device, _stream(q))
    entry = _plans.get(key)
    if entry is None:
        on_host = [None if x is None else x.detach().to("cpu", torch.float32) for x in (bias, extra)]
        model = attention_of(float32, on_host[0], on_host[1], options).cuda_model()
        plan = _module().Plan(model, scalar, sizes, options.engine, gradients, options.tokens_first, _stream(q))
        entry = _plans[key] = _Entry(plan, features)
        if len(_plans) > _most_plans:
            _plans.popitem(last=False)
    _plans.move_to_end(key)
    return entry.plan


def _readable(x: Tensor) -> Tensor:
    """x, or a copy unless its rows are contiguous and do not overlap."""
    rows = x.stride(-1) == 1 and all(s >= x.shape[-1] or n == 1 for s, n in zip(x.stride()[:-1], x.shape[:-1]))
    return x if rows else x.contiguous()


def _parameters(bias: Optional[Tensor], extra: Optional[Tensor], options: Options) -> Optional[Tensor]:
    """[position, parameter]: with extra tokens the rows of the table, then their biases."""
    if bias is None:
        return None
    rows = bias.reshape(bias.shape[0] if bias.dim() > options.bias_dims() else 1, -1)
    if extra is not None:
        check_extra(extra, rows.shape[0])
        heads = max(rows.shape[0], extra.shape[0] if extra.dim() > 2 else 1)
        borders = extra.expand(heads, *extra.shape[-2:]).reshape(heads, -1)
        rows = torch.cat([rows.expand(heads, -1), borders], dim=1)
    return rows.to(torch.float32).contiguous()


def _workspace(plan: Any, q: Tensor) -> Tensor:
    memory = torch.empty(plan.workspace_bytes + _alignment, dtype=torch.uint8, device=q.device)
    return memory[-memory.data_ptr() % _alignment :]


def _check_heads(q: Tensor, k: Tensor, options: Options) -> None:
    """ValueError, as on the CPU, unless each head of keys is that of as many heads of queries."""
    heads, heads_k = _heads(q, options), _heads(k, options)
    if not (heads_k == 0 if heads == 0 else heads_k > 0 and heads % heads_k == 0):
        raise ValueError(f"keys: expected a number of heads that {heads} (of queries) is a multiple of, got {heads_k}")


def _mask_or_lengths(key_mask: Optional[Tensor]) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Which of the two the operators' key_mask is."""
    return (key_mask, None) if key_mask is None or key_mask.dtype == torch.bool else (None, key_mask)


def _capsules(*tensors: Optional[Tensor]) -> list[Any]:
    return [None if x is None else to_dlpack(x) for x in tensors]


def _call(plan: Any, q: Tensor, parameters: Optional[Tensor], key_mask: Optional[Tensor]) -> Any:
    """The arrays of a call on the GPU, with a new workspace. Lengths on the CPU are copied to it without waiting."""
    mask, lengths = _mask_or_lengths(key_mask)
    mask = None if mask is None else mask.contiguous()
    if lengths is not None:
        lengths = for_kernels(lengths, q.device)
    return _module().CallArrays(*_capsules(parameters, mask, lengths, _workspace(plan, q)), _stream(q))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    options: Options,
) -> Tensor:
    """y of attention for tensors on one GPU, queued in its current stream. Lengths may be on the CPU."""
    _, lengths = _mask_or_lengths(key_mask)
    _check_heads(q, k, options)
    with torch.cuda.device_of(q):
        if lengths is not None:
            check_range("lengths", lengths, _tokens(k, options), "the number of keys")
        y = q.new_empty((*q.shape[:-1], v.shape[-1]))
        if y.numel() > 0:
            plan = _plan_of(q, k, v, bias, extra, options, False)
            arrays = _capsules(*map(_readable, (q, k, v)), y)
            plan.forward(*arrays, _call(plan, q, _parameters(bias, extra, options), key_mask))
    return y


def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor],
    extra: Optional[Tensor],
    key_mask: Optional[Tensor],
    options: Options,
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """dq, dk, dv and dL/d[position, parameter] (_parameters), or None without parameters, of a call that forward has
    checked."""
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    parameters = _parameters(bias, extra, options)
    dparameters = None if parameters is None else torch.zeros_like(parameters)
    if dy.numel() > 0:
        with torch.cuda.device_of(q):
            plan = _plan_of(q, k, v, bias, extra, options, True)
            arrays = _capsules(*map(_readable, (q, k, v, dy)), dq, dk, dv, dparameters)
            plan.backward(*arrays, _call(plan, q, parameters, key_mask))
    return dq, dk, dv, dparameters
