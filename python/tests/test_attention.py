# SPDX-License-Identifier: MIT
"""nprf.attention and nprf.Attention over NumPy arrays."""

import functools
import os
import pickle
import signal
import sys
import threading
import time

import nprf
import numpy as np
import pytest
from conftest import (
    Producer,
    assert_slope,
    assert_within_bounds,
    heads,
    interrupted,
    largest_exponent,
    positions,
    rounding,
    seconds,
)

B, H, N, D, V = 2, 3, 33, 8, 5


def maps():
    return {
        "orf": nprf.orf(D, 16, seed=7),
        "prf": nprf.prf(D, 16, seed=7),
        "sphere": nprf.sphere_prf(D, 16, seed=7),
        "hyperbolic": nprf.hyperbolic(D, 8, seed=7),
        "elu": nprf.elu(D),
        "taylor": nprf.taylor(D),
        "own rows": nprf.ProjectedFeatures("positive", np.eye(D)),
        "tilted": nprf.RandomFeatures("hyperbolic", D, 8, "simplex", 3, nprf.oprf_tilt(D, 2.0)),
        "one for each head": nprf.HeadFeatures([nprf.orf(D, 16, seed=s) for s in range(H)]),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", maps())
def test_equals_the_formula(rng, name, causal):
    q, k, v = heads(rng, B, H, N, D), heads(rng, B, H, N + 4, D), heads(rng, B, H, N + 4, V)
    for position in positions(rng, H).values():
        attention = nprf.Attention(maps()[name], position, causal)
        y, report = attention(q, k, v, report=True, offset=0)
        expected = nprf.reference.kernelized_attention(attention, q, k, v, offset=0)
        assert_within_bounds(y, expected, v, report)
        options = {"features": maps()[name], "position": position, "causal": causal, "offset": 0}
        assert np.array_equal(y, nprf.attention(q, k, v, **options))


def test_the_formula_in_numpy(rng):
    """The reference itself, for positive features, beside five lines of NumPy."""
    n = 20
    q, k, v = heads(rng, n, D), heads(rng, n, D), heads(rng, n, V)
    b = rng.standard_normal(2 * n - 1)
    features = nprf.orf(D, 16, seed=3)
    w = features.rows(np.float64)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    phi_q, phi_k = np.exp(unit(q) @ w.T), np.exp(unit(k) @ w.T)
    lag = np.arange(n)[None, :] - np.arange(n)[:, None]
    weights = (phi_q @ phi_k.T) * np.exp(b[lag + n - 1])
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    y = nprf.reference.kernelized_attention(nprf.Attention(features, nprf.RelativePosition(b)), q, k, v)
    close = rounding(v, terms=n + 16, exponent=largest_exponent(features) + np.abs(b).max(), channels=D)
    assert np.abs(y - expected).max() <= close


def test_grids(rng):
    h, w, extra = 3, 4, 2
    n = h * w + extra
    position = nprf.Grid(h, w, rng.standard_normal((H, 2 * h - 1, 2 * w - 1)), rng.standard_normal((extra, extra + 2)))
    q, k, v = heads(rng, B, H, n, D), heads(rng, B, H, n, D), heads(rng, B, H, n, V)
    attention = nprf.Attention(nprf.orf(D, 16), position)
    y, report = attention(q, k, v, report=True)
    expected = nprf.reference.kernelized_attention(attention, q, k, v)
    assert_within_bounds(y, expected, v, report)
    cells = nprf.Grid(h, w, position.b)
    q, k, v = (x[..., extra:, :] for x in (q, k, v))
    near = nprf.Attention(nprf.taylor(D), cells, near=max(h, w))(q, k, v)
    softmax = nprf.reference.softmax_attention(q, k, v, cells)
    close = rounding(v, terms=h * w, exponent=1 + np.abs(position.b).max(), channels=D)
    assert np.abs(near - softmax).max() <= close


def test_softmax_of_a_complete_near_field(rng):
    q, k, v = heads(rng, H, N, D), heads(rng, H, N, D), heads(rng, H, N, V)
    norms = np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() / np.sqrt(D)
    for position in positions(rng, H).values():
        for normalization in (nprf.Normalization.unit(1.5), nprf.Normalization.none()):
            y = nprf.attention(q, k, v, features=nprf.taylor(D), position=position, near=N, normalization=normalization)
            softmax = nprf.reference.softmax_attention(q, k, v, position, normalization=normalization)
            bias = 0 if position is None else np.abs(position.parameters).max()
            bias *= N if isinstance(position, nprf.Alibi) else 1
            logit = norms if normalization == nprf.Normalization.none() else 1.5**2
            assert np.abs(y - softmax).max() <= rounding(v, terms=N, exponent=logit + bias, channels=D)


@pytest.mark.parametrize("name", ["table of heads", "t5", "none"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_references_with_layouts_masks_and_lengths(rng, name, causal):
    q, k, v = heads(rng, B, 2 * H, N, D), heads(rng, B, H, N, D), heads(rng, B, H, N, V)
    position = positions(rng, 2 * H)[name]
    attention = nprf.Attention(nprf.orf(D, 16), position, causal)
    exact = nprf.Attention(nprf.taylor(D), position, causal, near=N)  # every pair is near
    mask = rng.random((B, N)) < 0.6
    mask[:, :3], mask[1] = False, np.arange(N) < 9
    ends = [0, 4, 4, N]
    wrong = [np.where(mask[:, None, :, None], x, np.nan) for x in (k, v)]  # padding is not read
    for options, arrays in (
        ({}, (q, k, v)),
        ({"key_mask": mask}, (q, *wrong)),
        ({"lengths": [N, 9]}, (q, k, v)),
        ({"lengths": np.array([0, 9]), "key_mask": mask}, (q, *wrong)),
        ({"cumulative_lengths": ends}, (q, k, v)),
        ({"cumulative_lengths": ends, "key_mask": mask}, (q, *wrong)),
    ):
        y, report = attention(*arrays, report=True, **options)
        expected = nprf.reference.kernelized_attention(attention, *arrays, **options)
        assert_within_bounds(y, expected, v, report)
        near, report = exact(*arrays, report=True, **options)
        softmax = nprf.reference.softmax_attention(*arrays, position, causal=causal, **options)
        assert_within_bounds(near, softmax, v, report, report)
        first = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in arrays]
        options["layout"] = "tokens_first"
        found = nprf.reference.kernelized_attention(attention, *first, **options)
        assert np.array_equal(found.transpose(0, 2, 1, 3), expected)
        found = nprf.reference.softmax_attention(*first, position, causal=causal, **options)
        assert np.array_equal(found.transpose(0, 2, 1, 3), softmax)
    shifted = nprf.reference.kernelized_attention(attention, q[:, :, 9:], k, v, 9, lengths=[N, 20])
    assert np.array_equal(shifted, nprf.reference.kernelized_attention(attention, q, k, v, lengths=[N, 20])[:, :, 9:])


def test_masked_references_of_grids_and_of_non_finite_rows(rng):
    position = nprf.Grid(3, 4, rng.standard_normal((H, 5, 7)), rng.standard_normal((2, 4)))
    q, k, v = heads(rng, B, H, 14, D), heads(rng, B, H, 14, D), heads(rng, B, H, 14, V)
    mask = rng.random((B, 14)) < 0.5
    attention = nprf.Attention(nprf.orf(D, 16), position)
    y, report = attention(q, k, v, report=True, key_mask=mask)
    assert_within_bounds(y, nprf.reference.kernelized_attention(attention, q, k, v, key_mask=mask), v, report)
    all_sinks = nprf.Attention(nprf.orf(D, 16), position, sinks=14)
    y, report = all_sinks(q, k, v, report=True, key_mask=mask)
    assert_within_bounds(y, nprf.reference.softmax_attention(q, k, v, position, key_mask=mask), v, report, report)
    q[1, 0, 3, 2] = np.nan
    y = nprf.reference.softmax_attention(q, k, v, position, key_mask=mask)
    assert np.isnan(y[1, 0, 3]).all() and np.isnan(y).sum() == V
    masked = nprf.RelativePosition([-np.inf, 0.0, -np.inf])  # a query attends only to the key at its own position
    y = nprf.reference.softmax_attention(k, k, v, masked, key_mask=np.arange(14)[None] > 9 + np.zeros((B, 1)))
    assert not y[:, :, :10].any() and (np.abs(y[:, :, 10:] - v[:, :, 10:]) == 0).all()


def test_errors_of_the_references(rng):
    q, k, v = heads(rng, B, H, N, D), heads(rng, B, H, N, D), heads(rng, B, H, N, V)
    attention = nprf.Attention(nprf.orf(D, 16))

    def rejects(error, text, *arrays, **options):
        for reference in (
            lambda: nprf.reference.softmax_attention(*arrays, **options),
            lambda: nprf.reference.kernelized_attention(attention, *arrays, **options),
        ):
            with pytest.raises(error, match=text):
                reference()

    mask = np.ones((B, 32), bool)
    rejects(ValueError, r"key_mask: expected 2 x 33 \(sequences, keys\), got 2 x 32", q, k, v, key_mask=mask)
    rejects(TypeError, "key_mask: expected bool", q, k, v, key_mask=np.ones((B, N)))
    rejects(ValueError, r"lengths\[1\]: expected 0 to 33", q, k, v, lengths=[1, 99])
    rejects(ValueError, "lengths: expected 2 entries", q, k, v, lengths=[1])
    rejects(ValueError, "cumulative_lengths: expected to end at 33", q, k, v, cumulative_lengths=[0, 5])
    rejects(ValueError, "layout: expected", q, k, v, layout="bhnd")
    rejects(ValueError, "lengths: expected 2 entries .one a sequence., got 0", q, k, v, lengths=[])
    rejects(ValueError, "values: expected 2 x 3 x 33 x 5 .*, got 2 x 3 x 32 x 5", q, k, v[:, :, 1:])
    rejects(ValueError, "keys: expected 2 x 3 x 33 x 8 .*, got 2 x 3 x 33 x 7", q, k[..., 1:], v)
    rejects(ValueError, "keys: expected a number of heads that 3 .* is a multiple of, got 2", q, k[:, :2], v[:, :2])
    rejects(ValueError, "keys: expected 2 x ", q, k[:1], v[:1], layout="tokens_first")
    rejects(ValueError, "values: expected 2, 3 or 4 dimensions, got 0", q, k, v[0, 0, 0, 0])
    rejects(TypeError, "keys: expected float64, as the queries, got float32", q, k.astype(np.float32), v)
    of_position = "queries: expected 2 heads .the number of feature maps or positions., got 3"
    extra = rng.standard_normal((2, 1, 3))
    grid = nprf.Grid(4, 8, rng.standard_normal((7, 15)), extra)
    for position in (grid, nprf.Alibi([0.1, 0.2])):
        with pytest.raises(ValueError, match=of_position):
            nprf.reference.softmax_attention(q, k, v, position)
        with pytest.raises(ValueError, match=of_position):
            nprf.reference.kernelized_attention(nprf.Attention(nprf.orf(D, 16), position), q, k, v)
    for maps in (2, 8):
        with pytest.raises(ValueError, match=f"queries: expected {maps} heads"):
            features = [nprf.orf(D, 16, seed) for seed in range(maps)]
            nprf.reference.kernelized_attention(nprf.Attention(features), q, k, v)
    for name, wrong in (("position", np.zeros(3)), ("normalization", 1.0)):
        for call in (nprf.reference.softmax_attention, functools.partial(nprf.calibrate, num_features=9)):
            with pytest.raises(TypeError, match=f"{name}: expected a "):
                call(q, k, v, **{name: wrong})


def test_layouts_have_the_same_bits(rng):
    q, k, v = (heads(rng, B, H, N, D, dtype=np.float32) for _ in range(3))
    features, position = nprf.orf(D, 16), nprf.T5(rng.standard_normal((H, 32)))
    attention = nprf.Attention(features, position, causal=True)
    y = attention(q, k, v)
    tokens_first = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    assert np.array_equal(attention(*tokens_first, layout="tokens_first").transpose(0, 2, 1, 3), y)
    assert np.array_equal(attention(*(x.transpose(0, 2, 1, 3) for x in tokens_first)), y)
    for copied in (
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :],
        lambda x: np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    ):
        assert np.array_equal(attention(copied(q), copied(k), copied(v)), y)
    read_only = q.copy()
    read_only.flags.writeable = False
    assert np.array_equal(attention(read_only, k, v), y)
    assert np.array_equal(attention(q[0], k[0], v[0]), y[0])
    one = nprf.Attention(features, nprf.T5(position.weights[1]), causal=True)
    assert np.array_equal(one(q[0, 1], k[0, 1], v[0, 1]), y[0, 1])
    broadcast = np.broadcast_to(q[:1], q.shape)
    assert np.array_equal(attention(broadcast, k, v)[0], y[0])


def test_grouped_queries(rng):
    q, k, v = heads(rng, B, 6, N, D), heads(rng, B, 2, N, D), heads(rng, B, 2, N, V)
    attention = nprf.Attention(nprf.orf(D, 16), nprf.Alibi(nprf.alibi_slopes(6)))
    assert np.array_equal(attention(q, k, v), attention(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1)))


