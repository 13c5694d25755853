# SPDX-License-Identifier: MIT
"""Feature maps, positions and options are values."""

import copy
import importlib.metadata
import pickle
import re

import nprf
import numpy as np
import pytest
from conftest import Producer, assert_within_bounds

eps = np.finfo(np.float64).eps


def values():
    b = np.arange(5.0)
    return [
        nprf.orf(8, 16, seed=3),
        nprf.prf(8, 16, seed=3),
        nprf.trf(8, 16),
        nprf.sphere_prf(8, 16),
        nprf.hyperbolic(8, 16),
        nprf.elu(8),
        nprf.taylor(8),
        nprf.taylor(8, 3),
        nprf.ProjectedFeatures("positive", np.eye(8)),
        nprf.ProjectedFeatures("hyperbolic", np.eye(8)),
        nprf.RandomFeatures("positive", 8, 16, "simplex", 2**64 - 1, nprf.oprf_tilt(8, 1.5)),
        nprf.RandomFeatures("positive", 8, 16, "sphere_simplex"),
        nprf.HeadFeatures([nprf.orf(8, 16, seed=s) for s in range(3)]),
        nprf.RelativePosition(b),
        nprf.RelativePosition(b.astype(np.float32)),
        nprf.T5(np.zeros(32)),
        nprf.T5(np.zeros(32), 64),
        nprf.Alibi(0.25),
        nprf.Alibi([0.25, 0.5]),
        nprf.RelativePosition(b, smooth=True),
        nprf.Kerple((1, 1), 9),
        nprf.Kerple((1, 1), 9, "power"),
        nprf.AlibiSum([[0, 0], [1, 0.1]], 9),
        nprf.Spline(b[:3], [0, 1, 5], 9),
        nprf.Spline(b[:3], [0, 1, 5], 9, "linear"),
        nprf.Spline(b[:3], [0, 1, 6], 9),
        nprf.Grid(2, 2, np.zeros((3, 3))),
        nprf.Grid(2, 2, np.zeros((3, 3)), np.zeros((1, 3))),
        nprf.NoPosition(),
        nprf.Normalization.none(),
        nprf.Normalization.unit(2),
        nprf.Attention(nprf.orf(8, 16), nprf.Alibi(0.25), causal=True, near=3),
        nprf.Attention(nprf.orf(8, 16), nprf.Alibi(0.25), causal=True),
        nprf.oprf_tilt(8, 1.5),
        centring(),
        nprf.CentredFeatures(nprf.taylor(8), centring()),
        nprf.CentredFeatures(nprf.hyperbolic(8, 16), centring()),
    ]


def centring():
    rng = np.random.default_rng(3)
    axes = rng.standard_normal((8, 8))
    return nprf.Centring(rng.standard_normal(8), rng.standard_normal(8), axes, np.linalg.inv(axes).T)


def test_equality_hash_and_pickling():
    one, other = values(), values()
    for i, x in enumerate(one):
        for j, y in enumerate(other):
            assert (x == y) == (i == j), (x, y)
        copy = pickle.loads(pickle.dumps(x))
        assert copy == x and hash(copy) == hash(x) and repr(copy) == repr(x)
        assert type(x).__name__ in repr(x)


