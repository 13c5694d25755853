# SPDX-License-Identifier: MIT
"""The kinds of self-attention that replace_attention() knows: models of transformers, and modules of the structure of
others."""

import copy
import io
import math
import pickle

import nprf
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from test_replace import largest_allocation  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded_on_one_thread")

VOCABULARY, CHANNELS, HEADS = 50, 48, 6  # not a power of two, for ALiBi


def alibi_matrix(n):
    slopes = torch.tensor(nprf.alibi_slopes(HEADS), dtype=torch.get_default_dtype())
    place = torch.arange(n)
    return -slopes[:, None, None] * (place[:, None] - place).abs()


class EncoderWithAlibi(torch.nn.Module):
    """The encoders of jina-embeddings-v2 and of MosaicBERT have the biases of all pairs."""

    def __init__(self, layers):
        super().__init__()
        self.layer = torch.nn.ModuleList(layers)
        self.rebuild_alibi_tensor(16)

    def rebuild_alibi_tensor(self, size):
        self._current_alibi_size, self.alibi = size, alibi_matrix(size)[None]

    def biases(self, n):
        if self._current_alibi_size < n:
            self.rebuild_alibi_tensor(n)
        return self.alibi[:, :, :n, :n].to(next(self.parameters()).dtype)


class JinaBertSelfAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = HEADS, CHANNELS // HEADS
        self.query, self.key, self.value = (torch.nn.Linear(CHANNELS, CHANNELS) for _ in range(3))

    def forward(self, hidden_states, attention_mask=None, head_mask=None, encoder_hidden_states=None,
                encoder_attention_mask=None, past_key_value=None, output_attentions=False, bias=None):  # fmt: skip
        split = (self.num_attention_heads, self.attention_head_size)
        q, k, v = (f(hidden_states).unflatten(-1, split).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.mT / math.sqrt(split[1]) + attention_mask
        return ((scores + bias).softmax(-1) @ v).transpose(1, 2).flatten(2), None


class JinaBertEncoder(EncoderWithAlibi):
    def __init__(self):
        super().__init__(JinaBertSelfAttention() for _ in range(2))

    def forward(self, x, kept):
        mask = torch.where(kept, 0.0, -1e9)[:, None, None, :].to(x.dtype)
        for layer in self.layer:
            x = x + layer(x, mask, None, None, None, None, False, self.biases(x.shape[1]))[0]
        return x


class BertUnpadSelfAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = HEADS, CHANNELS // HEADS
        self.Wqkv = torch.nn.Linear(CHANNELS, 3 * CHANNELS)

    def forward(self, hidden_states, cu_seqlens, max_seqlen_in_batch, indices, attn_mask, bias):
        qkv = self.Wqkv(hidden_states)
        padded = qkv.new_zeros(attn_mask.numel(), 3 * CHANNELS).index_copy(0, indices, qkv)
        padded = padded.view(*attn_mask.shape, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = padded
        y = (q @ k.mT / math.sqrt(self.attention_head_size) + bias).softmax(-1) @ v
        return y.transpose(1, 2).flatten(2).flatten(0, 1)[indices]


class MosaicBertEncoder(EncoderWithAlibi):
    def __init__(self):
        super().__init__(BertUnpadSelfAttention() for _ in range(2))

    def forward(self, x, kept):
        indices = kept.flatten().nonzero().flatten()
        cumulative = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0)).to(torch.int32)
        bias = torch.where(kept, 0.0, -10000.0)[:, None, None, :].to(x.dtype) + self.biases(x.shape[1])
        tokens = x.flatten(0, 1)[indices]
        for layer in self.layer:
            tokens = tokens + layer(tokens, cumulative, int(kept.sum(1).max()), indices, kept, bias)
        return torch.zeros_like(x).flatten(0, 1).index_copy(0, indices, tokens).view(x.shape)


sizes = {
    "MPNet": {"hidden_size": CHANNELS, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32,
              "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 1,
              "max_position_embeddings": 2000},
    "Bloom": {"hidden_size": CHANNELS, "n_layer": 2, "n_head": HEADS},
    "Mpt": {"d_model": CHANNELS, "n_layers": 2, "n_heads": HEADS, "max_seq_len": 600},
}  # fmt: skip
for name in ("Bert", "Camembert", "Electra", "Roberta", "XLMRoberta"):
    sizes[name] = {**sizes["MPNet"], "embedding_size": CHANNELS}
causal = ("Bloom", "Mpt", "BertDecoder")
kinds = [*sizes, "BertDecoder", "JinaBert", "MosaicBert"]


