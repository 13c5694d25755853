# SPDX-License-Identifier: MIT
import nprf
import pytest
import torch
import torch.nn.functional as F
from paper.experiments import fig1a
from paper.rivals import (
    GatedRandomFeatures,
    Linformer,
    Nystromformer,
    PlainFeatures,
    pseudoinverse,
    trigonometric_features,
)


@pytest.fixture
def qkv():
    return [torch.randn(2, 3, 12, 4, dtype=torch.float64) for _ in range(3)]


def softmax_attention(q, k, v):
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_trigonometric_features_estimate_the_gaussian_kernel():
    x, y = F.normalize(torch.randn(2, 4, dtype=torch.float64), dim=-1)
    vectors = torch.randn(200_000, 4, dtype=torch.float64)
    found = trigonometric_features(x, vectors) @ trigonometric_features(y, vectors)
    # of a mean of cosines: a standard error of at most 1 / sqrt(2 m) = 0.0016
    assert abs(found - (-(x - y).square().sum() / 2).exp()) < 0.008


@pytest.mark.parametrize("radius", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("way", PlainFeatures.WAYS)
def test_plain_features_are_the_formula_of_nprf(qkv, radius, way):
    layer = PlainFeatures(4, 32, radius, seed=0, way=way).double()
    features = nprf.ProjectedFeatures("positive", layer.vectors.numpy())
    attention = nprf.Attention(features, causal=True, normalization=nprf.Normalization(radius))
    expected = nprf.reference.kernelized_attention(attention, *(each.numpy() for each in qkv))
    torch.testing.assert_close(layer(*qkv, None), torch.from_numpy(expected), rtol=1e-9, atol=1e-11)


def test_scaled_features_stay_in_range(qkv):
    q, k, v = qkv
    q, k = 30 * q, 30 * k
    plain, scaled, logarithms = (PlainFeatures(4, 32, 0.0, seed=0, way=way).double() for way in PlainFeatures.WAYS)
    assert not plain(q, k, v, None).isfinite().all()
    assert scaled(q, k, v, None).isfinite().all()
    torch.testing.assert_close(logarithms(q, k, v, None), scaled(q, k, v, None), rtol=1e-9, atol=1e-11)


def test_logarithms_have_weights_where_scaled_features_have_none(qkv):
    q, k, v = (each.float() for each in qkv)
    q, k = 100 * q, 100 * k
    scaled, logarithms = (PlainFeatures(4, 32, 0.0, seed=0, way=way) for way in ("scaled", "logarithms"))
    assert not scaled(q, k, v, None).isfinite().all()
    assert logarithms(q, k, v, None).isfinite().all()


def test_gate_is_its_recurrence(qkv):
    q, k, v = qkv
    x = torch.randn(2, 12, 12, dtype=torch.float64)
    layer = GatedRandomFeatures(12, 3, 64, seed=0).double()
    layer.smallest = 0.0  # the paper's formula has no guard
    torch.nn.init.normal_(layer.gate.weight)
    gates = layer.gate(x).sigmoid().transpose(1, 2)  # [batch, heads, tokens]
    phi_q, phi_k = (trigonometric_features(F.normalize(each, dim=-1), layer.vectors) for each in (q, k))
    state, normalizer = torch.zeros(2, 3, 128, 4, dtype=torch.float64), torch.zeros(2, 3, 128, dtype=torch.float64)
    expected = []
    for t in range(12):
        g = gates[:, :, t, None]
        normalizer = g * normalizer + (1 - g) * phi_k[:, :, t]
        state = g[..., None] * state + (1 - g)[..., None] * phi_k[:, :, t, :, None] * v[:, :, t, None, :]
        numerator = torch.einsum("bhm,bhmp->bhp", phi_q[:, :, t], state)
        expected.append(numerator / (phi_q[:, :, t] * normalizer).sum(-1, keepdim=True))
    torch.testing.assert_close(layer(q, k, v, x), torch.stack(expected, dim=2), rtol=1e-8, atol=1e-10)


def test_formula_by_fft_is_that_of_nprf():
    """Figure 1a's rival, in float32."""
    q, k, v = (torch.randn(20, fig1a.D) for _ in range(3))
    bias, features = torch.randn(39), nprf.orf(fig1a.D, fig1a.FEATURES)
    attention = nprf.Attention(features, nprf.RelativePosition(bias.numpy()))
    expected = nprf.reference.kernelized_attention(attention, *(each.numpy() for each in (q, k, v)))
    found = fig1a.by_fft(q, k, v, bias, torch.from_numpy(features.rows()))
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


def test_linformer_is_its_formula(qkv):
    q, k, v = qkv
    layer = Linformer(12, 5).double()
    weights = torch.einsum("bhid,rj,bhjd->bhir", q, layer.keys, k) / 4**0.5
    expected = torch.einsum("bhir,rj,bhjd->bhid", weights.softmax(-1), layer.values, v)
    torch.testing.assert_close(layer(q, k, v, None), expected)


def test_linformer_of_full_rank_is_softmax(qkv):
    layer = Linformer(12, 12).double()
    with torch.no_grad():
        layer.keys.copy_(torch.eye(12))
        layer.values.copy_(torch.eye(12))
    torch.testing.assert_close(layer(*qkv, None), softmax_attention(*qkv))


def test_pseudoinverse_is_that_of_linear_algebra():
    a = torch.randn(3, 6, 6, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(pseudoinverse(a, iterations=40), torch.linalg.pinv(a), rtol=1e-6, atol=1e-6)


def test_nystromformer_is_its_formula(qkv):
    q, k, v = qkv
    layer = Nystromformer(3, 4, kernel=3, iterations=40).double()
    means = [each.reshape(2, 3, 4, 3, 4).mean(3) for each in (q, k)]
    inner = (means[0] @ means[1].transpose(-1, -2) / 2).softmax(-1)
    left, right = (q @ means[1].transpose(-1, -2) / 2).softmax(-1), (means[0] @ k.transpose(-1, -2) / 2).softmax(-1)
    expected = left @ torch.linalg.pinv(inner) @ right @ v
    w = layer.convolution.weight[:, 0, :, 0]  # [heads, 3]
    zero = torch.zeros_like(v[:, :, :1])
    around = [torch.cat([zero, v[:, :, :-1]], 2), v, torch.cat([v[:, :, 1:], zero], 2)]
    expected = expected + sum(w[None, :, i, None, None] * each for i, each in enumerate(around))
    torch.testing.assert_close(layer(q, k, v, None), expected, rtol=1e-5, atol=1e-6)


def test_nystromformer_with_a_landmark_for_each_token_is_softmax(qkv):
    layer = Nystromformer(3, 12, kernel=0, iterations=60).double()
    torch.testing.assert_close(layer(*qkv, None), softmax_attention(*qkv), rtol=1e-5, atol=1e-6)


def test_nystromformer_refuses_tokens_that_landmarks_do_not_divide(qkv):
    with pytest.raises(ValueError, match="multiple of 5"):
        Nystromformer(3, 5).double()(*qkv, None)
