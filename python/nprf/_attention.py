# SPDX-License-Identifier: MIT
"""Attention over NumPy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Union, overload

import numpy as np
from numpy.typing import NDArray

from ._native import Native, as_array, check_types, core, float32, float64, native_of
from ._normalization import Normalization, radius_of, unit
from ._value import Value, bool_of, index_of, name_of, seed_of
from .features import CalibratedFeatures, Features, FeaturesLike, HeadFeatures, features_of
from .positions import Position, position_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._core import Call, GradientReport, Report

Array = NDArray[Any]  # of float32 or float64


_layouts = {"heads_first": False, "tokens_first": True}


class Gradients(NamedTuple):
    """dL/dq, dL/dk, dL/dv, and dL/d(parameters of the position), or None without parameters; `extra` is that of a
    grid's extra tokens."""

    queries: Array
    keys: Array
    values: Array
    bias: Array | None
    extra: Array | None
    report: GradientReport


class Saved:
    """What `Attention.forward` saves for `Attention.backward`."""

    def __init__(
        self, native: Any, call: Call, shapes: tuple[tuple[int, ...], ...], dtype: np.dtype[Any], owner: Attention
    ) -> None:
        self._native, self._call, self._shapes, self._dtype, self._owner = native, call, shapes, dtype, owner


def unknown_option(name: str, of: str, mask: str) -> TypeError:
    """The error for an option that `of` does not have; of the masks of padding it has the one of this name."""
    meaning = {"key_mask": "True keeps a key", "key_padding_mask": "True is padding"}
    if name not in meaning:
        return TypeError(f"{of}: got an unknown option {name!r}")
    return TypeError(f"{name}: expected {mask}=~{name}, whose {meaning[mask]}, got {name}, whose {meaning[name]}")


def _tokens_of(x: Array, options: CallOptions) -> int:
    return x.shape[-3 if options.get("layout") == "tokens_first" and x.ndim > 2 else -2] if x.ndim > 1 else 0


def _heads_of(x: Array, options: CallOptions) -> int:
    return x.shape[-2 if options.get("layout") == "tokens_first" else -3] if x.ndim > 2 else 1


def _check_offset(q: Array, k: Array, options: CallOptions) -> None:
    """check_offset() of a causal call."""
    packed_keys = options.get("key_cumulative_lengths") is not None
    check_offset(True, options.get("offset"), _tokens_of(q, options), _tokens_of(k, options), packed_keys)


def check_offset(causal: bool, offset: Any, n_q: int, n_k: int, of_packed_keys: bool) -> None:
    """ValueError for a causal call that does not say which query sees which keys first."""
    if not causal or offset is not None:
        return
    if of_packed_keys:
        raise ValueError(
            "offset: expected one for a causal call with key_cumulative_lengths, got none: 0 aligns the first query of "
            "each sequence with its first key, as PyTorch's is_causal does, and n_k - n_q the last query with the last "
            "key, as FlashAttention and ONNX do"
        )
    if n_q != n_k and n_q > 0 and n_k > 0:
        raise ValueError(
            f"offset: expected one for a causal call of {n_q} queries and {n_k} keys, got none: 0 aligns the first query "
            f"with the first key, as PyTorch's is_causal does, and {n_k - n_q} the last query with the last key, as "
            "FlashAttention and ONNX do"
        )


class CallOptions(TypedDict, total=False):
    """The options of a call; see Attention."""

    key_mask: Any
    lengths: Sequence[int] | None
    cumulative_lengths: Sequence[int] | None
    key_cumulative_lengths: Sequence[int] | None
    offset: int | None
    tolerance: float
    softmax_samples: int
    softmax_seed: int
    check_finite: bool
    layout: str
    threads: int


def _threads_of(threads: int) -> int:
    """ValueError unless it is 0 (as many as set_num_threads has set) to 4096."""
    found = index_of(threads, "threads")
    if not 0 <= found <= 4096:
        raise ValueError(f"threads: expected 0 to 4096, got {found}")
    return found


