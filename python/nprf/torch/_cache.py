# SPDX-License-Identifier: MIT
"""Caches of transformers in which a decoder's state of fixed size takes the place of keys and values. Imports
transformers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import torch
from torch import Tensor

from .._decoder import Decoder, left_padding
from ._decoder import numpy_of

if TYPE_CHECKING:
    from .._core import Report

_utils: Any = importlib.import_module("transformers.cache_utils")


class DecodedTokens(_utils.CacheLayerMixin):  # type: ignore[misc]
    """The tokens of one layer, each sequence's after its padding; without any, it becomes a DynamicLayer. make: a Decoder
    for a batch of sequences."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, make: functools.partial[Decoder]) -> None:
        super().__init__()
        self.make = make
        self.decoder: Any = None
        self.columns = 0  # the tokens of each sequence, and its padding
        self.padding = np.zeros(0, np.int64)

    def rows(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor], report: bool, softmax_samples: int
    ) -> tuple[Tensor, Optional[Report]]:
        """Appends tokens, and returns their rows; all arrays are [batch, tokens, heads, channels]. padding: [batch,
        columns + tokens], True for padding, which is before tokens; None if there is none. ValueError, which changes
        nothing, if that is not the padding of earlier calls."""
        batch, n = q.shape[:2]
        before = self.padding if self.columns else np.zeros(batch, np.int64)
        if len(before) != batch:
            raise ValueError(f"cache: expected one of {batch} sequences, as the inputs, got one of {len(before)}")
        after = np.zeros(batch, np.int64)
        if padding is not None:
            after = left_padding((~padding).cpu().numpy(), batch, self.columns + n)
        if (np.minimum(after, self.columns) != before).any():
            raise ValueError(
                f"mask: expected {before.tolist()} tokens of padding, as the cache has, got {after.tolist()}"
            )
        if self.decoder is None:
            self.decoder = self.make(batch=batch)
        elif self.decoder.tokens != (self.columns - before).tolist():
            raise _interrupted()
        options: dict[str, Any] = {"layout": "tokens_first", "threads": torch.get_num_threads()}
        if (after > before).any():
            options["key_mask"] = np.arange(self.columns, self.columns + n) >= after[:, None]
        if report and self.columns == 0:
            options["softmax_samples"] = softmax_samples
        found = self.decoder.prefill(numpy_of(q), numpy_of(k), numpy_of(v), report=report, **options)
        self.columns, self.padding = self.columns + n, after
        y, described = found if report else (found, None)
        return torch.from_numpy(y).to(q.dtype), described

    def reset(self) -> None:
        self.__dict__.clear()
        self.__class__ = _utils.DynamicLayer
        self.__init__()  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.columns:
            self.decoder.reorder(beam_idx.tolist())
            self.padding = self.padding[beam_idx.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(self.padding.size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(torch.arange(self.padding.size)[indices.cpu()])

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove: expected at most 0, got {tokens_to_remove}")
        left = self.columns + tokens_to_remove
        if left <= 0:
            return self.reset()
        # sequences of equal padding can all be rolled back, or none of them
        saved = self.decoder.save() if len(set(self.padding.tolist())) > 1 else None
        try:
            for sequence, each in enumerate(np.minimum(self.columns - self.padding, -tokens_to_remove)):
                self.decoder.rollback(sequence, int(each))
        except ValueError:
            if saved is not None:
                self.decoder.load(saved)
            raise ValueError(
                f"tokens_to_remove: expected at least -{self.decoder.rollback_tokens} (rollback of replace_attention), "
                f"got {tokens_to_remove}"
            ) from None
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


def _interrupted() -> ValueError:
    return ValueError("cache: expected one whose calls have ended, got one in which a call was interrupted")


def tokens_in(
    cache: Any, layer: int, n: int, make: Callable[[], Optional[functools.partial[Decoder]]]
) -> Optional[DecodedTokens]:
    """The tokens of a layer of a cache, to which n are to be added; None if it has keys and values, or must have them.
    make(): what makes the layer's decoders, or None for keys and values. ValueError if the cache has the state of a
    decoder that is not the layer's, and after an interrupted call."""
    layers = getattr(cache, "layers", None)
    if layers is None or cache.offloading:
        return None
    while len(layers) <= layer and cache.layer_class_to_replicate is _utils.DynamicLayer:
        layers.append(_utils.DynamicLayer())
    found: Any = layers[layer] if layer < len(layers) else None
    if isinstance(found, DecodedTokens) and found.columns == 0:
        found.reset()
    if isinstance(found, DecodedTokens):
        of_layer = make()
        if of_layer is None:
            raise ValueError(
                "cache: expected one with keys and values, which gradients, graphs, softmax and padding after tokens "
                "need, got the state of a decoder; begin with a new cache"
            )
        if (of_layer.args, of_layer.keywords) != (found.make.args, found.make.keywords):
            raise ValueError(
                "cache: expected one of the map, the biases and the options that the layer has now, got one of others; "
                "begin with a new cache"
            )
    elif type(found) is _utils.DynamicLayer and found.get_seq_length() == 0:
        of_layer = make()
        if of_layer is not None:
            found = layers[layer] = DecodedTokens(of_layer)
    if not isinstance(found, DecodedTokens):
        return None
    for i, each in enumerate(layers):  # those before it have the new tokens
        if isinstance(each, DecodedTokens) and each.columns != found.columns + (n if i < layer else 0):
            raise _interrupted()
    return found
