# SPDX-License-Identifier: MIT
"""Models that were trained with softmax attention, served by nprf."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from .._attention import Calibration, calibrate
from .._normalization import Normalization
from ..features import CalibratedFeatures, CentredFeatures, Features, FeaturesLike, HeadFeatures
from ..positions import T5
from ._stacks import keep_masks_short
from ._t5 import T5SelfAttention, UMT5SelfAttention

if TYPE_CHECKING:
    from .._core import Report


class _Kind(NamedTuple):
    """Self-attention that can be replaced, in modules of these classes, which have these parts."""

    classes: tuple[str, ...]
    parts: tuple[str, ...]
    replacement: type[T5SelfAttention]
    shares_bias: bool = True  # a layer without a bias uses that of a layer before it
    short_masks: bool = False  # the encoder makes masks [batch, 1, 1, n] itself, and takes no others


_parts_of_t5 = ("q", "k", "v", "o", "n_heads", "has_relative_attention_bias")
_kinds = (
    _Kind(("T5Attention", "MT5Attention", "Pop2PianoAttention"), _parts_of_t5, T5SelfAttention),
    _Kind(("SwitchTransformersAttention",), _parts_of_t5, T5SelfAttention, short_masks=True),
    _Kind(("UMT5Attention",), _parts_of_t5, UMT5SelfAttention, shares_bias=False),
)

# classes that are alike, and why they are not in the list
_not_served = {
    "BloomAttention": "its ALiBi biases are an array that the model makes",
    "LongT5Attention": "other layers of LongT5 attend to windows of tokens",
    "LongT5LocalAttention": "it attends to a window of tokens",
    "LongT5TransientGlobalAttention": "it attends to a window of tokens and to sums of blocks",
    "MPNetSelfAttention": "its biases are an array that MPNetEncoder makes",
    "MptAttention": "its ALiBi biases are an array that the model makes",
    "Pix2StructTextAttention": "its linear layers have other names",
    "SwinAttention": "it attends to windows of a picture",
    "UdopAttention": "its biases also depend on places on a page",
}


class _SelfAttention(NamedTuple):
    """A self-attention that can be replaced."""

    name: str
    module: Any
    kind: _Kind
    places: list[tuple[nn.Module, str]]  # its parents, each with its name there
    bias_of: Optional[tuple[nn.Module, str]]  # the place of the layer that has its bias; None: itself

    def bias(self) -> nn.Embedding:
        module = self.module if self.bias_of is None else getattr(*self.bias_of)
        bias: nn.Embedding = module.relative_attention_bias
        return bias

    def head_dim(self) -> int:
        return int(self.module.q.out_features // self.module.n_heads)


def _class_names(module: nn.Module) -> list[str]:
    return [each.__name__ for each in type(module).__mro__]


def _nothing_found(model: nn.Module) -> ValueError:
    names = {each for module in model.modules() for each in _class_names(module) if each.endswith("Attention")}
    known = [f"{each} ({_not_served[each]})" for each in sorted(names) if each in _not_served]
    classes = ", ".join(each for kind in _kinds for each in kind.classes)
    return ValueError(
        f"model: expected self-attention of one of the classes {classes}, got a {type(model).__name__} with "
        f"{', '.join(known or sorted(names)) or 'no attention'}"
    )


def _self_attentions(model: nn.Module) -> list[_SelfAttention]:
    """Those of _kinds, but for cross attention, which is named EncDecAttention. ValueError if there are none, for one
    that has been replaced, and for one without a bias before the first that has one. A module that has several places
    is one of them."""
    found: dict[int, _SelfAttention] = {}
    bias_of = None
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, T5SelfAttention):
            raise ValueError(f"model: expected one whose attention has not been replaced, but {name} has been")
        kind = next((each for each in _kinds if not set(each.classes).isdisjoint(_class_names(module))), None)
        parent, _, last = name.rpartition(".")
        if kind is None or last in ("", "EncDecAttention"):
            continue
        place = (model.get_submodule(parent), last)
        if id(module) in found:
            found[id(module)].places.append(place)
            continue
        missing = [part for part in kind.parts if not hasattr(module, part)]
        if missing:
            raise ValueError(f"{name}: expected a {type(module).__name__} with {missing[0]}, got one without")
        has_bias = bool(getattr(module, "has_relative_attention_bias"))
        if has_bias:
            bias_of = place
        elif bias_of is None or not kind.shares_bias:
            raise ValueError(f"{name}: expected a module with relative_attention_bias in this layer or one before it")
        found[id(module)] = _SelfAttention(name, module, kind, [place], None if has_bias else bias_of)
    if not found:
        raise _nothing_found(model)
    return list(found.values())


FeaturesOf = Callable[[str, int], FeaturesLike]


class ModelCalibration(NamedTuple):
    """Calibrations of the self-attentions of a model, by their names, for replace_attention; and the near field and the
    sinks that they are for. It can be pickled. `softmax_errors` are the relative errors that they promise for the
    outputs of each (nprf.Calibration)."""

    calibrations: dict[str, Calibration]
    near: int
    sinks: int = 0

    @property
    def softmax_errors(self) -> dict[str, float]:
        return {name: each.softmax_error for name, each in self.calibrations.items()}

    def __call__(self, name: str, _: int) -> Features:
        if name not in self.calibrations:
            raise ValueError(f"features: expected a self-attention of the calibrated model, got {name!r}")
        return self.calibrations[name].features

    def __repr__(self) -> str:
        errors = self.softmax_errors
        texts = ", ".join(f"{name}: {100 * error:.2g} %" for name, error in errors.items())
        return f"ModelCalibration(near={self.near}, sinks={self.sinks}, {texts})"


def _is_calibrated(features: Features) -> bool:
    maps = features.maps if isinstance(features, HeadFeatures) else (features,)
    return all(isinstance(each, (CalibratedFeatures, CentredFeatures)) for each in maps)


def _warn_of_uncalibrated(layers: Iterable[T5SelfAttention]) -> None:
    for each in (layer.features for layer in layers if not layer.needs_exact_pairs):
        if not _is_calibrated(each):
            warnings.warn(
                f"features: expected maps that are calibrated for the model, whose queries and keys are not "
                f"normalised, got {each}: outputs may be far from those of softmax. Use calibrated_features(model, ..."
                f"), and measure with report= and softmax_samples=",
                stacklevel=3,
            )
            return


def _near_and_sinks(features: Any, near: Optional[int], sinks: Optional[int]) -> tuple[int, int]:
    """ValueError unless they are those of the calibration."""
    if not isinstance(features, ModelCalibration):
        return 64 if near is None else near, sinks or 0
    for name, value, calibrated in (("near", near, features.near), ("sinks", sinks, features.sinks)):
        if value not in (None, calibrated):
            raise ValueError(f"{name}: expected {calibrated}, for which the features were calibrated, got {value}")
    return features.near, features.sinks


def replace_attention(
    model: nn.Module,
    features: Union[None, Features, FeaturesOf] = None,
    near: Optional[int] = None,
    *,
    sinks: Optional[int] = None,
    report: Optional[Callable[[str, Report], Any]] = None,
    softmax_samples: int = 0,
) -> int:
    """Replaces every self-attention of a T5-like model of transformers by T5SelfAttention, in place, and returns their
    number: T5, MT5, UMT5, Switch Transformers and Pop2Piano.

    Layers without a bias of their own use that of the layer before them. Cross attention, in modules named
    EncDecAttention, stays. features: what calibrated_features() returns; or a map, or features(name, d) for each
    module; None: all pairs are exact, and a call with more than `near` tokens raises ValueError. near, sinks: as in
    nprf.Attention; by default those of the calibration, else 64 and 0. report: a function that each call of a
    replaced module calls with its name and its nprf.Report, with softmax_samples as in nprf.attention.

    ValueError, which changes nothing, if nothing was found, if attention has been replaced before, and for features
    that do not fit. UserWarning for maps that are not calibrated. A mask [batch, n] of padding goes to the layers as it
    is, where transformers would make n x n numbers of it.
    """
    near, sinks = _near_and_sinks(features, near, sinks)
    found = _self_attentions(model)
    made = [
        each.kind.replacement(
            each.module,
            features(each.name, each.head_dim()) if callable(features) else features,
            near,
            sinks=sinks,
            bias_of=each.bias_of,
            report=None if report is None else functools.partial(report, each.name),
            softmax_samples=softmax_samples,
        )
        for each in found
    ]
    _warn_of_uncalibrated(made)
    for each, new in zip(found, made):
        for parent, name in each.places:
            setattr(parent, name, new)
        if new.causal or not each.kind.short_masks:
            keep_masks_short(model, each.name, new.causal)
    return len(made)


def _with_progress(layers: list[_SelfAttention], progress: Optional[bool]) -> Iterable[_SelfAttention]:
    """The same, with a bar of tqdm; for None, if that is installed."""
    if progress is False:
        return layers
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        if progress is None:
            return layers
        raise ImportError("progress: expected tqdm, which is not installed: pip install 'nprf[progress]'") from error
    bar: Iterable[_SelfAttention] = tqdm(layers, desc="calibrate", unit="layer")
    return bar


@torch.no_grad()
def calibrated_features(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    near: int = 64,
    sinks: int = 0,
    num_features: int = 0,
    target_error: float = 0.0,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> ModelCalibration:
    """Feature maps for replace_attention of a T5-like model, calibrated for its own queries and keys:

    >>> features = calibrated_features(model, lambda: model(**samples), near=64, num_features=72)
    >>> replace_attention(model, features)

    run: calls the model, with softmax, on some typical sequences without padding; each self-attention is calibrated for
    its first call. num_features, target_error, near, sinks, seed: as in nprf.calibrate. progress: whether a bar of tqdm
    (pip install 'nprf[progress]') counts the layers and says how long the others will take; None: if it is installed. A
    layer of 12 heads takes about half a second for 512 tokens, three for 2048, on one thread. ValueError for a model
    that replace_attention refuses, and for a self-attention that run() does not call.
    """
    parts: dict[tuple[str, str], Tensor] = {}
    hooks = []
    found = _self_attentions(model)
    for each in found:
        for part in ("q", "k", "v"):

            def keep(_: Any, inputs: Any, output: Tensor, key: tuple[str, str] = (each.name, part)) -> None:
                parts.setdefault(key, output)

            hooks.append(getattr(each.module, part).register_forward_hook(keep))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    for each in found:
        if any((each.name, part) not in parts for part in "qkv"):
            raise ValueError(f"run: expected a call of {each.name}, got none")
    calibrations: dict[str, Calibration] = {}
    for each in _with_progress(found, progress):
        split = (each.module.n_heads, each.head_dim())
        q, k, v = (parts[each.name, part].unflatten(-1, split).transpose(1, 2).float().cpu() for part in "qkv")
        max_distance = getattr(each.module, "relative_attention_max_distance", 128)
        calibrations[each.name] = calibrate(
            (q * split[1] ** 0.5).numpy(),
            k.numpy(),
            v.numpy(),
            T5(each.bias().weight.detach().float().cpu(), max_distance, "heads_last"),
            num_features=num_features,
            near=near,
            sinks=sinks,
            causal=bool(getattr(each.module, "is_decoder", False)),
            normalization=Normalization.none(),
            seed=seed,
            target_error=target_error,
        )
    return ModelCalibration(calibrations, near, sinks)
