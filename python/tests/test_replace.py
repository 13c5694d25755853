# SPDX-License-Identifier: MIT
"""Models that were trained with softmax, whose attention is replaced."""

import copy
import io
import pickle
import sys

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


@pytest.mark.filterwarnings("error")  # there is no map that would have to be calibrated
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
        assert list(nprf.torch.replace_attention(model, near=30)) == [
            "layers.0",
            "layers.1",
        ]  # None: every pair has its exact weight
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
    with pytest.raises(ValueError, match="layers.0: expected a module with relative_attention_bias in this layer"):
        nprf.torch.replace_attention(encoder_without_bias())


def test_arguments_of_replaced_attention():
    model, x = T5Encoder(), torch.randn(2, 30, 24)
    model.layers[1].is_decoder = True
    nprf.torch.replace_attention(model, near=30)
    layer, causal = model.layers
    y = layer(x)[0]
    # as some versions and trainers pass them
    others = {"cache_position": torch.arange(30), "output_hidden_states": True, "num_items_in_batch": torch.tensor(3)}
    assert torch.equal(layer(x, **others, output_attentions=False, use_cache=None, is_causal=False)[0], y)
    assert torch.equal(causal(x, is_causal=True)[0], causal(x)[0])
    with pytest.raises(ValueError, match="use_cache: expected None, got bool"):
        layer(x, use_cache=True)
    for name in ("position_bias", "attention_mask", "key_value_states", "layer_head_mask", "position_ids"):
        with pytest.raises(ValueError, match=f"{name}: expected None, got Tensor"):
            layer(x, **{name: torch.ones(1)})
    for each, wrong in ((layer, True), (causal, False)):
        with pytest.raises(ValueError, match=f"is_causal: expected {not wrong}"):
            each(x, is_causal=wrong)
    with pytest.raises(ValueError, match="output_attentions: expected False, since no n x n matrix is formed"):
        layer(x, output_attentions=True)


def test_a_bias_that_is_replaced_later_is_that_of_all_layers():
    model, x, other = T5Encoder(), torch.randn(2, 30, 24), torch.nn.Embedding(16, 3)
    ours = copy.deepcopy(model)
    nprf.torch.replace_attention(ours, near=30)
    ours(x)
    model.layers[0].relative_attention_bias = ours.layers[0].relative_attention_bias = other
    with torch.no_grad():
        y = ours(x)
        exact = copy.deepcopy(model).double()(x.double())
        assert (y - exact).abs().max() <= 10 * (model(x) - exact).abs().max()
    y = ours(x).sum()
    both = torch.autograd.grad(y, other.weight)[0]
    second = ours.layers[1]
    second.relative_attention_bias, second.served.owner = copy.deepcopy(other), second
    of_first, of_second = torch.autograd.grad(
        ours(x).sum(), [layer.relative_attention_bias.weight for layer in ours.layers]
    )
    torch.testing.assert_close(both, of_first + of_second, rtol=1e-4, atol=1e-5)


def test_what_is_refused_changes_nothing():
    with pytest.raises(
        ValueError, match="classes T5Attention, .*, BertUnpadSelfAttention, .* got a Linear with no attention"
    ):
        nprf.torch.replace_attention(torch.nn.Linear(3, 3))
    with pytest.raises(ValueError, match="got a TransformerEncoderLayer with MultiheadAttention$"):
        nprf.torch.replace_attention(torch.nn.TransformerEncoderLayer(8, 2))
    model = T5Encoder()
    layers = list(model.layers)

    def of_the_first(name, d):
        return [nprf.taylor(d)] * (3 if name == "layers.0" else 2)

    for error, features in (
        ("features: expected one map, or 3 .heads., got 2", of_the_first),
        ("features: expected a map of vectors of 8 numbers", nprf.taylor(9)),
    ):
        with pytest.raises(ValueError, match=error):
            nprf.torch.replace_attention(model, features)
    assert list(model.layers) == layers
    nprf.torch.replace_attention(model)
    with pytest.raises(ValueError, match="attention has not been replaced, but layers.0 has been"):
        nprf.torch.calibrate(model, None)
    del layers[0].o
    with pytest.raises(ValueError, match="layers.0: expected a T5Attention with o, got one without"):
        nprf.torch.replace_attention(torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layers)}))
    own = T5Encoder()  # layers of this class do not share their biases
    for layer in own.layers:
        layer.__class__ = type("UMT5Attention", (T5Attention,), {"forward": T5Attention.forward})
    with pytest.raises(ValueError, match="layers.1: expected a module with relative_attention_bias"):
        nprf.torch.replace_attention(own)


