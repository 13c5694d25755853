# SPDX-License-Identifier: MIT
"""Biases that are curves, smooth tables, and splines that are fitted to tables. Their gradients are tested with those
of other positions."""

import nprf
import numpy as np
import pytest
from conftest import heads
from dense import spline_of_values

N = 30
lags = np.arange(1 - N, N)
s = np.abs(lags)
knots = [0, 2, 7, 20]
two_sides = np.array([1.0, -1, 0.5, 2, 3, 1, 0, -2])
formulas = {
    "log": (nprf.Kerple((0.5, 0.3), N), -0.5 * np.log(1 + 0.3 * s)),
    "power": (nprf.Kerple((0.5, 0.3), N, "power"), -0.5 * s**0.3),
    "sum": (nprf.AlibiSum([[-1, 0], [1, 0.1]], N), np.log(np.exp(-1 - s) + np.exp(-0.1 * s))),
    "spline": (nprf.Spline(two_sides[:4], knots, N), spline_of_values(s, knots, "constant") @ two_sides[:4]),
    "two sides": (
        nprf.Spline(two_sides, knots, N, "linear"),
        np.where(lags > 0, *(spline_of_values(s, knots, "linear") @ x for x in (two_sides[4:], two_sides[:4]))),
    ),
}


def biases_of(position):
    """Those of the lags, from the weights of softmax without queries; relative to that of lag 0."""
    q, k = np.zeros((1, 4)), np.zeros((2 * N - 1, 4))
    y = nprf.reference.softmax_attention(q, k, np.eye(2 * N - 1), position, offset=N - 1)[0]
    return np.log(y) - np.log(y[N - 1])


@pytest.mark.parametrize("name", formulas)
def test_biases_equal_the_formulas(name):
    position, expected = formulas[name]
    np.testing.assert_allclose(biases_of(position), expected - expected[N - 1], rtol=0, atol=1e-13)


def test_a_spline_has_its_values_at_its_knots_and_ends_as_it_says():
    constant, linear = (nprf.Spline(two_sides, knots, N, end) for end in ("constant", "linear"))
    for position in (constant, linear):
        b = biases_of(position)[N - 1 :] + two_sides[0]  # of later keys, but for lag 0
        np.testing.assert_allclose(b[knots[1:]], two_sides[5:], rtol=0, atol=1e-13)
    np.testing.assert_allclose(biases_of(constant)[: N - 20] + two_sides[0], two_sides[3], rtol=0, atol=1e-13)
    steps = np.diff(biases_of(linear)[: N - 20])
    np.testing.assert_allclose(steps, steps[0], rtol=0, atol=1e-13)
    longer = nprf.Spline(linear.values, linear.knots, 3 * N, linear.end)
    np.testing.assert_allclose(biases_of(longer), biases_of(linear), rtol=0, atol=1e-13)


def test_the_same_curve_with_other_parameters(rng):
    """As the extension makes it."""
    native, (q, k, v) = nprf._native.float64, heads(rng, 3, N, 4)
    none = nprf.Normalization.none()
    for position, _ in formulas.values():
        arguments = {name: getattr(position, name) for name in position._arguments}
        zeros = type(position)(**{**arguments, position._parameters: 0 * position.parameters})._native(native, False)
        y, other = np.empty_like(v), zeros.with_parameters(position._rows(native))
        native.softmax_attention(q, k, v, y, other, False, 0.0, nprf._attention._default_call)
        assert np.array_equal(y, nprf.reference.softmax_attention(q, k, v, position, normalization=none))


@pytest.mark.parametrize("causal", [False, True])
def test_smooth_biases_take_the_smooth_engine(rng, causal):
    """In training they do if the position says so; its gradients are then those of its few parameters."""
    n, r = 2048, np.array((1.0, 0.5))
    q, k, v, dy = (heads(rng, n, 16, dtype=np.float32) for _ in range(4))
    distances = np.abs(np.arange(1 - n, n))
    table = -r[0] * np.log1p(r[1] * distances)
    positions = nprf.Kerple(r, n), nprf.RelativePosition(table, smooth=True), nprf.RelativePosition(table)
    y, gradients = [], []
    for position in positions:
        attention = nprf.Attention(nprf.orf(16, 32), position, causal)
        assert attention(q, k, v, report=True)[1].engine == "smooth"
        rows, saved, report = attention.forward(q, k, v, report=True)
        found = attention.backward(saved, dy)
        assert (report.engine == "smooth") == (found.report.engine == "smooth") == (position is not positions[2])
        of_table = np.stack([table / r[0], -r[0] * distances / (1 + r[1] * distances)])
        y.append(rows)
        gradients.append(found.bias if position is positions[0] else of_table @ found.bias)
    for i in (0, 1):
        np.testing.assert_allclose(y[i], y[2], rtol=0, atol=1e-4)
        np.testing.assert_allclose(gradients[i], gradients[2], rtol=1e-3)


