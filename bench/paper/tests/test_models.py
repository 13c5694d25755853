# SPDX-License-Identifier: MIT
import dataclasses
import math

import nprf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from paper import training
from paper.models import MECHANISMS, WINDOW, Attention, ImageModel, LanguageModel, Mechanism, Translator

CAUSAL = [name for name in MECHANISMS if not name.startswith(("Linformer", "Nystromformer"))]


def toy(generator):
    """Sequences that count up from a random start, modulo 11 [8, 17]."""
    return (torch.randint(11, (8, 1), generator=generator) + torch.arange(17)) % 11


@pytest.mark.parametrize("name", CAUSAL)
def test_loss_falls_on_a_toy(name):
    model = LanguageModel(11, 16, 32, 1, 2, MECHANISMS[name])

    def loss_of(generator):
        rows = toy(generator)
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    made = training.train(model, loss_of, steps=60, rate=1e-2, seed=0, progress=lambda done, of: None)
    first, last = made.losses[0][1], made.losses[-1][1]
    assert not made.diverged
    assert first > 2 and last < 0.3 * first


@pytest.mark.parametrize("name", ["softmax", "softmax + RPE", "NPRF + RPE", "Linformer", "Nystromformer"])
def test_loss_of_masked_tokens_falls_on_a_toy(name):
    model = LanguageModel(12, 16, 32, 1, 2, dataclasses.replace(MECHANISMS[name], features=8), causal=False)

    def loss_of(generator):
        rows = toy(generator)[:, :16]
        masked = torch.rand(rows.shape, generator=generator) < 0.15
        masked[:, 0] = True  # only later tokens contain it
        return F.cross_entropy(model(rows.masked_fill(masked, 11))[:, 0], rows[:, 0])

    made = training.train(model, loss_of, steps=500, rate=1e-2, seed=0, progress=lambda done, of: None)
    assert not made.diverged
    assert made.losses[-1][1] < 0.7 * math.log(11)  # without later tokens the loss is log(11)


@pytest.mark.parametrize("encoder, decoder", [("softmax", "softmax"), ("NPRF + RPE", "softmax"), ("PRF", "NPRF + RPE")])
def test_loss_of_translations_falls_on_a_toy(encoder, decoder):
    model = Translator(12, 16, 32, 1, 2, MECHANISMS[encoder], MECHANISMS[decoder], dropout=0.0)

    def loss_of(generator):  # 11 begins a translation, whose first token can only be known from the source
        source = toy(generator)[:, :8]
        target = torch.cat([torch.full((8, 1), 11), source.flip(1)], dim=1)
        padding = torch.zeros_like(source, dtype=torch.bool)
        rows = model.decode(target[:, :-1], model.encode(source, padding), padding)
        return F.cross_entropy(rows.flatten(0, 1), target[:, 1:].flatten())

    made = training.train(model, loss_of, steps=200, rate=1e-2, seed=0, progress=lambda done, of: None)
    assert not made.diverged
    assert made.losses[-1][1] < 0.7 * math.log(11) / 8  # a model that does not see the source has log(11) / 8


