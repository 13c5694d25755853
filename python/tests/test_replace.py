# SPDX-License-Identifier: MIT
"""Models that were trained with softmax, whose attention is replaced."""

import copy

import nprf
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded_on_one_thread")


class T5Attention(torch.nn.Module):
    """Self-attention as in T5."""

    def __init__(self, channels, heads, has_bias):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(channels, channels, bias=False) for _ in range(4))
        self.n_heads, self.has_relative_attention_bias, self.is_decoder = heads, has_bias, False
        self.relative_attention_max_distance = 20
        if has_bias:
            self.relative_attention_bias = torch.nn.Embedding(16, heads)

    def forward(self, hidden_states, mask=None, position_bias=None):
        b, n, _ = hidden_states.shape
        q, k, v = (f(hidden_states).view(b, n, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if position_bias is None:
            lags = torch.arange(n)[None, :] - torch.arange(n)[:, None]
            core = nprf._native.core
            buckets = lags.clone().apply_(lambda lag: core.t5_bucket(lag, 16, False, 20))
            position_bias = self.relative_attention_bias(buckets).permute(2, 0, 1)[None]
        logits = q @ k.transpose(2, 3) + position_bias
        if mask is not None:
            logits = logits + mask
        y = torch.softmax(logits, dim=-1) @ v
        return self.o(y.transpose(1, 2).flatten(2)), None, position_bias


class T5Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(T5Attention(24, 3, i == 0) for i in range(2))

    def forward(self, x, mask=None):
        position_bias = None
        for layer in self.layers:
            y, _, position_bias = layer(x, mask=mask, position_bias=position_bias)
            x = x + y
        return x


def test_replace_attention():
    model = T5Encoder()
    x = torch.randn(2, 30, 24)
    mask = torch.zeros(2, 1, 1, 30)
    mask[1, :, :, 12:] = torch.finfo(torch.float32).min
    with torch.no_grad():
        expected = model(x, mask)
        exact = model.double()(x.double(), mask.double())
        loses = (expected - exact).abs().max()
        model.float()
        assert nprf.torch.replace_attention(model, near=30) == 2  # every pair has its exact weight
        # in the same arithmetic it loses about as much: a tenfold more would be a fault
        assert 0 < (model(x, mask) - exact).abs().max() <= 10 * loses
        # each query's row of the mask, and one by which they differ
        rows = mask.expand(2, 3, 30, 30)
        assert torch.equal(model(x, rows), model(x, mask)) and torch.equal(model(x, rows == 0), model(x, mask))
        packed = torch.block_diag(torch.ones(10, 10), torch.ones(20, 20)).bool().expand(2, 1, 30, 30)
        for other in (packed, packed.tril(), torch.where(packed, 0.0, -torch.inf)):
            with pytest.raises(ValueError, match="mask: expected one by which all heads and queries"):
                model(x, other)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x, mask), model(x, mask))
        with pytest.raises(
            ValueError, match=r"hidden_states: expected at most 30 tokens \(near\) without features, got 31"
        ):
            model(torch.randn(2, 31, 24))
        layer, other = model.layers[0], torch.nn.Embedding(16, 3)
        assert torch.equal(layer(x, cache_position=torch.arange(30))[0], layer(x)[0])  # as some versions of T5 pass it
        layer.relative_attention_bias = other
        before = layer(x)[0]
        other.weight.zero_()
        assert not torch.equal(layer(x)[0], before)  # a bias that has been replaced is used
    for name in ("past_key_values", "position_bias", "attention_mask", "use_cache"):
        with pytest.raises(ValueError, match=f"{name}: expected None"):
            model.layers[0](x, **{name: True})
    with pytest.raises(ValueError, match="relative_attention_bias"):
        nprf.torch.replace_attention(encoder_without_bias())


