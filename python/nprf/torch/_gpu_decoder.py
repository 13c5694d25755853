# SPDX-License-Identifier: MIT
"""Attention of sequences that grow token by token, for tensors on a GPU."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from .._attention import Attention
from .._native import float32
from .._normalization import Normalization, unit
from .._value import index_of
from ..features import FeaturesLike
from ..positions import Position
from . import _gpu
from ._integers import Integers, check_range, for_kernels, per_sequence


class GpuDecoder:
    """nprf.Decoder for tensors on a GPU, without gradients:

    >>> decoder = nprf.torch.GpuDecoder(nprf.taylor(64), nprf.T5(weights), heads=8, channels=64, batch=2, near=32)
    >>> decoder.append(k, v)         # the prompts' keys and values, [batch, heads, tokens, channels]
    >>> y = decoder.step(q, k, v)    # the next token, [batch, heads, 1, channels], or a few

    heads: of queries; kv_heads: of keys and values, None: as many. channels: of the values. max_tokens: the most that a
    sequence will have, which saves memory if they are few, and which curves need (they are decoded as tables); 0: any
    number. dtype: of the tensors, float32, float16 or
    bfloat16, or its name; states are float32. features, position, normalization, near, sinks, batch, rollback: those of
    nprf.Decoder.

    It differs from nprf.Decoder: the rows of a prompt are not computed by append; there is no save and load, and no
    copy. A row whose denominator under- or overflows is NaN, and so are rows of tokens beyond max_tokens, which are not
    appended. What cannot be checked without waiting for the GPU changes nothing and is counted instead of an error
    (counts).

    Calls are queued in PyTorch's current stream and must run one after another. With channels that are contiguous, and
    integers of int32 on the GPU, append, step, rollback_each and reorder do not wait, and allocate only their results,
    so that a CUDA graph can hold them. The graph uses the decoder's memory: keep the decoder as long as the graph.
    ValueError for shapes and options that do not fit, TypeError for other types.
    """

    def __init__(
        self,
        features: FeaturesLike,
        position: Optional[Position] = None,
        *,
        heads: int,
        channels: int,
        kv_heads: Optional[int] = None,
        batch: int = 1,
        rollback: int = 0,
        max_tokens: int = 0,
        near: int = 0,
        sinks: int = 0,
        normalization: Normalization = unit,
        dtype: Union[str, torch.dtype] = torch.float32,
        device: Any = "cuda",
    ) -> None:
        self.attention = Attention(features, position, True, normalization, near, "automatic", sinks)
        self.heads = index_of(heads, "heads")
        self.kv_heads = self.heads if kv_heads is None else index_of(kv_heads, "kv_heads")
        self.channels, self.batch = index_of(channels, "channels"), index_of(batch, "batch")
        self.rollback_tokens, max_tokens = index_of(rollback, "rollback"), index_of(max_tokens, "max_tokens")
        self.dtype = _gpu.dtype_of(dtype)
        self._anchor = torch.empty(0, device=device)
        self.device = self._anchor.device
        on_host = _gpu._module().on_host  # the stand-in of the tests
        if self.device.type != ("cpu" if on_host else "cuda"):
            raise ValueError(f"device: expected a GPU, got {self.device}")
        sizes = (self.batch, self.heads, self.kv_heads, self.channels, max_tokens, self.rollback_tokens)
        self._has_tokens = False
        model = self.attention._native(float32).cuda_model()
        with self._on_device():
            self._decoder = _gpu._module().Decoder(model, _gpu._scalars[self.dtype], sizes, self._stream())

    def _on_device(self) -> Any:
        return torch.cuda.device_of(self._anchor)

    def _stream(self) -> int:
        return _gpu._stream(self._anchor)

    def _read(self, **tensors: Tensor) -> list[Any]:
        """Capsules of tensors that are read."""
        for name, x in tensors.items():
            if not isinstance(x, Tensor):
                raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
            if x.device != self.device:
                raise ValueError(f"{name}: expected a tensor on {self.device} (the decoder's), got one on {x.device}")
            if x.dtype != self.dtype:
                raise TypeError(f"{name}: expected {self.dtype} (the decoder's), got {x.dtype}")
            if x.dim() != 4:
                raise ValueError(f"{name}: expected [batch, heads, tokens, channels], got {list(x.shape)}")
        return _gpu._capsules(*(_gpu._readable(x.detach().resolve_neg()) for x in tensors.values()))

    def _each(self, name: str, x: Integers, most: int, meaning: str) -> Tensor:
        """An integer for each sequence, on the GPU. ValueError for one that is not 0 to `most`, unless it is there
        already."""
        found = per_sequence(name, x, self.batch)
        check_range(name, found, most, meaning)
        return for_kernels(found, self.device)

    def _lengths(self, lengths: Optional[Integers], k: Tensor) -> Any:
        if lengths is None:
            return None
        return _gpu._capsules(self._each("lengths", lengths, k.shape[-2], "the number of tokens"))[0]

    def append(self, k: Tensor, v: Tensor, lengths: Optional[Integers] = None) -> None:
        """Appends the tokens, of sequence b the first lengths[b], without their rows: O(tokens), one after another. The
        rows of a prompt are those of nprf.torch.attention with causal=True, which computes them at once."""
        arrays = self._read(keys=k, values=v)
        with self._on_device():
            self._decoder.append(*arrays, self._lengths(lengths, k), self._stream())
        self._has_tokens = True

    def step(self, q: Tensor, k: Tensor, v: Tensor, lengths: Optional[Integers] = None) -> Tensor:
        """Appends the tokens one after another, and returns their rows, of sequence b the first lengths[b]; the others
        are zero."""
        arrays = self._read(queries=q, keys=k, values=v)
        y = q.new_empty((*q.shape[:-1], v.shape[-1]))
        with self._on_device():
            self._decoder.step(*arrays, *_gpu._capsules(y), self._lengths(lengths, k), self._stream())
        self._has_tokens = True
        return y

    def rollback(self, sequence: int, tokens: int) -> None:
        """Takes back the last tokens of a sequence. If it has fewer, or if they are too many (nprf.Decoder), it stays
        as it is, and counts["rejected_rollbacks"] grows by 1."""
        with self._on_device():
            self._decoder.rollback(index_of(sequence, "sequence"), index_of(tokens, "tokens"), self._stream())

    def rollback_each(self, tokens: Integers) -> None:
        """The same for all sequences: the last tokens[b] of sequence b."""
        with self._on_device():
            counts = self._each("tokens", tokens, 2**31 - 1, "the largest int32")
            self._decoder.rollback_each(*_gpu._capsules(counts), self._stream())

    def reorder(self, sequences: Integers) -> None:
        """Sequence b becomes a copy of what sequences[b] was, for all b, as beam search selects beams. If a sequence of
        a tensor on the GPU does not exist, nothing changes, and counts["rejected_reorders"] grows by 1."""
        with self._on_device():
            chosen = self._each("sequences", sequences, self.batch - 1, "the last sequence")
            self._decoder.reorder(*_gpu._capsules(chosen), self._stream())

    def fork(self, source: int, target: int) -> None:
        """The sequence `target` becomes a copy of the sequence `source`."""
        with self._on_device():
            self._decoder.fork(index_of(source, "source"), index_of(target, "target"), self._stream())

    def reset(self, sequence: Optional[int] = None) -> None:
        """Removes all tokens of a sequence; or of all sequences, and sets the counts to 0."""
        with self._on_device():
            if sequence is None:
                self._decoder.reset_all(self._stream())
                self._has_tokens = False
            else:
                self._decoder.reset(index_of(sequence, "sequence"), self._stream())
                self._has_tokens &= self.batch > 1

    @property
    def tokens(self) -> list[int]:
        """The number of tokens of each sequence. Waits for the GPU."""
        with self._on_device():
            found: list[int] = self._decoder.tokens(self._stream())
        return found

    @property
    def counts(self) -> dict[str, int]:
        """What was special since the last reset of all sequences, of all heads together: empty_rows, which attend to no
        key and are zero; indefinite_rows, whose denominator is not positive; failing_rows, which are NaN, or whose
        terms cancel; rejected_tokens, beyond max_tokens; and of sequences rejected_rollbacks, and calls
        rejected_reorders. Waits for the GPU."""
        with self._on_device():
            found: dict[str, int] = self._decoder.counts(self._stream())
        return found

    @property
    def nbytes(self) -> int:
        """The memory of the states of all sequences, in bytes."""
        return int(self._decoder.nbytes)