def test_padding(rng):
    q, k, v = heads(rng, B, H, N, D), heads(rng, B, H, N, D), heads(rng, B, H, N, V)
    attention = nprf.Attention(nprf.orf(D, 16), nprf.Alibi(0.05))
    lengths = [N, 9]
    mask = np.arange(N)[None, :] < np.array(lengths)[:, None]
    y, report = attention(q, k, v, lengths=lengths, report=True)
    assert np.array_equal(attention(q, k, v, key_mask=mask), y)
    assert np.array_equal(attention(q, k, v, key_mask=np.asfortranarray(mask)), y)
    cut, of_cut = attention(q[1], k[1, :, :9], v[1, :, :9], report=True)
    assert_within_bounds(y[1], cut, v, report, of_cut)
    none, report = attention(q, k, v, key_mask=np.zeros((B, N), bool), report=True)
    assert not none.any() and report.empty_rows == B * H * N
    assert np.array_equal(
        attention(q[0], k[0], v[0], cumulative_lengths=[0, 10, N])[:, :10],
        attention(q[0, :, :10], k[0, :, :10], v[0, :, :10]),
    )
    causal = nprf.Attention(nprf.orf(D, 16), nprf.Alibi(0.05), causal=True)
    last, of_last = causal(q[:, :, -1:], k, v, offset=N - 1, report=True)
    y, report = causal(q, k, v, report=True)
    assert_within_bounds(last, y[:, :, -1:], v, report, of_last)