def test_replaced_attention_beyond_the_near_field():
    """Calibrated maps, on other inputs than those that they are calibrated for."""
    torch.manual_seed(0)
    model, n = T5Encoder(), 200
    for layer in model.layers:
        torch.nn.init.normal_(layer.q.weight, std=0.08)  # standard deviation of q.k about 1
    mean = torch.randn(24)
    sample, x = torch.randn(4, n, 24) + mean, torch.randn(2, n, 24) + mean
    with torch.no_grad():
        expected = model(x)

        def error(features):
            ours = copy.deepcopy(model)
            nprf.torch.replace_attention(ours, features, near=16)
            return float((ours(x) - expected).norm() / (expected - x).norm())

        def calibrated(**options):
            return nprf.torch.calibrated_features(model, lambda: model(sample), near=16, **options)

        features = calibrated(num_features=30)
        assert error(features) < 0.03
        assert error(features) < error(nprf.taylor(8)) / 4
        assert (
            calibrated(target_error=0.5)("layers.1", 8).maps[0].output_dim < features("layers.1", 8).maps[0].output_dim
        )
    with pytest.raises(ValueError, match="run: expected a call of layers.0, got none"):
        nprf.torch.calibrated_features(model, lambda: None, num_features=30)
    assert not any(module._forward_hooks for layer in model.layers for module in (layer.q, layer.k, layer.v))


def test_replaced_attention_keeps_the_state_dict():
    model = T5Encoder()
    state = model.state_dict()
    nprf.torch.replace_attention(model, nprf.taylor(8), near=8)
    assert model.state_dict().keys() == state.keys()
    model.load_state_dict(state)
    other = copy.deepcopy(model)  # whose layers share its own bias
    torch.nn.init.normal_(other.layers[0].relative_attention_bias.weight)
    assert other.layers[1]._bias[0] is other.layers[0].relative_attention_bias
    model(torch.randn(2, 30, 24)).sum().backward()
    assert model.layers[0].relative_attention_bias.weight.grad.any()


def encoder_without_bias():
    model = T5Encoder()
    model.layers = model.layers[1:]
    return model


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_t5_of_transformers(implementation):
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, relative_attention_num_buckets=16,
        relative_attention_max_distance=20, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=implementation).eval()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter)
    ours = copy.deepcopy(model)
    assert nprf.torch.replace_attention(ours, near=60) == 4  # two of the encoder, two of the decoder
    tokens, of_decoder = torch.randint(1, 50, (2, 30)), torch.randint(1, 50, (2, 11))
    padding, after, before = torch.ones(2, 30), torch.ones(2, 11), torch.ones(2, 11)
    padding[1, 12:], after[1, 6:], before[1, :4] = 0, 0, 0
    inputs = {"input_ids": tokens, "decoder_input_ids": of_decoder, "use_cache": False}
    for kept, masks in (
        (torch.ones(2, 11), {}),
        (torch.ones(2, 11), {"attention_mask": padding}),
        (after, {"attention_mask": padding, "decoder_attention_mask": after}),
        (before, {"attention_mask": padding, "decoder_attention_mask": before}),
    ):
        with torch.no_grad():
            exact = copy.deepcopy(model).double()(**inputs, **masks).logits[kept.bool()]
            loses = (model(**inputs, **masks).logits[kept.bool()] - exact).abs().max()
            assert (ours(**inputs, **masks).logits[kept.bool()] - exact).abs().max() <= 10 * loses
    generated = [each.generate(tokens, max_new_tokens=5, use_cache=False, do_sample=False) for each in (model, ours)]
    assert torch.equal(*generated)
    ours.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"expected None \(and use_cache=False\)"):
        ours(input_ids=tokens, decoder_input_ids=of_decoder)
    packed = torch.block_diag(torch.ones(10, 10), torch.ones(20, 20)).bool().expand(2, 1, 30, 30)
    with pytest.raises(ValueError, match="mask: expected one by which all heads and queries"):
        ours(**inputs, attention_mask=packed)
