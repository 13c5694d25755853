# SPDX-License-Identifier: MIT
"""Feature maps: phi(q).phi(k) estimates exp(q.k)."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from ._native import Native, as_array, check_types, core, native_of
from ._normalization import Normalization, radius_of, unit
from ._value import Value, described, frozen_array, index_of, name_of, seed_of


def _hashed(x: Any) -> Any:
    """Arrays and texts of constants by their SHA-256."""
    if isinstance(x, np.ndarray):
        return {"dtype": x.dtype.str, "shape": x.shape, "sha256": hashlib.sha256(x.tobytes()).hexdigest()}
    if isinstance(x, str) and len(x) > 100:
        return {"sha256": hashlib.sha256(x.encode()).hexdigest()}
    return x


class Content:
    """What equal maps share. `name` is JSON, by which any process knows a map: of one that has no constants it is the
    whole map, in others it has their hashes."""

    def __init__(self, name: str, features: Features) -> None:
        self.name = name
        self.by_scalar: dict[str, Any] = {}  # the extension's maps
        self.constants: Any = None  # a tensor of nprf.torch
        self._class, self._values = type(features), features._values()

    def features(self) -> Features:
        return self._class(*self._values)


contents: weakref.WeakValueDictionary[str, Content] = weakref.WeakValueDictionary()  # of the maps that exist, by name


class Features(Value):
    """A feature map of vectors of `input_dim` numbers. It is immutable; queries and keys share it."""

    input_dim: int
    _content: Content

    def __init__(self, **arguments: Any) -> None:
        """Sets the arguments of a class, and those of its attributes that follow from them."""
        self._set(**arguments)
        name = json.dumps(described(self, _hashed))
        self._set(_content=contents.setdefault(name, Content(name, self)))

    def _make(self, native: Native) -> Any:
        raise NotImplementedError

    def _native(self, native: Native) -> Any:
        made = self._content.by_scalar.get(native.name)
        if made is None:
            made = self._content.by_scalar[native.name] = self._make(native)
        return made

    @property
    def output_dim(self) -> int:
        """The number of features of a vector."""
        return int(self._native(native_of(np.dtype("float32"), "features")).output_dim)

    def redraw(self, seed: int) -> Features:
        """The same map with random vectors from another seed. ValueError if it has none."""
        raise ValueError("features: expected random vectors that were drawn from a seed, got a map without them")


class Tilt(Value):
    """Constants that lower the variance of positive features: orthogonal axes [d, d], and a [d], below 1/4."""

    _arguments = ("axes", "a")
    axes: NDArray[np.float64]
    a: NDArray[np.float64]

    def __init__(self, axes: Any, a: Any) -> None:
        axes, a = np.asarray(axes, dtype=np.float64), np.asarray(a, dtype=np.float64)
        self._set(axes=frozen_array(axes, "axes", (2,)), a=frozen_array(a, "a", (1,)))


def oprf_tilt(d: int, mean_square: float) -> Tilt:
    """The best tilt with equal constants, for pairs with the mean `mean_square` of |q + k|^2."""
    if d < 1:
        raise ValueError(f"d: expected at least 1, got {d}")
    if not 0 < mean_square < np.inf:
        raise ValueError(f"mean_square: expected a positive finite number, got {mean_square}")
    return Tilt(np.eye(d), np.full(d, core.best_tilt(mean_square / d)))


def _normalised(q: Any, k: Any, normalization: Normalization | None) -> tuple[NDArray[Any], NDArray[Any]]:
    q, k = as_array(q, "queries"), as_array(k, "keys")
    if normalization is None:
        return q, k
    radius_of(normalization)
    return normalization._scaled(q, "queries"), normalization._scaled(k, "keys")


def sderf_tilt(q: Any, k: Any, normalization: Normalization | None = unit) -> Tilt:
    """The best tilt for all pairs of a query q [n_q, d] and a key k [n_k, d], which are first normalised as by the
    attention; normalization=None: they are already."""
    q, k = _normalised(q, k, normalization)
    native = native_of(q.dtype, "queries")
    check_types(q.dtype, keys=k)
    return Tilt(*native.sderf_tilt(q, k))


class Centring(Value):
    """Constants nu, mu [d] and A, A^-T [d, d] of centred queries A (q - nu) and keys A^-T (k - mu), whose dot products
    are smaller than those of q and k where nu and mu are their means. See nprf/feature_map/centred.hpp."""

    _arguments = ("query_mean", "key_mean", "query_axes", "key_axes")
    query_mean: NDArray[Any]
    key_mean: NDArray[Any]
    query_axes: NDArray[Any]
    key_axes: NDArray[Any]

    def __init__(self, query_mean: Any, key_mean: Any, query_axes: Any, key_axes: Any) -> None:
        self._set(
            query_mean=frozen_array(query_mean, "query_mean", (1,)),
            key_mean=frozen_array(key_mean, "key_mean", (1,)),
            query_axes=frozen_array(query_axes, "query_axes", (2,)),
            key_axes=frozen_array(key_axes, "key_axes", (2,)),
        )
        if self.key_mean.shape != self.query_mean.shape:
            raise ValueError(f"key_mean: expected {len(self.query_mean)} numbers, got {len(self.key_mean)}")


class Balance(NamedTuple):
    """The centring that balance() finds, and the variances [d] of queries and keys along its axes, the largest
    first."""

    centring: Centring
    variances: NDArray[np.float64]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Balance):
            return False
        return self.centring == other.centring and np.array_equal(self.variances, other.variances)

    def __ne__(self, other: object) -> bool:
        return not self == other


def balance(q: Any, k: Any, shrinkage: float = 0.05, normalization: Normalization | None = unit) -> Balance:
    """The centring by the means of sample queries [n, d] and keys [n', d], which are first normalised as by the
    attention (normalization=None: they are already), and axes along which both have the same, diagonal covariance, to
    which a part of the mean variance, `shrinkage`, is added. ValueError for other shapes, numbers that are not finite,
    and a shrinkage that is not above 0 and at most 1."""
    q, k = (np.asarray(x, np.float64) for x in _normalised(q, k, normalization))
    constants, variances = core.balance(q, k, float(shrinkage))
    return Balance(Centring(*constants), variances)


class CentredFeatures(Features):
    """A map of centred queries and keys: RandomFeatures that are positive or hyperbolic, or TaylorFeatures, of
    A (q - nu) and A^-T (k - mu), with factors that make the estimate of exp(q.k) as exact as the map's own is of the
    smaller dot products.

    >>> features = nprf.CentredFeatures(nprf.hyperbolic(64, 32), nprf.balance(q, k).centring)
    """

    _arguments = ("features", "centring")
    features: Features
    centring: Centring

    def __init__(self, features: Features, centring: Centring) -> None:
        if not isinstance(features, Features) or isinstance(features, HeadFeatures):
            raise TypeError(f"features: expected a feature map, got {type(features).__name__}")
        if not isinstance(centring, Centring):
            raise TypeError(f"centring: expected a Centring, got {type(centring).__name__}")
        super().__init__(features=features, centring=centring, input_dim=features.input_dim)
        self._native(native_of(np.dtype("float32"), "features"))

    def _make(self, native: Native) -> Any:
        c = self.centring
        means, query_axes, key_axes = (
            x.astype(native.dtype) for x in (np.stack([c.query_mean, c.key_mean]), c.query_axes, c.key_axes)
        )
        return native.Features.centred(self.features._native(native), means, query_axes, key_axes)

    def redraw(self, seed: int) -> CentredFeatures:
        return CentredFeatures(self.features.redraw(seed), self.centring)


class RandomFeatures(Features):
    """Features of random vectors. ValueError for sizes below 1 and unknown names.

    kind: "positive" (m features, all positive), "hyperbolic" (2m, all positive) or "trigonometric" (2m, of both signs).
    projection: "orthogonal", "gaussian", "sphere", "simplex" or "sphere_simplex" random vectors. The same seed gives
    the same vectors on every machine. tilt: for positive and hyperbolic features.
    """

    _arguments = ("kind", "input_dim", "num_features", "projection", "seed", "tilt")
    kind: str
    num_features: int
    projection: str
    seed: int
    tilt: Tilt | None

    def __init__(
        self,
        kind: str,
        input_dim: int,
        num_features: int,
        projection: str = "orthogonal",
        seed: int = 0,
        tilt: Tilt | None = None,
    ) -> None:
        if tilt is not None and not isinstance(tilt, Tilt):
            raise TypeError(f"tilt: expected a Tilt, got {type(tilt).__name__}")
        super().__init__(
            kind=name_of(kind, "kind"),
            input_dim=index_of(input_dim, "input_dim"),
            num_features=index_of(num_features, "num_features"),
            projection=name_of(projection, "projection"),
            seed=seed_of(seed),
            tilt=tilt,
        )
        self._native(native_of(np.dtype("float32"), "features"))

    def _make(self, native: Native) -> Any:
        arguments = (self.kind, self.input_dim, self.num_features, self.projection, self.seed)
        if self.tilt is None:
            return native.Features.random(*arguments)
        return native.Features.tilted(*arguments, self.tilt.axes, self.tilt.a[None, :])

    def redraw(self, seed: int) -> RandomFeatures:
        return RandomFeatures(self.kind, self.input_dim, self.num_features, self.projection, seed, self.tilt)

    def rows(self, dtype: Any = np.float32) -> NDArray[Any]:
        """The random vectors [m, d]."""
        rows: NDArray[Any] = self._native(native_of(np.dtype(dtype), "dtype")).projection()
        return rows


class ProjectedFeatures(Features):
    """Features of the caller's vectors `rows` [m, d]; `kind` as in RandomFeatures."""

    _arguments = ("kind", "rows")
    kind: str
    rows: NDArray[Any]

    def __init__(self, kind: str, rows: Any) -> None:
        rows = frozen_array(rows, "rows", (2,))
        super().__init__(kind=name_of(kind, "kind"), rows=rows, input_dim=rows.shape[1])
        self._native(native_of(self.rows.dtype, "rows"))

    def _make(self, native: Native) -> Any:
        return native.Features.of_rows(self.kind, self.rows.astype(native.dtype))


class TaylorFeatures(Features):
    """The Taylor series of exp: 1, the d coordinates and, of the first `directions` coordinates, their products.

    1 + d + s (s + 1) / 2 features for s directions, of both signs; for rows of norm 1, with a near field.
    """

    _arguments = ("input_dim", "directions")
    directions: int

    def __init__(self, input_dim: int, directions: int = 0) -> None:
        super().__init__(input_dim=index_of(input_dim, "input_dim"), directions=index_of(directions, "directions"))
        self._native(native_of(np.dtype("float32"), "features"))

    def _make(self, native: Native) -> Any:
        return native.Features.taylor(self.input_dim, self.directions)


class EluFeatures(Features):
    """elu(x) + 1, a kernel of its own that does not estimate exp(q.k)."""

    _arguments = ("input_dim",)

    def __init__(self, input_dim: int) -> None:
        super().__init__(input_dim=index_of(input_dim, "input_dim"))
        self._native(native_of(np.dtype("float32"), "features"))

    def _make(self, native: Native) -> Any:
        return native.Features.elu(self.input_dim)


class CalibratedFeatures(Features):
    """The map of one head that calibrate() returns. `text` has its constants, and can be stored."""

    _arguments = ("text",)
    text: str

    def __init__(self, text: str) -> None:
        super().__init__(text=name_of(text, "text"))
        self._set(input_dim=self._native(native_of(np.dtype("float32"), "features")).input_dim)

    def _make(self, native: Native) -> Any:
        return native.Features.calibrated(self.text)

    @property
    def centring(self) -> Centring:
        """The centring of queries and keys that calibrate() found."""
        return Centring(*self._native(native_of(np.dtype("float64"), "features")).centring())

    def __repr__(self) -> str:
        return f"CalibratedFeatures(<{self.input_dim} -> {self.output_dim}>)"


FeaturesLike = Union[Features, Iterable[Features]]


class HeadFeatures(Features):
    """One map for each head. ValueError unless all are of one kind and of the same dimensions."""

    _arguments = ("maps",)
    maps: tuple[Features, ...]

    def __init__(self, maps: Iterable[Features]) -> None:
        maps = tuple(maps)
        for each in maps:
            if not isinstance(each, Features) or isinstance(each, HeadFeatures):
                raise TypeError(f"features: expected feature maps, got {type(each).__name__}")
        if not maps:
            raise ValueError("features: expected one map, or one for each head, got none")
        first = maps[0]
        for each in maps:
            if (each.input_dim, each.output_dim) != (first.input_dim, first.output_dim):
                raise ValueError(
                    f"features: expected maps of the same dimensions, got {first.input_dim} -> {first.output_dim} and "
                    f"{each.input_dim} -> {each.output_dim}"
                )
        super().__init__(maps=maps, input_dim=first.input_dim)
        self._native(native_of(np.dtype("float32"), "features"))

    def _make(self, native: Native) -> Any:
        return native.Features.joined([each._native(native) for each in self.maps])

    def redraw(self, seed: int) -> HeadFeatures:
        seeds = ((seed_of(seed) * len(self.maps) + h) % 2**64 for h in range(len(self.maps)))
        return HeadFeatures(each.redraw(own) for each, own in zip(self.maps, seeds))


_of_heads: weakref.WeakValueDictionary[tuple[Any, ...], HeadFeatures] = weakref.WeakValueDictionary()


def features_of(features: FeaturesLike) -> Features:
    """The map, or the HeadFeatures of a list of maps: the same one for equal maps, while it is in use."""
    if isinstance(features, Features):
        return features
    if isinstance(features, Iterable) and not isinstance(features, str):
        maps = tuple(features)
        key = tuple(each._content.name if isinstance(each, Features) else None for each in maps)
        found = _of_heads.get(key)
        if found is None:
            found = _of_heads[key] = HeadFeatures(maps)
        return found
    raise TypeError(f"features: expected a feature map, or one for each head, got {type(features).__name__}")


def prf(d: int, m: int, seed: int = 0) -> RandomFeatures:
    """m positive features of independent Gaussian vectors."""
    return RandomFeatures("positive", d, m, "gaussian", seed)


def orf(d: int, m: int, seed: int = 0) -> RandomFeatures:
    """m positive features of orthogonal vectors."""
    return RandomFeatures("positive", d, m, "orthogonal", seed)


def sphere_prf(d: int, m: int, seed: int = 0) -> RandomFeatures:
    """m positive features of vectors on the sphere of radius sqrt(d)."""
    return RandomFeatures("positive", d, m, "sphere", seed)


def hyperbolic(d: int, m: int, seed: int = 0) -> RandomFeatures:
    """2m positive features of m orthogonal vectors: the most accurate random ones."""
    return RandomFeatures("hyperbolic", d, m, "orthogonal", seed)


def trf(d: int, m: int, seed: int = 0) -> RandomFeatures:
    """2m trigonometric features of m Gaussian vectors, of both signs."""
    return RandomFeatures("trigonometric", d, m, "gaussian", seed)


def taylor(d: int, directions: int = 0) -> TaylorFeatures:
    """TaylorFeatures: d + 1 features for queries and keys of norm 1, with a near field."""
    return TaylorFeatures(d, directions)


def elu(d: int) -> EluFeatures:
    """EluFeatures, of the Linear Transformer."""
    return EluFeatures(d)