@pytest.mark.parametrize("name", [each for each in positions(np.random.default_rng(7), H) if each != "none"])
def test_gradients_are_difference_quotients(rng, name):
    n = 12
    position = positions(rng, H)[name]
    q, k, v, dy = (heads(rng, B, H, n, D) for _ in range(4))
    features = nprf.orf(D, 16)

    def loss(q, k, v, parameters):
        of_position = {name: getattr(position, name) for name in position._arguments}
        moved = type(position)(**{**of_position, position._parameters: parameters})
        return (nprf.attention(q, k, v, features=features, position=moved, near=3) * dy).sum()

    attention = nprf.Attention(features, position, near=3)
    y, saved, report = attention.forward(q, k, v, report=True)
    g = attention.backward(saved, dy)
    arrays = [q, k, v, position.parameters]
    for i, gradient in enumerate(g[:4]):
        assert gradient.shape == arrays[i].shape
        direction = rng.standard_normal(arrays[i].shape)
        assert_slope(
            lambda t: loss(*(x + t * direction if j == i else x for j, x in enumerate(arrays))),
            (gradient * direction).sum(),
            error_of_loss(report, v, y, dy),
        )
    assert g.extra is None


def error_of_loss(report, v, y, dy):
    """The rounding error of sum(y * dy): that of y, and that of the sum, which NumPy adds in pairs."""
    pairs = np.finfo(y.dtype).eps * (1 + np.log2(y.size)) * np.abs(y * dy).sum()
    return report.error_bound * np.abs(v).max() * np.abs(dy).sum() + pairs


@pytest.mark.parametrize("make", [nprf.RelativePosition, nprf.T5])
def test_gradients_of_a_shared_bias_with_an_axis_of_heads(rng, make):
    q, k, v = (rng.standard_normal((3, 20, 8)) for _ in range(3))
    parameters = rng.standard_normal((1, 32 if make is nprf.T5 else 5))
    gradients = []
    for each in (parameters, parameters[0]):
        attention = nprf.Attention(nprf.orf(8, 16), make(each))
        y, saved = attention.forward(q, k, v)
        gradients.append(attention.backward(saved, y).bias)
    assert gradients[0].shape == parameters.shape
    np.testing.assert_array_equal(gradients[0][0], gradients[1])


def test_biases_of_extra_tokens_may_have_heads_of_their_own(rng):
    x, f = rng.standard_normal((2, 13, 4)), nprf.orf(4, 8)
    b, extra = rng.standard_normal((5, 7)), rng.standard_normal((2, 1, 3))
    one = nprf.Attention(f, nprf.Grid(3, 4, b, extra))
    y, saved = one.forward(x, x, x)
    np.testing.assert_array_equal(y, nprf.Attention(f, nprf.Grid(3, 4, np.stack([b, b]), extra))(x, x, x))
    assert one.backward(saved, y).bias.shape == b.shape and one.backward(saved, y).extra.shape == extra.shape
    with pytest.raises(ValueError, match="extra: expected 3 heads, as b, got 2"):
        nprf.Grid(3, 4, np.stack([b, b, b]), extra)


def test_numbers_that_are_not_integers_are_refused(rng):
    x, attention = rng.standard_normal((20, 8)), nprf.Attention(nprf.orf(8, 16))
    for options in ({"lengths": [2.9]}, {"offset": 1.5}, {"softmax_samples": 2.0}, {"cumulative_lengths": [0, 20.0]}):
        with pytest.raises(TypeError, match=f"{next(iter(options))}: expected an integer"):
            attention(x, x, x, **options)
    with pytest.raises(TypeError, match="near: expected an integer, got 2.9"):
        nprf.Attention(nprf.orf(8, 16), near=2.9)
    attention(x, x, x, lengths=np.array([7]), offset=np.int32(2))
    with pytest.raises(TypeError, match="queries: expected an array without a mask"):
        attention(np.ma.array(x), x, x)