def test_values_are_not_changed_by_their_arguments():
    b = np.zeros(5)
    position = nprf.RelativePosition(b)
    b[0] = 7
    assert position.b[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        position.b[0] = 1


def test_values_are_immutable():
    for x in values():
        for name in (*x._arguments, "a_new_attribute"):
            with pytest.raises(AttributeError, match=f"{name}: expected no change of a {type(x).__name__}"):
                setattr(x, name, 3)
            with pytest.raises(AttributeError, match=f"{name}: expected no change of a {type(x).__name__}"):
                delattr(x, name)


def reports():
    """Reports of a call and of its backward, each with another one, and its fields."""
    q = np.random.default_rng(2).standard_normal((2, 9, 8))
    attention = nprf.Attention(nprf.orf(8, 16), nprf.Alibi(0.25))
    y, saved, report = attention.forward(q, q, q, report=True)  # without softmax_samples the error is NaN
    _, other = attention(q, q, q, report=True, softmax_samples=4)
    fewer, saved_of_fewer = attention.forward(*(q[:, :5],) * 3)
    one = attention.backward(saved, y).report, attention.backward(saved_of_fewer, fewer).report
    call = "engine repaired_rows indefinite_rows empty_rows failing_rows error_bound compared_rows softmax_error"
    backward = "engine recomputed_queries recomputed_keys recomputed_lags error_bound"
    return [(report, other, f"{call} workspace_bytes".split()), (*one, f"{backward} workspace_bytes".split())]


def test_reports_are_values():
    for report, other, fields in reports():
        for each in (report, other):
            for again in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each)):
                assert again == each and hash(again) == hash(each) and repr(again) == repr(each)
            made = type(each)(**{name: getattr(each, name) for name in fields})
            assert made == each and repr(each).count("=") == len(fields)
        assert report != other and report != repr(report) and not report == 3
        assert all(getattr(type(report), name).__doc__ for name in fields)
        for name in fields:
            changed = {each: getattr(report, each) for each in fields}
            changed[name] = "grid" if name == "engine" else 77
            assert type(report)(**changed) != report
            with pytest.raises(AttributeError):
                setattr(report, name, changed[name])
        with pytest.raises(ValueError, match="engine: expected automatic"):
            type(report)(**{**changed, "engine": "fast"})


def test_random_features_are_those_of_every_machine():
    assert nprf.orf(8, 16, seed=3).output_dim == 16 and nprf.hyperbolic(8, 16).output_dim == 32
    rows = nprf.orf(8, 16, seed=3).rows(np.float64)
    assert rows.shape == (16, 8)
    squares = rows[:8] @ rows[:8].T
    # 8 products, and as many roundings of each row when it was made orthogonal to the others
    assert np.abs(squares - np.diag(np.diag(squares))).max() <= 2 * 8 * eps * squares.max()
    assert np.array_equal(nprf.orf(8, 16, seed=3).rows(np.float32), rows.astype(np.float32))
    assert nprf.orf(8, 16, seed=3).redraw(9) == nprf.orf(8, 16, seed=9)
    assert nprf.HeadFeatures([nprf.orf(8, 16)] * 2).redraw(5).maps[1] == nprf.orf(8, 16, seed=11)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: nprf.orf(0, 3), "input_dim"),
        (lambda: nprf.orf(3, 0), "num_features"),
        (lambda: nprf.orf(3, 3, -1), "seed"),
        (lambda: nprf.RandomFeatures("cosine", 3, 3), "kind"),
        (lambda: nprf.RandomFeatures("positive", 3, 3, "lattice"), "projection"),
        (lambda: nprf.RandomFeatures("trigonometric", 3, 3, tilt=nprf.oprf_tilt(3, 1.0)), "tilt"),
        (lambda: nprf.ProjectedFeatures("positive", np.full((2, 2), np.nan)), "finite"),
        (lambda: nprf.HeadFeatures([]), "features"),
        (lambda: nprf.HeadFeatures([nprf.orf(3, 3), nprf.elu(3)]), "one kind"),
        (lambda: nprf.HeadFeatures([nprf.orf(3, 3), nprf.orf(3, 4)]), "got 3 -> 3 and 3 -> 4"),
        (lambda: nprf.elu(3).redraw(1), "random vectors"),
        (lambda: nprf.CalibratedFeatures("nonsense"), "nprf-calibrated-features"),
        (lambda: nprf.CentredFeatures(nprf.elu(8), centring()), "to be centred"),
        (lambda: nprf.CentredFeatures(nprf.orf(7, 9), centring()), "query_mean: expected 7"),
        (lambda: nprf.Centring(np.zeros(3), np.zeros(2), np.eye(3), np.eye(3)), "key_mean: expected 3"),
        (lambda: nprf.balance(np.zeros((3, 2)), np.zeros((3, 1))), "keys: expected 2 columns"),
        (lambda: nprf.RelativePosition(np.zeros(4)), "odd"),
        (lambda: nprf.RelativePosition(np.zeros((0, 5))), r"b: expected at least one number, got the shape \[0, 5\]"),
        (lambda: nprf.RelativePosition([0, np.nan, 0]), "finite"),
        (lambda: nprf.RelativePosition(np.zeros((1, 1, 5))), "dimensions"),
        (lambda: nprf.T5(np.zeros(32), 8), "max_distance"),
        (lambda: nprf.Alibi(np.inf), "slope"),
        (lambda: nprf.Grid(2, 2, np.zeros((3, 4))), "3 x 3"),
        (lambda: nprf.Grid(2, 2, np.zeros((3, 3)), np.zeros((1, 4))), "extra"),
        (lambda: nprf.Normalization.unit(0), "radius"),
        (lambda: nprf.oprf_tilt(0, 1.0), "d:"),
        (lambda: nprf.resize_bias(np.zeros(4), 3), "odd"),
        (lambda: nprf.resize_bias(np.zeros(3)), "size: expected a length, or a height and a width, got 0 numbers"),
        (lambda: nprf.orf(3, 3, 2**64), "seed: expected 0 to 2.64 - 1, got 18446744073709551616"),
        (lambda: nprf.calibrate(*np.ones((3, 9, 2)), num_features=3, seed=-1), "seed: expected 0 to 2.64 - 1, got -1"),
        (lambda: nprf.set_num_threads(0), "threads"),
        (lambda: nprf.Attention(nprf.orf(3, 3), engine="grid")(*(np.ones((2, 3)),) * 3), "grid"),
        (lambda: nprf.Attention(nprf.orf(3, 3), nprf.T5(np.zeros(3))), "even"),
    ],
)
def test_invalid_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: nprf.RandomFeatures(3, 8, 16), "kind: expected a str, got int"),
        (lambda: nprf.RandomFeatures("positive", 8, 16, 3), "projection: expected a str, got int"),
        (lambda: nprf.RandomFeatures("positive", 8, 16, tilt=5), "tilt: expected a Tilt, got int"),
        (lambda: nprf.CalibratedFeatures(b"nprf"), "text: expected a str, got bytes"),
        (
            lambda: nprf.RelativePosition(np.ma.array([0, 1, 2.0], mask=[0, 1, 0])),
            "b: expected an array without a mask",
        ),
        (lambda: nprf.Attention(nprf.orf(3, 3), engine=3), "engine: expected a str, got int"),
        (lambda: nprf.set_num_threads(2.7), "threads: expected an integer, got 2.7"),
        (lambda: nprf.balance(*np.ones((2, 9, 2)), normalization=1.0), "normalization: expected a Normalization"),
        (
            lambda: nprf.balance(np.ones((9, 2), int), np.ones((9, 2))),
            "queries: expected float32 or float64, got int64",
        ),
        (
            lambda: nprf.sderf_tilt(np.ones((9, 2)), np.ones((9, 2), "e")),
            "keys: expected float32 or float64, got float16",
        ),
    ],
)
def test_other_types(make, text):
    with pytest.raises(TypeError, match=text):
        make()


