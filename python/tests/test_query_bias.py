# SPDX-License-Identifier: MIT
"""Biases r_i . R[j - i] of near pairs, which depend on the query: QueryBiased, and query_bias of nprf.torch."""

import nprf
import numpy as np
import pytest

D, RANK, NEAR, HEADS = 8, 3, 6, 4


def arrays(n, heads=HEADS, dtype=np.float64, batch=2):
    rng = np.random.default_rng(n)
    q, k, v = (rng.standard_normal((batch, heads, n, channels)).astype(dtype) for channels in (D + RANK, D, 5))
    return q, k, v


def lag_vectors(causal, heads=None, dtype=np.float64):
    shape = (RANK, NEAR if causal else 2 * NEAR - 1)
    return np.random.default_rng(7).standard_normal(shape if heads is None else (heads, *shape)).astype(dtype)


def dense(q, k, v, R, causal):
    """The formula with the features 1 + x . y, of torch's tensors; queries and keys of norm 1."""
    import torch

    x, r = q[..., :D], q[..., D:]
    n = q.shape[-2]
    scores = torch.nn.functional.normalize(x, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT
    lags = torch.arange(n) - torch.arange(n)[:, None]
    biases = torch.einsum("bhir,...rl->bhil", r, R) if R.dim() == 2 else torch.einsum("bhir,hrl->bhil", r, R)
    at = (lags + NEAR - 1).clamp(0, R.shape[-1] - 1).expand(biases.shape[:-1] + (n,))
    weights = torch.where(lags.abs() < NEAR, (scores + biases.gather(-1, at)).exp(), 1 + scores)
    weights = weights * (lags <= 0) if causal else weights
    return weights @ v / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_of_vectors", [None, HEADS])
def test_numpy(causal, heads_of_vectors):
    q, k, v = arrays(40)
    position = nprf.QueryBiased(lag_vectors(causal, heads_of_vectors), nprf.Alibi([0.1, 0.2, 0.3, 0.4]))
    attention = nprf.Attention(nprf.taylor(D), position, causal, near=NEAR, sinks=1)
    y = attention(q, k, v)
    np.testing.assert_allclose(y, nprf.reference.kernelized_attention(attention, q, k, v), rtol=0, atol=1e-12)
    saved = attention.forward(q, k, v)[1]
    gradients = attention.backward(saved, np.ones_like(y))
    assert gradients.queries.shape == q.shape and gradients.keys.shape == k.shape
    assert gradients.extra.shape == position.lag_vectors.shape and gradients.bias.shape == (4,)
    exact = nprf.Attention(nprf.taylor(D), position, causal, near=NEAR, sinks=40)
    softmax = nprf.reference.softmax_attention(q, k, v, position, causal=causal)
    np.testing.assert_allclose(exact(q, k, v), softmax, rtol=0, atol=1e-12)


def test_decoder():
    q, k, v = arrays(40, dtype=np.float32)
    position = nprf.QueryBiased(lag_vectors(True, dtype=np.float32))
    expected = nprf.Attention(nprf.taylor(D), position, True, near=NEAR)(q, k, v)
    decoder = nprf.Decoder(nprf.taylor(D), position, batch=2, near=NEAR)
    rows = [decoder.prefill(q[:, :, :25], k[:, :, :25], v[:, :, :25])]
    rows += [decoder.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1]) for t in range(25, 40)]
    np.testing.assert_allclose(np.concatenate(rows, 2), expected, rtol=0, atol=1e-5)
    other = nprf.Decoder(nprf.taylor(D), nprf.QueryBiased(position.lag_vectors + 1), batch=2, near=NEAR)
    with pytest.raises(ValueError, match="state: expected one of this attention"):
        other.load(decoder.save())


