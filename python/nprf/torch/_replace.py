# SPDX-License-Identifier: MIT
"""Models that were trained with softmax attention, served by nprf."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from torch import nn

from .._value import index_of
from ..features import CalibratedFeatures, CentredFeatures, Features, FeaturesLike, HeadFeatures, features_of
from . import _kinds  # noqa: F401, registers its classes
from ._model_calibration import ModelCalibration, in_words
from ._module import checked_map
from ._served import Served, ServedAttention, kind_of, kinds, original_class, serve, unserve, view_of
from ._stacks import keep_masks_short, restore_masks

if TYPE_CHECKING:
    from .._core import Report

# classes that are alike, and why they are not served
_not_served = {
    "BigBirdBlockSparseAttention": "it attends to blocks of tokens",
    "DebertaAttention": "its biases also depend on queries and keys",
    "DebertaV2Attention": "its biases also depend on queries and keys",
    "LongT5Attention": "other layers of LongT5 attend to windows of tokens",
    "LongT5LocalAttention": "it attends to a window of tokens",
    "LongT5TransientGlobalAttention": "it attends to a window of tokens and to sums of blocks",
    "Pix2StructTextAttention": "its linear layers have other names",
    "SwinAttention": "it attends to windows of a picture",
    "UdopAttention": "its biases also depend on places on a page",
    "WavLMAttention": "its biases also depend on queries",
}


class SelfAttention(NamedTuple):
    """A self-attention that can be replaced."""

    name: str
    module: Any
    kind: type[ServedAttention]
    parents: list[nn.Module]  # the nearest one first
    view: ServedAttention


def _nothing_found(model: nn.Module) -> ValueError:
    names = {original_class(each).__name__ for each in model.modules()}
    names = {each for each in names if each.endswith("Attention")}
    known = [f"{each} ({_not_served[each]})" for each in sorted(names) if each in _not_served]
    classes = ", ".join(each for kind in reversed(kinds) for each in kind.serves)
    return ValueError(
        f"model: expected self-attention of one of the classes {classes}, got a {type(model).__name__} with "
        f"{', '.join(known or sorted(names)) or 'no attention'}"
    )


def _parents_of(model: nn.Module, name: str) -> list[nn.Module]:
    parents = []
    while name:
        name = name.rpartition(".")[0]
        parents.append(model.get_submodule(name))
    return parents


def self_attentions(model: nn.Module) -> list[SelfAttention]:
    """Those of registered kinds. ValueError if there are none, and for one that cannot be served."""
    found: list[SelfAttention] = []
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None or not kind.is_self_attention(name):
            continue
        missing = [part for part in kind.needs if not hasattr(module, part)]
        if missing:
            raise ValueError(f"{name}: expected a {type(module).__name__} with {missing[0]}, got one without")
        if "forward" in vars(module):
            raise ValueError(
                f"{name}: expected a {type(module).__name__} with the forward of its class, got one whose forward was "
                "replaced, such as by accelerate; replace its attention before that"
            )
        reason = kind.refusal(module)
        if reason is not None:
            raise ValueError(f"{name}: expected a {type(module).__name__} that can be served, but {reason}")
        parents = _parents_of(model, name)
        owner = kind.bias_owner(module, parents, [each.module for each in found if each.kind is kind])
        if owner is None:
            raise ValueError(f"{name}: expected {kind.owner_in_words}")
        found.append(SelfAttention(name, module, kind, parents, view_of(kind, module, owner)))
    if not found:
        raise _nothing_found(model)
    return found


FeaturesOf = Callable[[str, int], FeaturesLike]


def _is_calibrated(features: Features) -> bool:
    maps = features.maps if isinstance(features, HeadFeatures) else (features,)
    return all(isinstance(each, (CalibratedFeatures, CentredFeatures)) for each in maps)


def _warn_of_uncalibrated(all_features: Iterable[Optional[Features]]) -> None:
    for each in all_features:
        if each is not None and not _is_calibrated(each):
            warnings.warn(
                f"features: expected maps that are calibrated for the model, whose queries and keys are not "
                f"normalised, got {each}: outputs may be far from those of softmax. Use calibrate(model, ..."
                f"), and measure with report= and softmax_samples=",
                stacklevel=3,
            )
            return


def _of_layers(
    name: str, value: Optional[int], default: int, features: Any, layers: list[SelfAttention]
) -> dict[str, int]:
    """`near` or `sinks` of each layer. ValueError unless it is that of the calibration."""
    if isinstance(features, ModelCalibration):
        calibrated: dict[str, int] = getattr(features, name)
        if value is not None and any(value != each for each in calibrated.values()):
            expected = in_words(calibrated)
            raise ValueError(f"{name}: expected {expected}, for which the features were calibrated, got {value}")
        return calibrated
    value = index_of(default if value is None else value, name)
    if value < 0:
        raise ValueError(f"{name}: expected at least 0, got {value}")
    return {each.name: value for each in layers}


def replace_attention(
    model: nn.Module,
    features: Union[None, Features, FeaturesOf] = None,
    near: Optional[int] = None,
    *,
    sinks: Optional[int] = None,
    max_error: Optional[float] = None,
    report: Optional[Callable[[str, Report], Any]] = None,
    softmax_samples: int = 0,
    rollback: int = 32,
) -> dict[str, ServedAttention]:
    """Replaces every self-attention of a model that was trained with softmax, in place, and returns them by name: of
    models of transformers, and of alike ones, whose classes are registered (register_attention).

    A module that is replaced stays, with its parameters and its state dict; it becomes a ServedAttention of its kind
    until restore_attention(). Cross attention stays as it is. features: what calibrate() returns; or a map,
    or features(name, d) for each module; None: all pairs are exact, and a call with more than `near` tokens raises
    ValueError. near, sinks: as in nprf.Attention; by default those of the calibration, else 64 and 0. max_error:
    heads for which calibrate() promises a larger error stay exact, by softmax of PyTorch (served.softmax);
    ModelCalibration.table says how many, and what they cost. Beside a cache with tokens all heads of a layer with such a
    head are exact. report: a function that each call of a replaced module calls with its name and its nprf.Report, with
    softmax_samples as in nprf.attention. A model whose attention has been replaced before gets these features and
    options.

    ValueError, which changes nothing, if nothing was found, and for features that do not fit. UserWarning for maps that
    are not calibrated. rollback: as in nprf.Decoder, whose states take the place of keys and values in a DynamicCache.
    From a mask [batch, n] of padding, a model of transformers (but Phi-4's) then makes n numbers for each sequence, not
    n x n.
    """
    softmax_samples, rollback = index_of(softmax_samples, "softmax_samples"), index_of(rollback, "rollback")
    for name, value in (("softmax_samples", softmax_samples), ("rollback", rollback)):
        if value < 0:
            raise ValueError(f"{name}: expected at least 0, got {value}")
    if report is not None and not callable(report):
        raise TypeError(f"report: expected a function, got {type(report).__name__}")
    if max_error is not None and not isinstance(features, ModelCalibration):
        raise ValueError(f"max_error: expected None without what calibrate() returns, got {max_error}")
    if max_error is not None and not max_error >= 0:
        raise ValueError(f"max_error: expected at least 0, got {max_error}")
    found = self_attentions(model)
    near_of = _of_layers("near", near, 64, features, found)
    sinks_of = _of_layers("sinks", sinks, 0, features, found)
    made: list[Optional[Features]] = []
    for each in found:
        heads, d = each.view.attention_sizes()
        of_layer = features(each.name, d) if callable(features) else features
        made.append(None if of_layer is None else checked_map(features_of(of_layer), d, heads))
    _warn_of_uncalibrated(made)
    for each, of_layer in zip(found, made):
        of_name = None if report is None else functools.partial(report, each.name)
        sizes, owner = (near_of[each.name], sinks_of[each.name], rollback), each.view.served.owner
        served = Served(*sizes, owner=owner, report=of_name, softmax_samples=softmax_samples)
        if isinstance(features, ModelCalibration) and max_error is not None:
            served.softmax = features.exact_heads(each.name, max_error)
        serve(each.kind, each.module, of_layer, served)
    for each in found:  # when all are served
        module = each.module
        if module.accepts_short_masks():
            stack = keep_masks_short(each.parents, module.attends_causally(), ServedAttention)
            module.served.stack = stack or module.served.stack
    return {each.name: each.module for each in found}


def restore_attention(model: nn.Module) -> list[str]:
    """Undoes replace_attention(), and returns the names of the modules that it had replaced. Parameters stay as they
    are now. ValueError if there are none."""
    served = [(name, module) for name, module in model.named_modules() if isinstance(module, ServedAttention)]
    if not served:
        raise ValueError(f"model: expected one whose attention was replaced, got a {type(model).__name__}")
    for _, module in served:
        if module.served.stack is not None:
            restore_masks(module.served.stack)
        unserve(module)
    return [name for name, _ in served]
