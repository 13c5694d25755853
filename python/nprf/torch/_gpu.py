# SPDX-License-Identifier: MIT
"""Tensors on a GPU: the plans of nprf's CUDA headers, by the extension module nprf._cuda, if it was compiled
(NPRF_PYTHON_CUDA). A plan is for fixed sizes, and is kept for later calls of the same ones in the same stream."""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from types import ModuleType
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from .._attention import memory_owners
from .._native import float32
from ..features import Features
from ._integers import check_range, for_kernels
from ._options import Arguments, Options, attention_of, check_extra, heads_of, tokens_of
from ._packing import padded_arguments

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
_plans_lock = threading.Lock()


def _free_plans() -> None:
    with _plans_lock:
        _plans.clear()


memory_owners.append(_free_plans)


def dtype_of(dtype: Any) -> torch.dtype:
    """A type of PyTorch, or that of this name. TypeError for others than those of plans."""
    for each, name in _scalars.items():
        if dtype in (each, name):
            return each
    raise TypeError(f"dtype: expected float32, float16 or bfloat16 on a GPU, got {dtype}")


def _scalar_name(dtype: torch.dtype, name: str) -> str:
    scalar = _scalars.get(dtype)
    if scalar is None:
        raise TypeError(f"{name}: expected float32, float16 or bfloat16 on a GPU, got {dtype}")
    return scalar


def _stream(x: Tensor) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0


def _plan_of(x: Arguments, features: Features, options: Options, gradients: bool) -> Any:
    q, k, v, bias, extra = x[:5]
    scalar = _scalar_name(q.dtype, "queries")
    of_plan = features._native(float32)
    batch = q.shape[0] if q.dim() == 4 else 1
    heads, tokens = (heads_of(q, options), heads_of(k, options)), (tokens_of(q, options), tokens_of(k, options))
    sizes = (batch, *heads, *tokens, v.shape[-1], options.offset)
    shapes = tuple(None if each is None else each.shape for each in (bias, extra))
    key = (id(of_plan), options, scalar, sizes, shapes, gradients, q.device, _stream(q))
    with _plans_lock:
        entry = _plans.get(key)
        if entry is not None:
            _plans.move_to_end(key)
    if entry is None:
        on_host = [None if each is None else each.detach().to("cpu", torch.float32) for each in (bias, extra)]
        model = attention_of(float32, features, on_host[0], on_host[1], options).cuda_model()
        plan = _module().Plan(model, scalar, sizes, options.engine, gradients, options.tokens_first, _stream(q))
        entry = _Entry(plan, of_plan)
        with _plans_lock:
            _plans[key] = entry
            if len(_plans) > _most_plans:
                _plans.popitem(last=False)
    return entry.plan


def _readable(x: Tensor) -> Tensor:
    """x, or a copy unless its rows are contiguous and do not overlap."""
    rows = x.stride(-1) == 1 and all(s >= x.shape[-1] or n == 1 for s, n in zip(x.stride()[:-1], x.shape[:-1]))
    return x if rows else x.contiguous()


def _parameters(x: Arguments, options: Options) -> Optional[Tensor]:
    """[position, parameter]: with extra tokens the rows of the table, then their biases."""
    bias, extra = x.bias, x.extra
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
    heads, heads_k = heads_of(q, options), heads_of(k, options)
    if not (heads_k == 0 if heads == 0 else heads_k > 0 and heads % heads_k == 0):
        raise ValueError(f"keys: expected a number of heads that {heads} (of queries) is a multiple of, got {heads_k}")


def _mask_or_lengths(key_mask: Optional[Tensor]) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Which of the two the operators' key_mask is."""
    return (key_mask, None) if key_mask is None or key_mask.dtype == torch.bool else (None, key_mask)


def _capsules(*tensors: Optional[Tensor]) -> list[Any]:
    return [None if x is None else to_dlpack(x) for x in tensors]


def _call(plan: Any, x: Arguments, parameters: Optional[Tensor]) -> Any:
    """The arrays of a call on the GPU, with a new workspace. Lengths on the CPU are copied to it without waiting."""
    mask, lengths = _mask_or_lengths(x.key_mask)
    mask = None if mask is None else mask.contiguous()
    if lengths is not None:
        lengths = for_kernels(lengths, x.q.device)
    return _module().CallArrays(*_capsules(parameters, mask, lengths, _workspace(plan, x.q)), _stream(x.q))


def _forward_into(y: Tensor, x: Arguments, features: Features, options: Options) -> Tensor:
    """y, with the rows of sequences that are not packed."""
    _, lengths = _mask_or_lengths(x.key_mask)
    if lengths is not None:
        check_range("lengths", lengths, tokens_of(x.k, options), "the number of keys")
    if y.numel() > 0:
        plan = _plan_of(x, features, options, False)
        plan.forward(*_capsules(*map(_readable, x[:3]), y), _call(plan, x, _parameters(x, options)))
    return y


def _backward_into(
    gradients: list[Tensor], dy: Tensor, x: Arguments, features: Features, options: Options
) -> Optional[Tensor]:
    """Writes dq, dk and dv of sequences that are not packed, and returns dL/d[position, parameter]."""
    parameters = _parameters(x, options)
    dparameters = None if parameters is None else torch.zeros_like(parameters)
    if dy.numel() > 0:
        plan = _plan_of(x, features, options, True)
        arrays = _capsules(*map(_readable, (*x[:3], dy)), *gradients, dparameters)
        plan.backward(*arrays, _call(plan, x, parameters))
    else:
        for each in gradients:
            each.zero_()
    return dparameters


def forward(x: Arguments, features: Features, options: Options) -> Tensor:
    """y of attention for tensors on one GPU, queued in its current stream. Lengths may be on the CPU."""
    _check_heads(x.q, x.k, options)
    with torch.cuda.device_of(x.q):
        shape = x.q.shape[:-1] + x.v.shape[-1:]
        if x.packing is None:
            return _forward_into(x.q.new_empty(shape), x, features, options)
        padded, queries, _ = padded_arguments(x, options)
        y = _forward_into(queries.empty_for(padded.q, x.v.shape[-1]), padded, features, options)
        return queries.packed(y, shape)


def backward(
    dy: Tensor, x: Arguments, features: Features, options: Options
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """dq, dk, dv and dL/d[position, parameter] (_parameters), or None without parameters, of a call that forward has
    checked."""
    with torch.cuda.device_of(x.q):
        if x.packing is None:
            dq, dk, dv = (torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in x[:3])
            return dq, dk, dv, _backward_into([dq, dk, dv], dy, x, features, options)
        padded, queries, keys = padded_arguments(x, options)
        rows = (queries, keys, keys)
        gradients = [of.empty_for(each, each.shape[-1]) for of, each in zip(rows, padded[:3])]
        dparameters = _backward_into(gradients, queries.padded(dy), padded, features, options)
        dq, dk, dv = (of.packed(each, like.shape) for of, each, like in zip(rows, gradients, x[:3]))
        return dq, dk, dv, dparameters