def _call_of(
    key_mask: Any = None,
    lengths: Sequence[int] | None = None,
    cumulative_lengths: Sequence[int] | None = None,
    key_cumulative_lengths: Sequence[int] | None = None,
    offset: int | None = None,
    tolerance: float = 0.0,
    softmax_samples: int = 0,
    softmax_seed: int = 0,
    check_finite: bool = False,
    layout: str = "heads_first",
    threads: int = 0,
) -> Call:
    if layout not in _layouts:
        raise ValueError(f"layout: expected heads_first or tokens_first, got {layout!r}")
    if key_mask is not None:
        key_mask = as_array(key_mask, "key_mask")
        if key_mask.dtype != np.bool_:
            raise TypeError(f"key_mask: expected bool, got {key_mask.dtype}")
        key_mask = np.ascontiguousarray(key_mask)

    def indices(x: Any, name: str) -> list[int]:
        return [] if x is None else [index_of(each, name) for each in x]

    for name, x in (("cumulative_lengths", cumulative_lengths), ("key_cumulative_lengths", key_cumulative_lengths)):
        if x is not None and len(x) == 0:
            raise ValueError(f"{name}: expected at least one number, got none")

    return core.Call(
        key_mask,
        None if lengths is None else indices(lengths, "lengths"),
        indices(cumulative_lengths, "cumulative_lengths"),
        indices(key_cumulative_lengths, "key_cumulative_lengths"),
        0 if offset is None else index_of(offset, "offset"),
        float(tolerance),
        index_of(softmax_samples, "softmax_samples"),
        seed_of(softmax_seed, "softmax_seed"),
        bool_of(check_finite, "check_finite"),
        _layouts[layout],
        _threads_of(threads),
    )


_default_call = _call_of()


def call_of(options: CallOptions, report: bool) -> Call:
    """TypeError for unknown options and wrong types, ValueError for samples of a report that is not returned."""
    report = bool_of(report, "report")
    if not options:
        return _default_call
    for name in options:
        if name not in CallOptions.__annotations__:
            raise unknown_option(name, "options", "key_mask")
    call = _call_of(**options)
    samples = options.get("softmax_samples", 0)
    if samples != 0 and not report:
        raise ValueError(f"softmax_samples: expected 0 without report=True, got {samples}")
    return call