def test_parameters_are_read_by_dlpack():
    b = np.arange(5.0)
    assert nprf.RelativePosition(Producer(b)) == nprf.RelativePosition(b)


def test_lists_of_maps_are_one_map_while_it_is_used():
    maps = [nprf.orf(8, 16, seed) for seed in range(2)]
    one = nprf.Attention(maps)
    assert nprf.Attention(tuple(maps)).features is one.features
    assert nprf.Attention(maps[::-1]).features != one.features
    q = np.ones((2, 9, 8))
    y = nprf.attention(q, q, q, features=maps)
    kept = len(nprf._attention._attentions)
    assert np.array_equal(nprf.attention(q, q, q, features=list(maps)), y)
    assert len(nprf._attention._attentions) == kept
    assert nprf.HeadFeatures(maps).redraw(2**64 - 1).maps[1] == nprf.orf(8, 16, seed=2**64 - 1)


def test_normalization():
    x = np.random.default_rng(0).standard_normal((2, 5, 8))
    x[0, 0] = 0
    by_unit, by_none = nprf.Normalization.unit(1.5).apply(x), nprf.Normalization.none().apply(x)
    assert np.abs(np.linalg.norm(by_unit, axis=-1).ravel()[1:] - 1.5).max() <= 8 * eps and not by_unit[0, 0].any()
    for size in (1e-200, 1e200):
        assert np.abs(nprf.Normalization.unit(1.5).apply(size * x) - by_unit).max() <= 8 * eps
    assert nprf.Normalization.none().apply(np.zeros((3, 0))).shape == (3, 0)
    assert np.abs(by_none * 8**0.25 - x).max() <= 4 * eps * np.abs(x).max()
    assert nprf.Normalization.none().apply(x.astype(np.float32)).dtype == np.float32
    for constants in (nprf.sderf_tilt, lambda q, k, **options: nprf.balance(q, k, **options).centring):
        unit = nprf.Normalization.unit()
        assert constants(x[0], x[1]) == constants(unit.apply(x[0]), unit.apply(x[1]), normalization=None)


