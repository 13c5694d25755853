# SPDX-License-Identifier: MIT
"""What attention() refuses, because PyTorch would compute something else without an error."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.autograd import forward_ad


def check_tensors(q: Tensor, **others: Optional[Tensor]) -> None:
    """TypeError for other than tensors, NotImplementedError for DTensors, ValueError for those that are not on the
    queries' device, and for sparse ones."""
    for name, x in (("queries", q), *others.items()):
        if x is None and name not in ("queries", "keys", "values"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if type(x).__name__ in ("DTensor", "ShardedTensor"):
            raise NotImplementedError(
                f"{name}: expected a tensor, got a {type(x).__name__}: of shards of the batch or of heads call it in "
                "torch.distributed.tensor.experimental.local_map, others are to be gathered (full_tensor)"
            )
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


_sdpa = torch._C._nn.scaled_dot_product_attention


def check_context_parallel() -> None:
    """NotImplementedError where PyTorch has cut tensors into parts of the sequences, and has replaced softmax attention
    by one that knows of the other parts: this attention would take a part for the whole."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if sdpa is not _sdpa and getattr(sdpa, "__module__", "").startswith("torch.distributed"):
        raise NotImplementedError(
            "attention: expected whole sequences, got a call in torch.distributed.tensor.experimental.context_parallel, "
            "which gives each process a part of them"
        )


def check_derivatives(*tensors: Optional[Tensor]) -> None:
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
