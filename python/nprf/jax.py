# SPDX-License-Identifier: MIT
"""nprf for JAX, on the CPU: `attention`, with gradients and under jit.

It needs the extension module nprf._jax (-C cmake.define.NPRF_PYTHON_JAX=ON). What XLA calls has the arrays, the offset,
and the address of an object with everything else, which lives as long as the process, as a compiled program may. It
also has a number of the process, so that a program that was stored, and is run by another one, is an error.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple, Optional, Union

import jax
import numpy as np
from jax import numpy as jnp

from ._attention import check_offset, unknown_option
from ._native import float32, float64
from ._normalization import Normalization, radius_of, unit
from ._value import bool_of, index_of, name_of
from .features import Features, FeaturesLike, features_of
from .positions import has_heads_last

__all__ = ["attention"]

_natives = {np.dtype("float32"): float32, np.dtype("float64"): float64}


@functools.cache
def _register() -> Any:
    try:
        module = importlib.import_module("nprf._jax")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "nprf was not compiled for JAX: install it with -C cmake.define.NPRF_PYTHON_JAX=ON --no-build-isolation, "
            "where jax, nanobind and scikit-build-core are installed"
        ) from error
    jax.ffi.register_ffi_target("nprf_attention", module.forward, platform="cpu")
    jax.ffi.register_ffi_target("nprf_attention_backward", module.backward, platform="cpu")
    return module


class _Options(NamedTuple):
    features: Features
    position: Union[None, str, tuple[str, int]]
    causal: bool
    near: int
    radius: float
    engine: str


class _Call(NamedTuple):
    options: _Options
    offset: int


@functools.cache
def _attention_of(options: _Options, scalar: np.dtype[Any], parameters: int) -> Any:
    """What a compiled program has the address of."""
    native = _natives[scalar]
    kind, distance = options.position if isinstance(options.position, tuple) else (options.position, 128)
    zeros = np.zeros((1, parameters), scalar)
    if parameters == 0:
        positions = native.Positions.none()
    elif kind in ("table", "smooth_table"):
        positions = native.Positions.relative(zeros, kind == "smooth_table")
    elif kind == "t5":
        positions = native.Positions.t5(zeros, options.causal, distance)
    elif kind == "alibi":
        positions = native.Positions.alibi(zeros)
    else:
        raise ValueError(
            "position: expected 'table', 'smooth_table', 't5', ('t5', max_distance) or 'alibi', got "
            f"{options.position!r}"
        )
    features = options.features._native(native)
    return native.PlainAttention(features, positions, options.causal, options.radius, options.engine, options.near)


def _run(target: str, outputs: Any, call: _Call, *arrays: Any) -> Any:
    process = _register().process
    made = _attention_of(call.options, np.dtype(arrays[0].dtype), arrays[3].shape[1])
    run = jax.ffi.ffi_call(target, outputs, vmap_method="sequential")
    constants = {"process": process, "attention": made.address, "offset": call.offset}
    return run(*arrays, **{name: np.int64(x) for name, x in constants.items()})


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(q: Any, k: Any, v: Any, bias: Any, mask: Any, call: _Call) -> Any:
    y = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)
    return _run("nprf_attention", y, call, q, k, v, bias, mask)


def _forward(q: Any, k: Any, v: Any, bias: Any, mask: Any, call: _Call) -> Any:
    return _attention(q, k, v, bias, mask, call), (q, k, v, bias, mask)


def _backward(call: _Call, saved: Any, dy: Any) -> Any:
    outputs = tuple(map(_like, saved[:4]))
    return *_run("nprf_attention_backward", outputs, call, *saved, dy), None


_attention.defvjp(_forward, _backward)


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    *,
    features: FeaturesLike,
    position: Union[None, str, tuple[str, int]] = None,
    causal: bool = False,
    near: int = 0,
    normalization: Normalization = unit,
    engine: str = "automatic",
    bias_layout: Optional[str] = None,
    key_mask: Optional[Any] = None,
    offset: Optional[int] = None,
    **unknown: Any,
) -> jax.Array:
    """Kernelized attention with a relative position bias, with gradients of q, k, v and bias; see nprf.torch.attention.

    q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v], or
    without batch. float32, or float64 if JAX has it enabled; halves are computed in float32. bias, with its `position`:
    the parameters of it, each with or without an axis of heads: "table" or "smooth_table" [2R+1], "t5" or
    ("t5", max_distance) [buckets], "alibi" []; both None: no biases. bias_layout: "heads_first" or "heads_last"; None:
    heads first, ValueError if they may be last. key_mask: bool [batch, n_k], False is padding. offset: query i has
    position i + offset, an integer that is a constant of the program; a causal call needs it unless queries are as many
    as keys.

    ValueError for shapes and options that do not fit, also if only the call finds them. Backward computes forward
    again.
    """
    for name in unknown:
        raise unknown_option(name, "attention", "key_mask")
    causal = bool_of(causal, "causal")
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (3, 4):
        raise ValueError(f"queries, keys and values: expected 3 or 4 dimensions, got {q.ndim}, {k.ndim} and {v.ndim}")
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(
            f"queries, keys and values: expected [batch, heads, tokens, channels], got {q.shape}, {k.shape}, {v.shape}"
        )
    check_offset(causal, offset, q.shape[-2], k.shape[-2], False)
    halves = (jnp.float16, jnp.bfloat16)
    if q.dtype not in (*halves, jnp.float32, jnp.float64):
        raise TypeError(f"queries: expected float32, float64 or halves, got {q.dtype}")
    scalar = jnp.promote_types(q.dtype, jnp.float32)
    for name, x in (("keys", k), ("values", v)):
        if x.dtype not in (scalar, *halves):
            raise TypeError(f"{name}: expected {scalar}, in which the queries are computed, or halves, got {x.dtype}")
    dtype, without_batch = q.dtype, q.ndim == 3
    q, k, v = (jnp.asarray(x[None] if without_batch else x, scalar) for x in (q, k, v))
    rows = jnp.zeros((1, 0), scalar)
    if bias is None and position is not None:
        raise ValueError(f"bias: expected the parameters of position={position!r}, got None")
    if bias is not None:
        if position is None:
            raise ValueError(
                "position: expected 'table', 'smooth_table', 't5', ('t5', max_distance) or 'alibi' beside a bias, got "
                "None"
            )
        dims = 0 if position == "alibi" else 1
        if not jnp.issubdtype(jnp.asarray(bias).dtype, jnp.floating):
            raise TypeError(f"bias: expected floating-point numbers, got {jnp.asarray(bias).dtype}")
        bias = jnp.asarray(bias, scalar)
        if bias.ndim not in (dims, dims + 1):
            raise ValueError(f"bias: expected {dims} dimensions, or {dims + 1} with heads, got {bias.ndim}")
        if bias.size == 0:
            raise ValueError(f"bias: expected at least one number, got the shape {bias.shape}")
        if has_heads_last(bias.shape, dims, bias_layout, q.shape[1]):
            bias = jnp.moveaxis(bias, -1, 0)
        rows = bias.reshape(bias.shape[0] if bias.ndim > dims else 1, -1)
    mask = jnp.zeros((0, 0), bool)
    if key_mask is not None:
        if jnp.asarray(key_mask).dtype != bool:
            raise TypeError(f"key_mask: expected bool, got {jnp.asarray(key_mask).dtype}")
        mask = jnp.atleast_2d(jnp.asarray(key_mask, bool))
        if mask.shape != (k.shape[0], k.shape[2]):
            raise ValueError(f"key_mask: expected {k.shape[0]} x {k.shape[2]}, got {mask.shape}")
    near = index_of(near, "near")
    radius, engine = radius_of(normalization), name_of(engine, "engine")
    call = _Call(
        _Options(features_of(features), position, causal, near, radius, engine),
        0 if offset is None else index_of(offset, "offset"),
    )
    y: jax.Array = _attention(q, k, v, rows, mask, call).astype(dtype)
    return y[0] if without_batch else y