class Attention(Value):
    """Kernelized attention with a relative position bias for all heads of a batch:

        y_i = sum_j phi(q_i).phi(k_j) exp(b[j-i]) v_j / sum_j phi(q_i).phi(k_j) exp(b[j-i])

    features: a feature map, or one for each head. position: a Position; None is b = 0. causal: a query attends to the
    keys at or before it. near: pairs less than `near` tokens apart have the exact weights of softmax. sinks: the first
    `sinks` keys of a sequence have them, too, for every query, and so have up to `salient` others of each head, which its
    queries choose; not if causal. engine: how the sums are computed, "automatic",
    "direct", "banded", "recurrence", "smooth", "lanes", "grid" or "block_causal"; see the README.

    Arrays are [tokens, d], [heads, tokens, d] or [batch, heads, tokens, d]; with layout="tokens_first"
    [tokens, heads, d] or [batch, tokens, heads, d]; float32 or float64, of NumPy or with DLPack. They are read in place
    if the d numbers of a token are contiguous. Keys and values may have fewer heads (grouped queries). A row that
    attends to no key is zero.

    Options of a call: key_mask, bool [batch, n_k] (or [n_k]), False is padding; lengths, one for each sequence, later
    keys are padding; cumulative_lengths, 0, n_1, n_1 + n_2, ... of sequences packed into one; offset, query i has
    position i + offset, which a causal call needs unless queries are as many as keys; tolerance, rounding errors above
    half of it are recomputed; softmax_samples, rows of each sequence of each head that are compared with exact softmax,
    for the report; check_finite; threads. See CallOptions in options.hpp.

    ValueError for shapes and options that do not fit, TypeError for other types. Calls release the GIL; Ctrl-C ends
    them.
    """

    _arguments = ("features", "position", "causal", "normalization", "near", "engine", "sinks", "salient")
    features: Features
    position: Position | None
    causal: bool
    normalization: Normalization
    near: int
    engine: str
    sinks: int
    salient: int
    _by_scalar: dict[str, Any]  # the extension's attention for float32 and for float64

    def __init__(
        self,
        features: FeaturesLike,
        position: Position | None = None,
        causal: bool = False,
        normalization: Normalization = unit,
        near: int = 0,
        engine: str = "automatic",
        sinks: int = 0,
        salient: int = 0,
    ) -> None:
        radius_of(normalization)
        position_of(position)
        self._set(
            features=features_of(features),
            position=position,
            causal=bool_of(causal, "causal"),
            normalization=normalization,
            near=index_of(near, "near"),
            engine=name_of(engine, "engine"),
            sinks=index_of(sinks, "sinks"),
            salient=index_of(salient, "salient"),
            _by_scalar={},
        )
        # errors of the options are found now
        self._native(float64 if position is not None and position.parameters.dtype == np.float64 else float32)

    def _native(self, native: Native) -> Any:
        made = self._by_scalar.get(native.name)
        if made is None:
            made = self._by_scalar[native.name] = native.Attention.make(
                self.features._native(native),
                position_of(self.position)._native(native, self.causal),
                self.causal,
                self.normalization.radius,
                self.engine,
                self.near,
                self.sinks,
                self.salient,
            )
        return made

    def _inputs(self, q: Any, k: Any, v: Any, options: CallOptions) -> tuple[Array, Array, Array, Native, Array]:
        q, k, v = as_array(q, "queries"), as_array(k, "keys"), as_array(v, "values")
        native = native_of(q.dtype, "queries")
        check_types(q.dtype, keys=k, values=v)
        if v.ndim == 0:
            raise ValueError("values: expected 2, 3 or 4 dimensions, got 0")
        if self.causal:
            _check_offset(q, k, options)
        if self.position is not None:
            self.position.check_heads(_heads_of(q, options))
        return q, k, v, native, np.empty(q.shape[:-1] + v.shape[-1:], q.dtype)

    @overload
    def __call__(
        self, q: Any, k: Any, v: Any, *, report: Literal[False] = False, **options: Unpack[CallOptions]
    ) -> Array: ...
    @overload
    def __call__(
        self, q: Any, k: Any, v: Any, *, report: Literal[True], **options: Unpack[CallOptions]
    ) -> tuple[Array, Report]: ...
    @overload
    def __call__(
        self, q: Any, k: Any, v: Any, *, report: bool, **options: Unpack[CallOptions]
    ) -> Union[Array, tuple[Array, Report]]: ...
    def __call__(
        self, q: Any, k: Any, v: Any, *, report: bool = False, **options: Unpack[CallOptions]
    ) -> Union[Array, tuple[Array, Report]]:
        """y, in q's shape with the channels of v; with report=True (y, Report)."""
        call = call_of(options, report)
        q, k, v, native, y = self._inputs(q, k, v, options)
        described = self._native(native)(q, k, v, y, call)
        return (y, described) if report else y

    @overload
    def forward(
        self, q: Any, k: Any, v: Any, *, report: Literal[False] = False, **options: Unpack[CallOptions]
    ) -> tuple[Array, Saved]: ...
    @overload
    def forward(
        self, q: Any, k: Any, v: Any, *, report: Literal[True], **options: Unpack[CallOptions]
    ) -> tuple[Array, Saved, Report]: ...
    def forward(
        self, q: Any, k: Any, v: Any, *, report: bool = False, **options: Unpack[CallOptions]
    ) -> Union[tuple[Array, Saved], tuple[Array, Saved, Report]]:
        """(y, Saved) with what backward needs; with report=True (y, Saved, Report)."""
        call = call_of(options, report)
        q, k, v, native, y = self._inputs(q, k, v, options)
        saved, described = self._native(native).forward(q, k, v, y, call)
        kept = Saved(saved, call, (q.shape, k.shape, v.shape, y.shape), q.dtype, self)
        return (y, kept, described) if report else (y, kept)

    def backward(self, saved: Saved, dy: Any) -> Gradients:
        """The Gradients for dy = dL/dy of the forward that returned `saved`. ValueError for another attention's."""
        if not isinstance(saved, Saved) or saved._owner is not self:
            raise ValueError("saved: expected one that forward of this attention returned, got another's")
        dy = as_array(dy, "dy")
        check_types(saved._dtype, dy=dy)
        q, k, v, _ = saved._shapes
        dq, dk, dv = np.empty(q, dy.dtype), np.empty(k, dy.dtype), np.empty(v, dy.dtype)
        bias, extra, report = saved._native.backward(dy, dq, dk, dv, saved._call)
        return Gradients(dq, dk, dv, self._gradient(bias, "bias"), self._gradient(extra, "extra"), report)

    def _gradient(self, by_head: Array, of: str) -> Array | None:
        position = position_of(self.position)
        like = position.parameters if of == "bias" else getattr(position, "extra", None)
        if like is None or like.size == 0:
            return None
        if by_head.shape[0] == 0:  # no heads
            return np.zeros(like.shape, by_head.dtype)
        dims = position._dims if of == "bias" else 2
        is_shared = like.ndim == dims or like.shape[0] == 1
        return by_head.sum(axis=0).reshape(like.shape) if is_shared else by_head.reshape(like.shape)

    def redraw(self, seed: int) -> Attention:
        """The same attention with random vectors from another seed."""
        others = (self.causal, self.normalization, self.near, self.engine, self.sinks, self.salient)
        return Attention(self.features.redraw(seed), self.position, *others)