def model_of(kind, implementation=None):
    """And a function of a model of this kind, of embedded tokens [batch, n, channels] and of which tokens are kept."""
    if kind in ("JinaBert", "MosaicBert"):
        return {"JinaBert": JinaBertEncoder, "MosaicBert": MosaicBertEncoder}[kind]().eval(), lambda of, x, kept: of(
            x, kept
        )
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    name = kind.removesuffix("Decoder")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY, is_decoder=kind in causal, use_cache=False, **sizes[name]
    )
    options = {} if implementation is None else {"attn_implementation": implementation}
    model = getattr(transformers, f"{name}Model")._from_config(config, **options).eval()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter)
        elif parameter.dim() == 2 and "embedding" not in name and "wte" not in name:
            torch.nn.init.normal_(parameter, std=0.15)
    return model, lambda of, x, kept: of(inputs_embeds=x, attention_mask=kept.long()).last_hidden_state


@pytest.mark.parametrize("kind", kinds)
def test_models_with_exact_pairs(kind):
    model, run = model_of(kind)
    ours, x = copy.deepcopy(model), torch.randn(2, 30, CHANNELS)
    served = nprf.torch.replace_attention(ours, near=30)
    assert len(served) == 2 and all(ours.get_submodule(name) is each for name, each in served.items())
    assert ours.state_dict().keys() == model.state_dict().keys()
    whole, after = torch.ones(2, 30, dtype=torch.bool), torch.ones(2, 30, dtype=torch.bool)
    after[1, 12:] = False
    with torch.no_grad():
        double = copy.deepcopy(model).double()
        for kept in (whole, after, *([after.flip(1)] if kind in ("Bloom", "Mpt") else [])):
            rows = [run(double, each[some][None].double(), some[some][None])[0] for each, some in zip(x, kept)]
            exact = torch.cat(rows)  # without padding, whose rows are NaN in some models in double
            loses = (run(model, x, kept)[kept] - exact).abs().max()
            assert 0 < loses < 1e-4 * exact.abs().max()
            assert (run(ours, x, kept)[kept] - exact).abs().max() <= 10 * loses
        y = run(ours, x, after)
        again = pickle.loads(pickle.dumps(ours)) if kind in sizes else copy.deepcopy(ours)
        assert torch.equal(run(again, x, after), y) and torch.equal(run(copy.deepcopy(ours), x, after), y)
        names = nprf.torch.restore_attention(ours)
        assert names == list(served) and torch.equal(run(ours, x, after), run(model, x, after))
        assert [type(each) for each in ours.modules()] == [type(each) for each in model.modules()]
        assert not any(each._forward_pre_hooks for each in ours.modules())
        with pytest.raises(ValueError, match="model: expected one whose attention was replaced, got a "):
            nprf.torch.restore_attention(ours)


@pytest.mark.parametrize("kind", kinds)
def test_models_with_calibrated_maps(kind):
    """The map, its scale, the bias and the direction fit together: errors are those that the calibration promises."""
    model, run = model_of(kind)
    x, n = torch.randn(4, 160, CHANNELS), 160
    kept = torch.ones(4, n, dtype=torch.bool)
    with torch.no_grad():
        features = nprf.torch.calibrate(model, lambda: run(model, x, kept), near=8, num_features=30)
        found = {}
        nprf.torch.replace_attention(model, features, report=found.__setitem__, softmax_samples=40)
        run(model, x, kept)
    for name, promised in features.softmax_errors.items():
        assert 0.5 * promised < found[name].softmax_error < 2 * promised < 0.6
    with pytest.raises(ValueError, match="attention has not been replaced, but .* has been"):
        nprf.torch.calibrate(model, lambda: None)
    # heads with the larger errors stay exact
    between = sorted(features.calibrations[next(iter(found))].head_errors)[2]
    with torch.no_grad():
        found.clear()
        served = nprf.torch.replace_attention(model, features, max_error=between, report=found.__setitem__)
        run(model, x, kept)
        for name, each in features.calibrations.items():
            exact = [h for h, error in enumerate(each.head_errors) if error > between]
            assert served[name].served.softmax == tuple(exact) and (name in found) == (len(exact) < HEADS)
            assert f"softmax={tuple(exact)}" in repr(served[name]) or len(exact) in (0, HEADS)
        # all layers: with padding, too, that of the model
        served = nprf.torch.replace_attention(model, features, max_error=0.0)
        assert all("softmax, causal" in repr(each) for each in served.values())
        kept[1, 100:] = False
        rows = run(model, x, kept)[kept]
        nprf.torch.restore_attention(model)
        torch.testing.assert_close(rows, run(model, x, kept)[kept], rtol=1e-4, atol=1e-4)
        kept[:] = True
    # other features for the same modules
    with torch.no_grad():
        nprf.torch.replace_attention(model, near=n)
        exact = run(model, x, kept)
        nprf.torch.restore_attention(model)
        torch.testing.assert_close(exact, run(model, x, kept), rtol=1e-4, atol=1e-4)


