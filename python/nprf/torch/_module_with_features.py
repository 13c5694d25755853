# SPDX-License-Identifier: MIT
"""A module that has a feature map."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..features import Features, RandomFeatures
from ._maps import NamedMap, array_of, bytes_of, features_of_bytes, has_constants


def _int64_of(seed: int) -> int:
    """The 64 bits of a seed as the signed integer that a tensor can hold."""
    return seed - 2**64 * (seed >= 2**63)


class ModuleWithFeatures(nn.Module):
    """A module whose feature map is in a buffer, so that whatever writes a module's tensors changes the map, too.

    features_seed, int64 []: the seed of random features that have no other constants. features_constants, uint8 [n]:
    the whole map, if it has constants (bytes_of). A Taylor map and that of elu have neither.
    """

    features_seed: Tensor
    features_constants: Tensor
    _made: Features  # what reset_features() writes into the buffer
    _features_name: str
    _features_buffer: Optional[str]

    def check_features(self, features: Features) -> None:
        """ValueError for a map that the module cannot have."""

    def hold_features(self, features: Features, device: Any = None) -> None:
        """Makes the buffer of a map of this kind and of these sizes, on this device."""
        for name in ("features_seed", "features_constants"):
            self._buffers.pop(name, None)
        self._made, self._features_buffer, self._features_name = features, None, ""
        if has_constants(features):
            self._features_buffer = "features_constants"
            self.register_buffer(self._features_buffer, torch.tensor(array_of(features), device=device))
            return
        if isinstance(features, RandomFeatures):
            self._features_buffer = "features_seed"
            self.register_buffer(self._features_buffer, torch.tensor(_int64_of(features.seed), device=device))
            features = features.redraw(0)
        self._features_name = features._content.name

    def named_features(self) -> NamedMap:
        """The map as a graph has it: a new one, and that of another module of equal shapes, need no new graph."""
        buffer = None if self._features_buffer is None else getattr(self, self._features_buffer)
        return NamedMap(self._features_name, buffer)

    @property
    def features(self) -> Features:
        """The feature map; on the meta device, which has no numbers, that of reset_parameters()."""
        held = self.named_features()
        return self._made if held.tensor is not None and held.tensor.is_meta else held.features()

    @torch.no_grad()
    def reset_features(self) -> None:
        """The map becomes that with which the module was made, or the last one that load_state_dict() brought of
        another kind or of other sizes."""
        if self._features_buffer == "features_seed":
            self.features_seed.fill_(_int64_of(self._made.seed))  # type: ignore[attr-defined]
        elif self._features_buffer is not None:
            self.features_constants.copy_(bytes_of(self._made))

    @torch.no_grad()
    def redraw(self, seed: Optional[int] = None) -> None:
        """Draws new random vectors: with the next seed, or this one. ValueError for a map without random vectors."""
        features, is_given = self.features, seed is not None
        if seed is None:
            if isinstance(features, RandomFeatures):
                seed = features.seed + 1
            else:  # it has no seed of its own
                seed = 0 if self._features_buffer is None else features_of_bytes(self.features_constants)[1]
        made = features.redraw(seed)
        while made == features and not is_given:
            seed += 1
            made = features.redraw(seed)
        if self._features_buffer == "features_seed":
            self.features_seed.fill_(_int64_of(seed))
        else:
            self.features_constants.copy_(bytes_of(made, seed + 1))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Without constants in the state dict those of the module stay; other constants may be of another map."""
        try:
            self._prepare_to_load(state_dict, prefix)
        except ValueError as error:
            error_messages: list[str] = others[-1]
            error_messages.append(str(error))
            state_dict.pop(prefix + "features_constants", None)
            if self._features_buffer == "features_constants":
                state_dict[prefix + "features_constants"] = self.features_constants
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _prepare_to_load(self, state_dict: Any, prefix: str) -> None:
        """Makes state_dict fit the buffers, or the buffers fit it. ValueError if they cannot."""
        key, key_of_seed = prefix + "features_constants", prefix + "features_seed"
        constants, seed = state_dict.get(key), state_dict.get(key_of_seed)
        if isinstance(constants, Tensor) and constants.is_meta:
            return
        if self._features_buffer == "features_seed":
            if constants is not None:
                made, _ = features_of_bytes(constants)
                raise ValueError(f"features_constants: expected none beside features_seed, got those of {made}")
            return
        if seed is not None and isinstance(self._made, RandomFeatures):  # beside its tilt, in older versions
            del state_dict[key_of_seed]
            if constants is None:
                constants = bytes_of(self.features.redraw(int(seed) % 2**64))
        if constants is None:
            if self._features_buffer is not None and not self.features_constants.is_meta:
                state_dict[key] = self.features_constants
            return
        made, redraws = features_of_bytes(constants)
        self.check_features(made)
        loaded = bytes_of(made, redraws)
        if self._features_buffer is None or self.features_constants.shape != loaded.shape:
            self.hold_features(made, next(self.parameters()).device)
        state_dict[key] = constants if torch.equal(constants.cpu(), loaded) else loaded.to(constants.device)
