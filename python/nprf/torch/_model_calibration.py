# SPDX-License-Identifier: MIT
"""What calibrate() finds for a model."""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import torch

from .._attention import Calibration
from .._value import index_of
from ..features import Features, HeadFeatures


def in_words(numbers: dict[str, int]) -> str:
    return " and ".join(str(each) for each in sorted(set(numbers.values())))


@dataclass(repr=False)
class ModelCalibration:
    """Calibrations of the self-attentions of a model, by their names, for replace_attention; the near field and the
    sinks that each is for; what each costs, in keys; the numbers of sequences and of tokens of each in the sample, and
    the seconds that it took. It can be pickled, and prints as a table.

    `softmax_errors` are the relative errors that they promise for the outputs of each (nprf.Calibration). A layer that
    costs c keys has as many multiply-adds for a token as softmax has for a token that attends to c keys, so that it has
    fewer than softmax in sequences of more than c tokens. They are counted, not measured: those of the features, the
    near field and the sinks, and with T5's buckets and tables those of the pairs between the tails."""

    calibrations: dict[str, Calibration]
    near: dict[str, int]
    sinks: dict[str, int]
    costs: dict[str, float]
    sequences: int = 0
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def softmax_errors(self) -> dict[str, float]:
        return {name: each.softmax_error for name, each in self.calibrations.items()}

    def __call__(self, name: str, _: int) -> Features:
        if name not in self.calibrations:
            raise ValueError(f"features: expected a self-attention of the calibrated model, got {name!r}")
        return self.calibrations[name].features

    def exact_heads(self, name: str, max_error: float) -> tuple[int, ...]:
        """The heads of a layer that replace_attention leaves exact: those for which a larger error is promised."""
        return tuple(h for h, error in enumerate(self.calibrations[name].head_errors) if not error <= max_error)

    def __repr__(self) -> str:
        errors = ", ".join(f"{name}: {100 * error:.2g} %" for name, error in self.softmax_errors.items())
        return f"ModelCalibration(near={in_words(self.near)}, sinks={in_words(self.sinks)}, {errors})"

    def __str__(self) -> str:
        return self.table()

    def table(self, max_error: float = math.inf, tokens: Optional[int] = None) -> str:
        """A line for each layer, with its promised errors if nprf computes all of its heads; how many heads
        replace_attention leaves exact with this max_error; and what all cost in sequences of so many tokens, by default
        as many as in the sample, where an exact head costs `tokens` keys."""
        tokens = self.tokens if tokens is None else index_of(tokens, "tokens")
        if tokens < 1:
            raise ValueError(f"tokens: expected at least 1, got {tokens}")
        width = max([len("layer"), *map(len, self.calibrations)])
        lines = [f"{'layer':{width}}  near  sinks  features  cost, keys  error, %  worst head, %"]
        layers = []
        for name, each in self.calibrations.items():
            features = map_of_a_head(each).output_dim
            sizes = f"{self.near[name]:4}  {self.sinks[name]:5}  {features:8}  {self.costs[name]:10.0f}"
            errors = f"{100 * each.softmax_error:8.2g}  {100 * max(each.head_errors):13.2g}"
            stay, heads = len(self.exact_heads(name, max_error)), len(each.head_errors)
            lines.append(f"{name:{width}}  {sizes}  {errors}{f'  {stay} of {heads} heads stay exact' if stay else ''}")
            layers.append((stay, heads, (stay * tokens + (heads - stay) * self.costs[name]) / heads))
        count = max(1, len(layers))
        of_all = 100 * sum(cost for *_, cost in layers) / tokens / count
        of_exact = 100 * sum(stay / heads for stay, heads, _ in layers) / count
        return "\n".join([
            *lines,
            f"{self.sequences} sequences of {self.tokens} tokens, {self.seconds:.1f} s",
            f"{sum(stay for stay, *_ in layers)} of {sum(heads for _, heads, _ in layers)} heads stay exact, "
            f"{sum(stay == heads for stay, heads, _ in layers)} of {len(layers)} layers as a whole; at {tokens} tokens all "
            f"have {of_all:.0f} % of the multiply-adds of softmax, {of_exact:.0f} % in exact heads",
        ])  # fmt: skip

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes a file of safetensors, which can lie beside the model's checkpoint."""
        texts = {name: each.save() for name, each in self.calibrations.items()}
        of_file = {key: str(getattr(self, key)) for key in ("sequences", "tokens", "seconds")}
        for key in ("near", "sinks", "costs"):
            of_file[key] = " ".join(str(getattr(self, key)[name]) for name in texts)
        tensors = {name: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) for name, text in texts.items()}
        _safetensors().save_file(tensors, path, {"nprf": "calibration 2", "names": "\n".join(texts), **of_file})

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> ModelCalibration:
        """What save() wrote, with the same bits. ValueError for other files. The costs of a file of version 1, which
        has one near and one sinks for all layers, are NaN."""
        with _safetensors().safe_open(path, "pt") as file:
            found = file.metadata() or {}
            if found.get("nprf") not in ("calibration 1", "calibration 2"):
                raise ValueError(f"path: expected a file that ModelCalibration.save() wrote, got {path}")
            names = found["names"].split("\n")
            texts = {name: bytes(file.get_tensor(name).numpy()).decode() for name in names}
        calibrations = {name: Calibration.load(text) for name, text in texts.items()}

        def of_layers(key: str) -> dict[str, str]:
            each = found.get(key, "nan").split()
            return dict(zip(names, each if len(each) > 1 else each * len(names)))

        near, sinks = ({name: int(value) for name, value in of_layers(key).items()} for key in ("near", "sinks"))
        costs = {name: float(value) for name, value in of_layers("costs").items()}
        sizes = int(found["sequences"]), int(found["tokens"]), float(found["seconds"])
        return cls(calibrations, near, sinks, costs, *sizes)


def map_of_a_head(calibration: Calibration) -> Features:
    features = calibration.features
    return features.maps[0] if isinstance(features, HeadFeatures) else features


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError("path: expected safetensors, which is not installed: pip install safetensors") from error