def mixed(model, features):
    """Replaces the attention of a model so that half of the heads of its first layer stay exact."""
    name, of_first = next(iter(features.calibrations.items()))
    errors = sorted(of_first.head_errors)
    first = nprf.torch.replace_attention(model, features, max_error=(errors[2] + errors[3]) / 2)[name]
    assert len(first.served.softmax) == 3 and len(first.features.maps) == 3
    return first


@pytest.mark.parametrize("kind", kinds)
def test_heads_that_stay_exact(kind, monkeypatch):
    """Their rows and gradients are those of softmax, and those of the others as if nprf computed all heads."""
    model, run = model_of(kind)
    x, kept, found = torch.randn(4, 60, CHANNELS), torch.ones(4, 60, dtype=torch.bool), []
    with torch.no_grad():
        features = nprf.torch.calibrate(model, lambda: run(model, x, kept), near=8, num_features=20)
    attend = nprf.torch.ServedAttention.attend

    def kept_rows(*args, **options):
        found.append(attend(*args, **options))
        return found[-1]

    monkeypatch.setattr(nprf.torch.ServedAttention, "attend", kept_rows)
    kept[1, 40:] = False
    parameters = [each for each in model.parameters() if each.requires_grad]

    def rows_and_gradients(*heads):
        """Of the first layer, [.., heads, d], and of some heads."""
        found.clear()
        run(model, x, kept)
        rows = found[0].unflatten(-1, (HEADS, -1))
        weights = torch.linspace(-1, 1, rows.numel()).view(rows.shape)
        loss = (rows * weights)[..., heads, :].sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return rows.detach(), [torch.zeros(()) if each is None else each for each in gradients]

    exact = mixed(model, features).served.softmax
    others = tuple(h for h in range(HEADS) if h not in exact)
    rows, gradients = rows_and_gradients(*range(HEADS))
    nprf.torch.replace_attention(model, features, max_error=0)
    of_softmax, one = rows_and_gradients(*exact)
    nprf.torch.replace_attention(model, features)
    of_nprf, other = rows_and_gradients(*others)
    for heads, alone in ((exact, of_softmax), (others, of_nprf)):
        torch.testing.assert_close(rows[..., heads, :], alone[..., heads, :], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(of_nprf, of_softmax, rtol=1e-3, atol=1e-3)
    for each, *parts in zip(gradients, one, other):
        torch.testing.assert_close(each, sum(parts), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stays", [mixed, lambda *of: nprf.torch.replace_attention(*of, max_error=0.0)])
@pytest.mark.parametrize("kind", ["MPNet", "BertDecoder"])
def test_heads_that_stay_softmax_in_a_graph(kind, stays):
    model, run = model_of(kind)
    x, kept = torch.randn(2, 60, CHANNELS), torch.ones(2, 60, dtype=torch.bool)
    with torch.no_grad():
        stays(model, nprf.torch.calibrate(model, lambda: run(model, x, kept), near=8, num_features=20))
        kept[1, 40:] = False
        in_graph = torch.compile(lambda x, kept: run(model, x, kept), fullgraph=True, backend="eager")
        torch.testing.assert_close(in_graph(x, kept), run(model, x, kept))


@pytest.mark.parametrize("kind", ["Bloom", "Mpt", "BertDecoder"])
def test_heads_that_stay_exact_beside_a_cache(kind, monkeypatch):
    """For tokens after the first call all heads of the layer are exact."""
    model, tokens, rows = language_model_of(kind), torch.randint(1, VOCABULARY, (2, 60)), []
    attend = nprf.torch.ServedAttention.attend
    with torch.no_grad():
        features = nprf.torch.calibrate(model, lambda: model(tokens), near=4, num_features=9)
        first = mixed(model, features)
        with monkeypatch.context() as of_first:
            of_first.setattr(type(first), "attend", lambda *x, **y: rows.append(attend(*x, **y)) or rows[-1])
            cache = None
            for part in tokens.split([50, 9, 1], dim=1):
                cache = model(part, cache=cache, use_cache=True).cache
            model(tokens[:, :50], use_cache=False)
            nprf.torch.replace_attention(model, features, max_error=0)
            model(tokens, use_cache=False)
    begin, then, last, without_cache, exact = rows[::2]  # of the first of two layers
    assert type(cache.layers[0]).__name__ == "DynamicLayer" and torch.equal(begin, without_cache)
    torch.testing.assert_close(torch.cat([then, last], 1), exact[:, 50:], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(begin, exact[:, :50], rtol=1e-3, atol=1e-3)


def test_calibrations_are_printed_saved_and_loaded(tmp_path):
    pytest.importorskip("safetensors", reason="it is not installed: pip install safetensors")
    model, run = model_of("JinaBert")
    x, kept = torch.randn(2, 60, CHANNELS), torch.ones(2, 60, dtype=torch.bool)
    features = nprf.torch.calibrate(model, lambda: run(model, x, kept), near=8, sinks=2, num_features=20)
    lines = str(features).splitlines()
    assert lines[0].split() == "layer near sinks features cost, keys error, % worst head, %".split()
    first = features.calibrations["layer.0"]
    size, cost = str(first.features.maps[0].output_dim), f"{features.costs['layer.0']:.0f}"
    assert lines[1].split()[:6] == ["layer.0", "8", "2", size, cost, f"{100 * first.softmax_error:.2g}"]
    assert lines[3].startswith("2 sequences of 60 tokens, ") and features.seconds > 0
    features.save(tmp_path / "calibration.safetensors")
    again = nprf.torch.ModelCalibration.load(tmp_path / "calibration.safetensors")
    assert again == features and again.seconds == features.seconds
    nprf.torch.replace_attention(model, again)
    with torch.no_grad():
        y = run(model, x, kept)
        nprf.torch.replace_attention(model, features)
        assert torch.equal(run(model, x, kept), y)
    torch_only = tmp_path / "other.safetensors"
    pytest.importorskip("safetensors.torch").save_file({"x": x}, torch_only)
    with pytest.raises(ValueError, match="path: expected a file that ModelCalibration.save"):
        nprf.torch.ModelCalibration.load(torch_only)
    with pytest.raises(ValueError, match="max_error: expected None without what calibrate"):
        nprf.torch.replace_attention(model, near=60, max_error=0.1)


@pytest.mark.parametrize("kind", ["MPNet", "Bert", "BertDecoder", "Bloom", "Mpt", "JinaBert", "MosaicBert"])
@pytest.mark.parametrize("padded", [False, True])
def test_memory_of_models(kind, padded):
    model, run = model_of(kind, None if "Bert" not in kind or kind in ("JinaBert", "MosaicBert") else "sdpa")
    n = 1500
    nprf.torch.replace_attention(model, near=n)
    kept = (torch.arange(n) < (n - 7 if padded else n))[None]
    with torch.no_grad():
        assert n * CHANNELS * 4 <= largest_allocation(lambda: run(model, torch.randn(1, n, CHANNELS), kept)) < n * n


def test_padding_between_tokens_of_bloom_is_refused():
    model, run = model_of("Bloom")
    nprf.torch.replace_attention(model, near=30)
    kept = torch.ones(2, 30, dtype=torch.bool)
    kept[1, 7:9] = False
    with pytest.raises(ValueError, match="mask: expected padding before or after the tokens of a sequence, got some"):
        run(model, torch.randn(2, 30, CHANNELS), kept)


def test_audio_encoder_of_phi_4():
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    config = transformers.Phi4MultimodalAudioConfig(
        hidden_size=CHANNELS, intermediate_size=32, num_blocks=2, num_attention_heads=HEADS, bias_max_distance=9,
        input_size=80, nemo_conv_channels=CHANNELS, depthwise_separable_out_channel=CHANNELS, ext_pw_out_channel=CHANNELS,
    )  # fmt: skip
    of = transformers.models.phi4_multimodal.modeling_phi4_multimodal.Phi4MultimodalAudioModel
    model = of._from_config(config).eval()
    for parameter in model.relative_attention_bias_layer.parameters():
        torch.nn.init.normal_(parameter)
    ours, x = copy.deepcopy(model), torch.randn(2, 200, 80)
    kept = torch.ones(2, 25, dtype=torch.bool)
    served = nprf.torch.replace_attention(ours, near=100)
    assert list(served) == ["encoders.0.self_attn", "encoders.1.self_attn"]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double(), None)
        loses = (model(x, None) - exact).abs().max()
        assert 0 < (ours(x, None) - exact).abs().max() <= 10 * loses
        kept = torch.ones(2, 200, dtype=torch.bool)
        kept[1, 100:] = False
        with pytest.raises(ValueError, match="attention_mask: expected one without padding and windows"):
            ours(x, kept)
    model.config.bias_symmetric = True
    with pytest.raises(ValueError, match=r"encoders.0.self_attn: .* but its bias is symmetric \(bias_symmetric\)"):
        nprf.torch.replace_attention(model)


def test_what_models_ask_for_and_do_not_get():
    for kind in ("MPNet", "Bert", "Bloom"):
        model, _ = model_of(kind, "eager")
        nprf.torch.replace_attention(model, near=30)
        tokens = torch.randint(2, VOCABULARY, (2, 9))
        with pytest.raises(ValueError, match="output_attentions: expected False"):
            model.config.output_attentions = True
            model(tokens, output_attentions=True)
    model, _ = model_of("Bert")
    model.encoder.layer[1].attention.self.position_embedding_type = "relative_key"
    with pytest.raises(ValueError, match="layer.1.attention.self: .* position_embedding_type is relative_key"):
        nprf.torch.replace_attention(model)
    assert not any(isinstance(each, nprf.torch.ServedAttention) for each in model.modules())


def test_models_of_which_a_part_is_served():
    """Layers that are not served get what they need, or say so."""
    x, kept = torch.randn(2, 30, CHANNELS), torch.ones(2, 30, dtype=torch.bool)
    kept[1, 12:] = False
    for kind in ("Bert", "BertDecoder", "JinaBert", "MosaicBert", "Bloom", "Mpt"):
        for implementation in ("eager", "sdpa") if kind.startswith("Bert") else (None,):
            model, run = model_of(kind, implementation)
            ours = copy.deepcopy(model)
            first, second = nprf.torch.replace_attention(ours, near=30)
            with torch.no_grad():
                expected = run(model, x, kept)[kept]
                nprf.torch.restore_attention(ours.get_submodule(second))
                torch.testing.assert_close(run(ours, x, kept)[kept], expected, rtol=1e-4, atol=1e-4)
                nprf.torch.restore_attention(ours.get_submodule(first))
                assert torch.equal(run(ours, x, kept)[kept], expected)
                nprf.torch.replace_attention(ours.get_submodule(first), near=30) if kind in ("Bert", "Bloom") else None
                torch.testing.assert_close(run(ours, x, kept)[kept], expected, rtol=1e-4, atol=1e-4)
    # a layer that is replaced again, alone, still knows who makes its masks
    model, run = model_of("BertDecoder", "sdpa")
    with torch.no_grad():
        expected = run(model, x, kept)[kept]
        _, second = nprf.torch.replace_attention(model, near=30)
        nprf.torch.replace_attention(model.get_submodule(second), near=40)
        nprf.torch.restore_attention(model.get_submodule(second))
        torch.testing.assert_close(run(model, x, kept)[kept], expected, rtol=1e-4, atol=1e-4)
    model, run = model_of("MPNet")
    _, second = nprf.torch.replace_attention(model, near=30)
    nprf.torch.restore_attention(model.get_submodule(second))
    nprf.torch.replace_attention(model, near=30)
    run(model, x, kept)
    nprf.torch.restore_attention(model.get_submodule(second))
    model.encoder.compute_position_bias = nprf.torch._kinds._bias_of_served  # as a layer that is served sets it
    with pytest.raises(ValueError, match="position_bias: expected a layer whose attention was replaced"):
        run(model, x, kept)
    model = language_model_of("T5")
    first, second, *_ = nprf.torch.replace_attention(model, near=30)
    nprf.torch.restore_attention(model.get_submodule(second))
    with pytest.raises(ValueError, match="position_bias: expected a layer whose attention was replaced"):
        model.encoder(torch.randint(1, VOCABULARY, (2, 9)))


def test_models_that_are_dispatched_after_their_attention_was_replaced():
    accelerate = pytest.importorskip("accelerate", reason="it is not installed: pip install accelerate")
    model, tokens = language_model_of("T5").encoder, torch.randint(1, VOCABULARY, (2, 9))
    nprf.torch.replace_attention(model, near=30)
    expected = model(tokens).last_hidden_state
    accelerate.dispatch_model(model, device_map={"": "cpu"}, force_hooks=True)
    assert torch.equal(model(tokens).last_hidden_state, expected)


def test_modules_that_are_not_what_their_class_says():
    model, _ = model_of("Bert")
    attention = model.encoder.layer[1].attention.self
    attention.forward = attention.forward  # as accelerate does
    with pytest.raises(
        ValueError, match="layer.1.attention.self: .* whose forward was replaced, such as by accelerate"
    ):
        nprf.torch.replace_attention(model)
    del attention.forward
    attention.is_decoder = True
    with pytest.raises(ValueError, match="but it has is_decoder=True, and its config another"):
        nprf.torch.replace_attention(model)
    attention.is_decoder = False
    for options in ({"near": -1}, {"sinks": -1}, {"softmax_samples": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: expected at least 0, got -1"):
            nprf.torch.replace_attention(model, **options)
    for options in ({"near": 8.5}, {"report": 3}):
        with pytest.raises(TypeError, match=next(iter(options))):
            nprf.torch.replace_attention(model, **options)
    assert not any(isinstance(each, nprf.torch.ServedAttention) for each in model.modules())
    of = type(attention)

    class Other(of):
        def __init__(self):
            raise NotImplementedError

    class WithForward(of):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    attention.__class__ = Other
    assert len(nprf.torch.replace_attention(model)) == 2
    assert nprf.torch.restore_attention(model) and type(attention) is Other
    attention.__class__ = WithForward
    assert list(nprf.torch.replace_attention(model)) == ["encoder.layer.0.attention.self"]
    for layer in (model.encoder.layer[0].attention.self,):
        layer.scaling = 0.01  # of the model, which its scores are multiplied by
        assert layer.score_factor() == 0.01


def language_model_of(kind):
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    if kind in ("T5", "MT5", "UMT5"):
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=VOCABULARY, d_model=CHANNELS, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2,
            num_heads=HEADS, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    else:
        name = kind.removesuffix("Decoder")
        config = getattr(transformers, f"{name}Config")(
            vocab_size=VOCABULARY, is_decoder=True, eos_token_id=None, **{**sizes[name], "pad_token_id": 0}
        )
        model = getattr(transformers, "BertLMHeadModel" if name == "Bert" else f"{name}ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter)
        elif parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5", "Bloom", "Mpt", "BertDecoder"])
def test_generation(kind):
    """The same tokens as without nprf, from caches of transformers."""
    model = language_model_of(kind)
    ours = copy.deepcopy(model)
    nprf.torch.replace_attention(ours, near=60)
    tokens = torch.randint(1, VOCABULARY, (2, 9))
    options = [
        {"do_sample": False},
        {"do_sample": False, "use_cache": False},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "top_k": 5},
        {"do_sample": False, "cache_implementation": "static"},
        {"do_sample": False, "prompt_lookup_num_tokens": 3},  # candidates, some of which are taken back
    ]
    if kind in ("Bloom", "Mpt"):
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[1, :4] = 0  # padding before the prompt
        options.append({"do_sample": False, "attention_mask": mask})
    for each in options:
        if (
            kind in ("Bloom", "Mpt")
            and "cache_implementation" in each
            or kind == "Mpt"
            and "prompt_lookup" in str(each)
        ):
            continue  # which their models do not have
        prompt = tokens[:1] if "prompt_lookup_num_tokens" in each else tokens
        found = []
        for of in (model, ours):
            torch.manual_seed(0)
            found.append(of.generate(prompt, max_new_tokens=8, **each))
        assert torch.equal(*found), each


def served_by_state(kind):
    """A language model whose maps are not exact, so that rows differ from those of softmax."""
    model = language_model_of(kind).double()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter)  # which float32 does not have
    nprf.torch.replace_attention(model, nprf.orf(CHANNELS // HEADS, 10, seed=3), near=4, sinks=1, rollback=7)
    return model


@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5", "Bloom", "Mpt", "BertDecoder"])
@pytest.mark.filterwarnings("ignore:features. expected maps that are calibrated")
def test_generation_from_states(kind):
    """The same tokens and rows as without a cache."""
    from nprf.torch import _cache

    model = served_by_state(kind)
    tokens = torch.randint(1, VOCABULARY, (2, 9))
    before = torch.ones(2, 9, dtype=torch.long)
    before[1, :4] = 0
    begin = torch.cat([torch.zeros(2, 4, dtype=torch.long), tokens[:, 4:]], 1)  # with the token that T5 begins with
    only = (
        {"decoder_input_ids": begin, "decoder_attention_mask": before} if "T5" in kind else {"attention_mask": before}
    )
    found = {}
    for each in (
        {"do_sample": False},
        {"do_sample": False, **only},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "top_k": 5},
        {"do_sample": False, "prompt_lookup_num_tokens": 3},
    ):
        if kind == "Mpt" and "prompt_lookup" in str(each):
            continue  # which its model does not have
        prompt = tokens[:1] if "prompt_lookup_num_tokens" in each else tokens
        rows = []
        for use_cache in (True, False):
            if not use_cache:
                each.pop("prompt_lookup_num_tokens", None)
            torch.manual_seed(0)
            options = {"return_dict_in_generate": True, "output_logits": True, "use_cache": use_cache}
            found[use_cache] = model.generate(prompt, max_new_tokens=12, **options, **each)
            rows.append(torch.stack(found[use_cache].logits))
        assert torch.equal(found[True].sequences, found[False].sequences), each
        torch.testing.assert_close(*rows, rtol=1e-9, atol=1e-9)
        cache = found[True].cache
        layers = getattr(cache, "self_attention_cache", cache).layers
        assert len(layers) == 2 and all(type(each) is _cache.DecodedTokens for each in layers)


@pytest.mark.filterwarnings("ignore:features. expected maps that are calibrated")
def test_caches_with_states():
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    from nprf.torch import _cache

    model = served_by_state("Bloom")
    tokens = torch.randint(1, VOCABULARY, (3, 30))
    kept = torch.ones(3, 30, dtype=torch.long)
    kept[1, :7], kept[2, :2] = 0, 0

    def rows(of, mask):
        with torch.no_grad():
            return model(of, attention_mask=mask).logits

    def cached(cache, begin, end, tokens=tokens, kept=kept):
        with torch.no_grad():
            return model(tokens[:, begin:end], attention_mask=kept[:, :end], cache=cache).logits

    def same(one, other):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)

    expected, cache = rows(tokens, kept), transformers.DynamicCache(config=model.config)
    found = [cached(cache, begin, end) for begin, end in ((0, 4), (4, 5), (5, 12), (12, 20))]  # padding in three calls
    assert all(type(each) is _cache.DecodedTokens for each in cache.layers) and cache.get_seq_length() == 20
    same(torch.cat(found, 1)[kept[:, :20] > 0], expected[:, :20][kept[:, :20] > 0])

    other = copy.deepcopy(cache)
    other.crop(-7)
    same(cached(other, 13, 15), expected[:, 13:15])
    again = pickle.loads(pickle.dumps(cache))
    assert torch.equal(cached(again, 20, 25), cached(copy.deepcopy(cache), 20, 25))

    # other sequences, more and fewer
    index = torch.tensor([2, 0, 1, 2, 1, 1])
    other = copy.deepcopy(cache)
    other.reorder_cache(torch.tensor([2, 0, 1]))
    other.batch_repeat_interleave(2)
    index = torch.tensor([2, 2, 0, 0, 1, 1])
    same(cached(other, 20, 23, tokens[index], kept[index]), expected[index, 20:23])
    other.batch_select_indices(torch.tensor([False, True, False, True, False, False]))
    same(cached(other, 23, 25, tokens[[2, 0]], kept[[2, 0]]), expected[[2, 0], 23:25])
    # what is refused changes nothing
    later = kept.clone()
    later[0, 22] = 0
    for mask, message in (
        (later, "mask: expected padding before or after the tokens of a sequence"),
        (torch.ones_like(kept), "mask: expected .0, 7, 2. tokens of padding, as the cache has, got .0, 0, 0."),
    ):
        with pytest.raises(ValueError, match=message):
            cached(cache, 20, 25, kept=mask)
    with pytest.raises(ValueError, match="cache: expected one of 1 sequences, as the inputs, got one of 3"):
        cached(cache, 20, 25, tokens[:1], kept[:1])
    with pytest.raises(ValueError, match="tokens_to_remove: expected at most 0, got 1"):
        cache.crop(1)
    with pytest.raises(
        ValueError, match="tokens_to_remove: expected at least -7 .rollback of replace_attention., got -19"
    ):
        cache.crop(-19)  # which the sequence with padding could
    with pytest.raises(ValueError, match="cache: expected one with keys and values, which gradients"):
        model(tokens[:, 20:25], attention_mask=kept[:, :25], cache=cache)
    features = model.transformer.h[0].self_attention.features
    nprf.torch.replace_attention(model, features, near=5, sinks=1, rollback=7)
    with pytest.raises(
        ValueError, match="cache: expected one of the map, the biases and the options that the layer has"
    ):
        cached(cache, 20, 25)
    nprf.torch.replace_attention(model, features, near=4, sinks=1, rollback=7)
    same(cached(cache, 20, 25), expected[:, 20:25])
    with pytest.raises(ValueError, match="cache: expected one whose calls have ended"):
        other = copy.deepcopy(cache)
        other.layers[1].decoder.rollback(0, 1)  # as an interrupted call may do
        cached(other, 25, 26)
    with pytest.raises(ValueError, match="cache: expected one whose calls have ended"):
        other = copy.deepcopy(cache)
        other.layers[1].crop(-2)
        cached(other, 25, 26)

    # a cache that was emptied is as a new one
    for empty in (lambda: cache.reset(), lambda: cache.crop(-50)):
        nprf.torch.replace_attention(model, features, near=5, sinks=1)
        empty()
        same(cached(cache, 0, 5, tokens[:1], kept[:1]), rows(tokens[:1, :5], kept[:1, :5]))
        empty()
        nprf.torch.restore_attention(model)
        same(cached(cache, 0, 5, tokens[:1], kept[:1]), rows(tokens[:1, :5], kept[:1, :5]))
        assert not any(type(each) is _cache.DecodedTokens for each in cache.layers)
        empty()
    with pytest.raises(
        ValueError, match="cache: expected one with keys and values, got one of a layer whose attention"
    ):
        cached(again, 25, 26)


@pytest.mark.filterwarnings("ignore:features. expected maps that are calibrated")
def test_caches_with_keys_and_values():
    """Where states do not serve: padding after tokens, gradients, static caches."""
    from nprf.torch import _cache

    model = served_by_state("Bloom")
    tokens, kept = torch.randint(1, VOCABULARY, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    kept[1, 6:] = 0
    with torch.no_grad():
        found = model(tokens, attention_mask=kept, use_cache=True)
        assert "nprf" not in model.config._attn_implementation and type(model.config)().vocab_size != VOCABULARY
        assert not any(type(each) is _cache.DecodedTokens for each in found.cache.layers)
        torch.testing.assert_close(found.logits[kept > 0], model(tokens, attention_mask=kept).logits[kept > 0])
    found = model(tokens, labels=tokens, use_cache=True)
    found.loss.backward()
    assert not any(type(each) is _cache.DecodedTokens for each in found.cache.layers)
    found = []
    nprf.torch.replace_attention(
        model, model.transformer.h[0].self_attention.features, report=lambda *each: found.append(each)
    )
    with torch.no_grad():
        model(tokens, use_cache=True)
    assert len(found) == 2 and isinstance(found[0][1], nprf.Report)


@pytest.mark.parametrize("kind", ["T5", "Bloom"])
def test_training_with_labels(kind):
    model = language_model_of(kind)
    ours = copy.deepcopy(model)
    nprf.torch.replace_attention(ours, near=60)
    tokens = torch.randint(1, VOCABULARY, (2, 9))
    losses = [each(input_ids=tokens, labels=tokens).loss for each in (model, ours)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)
    for each in losses:
        each.backward()
    for (name, one), other in zip(model.named_parameters(), ours.parameters()):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-4, msg=name)


class MyAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(CHANNELS, CHANNELS) for _ in range(4))
        self.slopes = torch.nn.Parameter(torch.tensor(nprf.alibi_slopes(HEADS), dtype=torch.float32))

    def forward(self, hidden_states, attention_mask=None):
        raise NotImplementedError


class MyOtherAttention(MyAttention):
    def forward(self, hidden_states, attention_mask=None):
        return hidden_states


class ServedMyAttention(nprf.torch.ServedAttention):
    def attention_sizes(self):
        return HEADS, CHANNELS // HEADS

    def projections(self, hidden_states):
        return self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)

    def bias_and_position(self):
        return self.slopes, "alibi"

    def forward(self, hidden_states, attention_mask=None, **others):
        self.check_arguments(others)
        return self.out(self.attend(hidden_states, attention_mask)), None


def test_a_kind_of_a_user():
    model = torch.nn.ModuleList([MyAttention(), MyOtherAttention()])
    with pytest.raises(ValueError, match="got a ModuleList with MyAttention, MyOtherAttention"):
        nprf.torch.replace_attention(model)

    nprf.torch.register_attention("MyAttention")(ServedMyAttention)
    served = nprf.torch.replace_attention(model, near=20)
    assert list(served) == ["0"]  # the other one has a forward of its own
    x = torch.randn(2, 20, CHANNELS)
    q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (model[0].query, model[0].key, model[0].value))
    rows = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=alibi_matrix(20))
    expected = model[0].out(rows.transpose(1, 2).flatten(2))
    torch.testing.assert_close(model[0](x)[0], expected, rtol=1e-5, atol=1e-5)
    model[0](x)[0].sum().backward()
    assert model[0].slopes.grad.abs().min() > 0
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)[0](x)[0], model[0](x)[0])
    assert "features=None, near=20, sinks=0, causal=False" in repr(model[0])
