# SPDX-License-Identifier: MIT
"""nprf.jax, where JAX is installed and the module for it was compiled (NPRF_PYTHON_JAX)."""

import subprocess
import sys

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
        "none": (None, None, None),
        "table": ("table", table, nprf.RelativePosition(table)),
        "smooth table": ("smooth_table", table, nprf.RelativePosition(table, smooth=True)),
        "t5": (("t5", 64), t5, nprf.T5(t5, 64)),
        "alibi": ("alibi", slopes, nprf.Alibi(slopes)),
    }


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["none", "table", "smooth table", "t5", "alibi"])
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


def test_no_keys(rng):
    q, none = jnp.array(heads(rng, H, N, D)), jnp.zeros((H, 0, D))
    for mask in (None, jnp.zeros(0, bool), jnp.zeros((1, 0), bool)):
        assert not nprf.jax.attention(q, none, none, features=nprf.orf(D, 16), key_mask=mask).any()


def test_errors(rng):
    q = jnp.array(heads(rng, B, H, N, D))
    f = nprf.orf(D, 16)
    square, wrong = jnp.zeros((8, 8)), jnp.zeros((H, 8)).at[2, 3].set(jnp.nan)
    for error, text, arrays, options in (
        (ValueError, "3 or 4 dimensions", (q[0, 0],) * 3, {}),
        (ValueError, "tokens, channels", (q, q[..., :3], q), {}),
        (ValueError, "bias: expected 1", (q, q, q, jnp.zeros(())), {"position": "table"}),
        (ValueError, "position: expected", (q, q, q, jnp.zeros(5)), {"position": "grid"}),
        (ValueError, "key_mask: expected 2 x 33", (q, q, q), {"key_mask": jnp.ones((B, 3), bool)}),
        (Exception, "b: expected an odd number", (q, q, q, jnp.zeros(4)), {"position": "table"}),
        (Exception, r"bucket_weights\[3\]: expected .*, got nan in head 2", (q, q, q, wrong), {"position": "t5"}),
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
        (
            TypeError,
            "bias: expected floating-point numbers, got int64",
            (q, q, q, jnp.zeros(5, int)),
            {"position": "table"},
        ),
        (
            ValueError,
            r"bias: expected at least one number, got the shape \(0,\)",
            (q, q, q, jnp.zeros(0)),
            {"position": "table"},
        ),
        (ValueError, "position: expected 'table', .* beside a bias, got None", (q, q, q, jnp.zeros(5)), {}),
        (ValueError, "bias: expected the parameters of position='table', got None", (q, q, q), {"position": "table"}),
        (
            ValueError,
            "bias_layout: expected 'heads_first', or 'heads_last'",
            (q, q, q, jnp.zeros((H, H))),
            {"position": "t5"},
        ),
        (ValueError, r"bias: expected \[4, ..\] .* pass bias_layout=", (q, q, q, square[:, :4]), {"position": "t5"}),
        (TypeError, "causal: expected True or False, got 'yes'", (q, q, q), {"causal": "yes"}),
        (TypeError, "key_padding_mask: expected key_mask=~key_padding_mask", (q, q, q), {"key_padding_mask": None}),
        (TypeError, "attention: got an unknown option 'lengths'", (q, q, q), {"lengths": None}),
        (
            ValueError,
            "offset: expected one for a causal call of 1 queries and 33 keys, got none: 0 .* 32 the last query",
            (q[:, :, :1], q, q),
            {"causal": True},
        ),
        (TypeError, "normalization: expected .* none\\(\\) .*, got float", (q, q, q), {"normalization": 1.0}),
        (TypeError, "engine: expected a str, got int", (q, q, q), {"engine": 3}),
        (TypeError, "key_mask: expected bool, got float32", (q, q, q), {"key_mask": jnp.ones((2, 5), jnp.float32)}),
    ):
        with pytest.raises(error, match=text):
            nprf.jax.attention(*arrays, **{"features": f, **options}).block_until_ready()


def test_offsets_and_layouts_of_biases(rng):
    q, k, v = (heads(rng, B, H, n, c) for n, c in ((3, D), (N, D), (N, V)))
    weights = rng.standard_normal((H, 8))
    options = {"features": nprf.orf(D, 16), "near": 2, "causal": True}
    for offset in (0, N - 3, -1):
        expected = nprf.attention(q, k, v, position=nprf.T5(weights), offset=offset, **options)
        for bias, layout in ((weights, None), (weights, "heads_first"), (weights.T, "heads_last")):
            function = jax.jit(
                lambda q, k, v, bias: nprf.jax.attention(
                    q,
                    k,
                    v,
                    bias,
                    position="t5",
                    bias_layout=layout,
                    offset=offset,
                    **options,  # noqa: B023
                )
            )
            assert np.array_equal(function(q, k, v, bias), expected)


def test_a_program_of_another_process_is_an_error(tmp_path):
    """Which has other things at the address of an attention. JAX does not store such programs unless it is told to."""
    pytest.importorskip("flatbuffers")  # which jax needs to store a program
    store = """
import jax, nprf, nprf.jax, sys
from jax import export, numpy as jnp

function = jax.jit(lambda q: nprf.jax.attention(q, q, q, features=nprf.orf(8, 16)))
allowed = [export.DisabledSafetyCheck.custom_call(name) for name in ("nprf_attention", "nprf_attention_backward")]
stored = export.export(function, disabled_checks=allowed)(jax.ShapeDtypeStruct((1, 2, 9, 8), "float32"))
open(sys.argv[1], "wb").write(stored.serialize())
"""
    path = tmp_path / "program"
    subprocess.run([sys.executable, "-c", store, path], check=True)
    nprf.jax._register()
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    with pytest.raises(Exception, match="attention: expected a program that this process compiled, got one of another"):
        program.call(jnp.ones((1, 2, 9, 8), jnp.float32)).block_until_ready()