_attentions: dict[Any, Attention] = {}
_attentions_lock = threading.Lock()
_most_attentions = 32


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    features: FeaturesLike,
    position: Position | None = ...,
    causal: bool = ...,
    normalization: Normalization = ...,
    near: int = ...,
    engine: str = ...,
    sinks: int = ...,
    salient: int = ...,
    report: Literal[False] = False,
    **options: Unpack[CallOptions],
) -> Array: ...
@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    features: FeaturesLike,
    position: Position | None = ...,
    causal: bool = ...,
    normalization: Normalization = ...,
    near: int = ...,
    engine: str = ...,
    sinks: int = ...,
    salient: int = ...,
    report: Literal[True],
    **options: Unpack[CallOptions],
) -> tuple[Array, Report]: ...
@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    features: FeaturesLike,
    position: Position | None = ...,
    causal: bool = ...,
    normalization: Normalization = ...,
    near: int = ...,
    engine: str = ...,
    sinks: int = ...,
    salient: int = ...,
    report: bool,
    **options: Unpack[CallOptions],
) -> Union[Array, tuple[Array, Report]]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    features: FeaturesLike,
    position: Position | None = None,
    causal: bool = False,
    normalization: Normalization = unit,
    near: int = 0,
    engine: str = "automatic",
    sinks: int = 0,
    salient: int = 0,
    report: bool = False,
    **options: Unpack[CallOptions],
) -> Union[Array, tuple[Array, Report]]:
    """Kernelized attention, y of Attention(features, position, ...)(q, k, v, **options), or with report=True
    (y, Report).

    q [.., n_q, d], k [.., n_k, d], v [.., n_k, d_v] -> y [.., n_q, d_v], where .. is nothing, heads, or batch and
    heads. Attention documents the arguments, the options and the errors. The last attentions are kept, so that calls
    with the same map and position build nothing."""
    features = features if isinstance(features, Features) else features_of(features)
    near, sinks, salient = index_of(near, "near"), index_of(sinks, "sinks"), index_of(salient, "salient")
    causal, engine = bool_of(causal, "causal"), name_of(engine, "engine")
    key = (id(features), id(position), causal, getattr(normalization, "radius", None), near, engine, sinks, salient)
    found = _attentions.get(key)
    # the map and the position of a key live as long as its attention, so that no other object has their ids
    if found is None or found.features is not features:
        found = Attention(features, position, causal, normalization, near, engine, sinks, salient)
        with _attentions_lock:
            while len(_attentions) >= _most_attentions:
                _attentions.pop(next(iter(_attentions)))
            _attentions[key] = found
    return found(q, k, v, report=report, **options)