@pytest.mark.parametrize("radius", [0.0, 1.0])
@pytest.mark.parametrize(
    "position, causal",
    [("t5", True), ("t5", False), (("table", 5), True), (("table", 50), False), (("spline", 40), True),
     (("spline", 40), False), ("alibi", True), ("alibi", False)],
)  # fmt: skip
def test_softmax_with_a_bias_is_the_reference_of_nprf(radius, position, causal):
    torch.set_default_dtype(torch.float64)  # of a spline's basis, too
    layer = Attention(24, 3, Mechanism(radius=radius, rpe=True), 40, causal=causal, position=position)
    torch.set_default_dtype(torch.float32)
    for each in layer.bias.parameters():
        torch.nn.init.normal_(each)
    x = torch.randn(2, 40, 24, dtype=torch.float64)
    q, k, v = (each.transpose(1, 2).detach().numpy() for each in layer.project(x, x))
    expected = nprf.reference.softmax_attention(
        q, k, v, layer.bias.position(), causal=causal, normalization=layer.normalization
    )
    with torch.no_grad():
        found = layer(x)
        expected = layer.out(torch.from_numpy(expected).transpose(1, 2).flatten(2))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_softmax_with_a_grid_and_cls_is_the_reference_of_nprf():
    layer = Attention(16, 2, Mechanism(radius=1.0, rpe=True), 21, position=("grid", 4, 5)).double()
    for each in layer.bias.parameters():
        torch.nn.init.normal_(each)
    x = torch.randn(2, 21, 16, dtype=torch.float64)
    q, k, v = (each.transpose(1, 2).detach().numpy() for each in layer.project(x, x))
    grid = nprf.Grid(4, 5, layer.bias.weight.detach().numpy(), layer.bias.extra.detach().numpy())
    expected = nprf.reference.softmax_attention(q, k, v, grid)
    with torch.no_grad():
        expected = layer.out(torch.from_numpy(expected).transpose(1, 2).flatten(2))
        np.testing.assert_allclose(layer(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "position, causal",
    [
        ("t5", True),
        ("t5", False),
        (("table", 5), True),
        (("spline", 10), True),
        (("spline", 10), False),
        ("alibi", False),
    ],
)
def test_exact_weights_make_the_kernelized_layer_softmax(position, causal):
    """With a near field of all tokens every weight of nprf's layer is that of softmax."""
    softmax = Attention(16, 2, Mechanism(radius=1.0, rpe=True), 10, causal=causal, position=position)
    for each in softmax.bias.parameters():
        torch.nn.init.normal_(each)
    near = Attention(16, 2, Mechanism("taylor", 1.0, True, near=10), 10, causal=causal, position=position)
    near.load_state_dict(softmax.state_dict())
    x = torch.randn(2, 10, 16)
    eps = torch.finfo(torch.float32).eps
    with torch.no_grad():
        torch.testing.assert_close(near(x), softmax(x), rtol=0, atol=200 * eps * softmax(x).abs().max().item())


@pytest.mark.parametrize("causal", [True, False])
def test_with_biases_of_queries_the_layers_differ_by_far_weights_alone(causal):
    """Up to WINDOW tokens by none; further ones are of features, whose weights differ from exp by less than 1."""
    softmax = Attention(16, 2, Mechanism(radius=1.0, rpe="query"), 0, causal=causal)
    ours = Attention(16, 2, Mechanism("taylor", 1.0, "query", near=WINDOW), 0, causal=causal)
    ours.load_state_dict(softmax.state_dict())
    eps = torch.finfo(torch.float32).eps
    for n, tolerance in ((WINDOW, 200 * eps), (3 * WINDOW, 0.1)):
        x = torch.randn(2, n, 16)
        with torch.no_grad():
            expected, found = softmax(x), ours(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * expected.abs().max().item())
    assert not torch.equal(found, expected)
    r, R = softmax.query_bias.of_queries(x), softmax.query_bias.lag_vectors
    lag = -5 if causal else 7
    bias = softmax.query_bias.matrix(x)[1, 1, 50, 50 + lag]
    torch.testing.assert_close(bias, r[1, 50, 1] @ R[:, lag + WINDOW - 1])
    assert softmax.query_bias.matrix(x)[1, 1, 100, 100 - WINDOW] == 0


def test_kernelized_layer_with_a_grid_and_cls_is_the_formula_of_nprf():
    layer = Attention(16, 2, Mechanism("orf", 1.0, True), 21, position=("grid", 4, 5)).double()
    for each in layer.bias.parameters():
        torch.nn.init.normal_(each)
    x = torch.randn(2, 21, 16, dtype=torch.float64)
    q, k, v = (each.transpose(1, 2).detach().numpy() for each in layer.project(x, x))
    grid = nprf.Grid(4, 5, layer.bias.weight.detach().numpy(), layer.bias.extra.detach().numpy())
    expected = nprf.reference.kernelized_attention(nprf.Attention(layer.features, grid), q, k, v)
    with torch.no_grad():
        expected = layer.out(torch.from_numpy(expected).transpose(1, 2).flatten(2))
        np.testing.assert_allclose(layer(x), expected, rtol=1e-10, atol=1e-12)


def test_a_later_token_changes_no_earlier_row():
    for name in CAUSAL:
        model = LanguageModel(11, 16, 32, 2, 2, MECHANISMS[name]).eval()
        x = torch.randint(11, (1, 16))
        other = x.clone()
        other[0, -1] = (x[0, -1] + 1) % 11
        with torch.no_grad():
            a, b = model(x), model(other)
        torch.testing.assert_close(a[:, :-1], b[:, :-1], rtol=1e-5, atol=1e-6, msg=name)
        assert not torch.allclose(a[:, -1], b[:, -1])


@pytest.mark.parametrize(
    "mechanism",
    [MECHANISMS[name] for name in ("NPRF", "NPRF + RPE", "NPRF + spline", "Taylor + near field + RPE")]
    + [Mechanism("taylor", 1.0, "query", near=WINDOW)],
)
def test_generated_tokens_are_those_of_the_whole_sequence(mechanism):
    model = LanguageModel(6, 12, 16, 2, 2, mechanism, position=("table", 4)).eval()
    found = model.generate(12, 3, 5, torch.Generator().manual_seed(7))
    assert found.shape == (3, 12) and found.max() < 5
    generator, rows = torch.Generator().manual_seed(7), torch.full((3, 1), 5)
    with torch.no_grad():
        for _ in range(12):
            probabilities = model(rows)[:, -1, :5].softmax(-1)
            rows = torch.cat([rows, torch.multinomial(probabilities, 1, generator=generator)], dim=1)
    assert torch.equal(rows[:, 1:], found)


def test_padding_does_not_change_a_translation():
    for mechanism in (Mechanism(rpe=True), Mechanism("orf", 1.0, True)):
        model = Translator(20, 16, 16, 1, 2, mechanism, mechanism).eval()
        x, y = torch.randint(1, 20, (1, 7)), torch.randint(1, 20, (1, 5))
        longer = torch.cat([x, torch.zeros(1, 4, dtype=torch.long)], dim=1)
        with torch.no_grad():
            a, b = (model.decode(y, model.encode(each, each == 0), each == 0) for each in (x, longer))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_image_model_learns_which_half_is_bright():
    model = ImageModel(8, 1, 2, 16, 1, 2, MECHANISMS["NPRF + RPE"], 2)

    def loss_of(generator):
        classes = torch.randint(2, (16,), generator=generator)
        x = torch.randn(16, 1, 8, 8, generator=generator)
        x[:, :, :, :4] += (classes[:, None, None, None] * 2 - 1).float()
        return F.cross_entropy(model(x), classes)

    made = training.train(model, loss_of, steps=60, rate=5e-3, seed=0, progress=lambda done, of: None)
    assert made.losses[-1][1] < 0.3


@pytest.mark.parametrize("name", ["NPRF + RPE", "NPRF + spline"])
def test_biases_have_ten_times_the_learning_rate(name):
    model = LanguageModel(11, 16, 16, 2, 2, MECHANISMS[name])
    plain, biases = training.optimizer_of(model, 1e-3).param_groups
    assert biases["scale"] == 10 * plain["scale"]
    assert len(biases["params"]) == 2  # one table or spline for each layer
    assert len(plain["params"]) + 2 == len(list(model.parameters()))


def test_diverges():
    assert training.diverges([(1, 5.0), (2, math.nan)])
    assert training.diverges([(step, 5.0 - 0.1 * step) for step in range(20)] + [(20, 6.0), (21, 6.0), (22, 6.0)])
    assert not training.diverges([(step, 5.0 - 0.1 * step) for step in range(20)])