def test_a_module_with_several_places_stays_one():
    model, x = T5Encoder(), torch.randn(2, 30, 24)
    model.layers.append(model.layers[1])
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        loses = (model(x) - exact).abs().max()
        assert len(nprf.torch.replace_attention(model, near=30)) == 2
        assert model.layers[2] is model.layers[1] and isinstance(model.layers[1], nprf.torch.ServedAttention)
        assert (model(x) - exact).abs().max() <= 10 * loses


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
            return nprf.torch.calibrate(model, lambda: model(sample), near=16, **options)

        features = calibrated(num_features=30)
        assert error(features) < 0.03
        with pytest.warns(UserWarning, match=r"features: expected maps that are calibrated .*, got TaylorFeatures\("):
            assert error(features) < error(nprf.taylor(8)) / 4
        assert (
            calibrated(target_error=0.5)("layers.1", 8).maps[0].output_dim < features("layers.1", 8).maps[0].output_dim
        )
    with pytest.raises(ValueError, match="sample: expected a call of layers.0, got none"):
        nprf.torch.calibrate(model, lambda: None, num_features=30)
    assert not any(module._forward_hooks for layer in model.layers for module in (layer.q, layer.k, layer.v))


def test_progress_of_a_calibration(capsys, monkeypatch):
    model, sample = T5Encoder(), torch.randn(1, 60, 24)

    def calibrated(**options):
        features = nprf.torch.calibrate(model, lambda: model(sample), near=4, num_features=5, **options)
        return features, capsys.readouterr()

    expected, printed = calibrated(progress=False)
    assert printed.out == printed.err == ""
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tqdm.auto", None)
        features, printed = calibrated()
        assert features == expected and printed.out == printed.err == ""
        with pytest.raises(ImportError, match=r"progress: expected tqdm, .* pip install 'nprf\[progress\]'"):
            calibrated(progress=True)
    pytest.importorskip("tqdm", reason="it is not installed: pip install tqdm")
    for options in ({}, {"progress": True}):
        features, printed = calibrated(**options)
        assert features == expected and printed.out == "" and "calibrate: 100%" in printed.err and "2/2" in printed.err


def test_reports_and_promised_errors():
    model, n = T5Encoder(), 256
    for layer in model.layers:
        torch.nn.init.normal_(layer.q.weight, std=0.08)
    sample, x = torch.randn(8, n, 24), torch.randn(4, n, 24)
    features = nprf.torch.calibrate(model, lambda: model(sample), near=16, num_features=30)
    promised, found = features.softmax_errors, {}
    assert list(promised) == ["layers.0", "layers.1"]
    assert f"layers.1: {100 * promised['layers.1']:.2g} %" in repr(features)
    nprf.torch.replace_attention(model, features, report=found.__setitem__, softmax_samples=64)
    with torch.no_grad():
        y = model(x)
    for name, error in promised.items():
        assert found[name].compared_rows == 4 * 3 * 64
        assert error / 2 < found[name].softmax_error < 2 * error  # of other inputs
    for layer in model.layers:
        layer.served.report = None
    with torch.no_grad():
        assert torch.equal(model(x), y)