# functions that free_memory() calls
memory_owners: list[Callable[[], None]] = []


def free_memory() -> None:
    """Frees the scratch memory of finished calls and the memory of what they saved for gradients, which are kept for
    the next ones, and the attentions and the plans of a GPU that are kept; CUDA graphs that have captured calls of
    nprf.torch.attention must not be replayed then."""
    with _attentions_lock:
        _attentions.clear()
    for free in memory_owners:
        free()
    float32.free_memory()
    float64.free_memory()


class Calibration(NamedTuple):
    """Feature maps for all heads (one CalibratedFeatures for a single head), their relative error |y - exact| / |exact|
    on the second half of the sample, or without values that of the attention weights, that of each head, and what was
    compared: (first, second, error), from first- and second-order features and their error on the first half."""

    features: Features
    softmax_error: float
    head_errors: list[float]
    candidates: list[tuple[int, int, float]]

    def save(self) -> str:
        """Text that load() and the load functions of Calibration and HeadsCalibration in C++ read back with the same
        bits. TypeError unless all maps are CalibratedFeatures, and ValueError unless they are of one dtype."""
        maps = self.features.maps if isinstance(self.features, HeadFeatures) else (self.features,)
        texts = []
        for each in maps:
            if not isinstance(each, CalibratedFeatures):
                raise TypeError(f"features: expected CalibratedFeatures, got {type(each).__name__}")
            texts.append(each.text)
        if len(self.head_errors) != len(maps):
            raise ValueError(f"head_errors: expected {len(maps)} (the number of maps), got {len(self.head_errors)}")
        return core.calibration_text(texts, self.softmax_error, self.head_errors, self.candidates)

    @classmethod
    def load(cls, text: str) -> Calibration:
        """The calibration that save() or C++ wrote as `text`. ValueError for another text."""
        return cls._of(*core.parts_of_calibration(text))

    @classmethod
    def _of(cls, texts: list[str], *others: Any) -> Calibration:
        maps = [CalibratedFeatures(text) for text in texts]
        return cls(maps[0] if len(maps) == 1 else HeadFeatures(maps), *others)


def calibrate(
    q: Any,
    k: Any,
    v: Any = None,
    position: Position | None = None,
    *,
    num_features: int = 0,
    near: int = 0,
    causal: bool = False,
    normalization: Normalization = unit,
    seed: int = 0,
    target_error: float = 0.0,
    shrinkage: float = 0.05,
    max_queries: int = 1024,
    sinks: int = 0,
) -> Calibration:
    """Feature maps of at most num_features features, from a sample of queries [.., n, d], keys and values of one
    or several sequences, with the near field, sinks, direction and normalization of the attention that will use them.
    With a target_error the fewest features whose estimated error is at most this, or those of least error if none reach
    it; num_features may then be 0, for as many as that needs.
    Without values, from the attention weights, whose error is the larger one as a rule. ValueError for shapes that do
    not fit, numbers that are not finite, or a sample that is too small."""
    q, k = as_array(q, "queries"), as_array(k, "keys")
    v = np.empty((*k.shape[:-1], 0), k.dtype) if v is None else as_array(v, "values")
    native = native_of(q.dtype, "queries")
    check_types(q.dtype, keys=k, values=v)
    causal = bool_of(causal, "causal")
    positions = position_of(position)._native(native, causal)
    if causal and q.ndim > 1 and k.ndim > 1 and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"keys: expected {q.shape[-2]} tokens in a causal sample, as the queries, got {k.shape[-2]}")
    return Calibration._of(*native.calibrate(
        q, k, v, positions, causal, radius_of(normalization), index_of(num_features, "num_features"),
        index_of(near, "near"), index_of(sinks, "sinks"), seed_of(seed), float(target_error), float(shrinkage),
        index_of(max_queries, "max_queries"),
    ))  # fmt: skip


