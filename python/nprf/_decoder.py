# SPDX-License-Identifier: MIT
"""Attention of sequences that grow token by token."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, overload

import numpy as np
from numpy.typing import NDArray

from ._attention import Array, Attention, CallOptions, call_of
from ._native import as_array, check_types, native_of
from ._normalization import Normalization, unit
from ._value import index_of
from .features import FeaturesLike
from .positions import Position

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._core import Report


def left_padding(key_mask: Any, batch: int, n: int) -> NDArray[np.int64]:
    """How many of the n tokens of each sequence are padding, from a mask [batch, n], or [n] of one sequence, False for
    padding. ValueError for padding after tokens."""
    mask = np.asarray(as_array(key_mask, "key_mask"))
    if mask.dtype != np.bool_:
        raise TypeError(f"key_mask: expected bool, got {mask.dtype}")
    if mask.shape != (batch, n) and (batch > 1 or mask.shape != (n,)):
        raise ValueError(f"key_mask: expected {batch} x {n} (sequences, keys), got the shape {[*mask.shape]}")
    mask = mask.reshape(batch, n)
    falls = mask[:, :-1] & ~mask[:, 1:]
    if falls.any():
        sequence, token = (int(each) for each in np.argwhere(falls)[0])
        raise ValueError(
            f"key_mask: expected padding (False) before the tokens of a sequence alone, got some after token {token} "
            f"of sequence {sequence}; padding at the end is given by lengths"
        )
    padding: NDArray[np.int64] = n - mask.sum(axis=1)
    return padding


def _rolled(x: Array, shifts: NDArray[np.int64], axis: int) -> Array:
    """Sequence b of an array, moved by shifts[b] tokens to the front, those at the front to the end. The axis of tokens
    is counted from the end."""
    n = x.shape[axis]
    index = (np.arange(n) + shifts[:, None]) % max(n, 1)
    shape = [1] * x.ndim
    shape[0], shape[axis] = index.shape[0] if x.ndim == 4 else 1, n
    return np.take_along_axis(x, index.reshape(shape), axis)


class _OneCall:
    """The lock of a decoder: a second call at the same time is an error instead of a wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("decoder: expected one call at a time, got one during another")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Decoder:
    """Causal attention (Attention) of a batch of sequences that grow token by token, as a language model generates
    them. The state of a sequence has a fixed size for most positions, and so has the time of a step:

    >>> decoder = nprf.Decoder(nprf.taylor(64), nprf.T5(weights), batch=2, near=32)
    >>> y = decoder.prefill(q, k, v)       # the prompts, [batch, heads, tokens, d]
    >>> y = decoder.step(q, k, v)          # the next token, [batch, heads, 1, d], or a few

    features, position, normalization, near, sinks, engine: those of Attention. heads: the heads of queries; None: those
    of the first call. batch: the number of sequences. rollback: how many of its last tokens a sequence can take back.
    most_tokens: the most tokens that a sequence can have, 0 is any number; with it and positive features, tables that are
    nearly a line or a sum of decays, as Kerple's, have a state of fixed size, and other smooth ones, as Spline's, one that
    hardly grows. dtype: float32 or float64, of all arrays.

    Arrays are [batch, heads, tokens, d], or for one sequence [heads, tokens, d] or [tokens, d]; with
    layout="tokens_first" [batch, tokens, heads, d] or [tokens, heads, d]. Keys and values may have fewer heads. Options
    of a call: lengths, the tokens that each sequence gets, later rows of y are zero; check_finite; threads; layout; for
    prefill also key_mask [batch, tokens], False for padding before the tokens of a sequence, which it does not get and
    whose rows of y are zero, and of empty sequences tolerance and softmax_samples.

    A decoder is mutable: it can be pickled and copied with its state, and is equal only to itself. A call during
    another one of the same decoder raises RuntimeError. ValueError for shapes and options that do not fit, which change
    nothing, and TypeError for other types. Ctrl-C ends a prefill, and steps of more than 64 tokens: then sequences take
    the call's tokens back if they can (rollback), and are empty otherwise.
    """

    def __init__(
        self,
        features: FeaturesLike,
        position: Position | None = None,
        *,
        heads: int | None = None,
        batch: int = 1,
        rollback: int = 0,
        near: int = 0,
        normalization: Normalization = unit,
        engine: str = "automatic",
        dtype: Any = np.float32,
        sinks: int = 0,
        most_tokens: int = 0,
    ) -> None:
        self.attention = Attention(features, position, True, normalization, near, engine, sinks)
        self.heads = None if heads is None else index_of(heads, "heads")
        self.batch, self.rollback_tokens = index_of(batch, "batch"), index_of(rollback, "rollback")
        self.most_tokens = index_of(most_tokens, "most_tokens")
        self.dtype = np.dtype(dtype)
        native = native_of(self.dtype, "dtype")
        self._state = native.Decoder.make(
            self.attention._native(native), self.batch, self.rollback_tokens, self.most_tokens
        )
        self._one_call = _OneCall()

    @overload
    def prefill(
        self, q: Any, k: Any, v: Any, *, report: Literal[False] = False, **options: Unpack[CallOptions]
    ) -> Array: ...
    @overload
    def prefill(
        self, q: Any, k: Any, v: Any, *, report: Literal[True], **options: Unpack[CallOptions]
    ) -> tuple[Array, Report]: ...
    def prefill(
        self, q: Any, k: Any, v: Any, *, report: bool = False, **options: Unpack[CallOptions]
    ) -> Union[Array, tuple[Array, Report]]:
        """Appends the tokens, and returns y in q's shape with the channels of v, or with report=True (y, Report): by
        Attention if all sequences are empty, in O(n log n) or O(n), and otherwise by steps."""
        if options.get("key_mask") is None:
            return self._append(q, k, v, report, options, True)
        if options.get("lengths") is not None:
            raise ValueError("lengths: expected none beside a key_mask, got some")
        q, k, v = as_array(q, "queries"), as_array(k, "keys"), as_array(v, "values")
        axis = -3 if options.get("layout") == "tokens_first" and q.ndim > 2 else -2
        key_mask, options = options["key_mask"], {**options, "key_mask": None}
        n = q.shape[axis] if q.ndim > 1 else 0
        fits = [x.ndim in (2, 3, 4) and x.ndim == q.ndim and x.shape[axis] == n for x in (q, k, v)]
        if not all(fits) or (q.shape[0] if q.ndim == 4 else 1) != self.batch:
            return self._append(q, k, v, report, options, True)  # ValueError that names what does not fit
        padding = left_padding(key_mask, self.batch, n)
        options["lengths"] = [int(n - each) for each in padding]
        q, k, v = (_rolled(x, padding, axis) for x in (q, k, v))
        found = self._append(q, k, v, report, options, True)
        if isinstance(found, tuple):
            return _rolled(found[0], -padding, axis), found[1]
        return _rolled(found, -padding, axis)

    @overload
    def step(
        self, q: Any, k: Any, v: Any, *, report: Literal[False] = False, **options: Unpack[CallOptions]
    ) -> Array: ...
    @overload
    def step(
        self, q: Any, k: Any, v: Any, *, report: Literal[True], **options: Unpack[CallOptions]
    ) -> tuple[Array, Report]: ...
    def step(
        self, q: Any, k: Any, v: Any, *, report: bool = False, **options: Unpack[CallOptions]
    ) -> Union[Array, tuple[Array, Report]]:
        """The same by steps, for one token or a few, without a key_mask."""
        if options.get("key_mask") is not None:
            raise ValueError("key_mask: expected None for steps, which have lengths, got a mask")
        return self._append(q, k, v, report, options, False)

    def _append(
        self, q: Any, k: Any, v: Any, report: bool, options: CallOptions, prefill: bool
    ) -> Union[Array, tuple[Array, Report]]:
        call = call_of(options, report)
        q, k, v = as_array(q, "queries"), as_array(k, "keys"), as_array(v, "values")
        if q.dtype != self.dtype:
            raise TypeError(f"queries: expected {self.dtype} (the decoder's dtype), got {q.dtype}")
        check_types(q.dtype, keys=k, values=v)
        if v.ndim == 0:
            raise ValueError("values: expected 2, 3 or 4 dimensions, got 0")
        if self.heads is not None:
            heads = q.shape[-2 if options.get("layout") == "tokens_first" else -3] if q.ndim > 2 else 1
            if heads != self.heads:
                raise ValueError(f"queries: expected {self.heads} heads, got {heads}")
        y = np.empty(q.shape[:-1] + v.shape[-1:], q.dtype)
        with self._one_call:
            described = self._state.append(q, k, v, y, call, prefill)
        return (y, described) if report else y

    def rollback(self, sequence: int, tokens: int) -> None:
        """Takes back the last tokens of a sequence. ValueError if it has fewer, or if they are too many: more than
        `rollback` less than the most that it had."""
        with self._one_call:
            self._state.rollback(index_of(sequence, "sequence"), index_of(tokens, "tokens"))

    def reorder(self, sequences: Sequence[int]) -> None:
        """Sequence b becomes a copy of what sequences[b] was, for all b, as beam search selects beams. There are as many
        sequences afterwards as `sequences` has entries."""
        selected = [index_of(each, "sequences") for each in sequences]
        with self._one_call:
            self._state.reorder(selected)
            self.batch = len(selected)

    def fork(self, source: int, target: int) -> None:
        """The sequence `target` becomes a copy of the sequence `source`."""
        with self._one_call:
            self._state.fork(index_of(source, "source"), index_of(target, "target"))

    def reset(self, sequence: int | None = None) -> None:
        """Removes all tokens of a sequence, or of all sequences."""
        with self._one_call:
            for each in range(self.batch) if sequence is None else [index_of(sequence, "sequence")]:
                self._state.reset(each)

    @property
    def tokens(self) -> list[int]:
        """The number of tokens of each sequence."""
        with self._one_call:
            return [self._state.tokens(each) for each in range(self.batch)]

    @property
    def nbytes(self) -> int:
        """The memory of the states of all sequences, in bytes."""
        with self._one_call:
            return int(self._state.nbytes())

    def save(self) -> bytes:
        """The states of all sequences, for `load` of a decoder with the same arguments."""
        with self._one_call:
            state: bytes = self._state.save()
        return state

    def load(self, state: bytes) -> None:
        """Replaces the states by saved ones. ValueError, which changes nothing, if they are of another decoder, were
        cut or have changed."""
        if not isinstance(state, bytes):
            raise TypeError(f"state: expected bytes, got {type(state).__name__}")
        with self._one_call:
            self._state.load(state)

    def _options(self) -> dict[str, Any]:
        attention = self.attention
        return {
            "heads": self.heads,
            "batch": self.batch,
            "rollback": self.rollback_tokens,
            "near": attention.near,
            "sinks": attention.sinks,
            "normalization": attention.normalization,
            "engine": attention.engine,
            "dtype": self.dtype.name,
            "most_tokens": self.most_tokens,
        }

    def __reduce__(self) -> Any:
        return _loaded, (self.attention.features, self.attention.position, self._options(), self.save())

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options().items())
        return f"Decoder(features={self.attention.features!r}, position={self.attention.position!r}, {options})"


def _loaded(features: Any, position: Any, options: dict[str, Any], state: bytes) -> Decoder:
    decoder = Decoder(features, position, **options)
    decoder.load(state)
    return decoder