def test_sinks_of_replaced_attention():
    model, x = T5Encoder(), torch.randn(2, 60, 24)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        loses = (model(x) - exact).abs().max()
        calibrated = nprf.torch.calibrate(model, lambda: model(x), near=8, sinks=3, num_features=20)
        for name, value in (("near", 9), ("near", 0), ("sinks", 0)):
            with pytest.raises(ValueError, match=f"{name}: expected {8 if name == 'near' else 3}, for which"):
                nprf.torch.replace_attention(model, calibrated, **{name: value})
        ours = copy.deepcopy(model)
        nprf.torch.replace_attention(ours, calibrated)
        assert [(layer.served.near, layer.served.sinks) for layer in ours.layers] == [(8, 3), (8, 3)]
        nprf.torch.replace_attention(model, calibrated.__call__, near=0, sinks=60)  # all keys are exact
        assert (model(x) - exact).abs().max() <= 10 * loses


def test_replaced_attention_keeps_the_state_dict():
    model = T5Encoder()
    state = model.state_dict()
    nprf.torch.replace_attention(model, near=30)
    assert model.state_dict().keys() == state.keys()
    model.load_state_dict(state)
    other = copy.deepcopy(model)  # whose layers share its own bias
    torch.nn.init.normal_(other.layers[0].relative_attention_bias.weight)
    assert other.layers[1].bias_and_position()[0] is other.layers[0].relative_attention_bias
    model(torch.randn(2, 30, 24)).sum().backward()
    assert model.layers[0].relative_attention_bias.weight.grad.any()