def test_resize_bias():
    b = np.sin(np.arange(9.0))
    assert np.array_equal(nprf.resize_bias(np.stack([b, 2 * b]), 17), [nprf.resize_bias(x, 17) for x in (b, 2 * b)])
    assert nprf.resize_bias(np.ones((2, 3, 5)), 4, 4).shape == (2, 7, 7)
    assert np.array_equal(nprf.resize_bias(b, 9), b)
    assert nprf.resize_bias(b, 17)[8] == b[4]
    assert nprf.resize_bias(np.ones((3, 5)), 4, 4).shape == (7, 7)


def test_tilts():
    x = np.random.default_rng(0).standard_normal((50, 8))
    tilt = nprf.sderf_tilt(x, x)
    # eigenvectors of an 8 x 8 matrix are orthogonal to about 8 eps, of which the product here has as many
    assert np.abs(tilt.axes.T @ tilt.axes - np.eye(8)).max() <= 2 * 8 * eps and (tilt.a < 0.25).all()
    assert np.ptp(nprf.oprf_tilt(8, 1.5).a) == 0


def test_balance():
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((2, 8, 8))
    q, k = (rng.standard_normal((500, 8)) @ m + rng.standard_normal(8) for m in mix)
    c, variances = nprf.balance(q, k, shrinkage=1e-9, normalization=None)
    # the mean of 500 numbers, as one sum and in pairs
    assert np.abs(c.query_mean - q.mean(axis=0)).max() <= 500 * eps * np.abs(q).max()
    assert np.abs(c.key_mean - k.mean(axis=0)).max() <= 500 * eps * np.abs(k).max()
    # the covariances along the axes are the variances, which eigenvalue problems of this condition know
    condition = np.linalg.cond(np.cov(q.T)) * np.linalg.cond(np.cov(k.T))
    for x, mean, axes in ((q, c.query_mean, c.query_axes), (k, c.key_mean, c.key_axes)):
        z = (x - mean) @ axes.T
        assert np.abs(z.T @ z / 500 - np.diag(variances)).max() <= (1e-9 + 8 * eps * condition) * variances.max()
    assert (np.diff(variances) <= 0).all()
    inverse = np.abs(c.query_axes.T @ c.key_axes - np.eye(8)).max()
    assert inverse <= 8 * eps * np.linalg.cond(c.query_axes)
    found = nprf.balance(q, k)
    assert pickle.loads(pickle.dumps(found)) == found == nprf.balance(q, k)
    assert found != nprf.balance(q, k, shrinkage=1e-9) and found != found._replace(variances=2 * variances)
    assert found != tuple(found)


@pytest.mark.parametrize(
    "make",
    [
        lambda d, seed: nprf.taylor(d),
        lambda d, seed: nprf.hyperbolic(d, 32, seed),
        lambda d, seed: nprf.orf(d, 32, seed),
    ],
)
def test_centred_features(make):
    """They are those of centred rows, with the factors exp(q.mu) and exp(nu.k), and nearer to softmax on average."""
    rng = np.random.default_rng(1)
    offset = rng.standard_normal(8) / 2
    q, k, v = rng.standard_normal((3, 40, 8)) / 4
    q, k = q + offset, k - offset
    none = nprf.Normalization.none()
    found = nprf.balance(q, k, normalization=none)
    assert found == nprf.balance(none.apply(q), none.apply(k), normalization=None)
    softmax = nprf.reference.softmax_attention(q, k, v, nprf.Alibi(0.1), normalization=none)
    square, square_of_plain = 0, 0
    for seed in range(60):
        features = make(8, seed)
        centred = nprf.CentredFeatures(features, found.centring)
        attention = nprf.Attention(centred, nprf.Alibi(0.1), normalization=none)
        y, report = attention(q, k, v, report=True)
        assert_within_bounds(y, nprf.reference.kernelized_attention(attention, q, k, v), v, report)
        plain = nprf.attention(q, k, v, features=features, position=nprf.Alibi(0.1), normalization=none)
        square += np.sum((y - softmax) ** 2)
        square_of_plain += np.sum((plain - softmax) ** 2)
    assert square < square_of_plain
    assert centred.redraw(5) != centred if hasattr(centred.features, "seed") else True


