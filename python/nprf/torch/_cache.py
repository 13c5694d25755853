# SPDX-License-Identifier: MIT
"""Caches of transformers in which a decoder's state of fixed size takes the place of keys and values. Imports
transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import torch
from torch import Tensor

from .._decoder import Decoder, left_padding
from ._decoder import _numpy

if TYPE_CHECKING:
    from .._core import Report

_utils: Any = importlib.import_module("transformers.cache_utils")


class DecodedTokens(_utils.CacheLayerMixin):  # type: ignore[misc]
    """The tokens of one layer, each sequence's after its padding. make: a Decoder for a batch of sequences."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, make: Callable[..., Decoder]) -> None:
        super().__init__()
        self.make = make
        self.reset()

    def reset(self) -> None:
        self.decoder: Any = None
        self.columns = 0  # the tokens of each sequence, and its padding
        self.padding = np.zeros(0, np.int64)

    def rows(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor], report: bool, softmax_samples: int
    ) -> tuple[Tensor, Optional[Report]]:
        """Appends tokens, and returns their rows; all arrays are [batch, tokens, heads, channels]. padding: [batch,
        columns + tokens], True for padding. ValueError, which changes nothing, if that is not the padding of earlier
        calls, and if there is some after tokens."""
        batch, n = q.shape[:2]
        before = self.padding if self.columns else np.zeros(batch, np.int64)
        after = before
        if padding is not None:
            after = left_padding((~padding).cpu().numpy(), batch, self.columns + n)
        if before.shape != (batch,) or (np.minimum(after, self.columns) != before).any():
            raise ValueError(
                f"mask: expected the padding {before.tolist()} before the tokens of the cache, got {after.tolist()}"
            )
        if self.decoder is None:
            self.decoder = self.make(batch=batch)
        elif self.decoder.tokens != (self.columns - before).tolist():
            raise ValueError("cache: expected one whose calls have ended, got one in which a call was interrupted")
        options: dict[str, Any] = {"layout": "tokens_first", "threads": torch.get_num_threads()}
        if (after > before).any():
            options["key_mask"] = np.arange(self.columns, self.columns + n) >= after[:, None]
        if report and self.columns == 0:
            options["softmax_samples"] = softmax_samples
        found = self.decoder.prefill(_numpy(q), _numpy(k), _numpy(v), report=report, **options)
        self.columns, self.padding = self.columns + n, after
        y, described = found if report else (found, None)
        return torch.from_numpy(y).to(q.dtype), described

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.columns:
            self.decoder.reorder(beam_idx.tolist())
            self.padding = self.padding[beam_idx.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(self.padding.size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(torch.arange(self.padding.size)[indices.cpu()])

    def crop(self, tokens_to_remove: int) -> None:
        if not -self.columns <= tokens_to_remove <= 0:
            raise ValueError(f"tokens_to_remove: expected {-self.columns} to 0, got {tokens_to_remove}")
        left = self.columns + tokens_to_remove
        tokens = self.columns - self.padding
        for sequence, each in enumerate(np.minimum(tokens, -tokens_to_remove)):
            self.decoder.rollback(sequence, int(each))
        self.columns, self.padding = left, np.minimum(self.padding, left)

    def get_seq_length(self) -> int:
        return self.columns

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def offload(self) -> None:
        """It is on the CPU."""

    def prefetch(self) -> None:
        """It is on the CPU."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The first call makes the decoder."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        raise ValueError(
            "cache: expected one with keys and values, got one of a layer whose attention was replaced; begin with a "
            "new cache after restore_attention"
        )


def tokens_in(cache: Any, layer: int, make: Callable[[], Optional[Callable[..., Decoder]]]) -> Optional[DecodedTokens]:
    """The tokens of a layer of a cache; None if it has keys and values, or must have them. make() is asked for a new
    DynamicCache alone: what makes decoders, or None for keys and values."""
    layers = getattr(cache, "layers", None)
    if layers is None or cache.offloading:
        return None
    while len(layers) <= layer and cache.layer_class_to_replicate is _utils.DynamicLayer:
        layers.append(_utils.DynamicLayer())
    found: Any = layers[layer] if layer < len(layers) else None
    if type(found) is _utils.DynamicLayer and found.get_seq_length() == 0:
        decoder = make()
        if decoder is not None:
            found = layers[layer] = DecodedTokens(decoder)
    return found if isinstance(found, DecodedTokens) else None