def test_gradients_of_a_grid(rng):
    h, w, extra = 3, 2, 1
    n = h * w + extra
    b, e = rng.standard_normal((2 * h - 1, 2 * w - 1)), rng.standard_normal((extra, extra + 2))
    q, k, v, dy = (heads(rng, H, n, D) for _ in range(4))
    attention = nprf.Attention(nprf.orf(D, 16), nprf.Grid(h, w, b, e))
    y, saved, report = attention.forward(q, k, v, report=True)
    g = attention.backward(saved, dy)
    assert g.bias.shape == b.shape and g.extra.shape == e.shape

    def loss(b, e):
        return (nprf.attention(q, k, v, features=nprf.orf(D, 16), position=nprf.Grid(h, w, b, e)) * dy).sum()

    d_b, d_e = rng.standard_normal(b.shape), rng.standard_normal(e.shape)
    error = error_of_loss(report, v, y, dy)
    assert_slope(lambda t: loss(b + t * d_b, e), (g.bias * d_b).sum(), error)
    assert_slope(lambda t: loss(b, e + t * d_e), (g.extra * d_e).sum(), error)


def test_saved_of_another_attention(rng):
    q = heads(rng, N, D)
    one, other = nprf.Attention(nprf.orf(D, 16)), nprf.Attention(nprf.orf(D, 16))
    y, saved = one.forward(q, q, q)
    with pytest.raises(ValueError, match="saved: expected one that forward of this attention returned"):
        other.backward(saved, y)
    assert np.array_equal(one.backward(saved, y).queries, one.backward(saved, y).queries)