def test_calibrated_models_are_saved_and_loaded():
    model, x, file = T5Encoder(), torch.randn(2, 60, 24), io.BytesIO()
    fresh = copy.deepcopy(model)
    features = nprf.torch.calibrate(model, lambda: model(x), near=8, sinks=1, num_features=20)
    again = pickle.loads(pickle.dumps(features))
    assert again == features and again.softmax_errors == features.softmax_errors
    nprf.torch.replace_attention(model, features)
    state = model.state_dict()
    extra = {f"layers.{i}.{name}" for i in (0, 1) for name in ("features_constants", "served_as")}
    assert state.keys() == fresh.state_dict().keys() | extra
    torch.save(state, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    with pytest.raises(RuntimeError, match="Unexpected key.*layers.0.features_constants"):
        fresh.load_state_dict(saved)
    nprf.torch.replace_attention(fresh, near=50)  # and not what the maps are for
    for layer in fresh.layers:
        torch.nn.init.zeros_(layer.q.weight)
    fresh.load_state_dict(saved)
    with torch.no_grad():
        assert torch.equal(fresh(x), model(x))
    assert [layer.features for layer in fresh.layers] == [layer.features for layer in model.layers]
    fresh.load_state_dict({name: each for name, each in saved.items() if name not in extra})  # the maps stay
    assert fresh.layers[1].features == model.layers[1].features
    # heads that stay exact: none, some and all, beside those of other files
    largest = sorted(error for each in features.calibrations.values() for error in each.head_errors)
    for most in (0.0, largest[2], largest[3], 9.0, largest[4]):
        nprf.torch.replace_attention(model, features, max_error=most)
        fresh.load_state_dict(model.state_dict())
        exact = [features.exact_heads(f"layers.{i}", most) for i in (0, 1)]
        with torch.no_grad():
            assert [layer.served.softmax for layer in fresh.layers] == exact and torch.equal(fresh(x), model(x))
        assert [layer.served_as.tolist() for layer in fresh.layers] == [
            [8, 1, *(int(h in of_layer) for h in range(3))] for of_layer in exact
        ]
    for softmax in (0, 1):  # as files of older versions have it, with all maps
        older = {name: each[:2].tolist() + [softmax] for name, each in saved.items() if name.endswith("served_as")}
        fresh.load_state_dict({**saved, **{name: torch.tensor(each) for name, each in older.items()}})
        nprf.torch.replace_attention(model, features, max_error=0.0 if softmax else None)
        with torch.no_grad():
            assert torch.equal(fresh(x), model(x))
    for broken, text in (
        (torch.zeros(5, dtype=torch.uint8), "features_constants: expected the bytes of a feature map"),
        (nprf.torch._maps.bytes_of(nprf.taylor(9)), "features: expected a map of vectors of 8 numbers"),
    ):
        second = fresh.layers[1]
        before, as_before = second.served, second.served_as.tolist()
        with pytest.raises(RuntimeError, match=text):
            fresh.load_state_dict({**saved, "layers.1.features_constants": broken})
        assert (
            second.served == before and second.served_as.tolist() == as_before != saved["layers.1.served_as"].tolist()
        )


def encoder_without_bias():
    model = T5Encoder()
    model.layers = model.layers[1:]
    return model


def model_of_transformers(kind, implementation):
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=3,
        relative_attention_num_buckets=16, relative_attention_max_distance=20, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    of_kind = getattr(transformers, f"{kind}ForConditionalGeneration")
    model = of_kind._from_config(config, attn_implementation=implementation).eval()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(parameter)
    return model


kinds = {
    "T5": ["eager", "sdpa"],
    "MT5": ["sdpa"],
    "UMT5": ["eager", "sdpa"],
    "SwitchTransformers": ["eager"],
    "Pop2Piano": ["sdpa"],
}


@pytest.mark.parametrize("kind, implementation", [(kind, each) for kind in kinds for each in kinds[kind]])
def test_models_of_transformers(kind, implementation):
    model = model_of_transformers(kind, implementation)
    ours = copy.deepcopy(model)
    assert len(nprf.torch.replace_attention(ours, near=60)) == 4  # two of the encoder, two of the decoder
    tokens, of_decoder = torch.randint(1, 50, (2, 30)), torch.randint(1, 50, (2, 11))
    padding, after, before = torch.ones(2, 30), torch.ones(2, 11), torch.ones(2, 11)
    padding[1, 12:], after[1, 6:], before[1, :4] = 0, 0, 0
    inputs = {"decoder_input_ids": of_decoder, "use_cache": False}

    def logits(of, **masks):
        x = of.get_input_embeddings()(tokens)
        return of(inputs_embeds=x, **inputs, **masks).logits

    for kept, masks in (
        (torch.ones(2, 11), {}),
        (torch.ones(2, 11), {"attention_mask": padding}),
        (after, {"attention_mask": padding, "decoder_attention_mask": after}),
        (before, {"attention_mask": padding, "decoder_attention_mask": before}),
    ):
        with torch.no_grad():
            exact = logits(copy.deepcopy(model).double(), **masks)[kept.bool()]
            loses = (logits(model, **masks)[kept.bool()] - exact).abs().max()
            assert (logits(ours, **masks)[kept.bool()] - exact).abs().max() <= 10 * loses
    ours.load_state_dict(model.state_dict())
    if kind == "SwitchTransformers":  # whose encoder takes no use_cache
        return
    first = {"use_cache": True, "decoder_input_ids": of_decoder[:, :7]}
    with torch.no_grad():
        caches = [
            each(inputs_embeds=each.get_input_embeddings()(tokens), **first).past_key_values for each in (model, ours)
        ]
        then = {
            "encoder_outputs": (model.encoder(tokens)[0],),
            "decoder_input_ids": of_decoder[:, 7:],
            "use_cache": True,
        }
        theirs, rows = (each(past_key_values=cache, **then).logits for each, cache in zip((model, ours), caches))
    torch.testing.assert_close(rows, theirs, rtol=1e-4, atol=1e-4)


def largest_allocation(function):
    """In bytes, by one operation of PyTorch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    return max(event.self_cpu_memory_usage for event in profile.events())


@pytest.mark.parametrize("kind, implementation", [(kind, each) for kind in kinds for each in kinds[kind]])
@pytest.mark.parametrize("padded", [False, True])
def test_memory_of_models_of_transformers(kind, implementation, padded):
    """Of padding and of a causal mask it is O(n), where transformers has masks of n x n numbers."""
    model, n = model_of_transformers(kind, implementation), 500
    nprf.torch.replace_attention(model, near=n)
    long, short = torch.randn(1, n, 24), torch.randn(1, 3, 24)
    masks = {}
    if padded:
        mask = torch.arange(n)[None] < n - 7
        masks = {"attention_mask": mask.long()}
        model.encoder(None, mask, inputs_embeds=long)  # also by position
    with torch.no_grad():
        of_encoder = largest_allocation(lambda: model.encoder(inputs_embeds=long, **masks))
        others = {"encoder_hidden_states": short, "use_cache": False}  # of cross attention
        of_decoder = largest_allocation(lambda: model.decoder(inputs_embeds=long, **masks, **others))
    assert n * 24 * 4 <= of_encoder < n * n / 2 and n * 24 * 4 <= of_decoder < n * n / 2


def test_memory_of_expanded_masks():
    model, n = T5Encoder(), 500
    nprf.torch.replace_attention(model, near=n)
    mask = (torch.arange(n) < n - 7).expand(1, 3, n, n)
    with torch.no_grad():
        assert largest_allocation(lambda: model(torch.randn(1, n, 24), mask)) < n * n / 2


def test_t5_of_transformers():
    model = model_of_transformers("T5", "sdpa")
    ours = copy.deepcopy(model)
    nprf.torch.replace_attention(ours, near=60)
    tokens, of_decoder = torch.randint(1, 50, (2, 30)), torch.randint(1, 50, (2, 11))
    inputs = {"input_ids": tokens, "decoder_input_ids": of_decoder, "use_cache": False}
    with torch.no_grad():
        theirs, states = (each(**inputs, output_hidden_states=True).encoder_hidden_states for each in (model, ours))
    for one, other in zip(theirs, states):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    packed = torch.block_diag(torch.ones(10, 10), torch.ones(20, 20)).bool().expand(2, 1, 30, 30)
    with pytest.raises(ValueError, match="mask: expected one by which all heads and queries"):
        ours(**inputs, attention_mask=packed)
    with pytest.raises(ValueError, match="output_attentions: expected False"):
        ours(**inputs, output_attentions=True)
    compiled = torch.compile(ours.encoder, fullgraph=True, backend="aot_eager")
    for masks in ({}, {"attention_mask": torch.arange(30) < torch.tensor([[30], [12]])}):
        assert torch.equal(compiled(tokens, **masks).last_hidden_state, ours.encoder(tokens, **masks).last_hidden_state)
    ours.set_attn_implementation("eager")
    ours.encoder.config.output_attentions = True
    with pytest.raises(ValueError, match="output_attentions: expected False"):
        ours(**inputs)


@pytest.mark.parametrize(
    "kind, found",
    [
        ("Deberta", r"DebertaAttention \(its biases also depend on queries and keys\)"),
        ("GPT2", "GPT2Attention"),
        ("LongT5", r"LongT5LocalAttention \(it attends to a window of tokens\)"),
        ("Swin", r"SwinAttention \(it attends to windows of a picture\)"),
        ("WavLM", r"WavLMAttention \(its biases also depend on queries\)"),
    ],
)
def test_other_models_of_transformers(kind, found):
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "n_heads": 2,
        "n_layers": 1, "intermediate_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2,
    }  # fmt: skip
    if kind == "Swin":
        sizes = {"embed_dim": 8, "depths": [1], "num_heads": [2]}
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))
    with pytest.raises(ValueError, match=f"got a {kind}Model with .*{found}"):
        nprf.torch.replace_attention(model)