def test_alibi_slopes():
    assert np.array_equal(nprf.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    assert np.array_equal(nprf.alibi_slopes(12)[8:], 2.0 ** -np.array([0.5, 1.5, 2.5, 3.5]))
    # as MPT's models with alibi_bias_max: powers of 2 for the next power of two of heads, the odd ones first
    for h in (1, 4, 12, 40):
        powers = 1 << (h - 1).bit_length()
        slopes = 2.0 ** -(np.arange(1, powers + 1) * (16 / powers))
        slopes = slopes if powers == h else np.concatenate([slopes[1::2], slopes[::2]])[:h]
        assert np.array_equal(nprf.alibi_slopes(h, 16), slopes)
        assert np.array_equal(nprf.alibi_slopes(h, bias_max=8), nprf.alibi_slopes(h))
    for bias_max in (0, -8, np.inf, np.nan):
        with pytest.raises(ValueError, match="bias_max: expected a positive finite number, got"):
            nprf.alibi_slopes(4, bias_max)


def test_positions_of_matrices(rng):
    b = rng.standard_normal((3, 2 * 7 - 1))
    b[1, :4] = -np.inf
    lags = np.arange(7)[None] - np.arange(7)[:, None]
    matrices = b[:, lags + 6]
    assert nprf.RelativePosition.of_matrix(matrices) == nprf.RelativePosition(b)
    assert nprf.RelativePosition.of_matrix(matrices[None]) == nprf.RelativePosition(b)
    assert nprf.RelativePosition.of_matrix(matrices[2].astype(np.float32)) == nprf.RelativePosition(np.float32(b[2]))
    assert nprf.RelativePosition.of_matrix([[0.5]]) == nprf.RelativePosition([0.5])
    q, k, v = rng.standard_normal((3, 3, 7, 4))
    y = nprf.reference.softmax_attention(q, k, v, nprf.RelativePosition.of_matrix(matrices))
    weights = np.exp(
        np.einsum("hid,hjd->hij", *(x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))) + matrices
    )
    assert np.abs(y - weights @ v / weights.sum(axis=-1, keepdims=True)).max() <= 100 * np.finfo(np.float64).eps
    matrices[2, 3, 5], matrices[2, 6, 6] = 7, 9
    for wrong, text in (
        (matrices, rf"matrix\[2, 3, 5\]: expected {matrices[2, 2, 4]}, that of matrix\[2, 2, 4\], .*, got 7.0"),
        (matrices[2], r"matrix\[3, 5\]: expected .*, that of matrix\[2, 4\], since biases .*, got 7.0"),
        ([[0, np.nan], [0, 0]], "nan"),
        ([[np.nan, 0], [0, np.nan]], r"matrix\[1, 1\]: expected nan"),
        (matrices[:, :5], r"matrix: expected \[n, n\], \[heads, n, n\] .*, got the shape \[3, 5, 7\]"),
        (np.zeros((2, 3, 7, 7)), r"matrix: expected .*, got the shape \[2, 3, 7, 7\]"),
        (np.zeros((0, 0)), r"got the shape \[0, 0\]"),
        (np.zeros(3), "matrix: expected 2 or 3 or 4 dimensions, got 1"),
    ):
        with pytest.raises(ValueError, match=text):
            nprf.RelativePosition.of_matrix(wrong)


def test_the_version_is_that_of_the_headers():
    assert re.fullmatch(r"\d+\.\d+\.\d+", nprf.__version__)
    try:
        assert importlib.metadata.version("nprf") == nprf.__version__
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed by pip")
