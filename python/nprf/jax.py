# SPDX-License-Identifier: MIT
"""nprf for JAX, on the CPU: `attention`, with gradients and under jit.

It needs the extension module nprf._jax (-C cmake.define.NPRF_PYTHON_JAX=ON). What XLA calls has the arrays, and the
address of an object with everything else, which lives as long as the process, as a compiled program may.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple, Optional, Union

import jax
import numpy as np
from jax import numpy as jnp

from ._native import float32, float64
from ._normalization import Normalization, radius_of, unit
from ._value import index_of, name_of
from .features import Features, FeaturesLike, features_of

__all__ = ["attention"]

_natives = {np.dtype("float32"): float32, np.dtype("float64"): float64}


@functools.cache
def _register() -> None:
    try:
        module = importlib.import_module("nprf._jax")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "nprf was not compiled for JAX: install it with -C cmake.define.NPRF_PYTHON_JAX=ON --no-build-isolation, "
            "where jax, nanobind and scikit-build-core are installed"
        ) from error
    jax.ffi.register_ffi_target("nprf_attention", module.forward, platform="cpu")
    jax.ffi.register_ffi_target("nprf_attention_backward", module.backward, platform="cpu")


class _Options(NamedTuple):
    features: Features
    position: Union[None, str, tuple[str, int]]
    causal: bool
    near: int
    radius: float
    engine: str


@functools.cache
def _attention_of(options: _Options, scalar: np.dtype[Any], parameters: int) -> Any:
    """What a compiled program has the address of."""
    native = _natives[scalar]
    kind, distance = options.position if isinstance(options.position, tuple) else (options.position, 128)
    zeros = np.zeros((1, parameters), scalar)
    if parameters == 0:
        positions = native.Positions.none()
    elif kind == "table":
        positions = native.Positions.relative(zeros)
    elif kind == "t5":
        positions = native.Positions.t5(zeros, options.causal, distance)
    elif kind == "alibi":
        positions = native.Positions.alibi(zeros)
    else:
        raise ValueError(f"position: expected 'table', 't5', ('t5', max_distance) or 'alibi', got {options.position!r}")
    features = options.features._native(native)
    return native.PlainAttention(features, positions, options.causal, options.radius, options.engine, options.near)


def _call(target: str, outputs: Any, options: _Options, *arrays: Any) -> Any:
    _register()
    made = _attention_of(options, np.dtype(arrays[0].dtype), arrays[3].shape[1])
    call = jax.ffi.ffi_call(target, outputs, vmap_method="sequential")
    return call(*arrays, attention=np.int64(made.address))


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(q: Any, k: Any, v: Any, bias: Any, mask: Any, options: _Options) -> Any:
    y = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)
    return _call("nprf_attention", y, options, q, k, v, bias, mask)


def _forward(q: Any, k: Any, v: Any, bias: Any, mask: Any, options: _Options) -> Any:
    return _attention(q, k, v, bias, mask, options), (q, k, v, bias, mask)


def _backward(options: _Options, saved: Any, dy: Any) -> Any:
    outputs = tuple(map(_like, saved[:4]))
    return *_call("nprf_attention_backward", outputs, options, *saved, dy), None


_attention.defvjp(_forward, _backward)


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    *,
    features: FeaturesLike,
    position: Union[None, str, tuple[str, int]] = "table",
    causal: bool = False,
    near: int = 0,
    normalization: Normalization = unit,
    engine: str = "automatic",
    key_mask: Optional[Any] = None,
) -> jax.Array:
    """Kernelized attention with a relative position bias, with gradients of q, k, v and bias; see nprf.torch.attention.

    q [batch, heads, n_q, d], k [batch, heads_k, n_k, d], v [batch, heads_k, n_k, d_v] -> y [batch, heads, n_q, d_v], or
    without batch. float32, or float64 if JAX has it enabled; halves are computed in float32. bias: the parameters of
    `position`, each with or without a leading axis of heads: "table" [2R+1], "t5" or ("t5", max_distance) [buckets],
    "alibi" []; position=None: no biases. key_mask: bool [batch, n_k], False is padding.

    ValueError for shapes and options that do not fit, also if only the call finds them. Backward computes forward
    again.
    """
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (3, 4):
        raise ValueError(f"queries, keys and values: expected 3 or 4 dimensions, got {q.ndim}, {k.ndim} and {v.ndim}")
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(
            f"queries, keys and values: expected [batch, heads, tokens, channels], got {q.shape}, {k.shape}, {v.shape}"
        )
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
    if bias is None and position not in (None, "table"):
        raise ValueError(f"bias: expected the parameters of position={position!r}, got None")
    if bias is not None:
        if position is None:
            raise ValueError("bias: expected None without a position, got parameters")
        dims = 0 if position == "alibi" else 1
        if not jnp.issubdtype(jnp.asarray(bias).dtype, jnp.floating):
            raise TypeError(f"bias: expected floating-point numbers, got {jnp.asarray(bias).dtype}")
        bias = jnp.asarray(bias, scalar)
        if bias.ndim not in (dims, dims + 1):
            raise ValueError(f"bias: expected {dims} dimensions, or {dims + 1} with heads, got {bias.ndim}")
        if bias.size == 0:
            raise ValueError(f"bias: expected at least one number, got the shape {bias.shape}")
        rows = bias.reshape(bias.shape[0] if bias.ndim > dims else 1, -1)
    mask = jnp.zeros((0, 0), bool)
    if key_mask is not None:
        if jnp.asarray(key_mask).dtype != bool:
            raise TypeError(f"key_mask: expected bool, got {jnp.asarray(key_mask).dtype}")
        mask = jnp.asarray(key_mask, bool).reshape(-1, jnp.shape(key_mask)[-1])
        if mask.shape != (k.shape[0], k.shape[2]):
            raise ValueError(f"key_mask: expected {k.shape[0]} x {k.shape[2]}, got {mask.shape}")
    near = index_of(near, "near")
    radius, engine = radius_of(normalization), name_of(engine, "engine")
    options = _Options(features_of(features), position, bool(causal), near, radius, engine)
    y: jax.Array = _attention(q, k, v, rows, mask, options).astype(dtype)
    return y[0] if without_batch else y