def softmax_attention(
    q: Any,
    k: Any,
    v: Any,
    position: Position | None = None,
    *,
    causal: bool = False,
    normalization: Normalization = unit,
    key_mask: Any = None,
    lengths: Sequence[int] | None = None,
    cumulative_lengths: Sequence[int] | None = None,
    key_cumulative_lengths: Sequence[int] | None = None,
    offset: int | None = None,
    layout: str = "heads_first",
    threads: int = 0,
    **unknown: Any,
) -> Array:
    """Exact softmax attention with the same bias and normalization, by tiles: O(n_q n_k), the reference for errors.
    Arrays, key_mask, lengths, cumulative_lengths, offset, layout and errors as in Attention."""
    for name in unknown:
        raise unknown_option(name, "softmax_attention", "key_mask")
    q, k, v = as_array(q, "queries"), as_array(k, "keys"), as_array(v, "values")
    native = native_of(q.dtype, "queries")
    check_types(q.dtype, keys=k, values=v)
    call = _call_of(
        key_mask, lengths, cumulative_lengths, key_cumulative_lengths, offset, layout=layout, threads=threads
    )
    if v.ndim == 0:
        raise ValueError("values: expected 2, 3 or 4 dimensions, got 0")
    causal = bool_of(causal, "causal")
    if causal:
        _check_offset(q, k, {"key_cumulative_lengths": key_cumulative_lengths, "offset": offset, "layout": layout})
    y = np.empty(q.shape[:-1] + v.shape[-1:], q.dtype)
    positions = position_of(position)._native(native, causal)
    native.softmax_attention(q, k, v, y, positions, causal, radius_of(normalization), call)
    return y


def kernelized_attention(
    attention: Attention,
    q: Any,
    k: Any,
    v: Any,
    offset: int | None = None,
    *,
    key_mask: Any = None,
    lengths: Sequence[int] | None = None,
    cumulative_lengths: Sequence[int] | None = None,
    key_cumulative_lengths: Sequence[int] | None = None,
    layout: str = "heads_first",
    threads: int = 0,
    **unknown: Any,
) -> Array:
    """The formula of `attention` as two plain loops in long double: O(n_q n_k (r + d_v)), for tests. Arrays, offset,
    key_mask, lengths, cumulative_lengths, layout and errors as in Attention."""
    for name in unknown:
        raise unknown_option(name, "kernelized_attention", "key_mask")
    of_inputs: CallOptions = {"key_cumulative_lengths": key_cumulative_lengths, "offset": offset, "layout": layout}
    q, k, v, native, y = attention._inputs(q, k, v, of_inputs)
    call = _call_of(
        key_mask, lengths, cumulative_lengths, key_cumulative_lengths, offset, layout=layout, threads=threads
    )
    attention._native(native).kernelized_attention(q, k, v, y, call)
    return y


def cpu_level() -> str:
    """The x86-64 level of the compiled code that runs, "v2", "v3" or "v4"; "generic" on other processors."""
    return core.__name__.rsplit("_", 1)[1]


def num_threads() -> int:
    """The number of threads that a call may use."""
    return core.num_threads()


def set_num_threads(threads: int) -> None:
    """Sets the number of threads of calls from this Python thread. With OpenMP this is also the number for other
    libraries that share its runtime, such as PyTorch. Calls of a forked process use one thread, whatever is set.
    Results do not depend on it. ValueError unless it is 1 to 4096."""
    core.set_num_threads(index_of(threads, "threads"))