@pytest.mark.parametrize("end", ["constant", "linear"])
def test_a_spline_is_found_again(rng, end):
    at = nprf.log_spaced_knots(6, 100)
    assert at[0] == 0 and at[-1] == 100 and (np.diff(at) > 0).all()
    values = rng.standard_normal((3, 12))
    values[:, 6] = values[:, 0]  # of lag 0, which only one of the two sides has
    basis = spline_of_values(np.arange(141), at, end)
    table = np.concatenate([(values[:, :6] @ basis.T)[:, ::-1], (values[:, 6:] @ basis.T)[:, 1:]], -1)
    fit = nprf.fit_spline(table, at, end)
    assert fit.largest_error.shape == fit.mean_error.shape == (3,) and fit.largest_error.max() < 1e-12
    np.testing.assert_allclose(fit.values, values, rtol=0, atol=1e-11)
    one = nprf.fit_spline(table[1], at, end)
    assert np.array_equal(one.values, fit.values[1]) and one.largest_error == fit.largest_error[1]
    both = nprf.fit_spline(table[1], at, end, two_sides=False)  # which the two sides of the table are not
    assert both.values.shape == (6,) and 0.01 < both.mean_error < both.largest_error
    nprf.Spline(fit.values, fit.knots, 200, fit.end)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: nprf.Kerple((1, 1), 0), "reach: expected at least 1, got 0"),
        (lambda: nprf.Kerple((1, 1), 9, "spline"), "kind: expected 'log' or 'power', got 'spline'"),
        (lambda: nprf.Kerple((1, 1, 1), 9), "r: expected 2 numbers, got 3"),
        (lambda: nprf.Kerple([(1, 1), (1, -1)], 9), "r2: expected a finite number, at least 0, got -1 in head 1"),
        (lambda: nprf.Kerple((1, 3), 9, "power"), "r2: expected a number from 0 to 2, got 3"),
        (lambda: nprf.AlibiSum(np.ones((3, 2)), 9), r"terms: expected \[2, k\] or .*, got the shape \[3, 2\]"),
        (lambda: nprf.AlibiSum(np.ones((2, 0)), 9), "terms: expected at least one number"),
        (lambda: nprf.AlibiSum([[0, 0], [1, np.inf]], 9), r"slopes\[1\]: expected a finite number, got inf"),
        (lambda: nprf.Spline(np.ones(3), [0, 5], 9), "values: expected 2 numbers or 4 .*, got 3"),
        (lambda: nprf.Spline([0, np.nan], [0, 5], 9), r"values\[1\]: expected a finite number, got nan"),
        (lambda: nprf.Spline(np.ones(2), [1, 5], 9), "knots: expected at least 2 distances, of which the first is 0"),
        (lambda: nprf.Spline(np.ones(3), [0, 5, 5], 9), "knots: expected increasing distances, got 5 after 5"),
        (lambda: nprf.Spline(np.ones(2), [0, 5], 9, "flat"), "end: expected constant or linear, got flat"),
        (lambda: nprf.log_spaced_knots(1, 9), "count: expected at least 2, got 1"),
        (lambda: nprf.log_spaced_knots(9, 7), "reach: expected at least 8 .*, got 7"),
        (lambda: nprf.fit_spline(np.ones(4), [0, 1]), "table: expected an odd number of scalars, .*, got 4"),
        (lambda: nprf.fit_spline(np.ones(5), [0, 3]), "knots: expected distances up to 2 .*, got 3"),
        (lambda: nprf.fit_spline(np.ones(5), []), "knots: expected at least 2 distances"),
        (lambda: nprf.Attention(nprf.elu(3), nprf.Kerple(np.ones((3, 2)), 9))(*np.ones((3, 2, 4, 3))), "3 .*heads"),
    ],
)
def test_invalid_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_other_types():
    with pytest.raises(TypeError, match="knots: expected an integer, got 1.5"):
        nprf.Spline(np.ones(2), [0, 1.5], 9)
    with pytest.raises(TypeError, match="smooth: expected True or False, got 1"):
        nprf.RelativePosition(np.ones(3), smooth=1)


def test_splines_of_tensors(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    import nprf.torch

    spline = nprf.torch.SplineBias(3, knots, N, end="linear", dtype=torch.float64)
    assert not spline().any() and spline().shape == (3, 2 * N + 1)
    torch.nn.init.normal_(spline.values)
    q, k, v = (torch.from_numpy(heads(rng, 2, 3, N, 8)) for _ in range(3))
    y = nprf.torch.attention(q, k, v, spline(), features=nprf.orf(8, 16), position="smooth_table")
    (y * y).sum().backward()
    position = nprf.Spline(spline.values.detach().numpy(), knots, N, "linear")
    attention = nprf.Attention(nprf.orf(8, 16), position)
    expected, saved = attention.forward(*(x.numpy() for x in (q, k, v)))
    np.testing.assert_allclose(y.detach(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(spline.values.grad, attention.backward(saved, 2 * expected).bias, rtol=0, atol=1e-12)
    longer = nprf.torch.SplineBias(3, knots, 2 * N, end="linear", dtype=torch.float64)
    longer.load_state_dict(spline.state_dict())
    torch.testing.assert_close(longer()[:, N:-N], spline())
    assert nprf.torch.SplineBias(3, knots, N, two_sides=False).values.shape == (3, 4)
    with pytest.raises(ValueError, match="reach: expected at least 1, got 0"):
        nprf.torch.SplineBias(3, knots, 0)