def test_values_and_errors():
    vectors = lag_vectors(True)
    position = nprf.QueryBiased(vectors, nprf.Alibi(0.1))
    assert position == nprf.QueryBiased(vectors, nprf.Alibi(0.1)) != nprf.QueryBiased(vectors)
    assert repr(nprf.QueryBiased(vectors)) == "QueryBiased(lag_vectors=<float64 [3, 6]>, position=None)"
    q, k, v = arrays(10)
    attention = nprf.Attention(nprf.taylor(D), position, True, near=NEAR)
    with pytest.raises(ValueError, match="queries: expected 11 columns .* got 8"):
        attention(q[..., :D], k, v)
    with pytest.raises(ValueError, match="keys: expected .* got 2 x 4 x 10 x 11"):
        nprf.reference.kernelized_attention(attention, q, q, v)
    with pytest.raises(ValueError, match="near: expected more than 0 for a position with lag_vectors, got 0"):
        nprf.Attention(nprf.taylor(D), position, True)
    with pytest.raises(ValueError, match="lag_vectors: expected 11 columns"):
        nprf.Attention(nprf.taylor(D), position, near=NEAR)
    with pytest.raises(ValueError, match="lag_vectors: expected finite numbers"):
        nprf.QueryBiased(np.full((3, 6), np.inf))
    with pytest.raises(ValueError, match="lag_vectors: expected none for a grid"):
        nprf.QueryBiased(vectors, nprf.Grid(2, 2, np.zeros((3, 3))))
    with pytest.raises(ValueError, match="lag_vectors: expected 4 heads, as the position, got 3"):
        nprf.QueryBiased(lag_vectors(True, 3), nprf.Alibi([0.1, 0.2, 0.3, 0.4]))
    with pytest.raises(ValueError, match="position: expected one without lag_vectors"):
        nprf.calibrate(q[..., :D], k, v, position=position, causal=True, num_features=9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_of_vectors", [None, HEADS])
@pytest.mark.parametrize("layout", ["heads_first", "tokens_first"])
def test_torch(causal, heads_of_vectors, layout):
    torch = pytest.importorskip("torch")
    import nprf.torch

    q, k, v = (torch.from_numpy(each) for each in arrays(40))
    vectors = torch.from_numpy(lag_vectors(causal, heads_of_vectors))
    inputs = [each.clone().requires_grad_() for each in (q[..., :D], k, v, q[..., D:], vectors)]

    def by_nprf(x, k, v, r, vectors):
        first = layout == "heads_first"
        x, k, v, r = (each if first else each.transpose(1, 2) for each in (x, k, v, r))
        options = {"features": nprf.taylor(D), "near": NEAR, "causal": causal, "layout": layout}
        y = nprf.torch.attention(x, k, v, query_bias=(r, vectors), **options)
        return y if first else y.transpose(1, 2)

    y, expected = by_nprf(*inputs), dense(torch.cat([inputs[0], inputs[3]], -1), *inputs[1:3], inputs[4], causal)
    dy = torch.randn_like(y)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    for got, of in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy)):
        torch.testing.assert_close(got, of, rtol=0, atol=1e-10)


def test_torch_in_graphs_and_halves():
    torch = pytest.importorskip("torch")
    import nprf.torch

    features = nprf.taylor(D)
    q, k, v = (torch.from_numpy(each).float() for each in arrays(40))
    vectors = torch.from_numpy(lag_vectors(True)).float().requires_grad_()

    def attend(q, k, v, r, vectors):
        bias = torch.full((HEADS,), -0.1, dtype=torch.float32).abs()
        return nprf.torch.attention(
            q, k, v, bias, features=features, position="alibi", near=NEAR, causal=True, query_bias=(r, vectors)
        )

    inputs = (q[..., :D], k, v, q[..., D:], vectors)
    y = attend(*inputs)
    torch.testing.assert_close(torch.compile(attend, fullgraph=True, backend="aot_eager")(*inputs), y)
    halves = attend(*(each.bfloat16() for each in inputs))
    assert halves.dtype == torch.bfloat16
    torch.testing.assert_close(halves.float(), y, rtol=0, atol=0.1)


def test_torch_errors():
    torch = pytest.importorskip("torch")
    import nprf.torch

    q, k, v = (torch.from_numpy(each) for each in arrays(10))
    vectors = torch.from_numpy(lag_vectors(True))
    x, r = q[..., :D], q[..., D:]
    options = {"features": nprf.taylor(D), "near": NEAR, "causal": True}
    with pytest.raises(ValueError, match=r"query_bias: expected r of the shape \[2, 4, 10, 'rank'\]"):
        nprf.torch.attention(x, k, v, query_bias=(r[:, :1], vectors), **options)
    with pytest.raises(ValueError, match=r"query_bias: expected vectors of lags of the shape \[3, lags\]"):
        nprf.torch.attention(x, k, v, query_bias=(r, vectors[:2]), **options)
    with pytest.raises(TypeError, match="query_bias: expected a tensor, got list"):
        nprf.torch.attention(x, k, v, query_bias=([], vectors), **options)
    with pytest.raises(TypeError, match=r"query_bias: expected \(r, R\), got Tensor"):
        nprf.torch.attention(x, k, v, query_bias=vectors, **options)
    with pytest.raises(TypeError, match="query_bias: expected torch.float64, as the queries, got torch.float32"):
        nprf.torch.attention(x, k, v, query_bias=(r.float(), vectors), **options)
    with pytest.raises(ValueError, match="near: expected more than 0"):
        nprf.torch.attention(x, k, v, query_bias=(r, vectors), features=nprf.taylor(D), causal=True)
    with pytest.raises(ValueError, match="query_bias: expected None with a grid"):
        bias = torch.zeros(3, 9)
        nprf.torch.attention(
            x, k, v, bias, features=nprf.taylor(D), position=("grid", 2, 5), near=2, query_bias=(r, vectors)
        )
