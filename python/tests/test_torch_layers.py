# SPDX-License-Identifier: MIT
"""nprf.torch.Attention in the layers of PyTorch, and the masks that they and other libraries give."""

import copy

import nprf
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch import _masks  # noqa: E402
from torch import nn  # noqa: E402

B, N, M, E, H = 3, 10, 7, 32, 4  # sequences, tokens, tokens of the memory, channels, heads

pytestmark = [
    pytest.mark.usefixtures("seeded_on_one_thread"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


def ours_for(theirs, causal=False):
    """A layer with the weights of an nn.MultiheadAttention. Every pair is near, so that it has those of softmax."""
    layer = nprf.torch.Attention(E, H, near=50, normalization=nprf.Normalization.none(), causal=causal)
    layer.load_state_dict(theirs.state_dict())
    return layer


def replaced(model, causal=False):
    """A copy of a model of PyTorch with layers of nprf: `causal` ones for self-attention."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, of_self in (("self_attn", True), ("multihead_attn", False)):
            if isinstance(getattr(module, name, None), nn.MultiheadAttention):
                setattr(module, name, ours_for(getattr(module, name), causal and of_self))
    return model


def assert_equal_outputs(theirs, ours, *inputs, where=None, **masks):
    """ours(inputs) is as near to theirs in double as theirs in float is, up to a factor of ten: a fault is much
    larger."""
    in_double = [x.double() for x in inputs]
    with torch.no_grad():
        exact = copy.deepcopy(theirs).double()(*in_double, **masks)
    theirs, y = theirs(*inputs, **masks), ours(*inputs, **masks)
    where = torch.ones(y.shape[:2], dtype=torch.bool) if where is None else where
    loses = (theirs - exact)[where].abs().max()
    assert 0 < (y - exact)[where].abs().max() <= 10 * loses
    return y


def padding(n, *lengths):
    return torch.arange(n)[None, :] >= torch.tensor(lengths)[:, None]


def causal_masks(n):
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return {"bool": mask, "float": nn.Transformer.generate_square_subsequent_mask(n)}


grad_modes = {"with gradients": torch.enable_grad, "without": torch.no_grad}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", grad_modes)
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer(training, grad, norm_first):
    theirs = nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    ours, causal = replaced(theirs), replaced(theirs, causal=True)
    x, padded = torch.randn(B, N, E), padding(N, N, 4, 7)
    for each in (theirs, ours, causal):
        each.train(training)
    with grad_modes[grad]():
        assert_equal_outputs(theirs, ours, x)
        assert_equal_outputs(theirs, ours, x, src_key_padding_mask=padded)
        assert_equal_outputs(theirs, ours, x[0])
        mask = causal_masks(N)["bool"]
        assert_equal_outputs(theirs, causal, x, src_mask=mask)
        assert_equal_outputs(theirs, causal, x, src_mask=mask, src_key_padding_mask=padded, is_causal=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", grad_modes)
def test_an_encoder_with_its_nested_tensors(training, grad):
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True), 2)
    ours, x = replaced(theirs), torch.randn(B, N, E)
    nested = []
    ours.layers[1].self_attn.register_forward_pre_hook(lambda _, inputs: nested.append(inputs[0].is_nested))
    theirs.train(training), ours.train(training)
    with grad_modes[grad]():
        assert_equal_outputs(theirs, ours, x)
        assert nested == [False]
        padded = padding(N, N, 4, 7)
        y = assert_equal_outputs(theirs, ours, x, src_key_padding_mask=padded, where=~padded)
        assert nested == [False, not training and grad == "without"]
        assert nested[1] == (not y[padded].any())  # then PyTorch's rows of padding are zero
        causal = replaced(theirs, causal=True)
        assert_equal_outputs(theirs, causal, x, mask=causal_masks(N)["float"])


def test_eval_is_computed_by_nprf_too():
    """Not by the fast path of PyTorch, which would leave out biases and features."""
    layer = nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True)
    layer.self_attn = nprf.torch.Attention(E, H, position="t5", features="orf", near=0)
    nn.init.normal_(layer.self_attn.position_bias)
    x, calls = torch.randn(B, N, E), []
    expected = layer(x).detach()
    forward = layer.self_attn.forward
    layer.self_attn.forward = lambda *inputs, **options: calls.append(1) or forward(*inputs, **options)
    with torch.no_grad():
        assert torch.equal(layer.eval()(x), expected) and calls == [1]
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    with torch.no_grad():
        assert torch.equal(encoder(x), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", grad_modes)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_decoder_layer(training, grad, kind):
    theirs = nn.TransformerDecoderLayer(E, H, 64, dropout=0.0, batch_first=True)
    ours = replaced(theirs, causal=True)
    x, memory = torch.randn(B, N, E), torch.randn(B, M, E)
    theirs.train(training), ours.train(training)
    masks = {"tgt_mask": causal_masks(N)[kind], "memory_key_padding_mask": padding(M, M, 3, 5)}
    if kind == "float":
        masks["memory_key_padding_mask"] = torch.zeros(B, M).masked_fill(masks["memory_key_padding_mask"], -torch.inf)
    with grad_modes[grad]():
        assert_equal_outputs(theirs, ours, x, memory, tgt_mask=masks["tgt_mask"])
        y = assert_equal_outputs(theirs, ours, x, memory, tgt_is_causal=True, **masks)
    if y.requires_grad:
        y.sum().backward()
        gradients = {name: p.grad for name, p in ours.named_parameters()}
        theirs(x, memory, **masks).sum().backward()
        for name, p in theirs.named_parameters():
            torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-4)
    decoder = nn.TransformerDecoder(theirs, 2)
    assert_equal_outputs(decoder, replaced(decoder, causal=True), x, memory, **masks)


def test_compiled_layers():
    layer = nn.TransformerEncoderLayer(E, H, 64, dropout=0.0, batch_first=True)
    ours, x, padded = replaced(layer, causal=True), torch.randn(B, N, E), padding(N, N, 4, 7)
    mask = causal_masks(N)["bool"]
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    masks = {"src_mask": mask, "src_key_padding_mask": padded, "is_causal": True}
    assert torch.equal(compiled(x, **masks), ours(x, **masks))
    with pytest.raises(ValueError, match="key_padding_mask: expected 0, or at most -1000"):
        compiled(x, src_mask=causal_masks(N)["float"], src_key_padding_mask=-1.0 * padded, is_causal=True)
    with_mask = torch.compile(ours, backend="aot_eager")  # with a break for the comparison
    assert torch.equal(with_mask(x, src_mask=mask), ours(x, src_mask=mask))


def test_masks_of_a_layer():
    bidirectional, layer = (ours_for(nn.MultiheadAttention(E, H, batch_first=True), causal) for causal in (False, True))
    x, memory = torch.randn(B, N, E), torch.randn(B, M, E)
    y, _ = layer(x)
    for mask in causal_masks(N).values():
        assert torch.equal(layer(x, attn_mask=mask)[0], y)
        assert torch.equal(layer(x, x, x, None, False, mask, True, True)[0], y)  # in the order of nn.MultiheadAttention
        assert torch.equal(layer(x, attn_mask=mask.expand(B * H, N, N))[0], y)
    lowest = torch.zeros(N, N).masked_fill(causal_masks(N)["bool"], torch.finfo(torch.float32).min)
    assert torch.equal(layer(x, attn_mask=lowest)[0], y)
    across = torch.ones(N, M, dtype=torch.bool).triu(1)
    assert torch.equal(layer(x, memory, attn_mask=across)[0], layer(x, memory, offset=0)[0])
    last = torch.ones(N, M, dtype=torch.bool).triu(1 + M - N)
    assert torch.equal(layer(x, memory, attn_mask=last, offset=M - N)[0], layer(x, memory, offset=M - N)[0])
    for options in ({}, {"is_causal": True}, {"is_causal": True, "attn_mask": across}):
        with pytest.raises(ValueError, match="offset: expected one for a causal call of 10 queries and 7 keys"):
            layer(x, memory, **options)

    one_more, one_less = causal_masks(N)["bool"].clone(), causal_masks(N)["bool"].clone()
    one_more[3, 3], one_less[3, 4] = True, False
    slopes = causal_masks(N)["float"] - 0.5 * torch.ones(N, N).tril(-1)
    of_heads = causal_masks(N)["bool"].repeat(B * H, 1, 1)
    of_heads[5, 1, 1] = True
    for error, text, mask in (
        (ValueError, "attn_mask: expected the causal mask", one_more),
        (ValueError, "attn_mask: expected the causal mask", one_less),
        (ValueError, "attn_mask: expected the causal mask", torch.zeros(N, N)),
        (ValueError, "attn_mask: expected the causal mask", of_heads),
        (ValueError, "attn_mask: expected 0, or at most -1000 .*, got -0.5", slopes),
        (ValueError, r"attn_mask: expected \[10, 10\] .*, got the shape \[10, 7\]", across),
        (TypeError, "attn_mask: expected bool or floating-point numbers, got torch.int64", one_more.long()),
    ):
        with pytest.raises(error, match=text):
            layer(x, attn_mask=mask)
    for options in ({"attn_mask": causal_masks(N)["bool"]}, {"is_causal": True}):
        with pytest.raises(ValueError, match="made without causal=True"):
            bidirectional(x, **options)


def test_padding_of_a_layer():
    layer = ours_for(nn.MultiheadAttention(E, H, batch_first=True))
    x, padded = torch.randn(B, N, E), padding(N, N, 4, 7)
    y, _ = layer(x, key_padding_mask=padded)
    sequences = [x[0], x[1]]  # each without and with a batch, for any of them as keys and values
    batches = [each[None] for each in sequences]
    for keys, values in ((0, 0), (0, 1), (1, 1), (1, 0)):
        one, of_batch = (layer(each[0], each[keys], each[values])[0] for each in (sequences, batches))
        assert torch.equal(one, of_batch[0])
    assert torch.equal(layer(x[1], key_padding_mask=padded[1])[0], layer(x[1:2], key_padding_mask=padded[1:2])[0][0])
    for low in (-torch.inf, torch.finfo(torch.float32).min, -1e9):
        assert torch.equal(layer(x, key_padding_mask=torch.zeros(B, N).masked_fill(padded, low))[0], y)
    for error, text, mask in (
        (ValueError, "key_padding_mask: expected 0, or at most -1000 .*, got -5.0", torch.full((B, N), -5.0)),
        (ValueError, "key_padding_mask: expected 0, .*, got nan", torch.full((B, N), torch.nan)),
        (ValueError, r"key_padding_mask: expected \[3, 10\] \(sequences, keys\), got the shape \[10, 3\]", padded.T),
        (TypeError, "key_padding_mask: expected bool or floating-point numbers, got torch.uint8", padded.byte()),
    ):
        with pytest.raises(error, match=text):
            layer(x, key_padding_mask=mask)
    nested = torch.nested.as_nested_tensor([x[0], x[1, :4]])
    with pytest.raises(ValueError, match="nested tensor only for self-attention without masks"):
        layer(nested, x)


def test_padding_of_rows():
    """As the attention of T5-like models gets it: True keeps a key."""
    kept = ~padding(N, N, 4, 7)
    lower = torch.ones(N, N, dtype=torch.bool).tril()
    of_rows, causal_rows = kept[:, None, None, :].expand(B, H, N, N), kept[:, None, None, :] & lower
    left = ~kept.flip(1)  # padding before the tokens: the rows of padding attend to no key, or to all
    left_rows = ~left[:, None, None, :] & lower
    for mask, causal in (
        (kept, False), (kept, True), (kept[:, None, None, :], False), (kept[:, None, None, :], True), (of_rows, False),
        (causal_rows, True),
    ):  # fmt: skip
        for each in (mask, torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)):
            assert torch.equal(_masks.padding_of_rows(each, causal, N, N), ~kept)
    for mask in (left_rows, left_rows | left[:, None, :, None]):
        assert torch.equal(_masks.padding_of_rows(mask, True, N, N), left)

    sequence = torch.arange(N) < 6
    packed = (sequence[:, None] == sequence[None, :]).expand(B, 1, N, N)
    head = of_rows.clone()
    head[0, 2, :, 0] = False
    window = lower & ~lower.T.triu(3).T
    for mask, causal in (
        (packed, False), (packed & lower, True), (causal_rows, False), (of_rows, True), (head, False),
        (window.expand(B, 1, N, N), True),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="mask: expected one by which all heads and queries"):
            _masks.padding_of_rows(mask, causal, N, N)
    with pytest.raises(ValueError, match=r"mask: expected \[batch, 10\] or"):
        _masks.padding_of_rows(of_rows[..., :5], False, N, N)
    with pytest.raises(ValueError, match="mask: expected 0, or at most -1000 .*, got -1.5"):
        _masks.padding_of_rows(torch.full((B, 1, 1, N), -1.5), False, N, N)


def test_inputs_that_are_refused():
    bidirectional, causal = nprf.torch.Attention(E, H), nprf.torch.Attention(E, H, causal=True)
    x = torch.randn(B, N, E)
    nested = torch.nested.as_nested_tensor([x[0], x[1, :5]])
    with pytest.raises(ValueError, match="is_causal: expected none"):
        bidirectional(nested, is_causal=True)
    with pytest.raises(ValueError, match="query: expected a nested tensor only for self-attention"):
        bidirectional(x, nested)
    with pytest.raises(ValueError, match="layout torch.strided"):
        bidirectional(torch.nested.as_nested_tensor([x[0], x[1, :5]], layout=torch.jagged))
    mask = causal_masks(N)["bool"]
    assert torch.equal(causal(x, attn_mask=mask.expand(B * H, N, N))[0], causal(x, attn_mask=mask)[0])
    with pytest.raises(ValueError, match=rf"attn_mask: expected .* or \[{B * H}, {N}, {N}\]"):
        causal(x, attn_mask=mask.expand(5, N, N))


def test_operators_of_masks():
    torch.library.opcheck(_masks._padding_op, (torch.zeros(B, N),))
    torch.library.opcheck(_masks._padding_of_rows_op, (torch.ones(B, 1, 1, N, dtype=torch.bool), True, 0, False))
    torch.library.opcheck(_masks._padding_of_rows_op, (torch.zeros(B, N), False, 0, True))
    torch.library.opcheck(_masks._padding_of_rows_op, (torch.zeros(N, B).t(), False, 0, False))
