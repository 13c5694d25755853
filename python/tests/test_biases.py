# SPDX-License-Identifier: MIT
"""Modules of relative position biases."""

import nprf
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded_on_one_thread")

HEADS, N, D = 3, 40, 8


def biases(causal):
    options = {"dtype": torch.float64}
    return [
        nprf.torch.T5Bias(HEADS, 12, 20, causal, **options),
        nprf.torch.AlibiBias(HEADS, **options),
        nprf.torch.AlibiBias(HEADS, 4, learned=True, **options),
        nprf.torch.SplineBias(HEADS, [0, 1, 4, 16], N, **options),
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_the_matrix(causal):
    """Values and gradients, of all pairs, and of the queries after the first ones."""
    for bias in biases(causal):
        for parameter in bias.parameters():
            torch.nn.init.normal_(parameter, mean=0.3)
        found = {}
        for offset in (0, 7) if causal else (0,):
            for exact in (False, True):
                torch.manual_seed(0)
                x = [torch.randn(2, HEADS, n, D, dtype=torch.float64, requires_grad=True) for n in (N - offset, N, N)]
                if exact:
                    matrix = bias.matrix(N - offset, N, offset)
                    assert matrix.shape == (HEADS, N - offset, N)
                    if causal:
                        later = torch.ones(N - offset, N, dtype=torch.bool).triu(1 + offset)
                        matrix = matrix.masked_fill(later, -torch.inf)
                    y = torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=matrix[None])
                else:
                    options = {"near": N, "causal": causal, "normalization": nprf.Normalization.none()}
                    if causal:
                        options["offset"] = offset
                    y = nprf.torch.attention(*x, bias(), features=nprf.taylor(D), position=bias.position, **options)
                bias.zero_grad()
                y.square().sum().backward()
                found[exact] = [y, *(each.grad for each in x), *(each.grad for each in bias.parameters())]
            for one, other in zip(found[False], found[True]):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_parameters():
    t5, alibi, learned, _ = biases(False)
    assert list(t5.state_dict()) == ["weight"] and t5.weight.shape == (12, HEADS) and t5.position == ("t5", 20)
    assert not t5().any() and list(alibi.parameters()) == [] and list(alibi.state_dict()) == ["slopes"]
    torch.testing.assert_close(alibi(), torch.tensor(nprf.alibi_slopes(HEADS)), rtol=0, atol=0)
    assert [each.shape for each in learned.parameters()] == [(HEADS,)]
    assert nprf.torch.AlibiBias(HEADS).slopes.dtype == torch.float32
    with pytest.raises(ValueError, match="heads: expected at least 1, got 0"):
        nprf.torch.AlibiBias(0)


@pytest.mark.parametrize("causal", [False, True])
def test_biases_of_t5_of_transformers(causal):
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    config = transformers.T5Config(num_heads=HEADS, d_kv=D, d_model=HEADS * D, is_decoder=causal)
    attention = transformers.models.t5.modeling_t5.T5Attention(config, has_relative_attention_bias=True)
    bias = nprf.torch.T5Bias(HEADS, causal=causal)
    bias.load_state_dict(attention.relative_attention_bias.state_dict())
    expected = attention.compute_bias(300, 300)[0]
    found = bias.matrix(300)
    if causal:  # those of later keys are never used
        expected, found = expected.tril(), found.tril()
    assert torch.equal(found, expected)
