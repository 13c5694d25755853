# SPDX-License-Identifier: MIT
"""nprf.jax, where JAX is installed and the module for it was compiled (NPRF_PYTHON_JAX)."""

import nprf
import numpy as np
import pytest
from conftest import heads

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
pytest.importorskip("nprf._jax", reason="nprf was not compiled for JAX: -D NPRF_PYTHON_JAX=ON")
import nprf.jax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

B, H, N, D, V = 2, 4, 33, 8, 5


@pytest.fixture(autouse=True)
def double():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def biases(rng):
    """(position, parameters, the same for NumPy)"""
    table, t5, slopes = rng.standard_normal((H, 9)), rng.standard_normal(32), nprf.alibi_slopes(H)
    return {
        "none": ("table", None, None),
        "table": ("table", table, nprf.RelativePosition(table)),
        "t5": (("t5", 64), t5, nprf.T5(t5, 64)),
        "alibi": ("alibi", slopes, nprf.Alibi(slopes)),
    }


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["none", "table", "t5", "alibi"])
def test_has_the_bits_of_numpy(rng, name, dtype):
    q, k, v = (heads(rng, B, h, N, c, dtype=dtype) for h, c in ((H, D), (2, D), (2, V)))
    kind, bias, position = biases(rng)[name]
    mask = rng.random((B, N)) < 0.8
    attention = nprf.Attention(nprf.orf(D, 16), position, causal=True, near=2)
    _, saved = attention.forward(q, k, v, key_mask=mask)

    def loss(q, k, v, bias):
        y = nprf.jax.attention(
            q, k, v, bias, features=nprf.orf(D, 16), position=kind, causal=True, near=2, key_mask=mask
        )
        return (y * y).sum() / 2, y

    arguments = (0, 1, 2) if bias is None else (0, 1, 2, 3)
    gradients, y = jax.jit(jax.grad(loss, arguments, has_aux=True))(q, k, v, None if bias is None else jnp.array(bias))
    assert np.array_equal(y, attention(q, k, v, key_mask=mask))
    wanted = attention.backward(saved, np.asarray(y))
    for g, w in zip(gradients, wanted[:4]):
        assert np.array_equal(g, w)


def test_halves_and_no_batch(rng):
    q = jnp.array(heads(rng, H, N, D), jnp.bfloat16)
    y = nprf.jax.attention(q, q, q, features=nprf.taylor(D), near=4)
    exact = nprf.attention(*(np.asarray(q, np.float64),) * 3, features=nprf.taylor(D), near=4)
    assert y.dtype == jnp.bfloat16 and y.shape == q.shape
    assert np.abs(np.asarray(y, np.float64) - exact).max() <= 2**-8 * np.abs(exact).max()  # y is rounded once


def test_errors(rng):
    q = jnp.array(heads(rng, B, H, N, D))
    f = nprf.orf(D, 16)
    for error, text, arrays, options in (
        (ValueError, "3 or 4 dimensions", (q[0, 0],) * 3, {}),
        (ValueError, "tokens, channels", (q, q[..., :3], q), {}),
        (ValueError, "bias: expected 1", (q, q, q, jnp.zeros(())), {}),
        (ValueError, "position: expected", (q, q, q, jnp.zeros(5)), {"position": "grid"}),
        (ValueError, "key_mask: expected 2 x 33", (q, q, q), {"key_mask": jnp.ones((B, 3), bool)}),
        (Exception, "b: expected an odd number", (q, q, q, jnp.zeros(4)), {}),
        (Exception, "queries: expected 8 columns", (q[..., :3],) * 3, {}),
        (ValueError, "bias: expected the parameters of position='t5', got None", (q, q, q), {"position": "t5"}),
        (TypeError, "queries: expected float32, float64 or halves, got int32", (q.astype(jnp.int32), q, q), {}),
        (TypeError, "queries: expected float32, float64 or halves, got bool", (q > 0, q, q), {}),
        (
            TypeError,
            "keys: expected float64, in which the queries are computed, or halves, got float32",
            (q, q.astype(jnp.float32), q),
            {},
        ),
        (TypeError, "bias: expected floating-point numbers, got int64", (q, q, q, jnp.zeros(5, int)), {}),
        (ValueError, r"bias: expected at least one number, got the shape \(0,\)", (q, q, q, jnp.zeros(0)), {}),
        (ValueError, "bias: expected None without a position", (q, q, q, jnp.zeros(5)), {"position": None}),
        (TypeError, "normalization: expected a Normalization, got float", (q, q, q), {"normalization": 1.0}),
        (TypeError, "engine: expected a str, got int", (q, q, q), {"engine": 3}),
        (TypeError, "key_mask: expected bool, got float32", (q, q, q), {"key_mask": jnp.ones((2, 5), jnp.float32)}),
    ):
        with pytest.raises(error, match=text):
            nprf.jax.attention(*arrays, **{"features": f, **options}).block_until_ready()