def test_threads_do_not_change_bits(rng):
    q, k, v = (heads(rng, 2, 4, 300, 16, dtype=np.float32) for _ in range(3))
    attention = nprf.Attention(nprf.orf(16, 32), nprf.T5(rng.standard_normal(32)))
    before = nprf.num_threads()
    y, saved = attention.forward(q, k, v, threads=1)
    gradients = attention.backward(saved, y)
    for threads in (2, 3):
        other, saved = attention.forward(q, k, v, threads=threads)
        assert np.array_equal(other, y)
        assert all(np.array_equal(a, b) for a, b in zip(attention.backward(saved, y)[:4], gradients))
    assert nprf.num_threads() == before
    results = [None] * 4

    def run(i):
        results[i] = attention(q, k, v)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert all(np.array_equal(each, y) for each in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork of a process with threads
def test_a_forked_process(rng):
    """OpenMP's threads do not exist there: it computes on one."""
    q = heads(rng, 2, 4, 300, 16, dtype=np.float32)
    attention = nprf.Attention(nprf.orf(16, 32), nprf.Alibi(0.1))
    y = attention(q, q, q, threads=2)
    child = os.fork()
    if child == 0:
        same = np.array_equal(attention(q, q, q), y) and np.array_equal(attention(q, q, q, threads=2), y)
        same = same and nprf.num_threads() == 1
        nprf.set_num_threads(2)  # as PyTorch may
        os._exit(0 if same and np.array_equal(attention(q, q, q), y) else 1)
    end = time.monotonic() + 20
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if found == (0, 0):
        os.kill(child, signal.SIGKILL)
    assert found == (child, 0)


def norm(x):
    return np.linalg.norm(x.astype(np.float64))


def relative_error(y, exact):
    return norm(y.astype(np.float64) - exact) / norm(exact)


def test_reports(rng):
    q, k, v = (heads(rng, H, 200, D, dtype=np.float32) for _ in range(3))
    attention = nprf.Attention(nprf.taylor(D), nprf.Alibi(0.05), near=16)
    assert attention(q, k, v, report=True, softmax_samples=50)[1].compared_rows == H * 50
    for call in (attention, attention.forward):
        with pytest.raises(ValueError, match="^softmax_samples: expected 0 without report=True, got 50$"):
            call(q, k, v, softmax_samples=50)
    y, report = attention(q, k, v, report=True, softmax_samples=200)  # all rows
    assert report.engine in {"direct", "banded", "recurrence"}  # the fastest, which depends on the processor's level
    assert report.compared_rows == H * 200
    softmax = nprf.reference.softmax_attention(q, k, v, nprf.Alibi(0.05))
    # both errors of features are those of the same y, relative to two computations of softmax
    close = rounding(v, terms=200, exponent=1 + 0.05 * 200, channels=D) * np.sqrt(softmax.size) / norm(softmax)
    assert abs(report.softmax_error - relative_error(y, softmax)) <= close < report.softmax_error
    assert repr(report).startswith("Report(engine='")
    _, saved = attention.forward(q, k, v)
    assert repr(attention.backward(saved, y).report).startswith("GradientReport(engine='")


def test_sinks(rng):
    """Keys whose weights are those of softmax: here all of them."""
    q, k, v = heads(rng, H, N, D), heads(rng, H, N, D), heads(rng, H, N, V)
    position = nprf.T5(rng.standard_normal((H, 32)))
    attention = nprf.Attention(nprf.orf(D, 16), position, sinks=N)
    y, report = attention(q, k, v, report=True)
    assert_within_bounds(y, nprf.reference.softmax_attention(q, k, v, position), v, report)
    assert pickle.loads(pickle.dumps(attention)) == attention != nprf.Attention(nprf.orf(D, 16), position)
    errors = [nprf.calibrate(q, k, v, position, num_features=D, sinks=sinks).softmax_error for sinks in (0, 9)]
    assert errors[0] != errors[1]
    with pytest.raises(ValueError, match="sinks: expected at most 25"):
        nprf.calibrate(q, k, v, position, num_features=D, sinks=N)


def test_salient_keys(rng):
    """Keys that the queries choose. Here all keys are salient, so that all weights are those of softmax."""
    q, k, v = heads(rng, H, N, D), heads(rng, H, N, D), heads(rng, H, N, V)
    position = nprf.T5(rng.standard_normal((H, 32)))
    softmax = nprf.reference.softmax_attention(q, k, v, position)
    attention = nprf.Attention(nprf.orf(D, 16), position, salient=N)
    y, report = attention(q, k, v, report=True)
    assert_within_bounds(y, softmax, v, report)
    assert pickle.loads(pickle.dumps(attention)) == attention != nprf.Attention(nprf.orf(D, 16), position)
    assert (attention.redraw(5).salient, attention.sinks) == (N, 0)
    some = nprf.attention(q, k, v, features=nprf.orf(D, 16), position=position, near=2, sinks=1, salient=3)
    of_formula = nprf.reference.kernelized_attention(
        nprf.Attention(nprf.orf(D, 16), position, near=2, sinks=1, salient=3), q, k, v
    )
    assert np.abs(some - of_formula).max() < 1e-3 < np.abs(some - softmax).max()
    with pytest.raises(ValueError, match="salient: expected 0 for causal attention"):
        nprf.Attention(nprf.orf(D, 16), position, True, salient=3)
    with pytest.raises(ValueError, match="salient: expected 0 on a GPU, got 4"):
        nprf.Attention(nprf.orf(D, 16), salient=4)._native(nprf._native.float32).cuda_model()


def test_calibration(rng):
    scale = np.linspace(0.1, 2, D)
    q, k, v = heads(rng, H, 400, D) * scale + 0.5, heads(rng, H, 400, D) * scale, heads(rng, H, 400, V)
    position = nprf.Alibi(0.02)
    found = nprf.calibrate(q, k, v, position, num_features=D + 1, near=8)
    assert len(found.head_errors) == H and found.candidates[0][:2] == (0, 0)
    # it is the error on the second half of the sample, far below that of the bias alone
    half = [x[:, 200:] for x in (q, k, v)]
    attention = nprf.Attention(found.features, position, near=8)
    y, report = attention(*half, report=True)
    softmax = nprf.reference.softmax_attention(*half, position)
    close = rounding(v, terms=200, exponent=1 + 0.02 * 200, channels=D) + report.error_bound * np.abs(v).max()
    close *= np.sqrt(softmax.size) / norm(softmax)
    assert abs(found.softmax_error - relative_error(y, softmax)) <= close
    assert found.softmax_error < found.candidates[0][2]
    again = pickle.loads(pickle.dumps(found.features))
    assert again == found.features
    assert np.array_equal(nprf.attention(*half, features=again, position=position, near=8), y)
    # the same map with constants of float32
    as_float = [x.astype(np.float32) for x in half]
    z, report = attention(*as_float, report=True)
    assert z.dtype == np.float32
    assert_within_bounds(z, nprf.reference.kernelized_attention(attention, *as_float), as_float[2], report)
    assert abs(relative_error(z, softmax) - relative_error(y, softmax)) <= 1e-3 * relative_error(y, softmax)
    one = nprf.calibrate(q[0], k[0], v[0], position, num_features=D + 1, near=8)
    assert isinstance(one.features, nprf.CalibratedFeatures) and one.features.output_dim <= D + 1


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_calibration_as_text(rng, dtype):
    q, k, v = heads(rng, H, 60, D, dtype=dtype), heads(rng, H, 60, D, dtype=dtype), heads(rng, H, 60, V, dtype=dtype)
    for found in (
        nprf.calibrate(q, k, v, nprf.Alibi(0.02), num_features=D + 1, near=8),
        nprf.calibrate(q[0], k[0], v[0], num_features=D + 1),
    ):
        text = found.save()
        name = "double" if dtype == np.float64 else "float"
        assert text.startswith(f"nprf-calibration 1 {name}\nheads 1 {len(found.head_errors)}\n")
        assert nprf.Calibration.load(text) == found and nprf.Calibration.load(text).save() == text
        assert pickle.loads(pickle.dumps(found)) == found
        for cut in ("", "nonsense", text[: len(text) // 2], text.replace("nprf-calibration 1", "nprf-calibration 2")):
            with pytest.raises(ValueError):
                nprf.Calibration.load(cut)
    with pytest.raises(TypeError, match="features: expected CalibratedFeatures, got TaylorFeatures"):
        found._replace(features=nprf.taylor(D)).save()
    with pytest.raises(ValueError, match="head_errors: expected 1"):
        found._replace(head_errors=[]).save()


def test_calibration_without_values(rng):
    """The error is that of the weights: of the outputs for values that are the rows of the unit matrix."""
    q, k = heads(rng, H, 60, D), heads(rng, H, 60, D)
    options = {"num_features": 2 * D, "near": 8, "causal": True}
    found = nprf.calibrate(q, k, position=nprf.Alibi(0.02), **options)
    of_weights = nprf.calibrate(q, k, np.broadcast_to(np.eye(60), (H, 60, 60)), nprf.Alibi(0.02), **options)
    assert found.features == of_weights.features
    np.testing.assert_allclose(found.head_errors, of_weights.head_errors, rtol=1e-9)
    assert nprf.calibrate(q[0], k[0], num_features=D).softmax_error > 0
    with pytest.raises(TypeError, match="values: expected an array, got Alibi"):
        nprf.calibrate(q, k, nprf.Alibi(0.02), num_features=D)


def test_dlpack(rng):
    q = heads(rng, H, N, D)
    features = nprf.orf(D, 16)
    y = nprf.attention(q, q, q, features=features)
    assert np.array_equal(nprf.attention(Producer(q), Producer(q), Producer(q), features=features), y)


@pytest.mark.parametrize("h, threads", [(1, 1), (1, 2), (4, 2)])
def test_ctrl_c_ends_a_call_within_a_head(rng, h, threads):
    x = heads(rng, h, 2**18, 8, dtype=np.float32)
    attention = nprf.Attention(nprf.orf(8, 64), engine="direct")
    with interrupted():
        attention(x, x, x, threads=threads)
    y = attention(x[:, :50], x[:, :50], x[:, :50])
    assert np.isfinite(y).all()


@pytest.mark.parametrize("h, threads", [(1, 1), (4, 2)])
def test_ctrl_c_ends_a_backward(rng, h, threads):
    x = heads(rng, h, 2**13 if h == 1 else 3 * 2**10, 8, dtype=np.float32)
    attention = nprf.Attention(nprf.orf(8, 64), nprf.Alibi(0.1), engine="direct")
    _, saved = attention.forward(x, x, x, threads=threads)
    expected, whole = seconds(lambda: attention.backward(saved, x))
    with interrupted(after=whole / 8, within=whole / 2):
        attention.backward(saved, x)
    again = attention.backward(saved, x)  # what forward saved is still there
    assert all(np.array_equal(a, b) for a, b in zip(again[:4], expected[:4]))


def test_ctrl_c_ends_calibration_and_the_references(rng):
    x = heads(rng, 2**20, 8)
    with interrupted():
        nprf.reference.softmax_attention(x, x, x)
    attention = nprf.Attention(nprf.orf(8, 16))
    with interrupted():
        nprf.reference.kernelized_attention(attention, x, x, x)
    x = x[: 2**15]
    with interrupted():
        nprf.calibrate(x, x, x, num_features=40, max_queries=2**15)


def test_the_gil_is_released(rng):
    q = heads(rng, 1, 2, 4096, 64, dtype=np.float32)
    attention = nprf.Attention(nprf.orf(64, 128), engine="direct")
    ticks = 0
    stop = threading.Event()

    def tick():
        nonlocal ticks
        while not stop.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    attention(q, q, q)
    stop.set()
    thread.join()
    assert ticks > 5


def test_errors(rng):
    q, k, v = heads(rng, B, H, N, D), heads(rng, B, H, N, D), heads(rng, B, H, N, V)
    f = nprf.orf(D, 16)

    def rejects(error, text, *arrays, **options):
        with pytest.raises(error, match=text):
            nprf.attention(*arrays, **{"features": f, **options})

    rejects(ValueError, "keys: expected 2 x 3 x 33 x 8", q, k[..., :3], v)
    rejects(ValueError, "values: expected", q, k, v[:, :, 1:])
    rejects(ValueError, "queries: expected 8 columns", q[..., :5], k[..., :5], v)
    rejects(ValueError, "queries: expected 2, 3 or 4 dimensions, got 1", q[0, 0, 0], k, v)
    rejects(ValueError, "values: expected 2, 3 or 4 dimensions, got 5", q, k, v[None])
    rejects(ValueError, "keys: expected", q, k[0], v)
    rejects(TypeError, "keys: expected float64, as the queries, got float32", q, k.astype(np.float32), v)
    rejects(TypeError, "values: expected float64, as the queries, got int64", q, k, v.astype(np.int64))
    attention = nprf.Attention(f)
    y, saved = attention.forward(q, k, v)
    with pytest.raises(TypeError, match="dy: expected float64, as the queries, got float32"):
        attention.backward(saved, y.astype(np.float32))
    rejects(TypeError, "options: got an unknown option 'lenghts'", q, k, v, lenghts=[3, 4])
    rejects(ValueError, "lengths: expected 2 entries .one a sequence., got 0", q, k, v, lengths=[])
    rejects(ValueError, "threads: expected 0 to 4096, got -1", q, k, v, threads=-1)
    rejects(ValueError, "softmax_seed: expected 0 to 2.64 - 1, got -1", q, k, v, softmax_seed=-1)
    rejects(ValueError, "near: expected an integer of 64 bits, got 1180591620717411303424", q, k, v, near=2**70)
    rejects(TypeError, "engine: expected a str, got int", q, k, v, engine=3)
    rejects(
        TypeError,
        r"normalization: expected a Normalization, unit\(r\) or none\(\) .*, got float",
        q,
        k,
        v,
        normalization=1.0,
    )
    rejects(TypeError, "position: expected a Position, got ndarray", q, k, v, position=np.zeros(3))
    rejects(TypeError, "queries: expected float32 or float64, got float16", q.astype(np.float16), k, v)
    rejects(TypeError, "queries: expected float32 or float64, got object", np.array([[None]]), k, v)
    rejects(TypeError, "queries: expected an array, got list", q.tolist(), k, v)
    rejects(TypeError, "key_mask: expected bool", q, k, v, key_mask=np.ones((B, N)))
    mask = np.ones((B, N), bool)
    rejects(ValueError, r"key_mask: expected 2 x 33 \(sequences, keys\), got 2 x 32", q, k, v, key_mask=mask[:, 1:])
    rejects(ValueError, "key_mask: expected 2 x 33 .*, got 33 x 2", q, k, v, key_mask=mask.T)
    rejects(ValueError, "key_mask: expected 2 x 33 .*, got 66", q, k, v, key_mask=mask.ravel())
    rejects(ValueError, "key_mask: expected 2 x 33 .*, got 1", q, k, v, key_mask=np.array(True))
    rejects(ValueError, "lengths", q, k, v, lengths=[1, 99])
    rejects(ValueError, "layout", q, k, v, layout="bhnd")
    rejects(ValueError, "engine: expected automatic", q, k, v, engine="fast")
    rejects(ValueError, "near", q, k, v, near=-1)
    rejects(ValueError, "near", q, k, v, near=4, features=nprf.elu(D))
    rejects(ValueError, "heads", q, k, v, position=nprf.RelativePosition(np.zeros((2, 5))))
    rejects(TypeError, "position: expected a Position", q, k, v, position=np.zeros(5))
    rejects(TypeError, "features: expected a feature map", q, k, v, features=3)
    rejects(TypeError, "normalization", q, k, v, normalization=1.0)
    rejects(TypeError, "options: got an unknown option 'mask'", q, k, v, mask=None)
    wrong = q.copy()
    wrong[1, 2, 3, 4] = np.nan
    rejects(
        ValueError,
        r"queries: expected finite numbers \(check_finite\), got nan in batch 1",
        wrong,
        k,
        v,
        check_finite=True,
    )
    y = nprf.attention(wrong, k, v, features=f)
    assert np.isnan(y[1, 2, 3]).all() and np.isnan(y).sum() == V


def test_empty_arrays():
    f = nprf.orf(D, 16)
    for shape in ((0, D), (H, 0, D), (0, H, N, D), (B, 0, N, D)):
        x = np.zeros(shape)
        assert nprf.attention(x, x, x, features=f).shape == shape
        y, saved = nprf.Attention(f).forward(x, x, x)
    assert not nprf.attention(np.ones((4, D)), np.zeros((0, D)), np.zeros((0, D)), features=f).any()


def test_free_memory(rng):
    q = heads(rng, H, N, D)
    f = nprf.orf(D, 16)
    y = nprf.attention(q, q, q, features=f)
    nprf.free_memory()
    assert np.array_equal(nprf.attention(q, q, q, features=f), y)


def saved_and_used(fresh):
    """Results and gradients of calls of different sizes and options, whose saved states use the memory of earlier ones,
    or with `fresh` memory of their own."""
    rng = np.random.default_rng(0)
    lengths, mask = {"lengths": [7, 300]}, {"key_mask": rng.random((2, 300)) < 0.5}
    found = []
    for n, d, options, call in (
        (300, 16, {"near": 5}, {}),
        (300, 16, {}, mask),
        (17, 8, {"causal": True}, {}),
        (300, 16, {}, lengths),
        (0, 8, {}, {}),
        (300, 16, {"engine": "direct"}, {}),
    ):
        if fresh:
            nprf.free_memory()
        q, k, v, dy = (rng.standard_normal((2, 3, n, d)) for _ in range(4))
        attention = nprf.Attention(nprf.orf(d, 12), nprf.T5(rng.standard_normal((3, 32))), **options)
        y, saved = attention.forward(q, k, v, **call)
        gradients = attention.backward(saved, dy)
        del saved  # its memory is kept from now on
        found += [y, gradients.queries, gradients.keys, gradients.values, gradients.bias]
    return found


def test_saved_states_use_the_memory_of_earlier_ones():
    saved_and_used(fresh=False)
    for x, expected in zip(saved_and_used(fresh=False), saved_and_used(fresh=True)):
        assert np.array_equal(x, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the page faults of Linux")
def test_a_forward_whose_state_was_dropped_leaves_its_memory(rng):
    import resource

    q, k, v = (rng.standard_normal((1, 4, 4096, 64)) for _ in range(3))
    attention = nprf.Attention(nprf.orf(64, 8))
    state = 4 * 4096 * 64 * 8 * 3  # bytes of normalised queries and keys, and of values: more is saved

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        attention.forward(q, k, v)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert min(faults() for _ in range(5)) < state / resource.getpagesize() / 2


def test_references_refuse_options_that_they_do_not_have():
    q = np.zeros((7, 8), np.float32)
    attention = nprf.Attention(nprf.orf(8, 4))
    for name in ("tolerance", "check_finite", "softmax_samples", "softmax_seed", "report"):
        with pytest.raises(TypeError, match=f"softmax_attention: got an unknown option '{name}'"):
            nprf.reference.softmax_attention(q, q, q, **{name: 1})
        with pytest.raises(TypeError, match=f"kernelized_attention: got an unknown option '{name}'"):
            nprf.reference.kernelized_attention(attention, q, q, q, **{name: 1})


def test_references_over_a_grid_refuse_other_tokens():
    x, more = np.ones((4, 8), np.float32), np.ones((300, 8), np.float32)
    grid = nprf.Grid(2, 2, np.zeros((3, 3)))
    attention = nprf.Attention(nprf.orf(8, 4), grid)
    for call in (
        lambda *arrays, **options: nprf.reference.kernelized_attention(attention, *arrays, **options),
        lambda *arrays, **options: nprf.reference.softmax_attention(*arrays, grid, **options),
    ):
        assert np.isfinite(call(x, x, x)).all()
        for arrays in ((x, more, more), (more, x, x), (more, more, more)):
            with pytest.raises(ValueError, match="expected 4 rows"):
                call(*arrays)
        with pytest.raises(ValueError, match="expected 4 rows"):
            call(x, x, x, cumulative_lengths=[0, 1, 4])
    with pytest.raises(ValueError, match="offset: expected 0"):
        nprf.reference.kernelized_attention(attention, x, x, x, offset=2)


def test_a_row_that_only_padding_precedes_is_zero_beside_a_later_nan():
    q, k, v = np.ones((3, 3, 8), np.float32)
    k[1] = np.nan
    y = nprf.reference.softmax_attention(q, k, v, causal=True, key_mask=np.array([False, True, True]))
    assert (y[0] == 0).all() and np.isnan(y[1:]).all()


def test_cumulative_lengths_have_at_least_one_number():
    q = np.zeros((7, 8), np.float32)
    for name in ("cumulative_lengths", "key_cumulative_lengths"):
        with pytest.raises(ValueError, match=f"^{name}: expected at least one number"):
            nprf.attention(q, q, q, features=nprf.orf(8, 4), **{name: []})


def test_a_causal_call_says_how_queries_and_keys_are_aligned(rng):
    """Libraries differ: at the first or at the last of them."""
    q, k, v = heads(rng, B, H, N, D), heads(rng, B, H, N, D), heads(rng, B, H, N, V)
    attention = nprf.Attention(nprf.taylor(D), nprf.Alibi(nprf.alibi_slopes(H)), causal=True, near=4)
    options = {"features": attention.features, "position": attention.position, "causal": True, "near": 4}
    last = lambda x: x[..., -3:, :]
    y, softmax = attention(q, k, v), nprf.reference.softmax_attention(q, k, v, attention.position, causal=True)
    calls = {
        "attention": (lambda q, k, **at: attention(q, k, v[..., : k.shape[-2], :], **at), y),
        "forward": (lambda q, k, **at: attention.forward(q, k, v[..., : k.shape[-2], :], **at)[0], y),
        "nprf.attention": (lambda q, k, **at: nprf.attention(q, k, v[..., : k.shape[-2], :], **options, **at), y),
        "formula": (
            lambda q, k, **at: nprf.reference.kernelized_attention(attention, q, k, v[..., : k.shape[-2], :], **at), y,
        ),
        "softmax": (
            lambda q, k, **at: nprf.reference.softmax_attention(
                q, k, v[..., : k.shape[-2], :], attention.position, causal=True, **at
            ), softmax,
        ),
    }  # fmt: skip
    for call, whole in calls.values():
        close = rounding(v, terms=N + D + 1, exponent=1 + N * attention.position.slope.max(), channels=D)
        assert np.abs(call(last(q), k, offset=N - 3) - last(whole)).max() <= close
        assert np.abs(call(q[..., :3, :], k, offset=0) - whole[..., :3, :]).max() <= close
        text = "offset: expected one for a causal call of 3 queries and 33 keys, got none: 0 .* 30 the last query"
        with pytest.raises(ValueError, match=text):
            call(last(q), k)
        with pytest.raises(ValueError, match="of 33 queries and 3 keys, got none: 0 .*, and -30 the last query"):
            call(q, last(k))
        tokens_first = [np.moveaxis(x, 1, 2) for x in (last(q), k)]
        with pytest.raises(ValueError, match="of 3 queries and 33 keys, got none"):
            nprf.attention(*tokens_first, np.moveaxis(v, 1, 2), layout="tokens_first", **options)
        assert call(q[..., :0, :], k).shape[-2] == 0 and not call(q, k[..., :0, :]).any()
    packed = {"cumulative_lengths": [0, 5, N], "key_cumulative_lengths": [0, 4, N]}
    one = q[:1], k[:1], v[:1]
    for call in (attention, lambda *x, **more: nprf.reference.softmax_attention(*x, causal=True, **more)):
        call(*one, offset=0, **packed)
        with pytest.raises(ValueError, match="offset: expected one for a causal call with key_cumulative_lengths"):
            call(*one, **packed)
    with pytest.raises(ValueError, match="keys: expected 3 tokens in a causal sample, as the queries, got 33"):
        nprf.calibrate(last(q), k, v, num_features=5, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_exact_softmax_with_an_offset(rng, causal):
    """It is that of some rows of longer sequences."""
    q, k, v = heads(rng, B, H, N, D), heads(rng, B, H, N, D), heads(rng, B, H, N, V)
    for position in positions(rng, H).values():
        whole = nprf.reference.softmax_attention(q, k, v, position, causal=causal)
        bias = 0 if position is None else np.abs(position.parameters).max() * (N if position._dims == 0 else 1)
        close = rounding(v, terms=N, exponent=1 + bias, channels=D)
        for first in (0, 7, N - 1):
            y = nprf.reference.softmax_attention(q[..., first:, :], k, v, position, causal=causal, offset=first)
            assert np.abs(y - whole[..., first:, :]).max() <= close
        # keys that begin later: as those of whole sequences whose first ones are padding
        mask = np.broadcast_to(np.arange(N) >= 5, (B, N))
        padded = nprf.reference.softmax_attention(q, k, v, position, causal=causal, key_mask=mask)
        y = nprf.reference.softmax_attention(q, k[..., 5:, :], v[..., 5:, :], position, causal=causal, offset=-5)
        assert np.abs(y - padded).max() <= close
    grid = nprf.Grid(1, N, np.zeros((1, 2 * N - 1)))
    with pytest.raises(ValueError, match="offset: expected 0 for a position that assigns slots, got 1"):
        nprf.reference.softmax_attention(q, k, v, grid, causal=causal, offset=1)


def test_masks_of_the_other_polarity_and_booleans(rng):
    q = heads(rng, 2, 9, D)
    attention, decoder = nprf.Attention(nprf.orf(D, 8)), nprf.Decoder(nprf.orf(D, 8))
    calls = (
        lambda **options: nprf.attention(q, q, q, features=attention.features, **options),
        lambda **options: attention(q, q, q, **options),
        lambda **options: attention.forward(q, q, q, **options),
        lambda **options: decoder.prefill(q.astype(np.float32), q, q, **options),
        lambda **options: nprf.reference.softmax_attention(q, q, q, **options),
        lambda **options: nprf.reference.kernelized_attention(attention, q, q, q, **options),
    )
    text = "key_padding_mask: expected key_mask=~key_padding_mask, whose True keeps a key, got key_padding_mask, whose"
    for call in calls:
        with pytest.raises(TypeError, match=text):
            call(key_padding_mask=np.zeros(9, bool))
    for value in ("yes", 1, 0, None, np.array([True])):
        for call in (
            lambda causal: nprf.attention(q, q, q, features=attention.features, causal=causal),
            lambda causal: nprf.Attention(nprf.orf(D, 8), causal=causal),
            lambda causal: nprf.reference.softmax_attention(q, q, q, causal=causal),
            lambda causal: nprf.calibrate(q, q, q, num_features=4, causal=causal),
        ):
            with pytest.raises(TypeError, match="causal: expected True or False, got"):
                call(value)
        with pytest.raises(TypeError, match="check_finite: expected True or False, got"):
            attention(q, q, q, check_finite=value)
        with pytest.raises(TypeError, match="report: expected True or False, got"):
            attention(q, q, q, report=value)
    assert np.array_equal(
        nprf.attention(q, q, q, features=attention.features, causal=np.bool_(True)),
        nprf.attention(q, q, q, features=attention.features, causal=True),
    )


def test_weights_of_an_embedding(rng):
    """[buckets, heads], which is the other way round."""
    q = heads(rng, 4, 9, D)
    weights = rng.standard_normal((8, 4))
    y = nprf.attention(q, q, q, features=nprf.orf(D, 8), position=nprf.T5(weights.T))
    position = nprf.T5(weights, layout="heads_last")
    assert position == nprf.T5(weights.T) == nprf.T5(weights.T, layout="heads_first")
    assert np.array_equal(nprf.attention(q, q, q, features=nprf.orf(D, 8), position=position), y)
    text = r"weights: expected \[4, ..\] \(heads first\), got the shape \[8, 4\], .* pass layout='heads_last'"
    for layout, x in (("heads_first", q), ("tokens_first", np.moveaxis(q, 0, 1))):
        with pytest.raises(ValueError, match=text):
            nprf.attention(x, x, x, features=nprf.orf(D, 8), position=nprf.T5(weights), layout=layout)
    for make, n in ((nprf.T5, 8), (nprf.RelativePosition, 9)):
        square = rng.standard_normal((n, n))
        with pytest.raises(ValueError, match=rf"layout: expected 'heads_first', or 'heads_last' .* \[{n}, {n}\]"):
            make(square)
        assert np.array_equal(make(square, layout="heads_last").parameters, square.T)
        assert np.array_equal(pickle.loads(pickle.dumps(make(square, layout="heads_first"))).parameters, square)
        with pytest.raises(ValueError, match="layout: expected 'heads_first' or 'heads_last', got 'x'"):
            make(square, layout="x")


def test_errors_of_one_of_several_heads(rng):
    weights = rng.standard_normal((4, 8))
    weights[2, 3] = np.nan
    with pytest.raises(ValueError, match=r"^bucket_weights\[3\]: expected .*, got nan in head 2$"):
        nprf.T5(weights)
    with pytest.raises(ValueError, match=r"^bucket_weights\[3\]: expected .*, got nan$"):
        nprf.T5(weights[2])
    with pytest.raises(ValueError, match=r"^b\[1\]: expected .*, got nan in head 1$"):
        nprf.RelativePosition([[0, 0, 0], [0, np.nan, 0]])
    with pytest.raises(ValueError, match="got inf in head 1$"):
        nprf.Alibi([1, np.inf])
    with pytest.raises(ValueError, match="got nan in head 1$"):
        nprf.Grid(1, 2, [[[0, 0, 0]], [[0, np.nan, 0]]])
    with pytest.raises(ValueError, match=r"2n-1 for the lags -\(n-1\)..n-1, got 60; of 2n leave out the one of lag -n"):
        nprf.RelativePosition(np.zeros((4, 60)))
