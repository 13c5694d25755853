# SPDX-License-Identifier: MIT
"""Random calls of arguments that fit, of all that PyTorch has: beside the formula (dense.py), within the guaranteed
bounds, or with the bits of what is beside it elsewhere. draws.py says how many."""

import copy
import pickle

import nprf
import numpy as np
import pytest
from draws import in_layout, of_type, parameters_of_heads, valid_calls
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch import _functional  # noqa: E402


def torch_arguments(draw, case):
    """The options of a call of nprf.torch.attention in one of the ways to say the same, and q, k, v, the bias, as leaf
    tensors, and that of extra tokens."""
    attention, position = case.attention, case.attention.position
    tokens_first, dtype = draw(st.booleans()), draw(st.sampled_from(["as it is", "as it is", "float16", "bfloat16"]))
    tensors = [torch.from_numpy(in_layout(x, tokens_first)) for x in case.arrays[:3]]
    if dtype == "float16" and any(x.numel() > 0 and x.abs().max() > torch.finfo(torch.float16).max for x in tensors):
        dtype = "bfloat16"
    if dtype != "as it is":
        tensors = [x.to(getattr(torch, dtype)) for x in tensors]
    if draw(st.booleans()):
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    of_parameters = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    bias = extra = kind = layout = None
    if position is not None:
        bias = torch.from_numpy(np.array(position.parameters)).to(of_parameters)
        kind = "alibi"
        if isinstance(position, nprf.T5):
            kind = ("t5", position.max_distance)
        elif isinstance(position, nprf.RelativePosition):
            kind = "smooth_table" if position.smooth else "table"
        elif isinstance(position, nprf.Grid):
            kind = ("grid", position.height, position.width)
            extra = None if position.extra is None else torch.from_numpy(np.array(position.extra)).to(of_parameters)
        if bias.dim() > position._dims:
            layout = draw(st.sampled_from(["heads_first", "heads_last"]))
            bias = bias.movedim(0, -1).contiguous() if layout == "heads_last" and position._dims > 0 else bias
    leaves = [None if x is None else x.requires_grad_() for x in (*tensors, bias, extra)]
    options = {
        "features": attention.features, "position": kind, "causal": attention.causal, "near": attention.near,
        "normalization": attention.normalization, "engine": attention.engine, "sinks": attention.sinks,
        "layout": "tokens_first" if tokens_first else "heads_first", "bias_layout": layout, "extra": leaves[4],
    }  # fmt: skip
    as_tensor = draw(st.booleans())
    say = (lambda x: torch.tensor(x)) if as_tensor else (lambda x: x)
    if case.lengths is not None and draw(st.booleans()):
        options["lengths"] = torch.tensor(case.lengths, dtype=torch.int32) if as_tensor else case.lengths
    elif case.kept is not None:
        padding = torch.from_numpy(~case.kept)
        as_numbers = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        options["key_padding_mask"] = as_numbers if draw(st.booleans()) else padding
    for name, x in (("cumulative_lengths", case.cumulative), ("key_cumulative_lengths", case.key_cumulative)):
        options[name] = None if x is None else say(x)
    options["offset"] = None if case.offset is None else say(case.offset)
    if draw(st.booleans()) and isinstance(kind, tuple) and kind[0] == "t5" and layout == "heads_last":
        given, options["bias_layout"] = torch.nn.Embedding.from_pretrained(leaves[3], freeze=False), None
        leaves[3] = given.weight
    else:
        given = leaves[3]
    return options, leaves, given


def test_tensors_equal_the_formula(monkeypatch):
    @given(st.data(), valid_calls(curves=False))
    def random_call(data, case):
        options, leaves, bias = torch_arguments(data.draw, case)
        q = leaves[0]
        tokens_first = options["layout"] == "tokens_first"
        dtype = np.float64 if q.dtype == torch.float64 else np.float32
        rows = lambda x: in_layout(x.detach().to(getattr(torch, np.dtype(dtype).name)).numpy(), tokens_first)
        arrays = [rows(x) for x in leaves[:3]]
        dy = torch.from_numpy(case.arrays[3]).to(q.dtype)
        case = case._replace(attention=of_type(case.attention, dtype), arrays=[*arrays, None])
        exact, reports = case.exact(), []

        def call(**more):
            return nprf.torch.attention(*leaves[:3], bias, **options, **more)

        y, report = call(report=True, gradient_report=reports.append)
        if q.dtype in (torch.float16, torch.bfloat16):  # computed in float32, and rounded once
            y32, report = nprf.torch.attention(*(x.float() for x in leaves[:3]), bias, **options, report=True)
            assert torch.equal(y, y32.to(q.dtype))
            is_softmax = exact.check_rows(rows(y32), report)
        else:
            is_softmax = exact.check_rows(rows(y), report)
        unknown = torch.from_numpy(np.array(is_softmax == None))  # noqa: E711
        dy = dy.masked_fill(unknown[..., None], 0)
        of_y = dy.transpose(1, 2) if tokens_first else dy
        wanted = [x for x in leaves if x is not None]
        gradients = torch.autograd.grad(y, wanted, of_y)
        if q.dtype not in (torch.float16, torch.bfloat16):
            found, position = [rows(x) for x in gradients[:3]], case.attention.position
            of_position = [np.array(x) for x in gradients[3:]] + [None, None]
            if options["bias_layout"] == "heads_last" or isinstance(bias, torch.nn.Embedding):
                of_position[0] = np.moveaxis(of_position[0], -1, 0) if position._dims > 0 else of_position[0]
            found.append(parameters_of_heads(position, *of_position[:2], q.shape[2 if tokens_first else 1]))
            exact.check_gradients(rows(of_y), found, reports[0], is_softmax)
        ways = ["operator", "without what forward saved", "without gradients"] * 4 + ["compiled"]
        is_whole = case.kept is None and case.cumulative is None and case.arrays[0].shape[0] > 0
        how = data.draw(st.sampled_from(ways + ["vmap"] * 4 * is_whole))
        if how == "without gradients":  # it may recompute other rows
            with torch.no_grad():
                other, report = call(report=True)
            if other.dtype not in (torch.float16, torch.bfloat16):
                exact.check_rows(rows(other), report)
            return
        with monkeypatch.context() as patched:
            if how == "operator":
                patched.setattr(_functional, "is_plain", lambda *x: False)
            elif how == "compiled":
                torch._dynamo.reset()
                call = torch.compile(call, fullgraph=True, backend="aot_eager")
            elif how == "vmap":
                call = lambda: torch.vmap(lambda *x: nprf.torch.attention(*x, bias, **options))(*leaves[:3])
            keep = (lambda x: x.clone()) if how == "without what forward saved" else (lambda x: x)
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                again = call()
            assert torch.equal(again, y)
            assert all(map(torch.equal, torch.autograd.grad(again, wanted, of_y), gradients))

    random_call()


def test_layers_through_changes_of_their_tensors():
    """A layer is the attention by the map and the parameters that were written last."""

    @given(st.data(), valid_calls(curves=False))
    def random_changes(data, case):
        heads, d = case.arrays[0].shape[1], case.arrays[0].shape[3]
        kind = data.draw(st.sampled_from([None, "table", "t5", "alibi"]))
        features, causal = case.attention.features, case.attention.causal
        options = {"position": kind, "near": case.attention.near, "sinks": case.attention.sinks, "causal": causal}
        seeds = iter(range(1, 100))

        def layer_with(features):
            layer = nprf.torch.Attention(heads * d, heads, features=features, dtype=torch.float64, **options)
            for each in layer.parameters():
                torch.nn.init.normal_(each, std=0.5)
            return layer

        def other_map():
            try:
                return features.redraw(next(seeds))
            except ValueError:  # it has no random vectors
                return features

        layer, expected = layer_with(features), features
        x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 9, heads * d)))
        ways = ["redraw", "load", "assign", "copy", "data", "deepcopy", "pickle", "call with tensors", "reset"]
        for way in data.draw(st.lists(st.sampled_from(ways), min_size=1, max_size=5)):
            tensors = None
            if way == "redraw" and other_map() != features:
                seed = next(seeds)
                layer.redraw(seed)
                expected = features.redraw(seed)
            elif way in ("load", "assign", "copy", "data", "call with tensors"):
                expected = other_map()
                other = layer_with(expected)
                if way == "call with tensors":
                    tensors = {**dict(other.named_parameters()), **dict(other.named_buffers())}
                elif way in ("load", "assign"):
                    layer.load_state_dict(other.state_dict(), assign=way == "assign")
                else:
                    for name, each in layer.state_dict().items():
                        (each.data if way == "data" else each).copy_(other.state_dict()[name])
            elif way == "deepcopy":
                layer = copy.deepcopy(layer)
            elif way == "pickle":
                layer = pickle.loads(pickle.dumps(layer))
            elif way == "reset":
                layer.reset_parameters()
                expected = features
            of_call = layer if tensors is None else other
            q, k, v = (each.transpose(1, 2) for each in of_call._project(x, x, x))
            bias = of_call.position_slopes if kind == "alibi" else of_call.position_bias
            y = nprf.torch.attention(
                q,
                k,
                v,
                bias,
                features=expected,
                normalization=layer.normalization,
                bias_layout="heads_first",
                **options,
            )
            y = of_call.out_proj(y.transpose(1, 2).flatten(2))
            found = layer(x) if tensors is None else torch.func.functional_call(layer, tensors, (x,))
            assert torch.equal(found[0], y), way
            if tensors is not None:
                expected = layer.features
            assert layer.features == expected

    random_changes()


def test_layers_equal_attention_of_their_projections():
    """With the options of a call in one of the ways to say the same."""

    @given(st.data(), valid_calls(curves=False))
    def random_call(data, case):
        torch.manual_seed(data.draw(st.integers(0, 2**32)))
        attention, (q, k, _, _), draw = case.attention, case.arrays, data.draw
        heads, d, kind = q.shape[1], q.shape[3], draw(st.sampled_from([None, "table", "t5", "alibi"]))
        names = ("features", "near", "sinks", "causal", "normalization")
        of_layer = {name: getattr(attention, name) for name in names}
        layer = nprf.torch.Attention(heads * d, heads, position=kind, dtype=torch.float64, **of_layer)
        for each in layer.parameters():
            torch.nn.init.normal_(each, std=0.5)
        x, other = (torch.randn(q.shape[0], n, heads * d, dtype=torch.float64) for n in (q.shape[2], k.shape[2]))
        is_self = case.key_cumulative is None and x.shape == other.shape and draw(st.booleans())
        options, of_call = {name: value for name, value in case.options().items() if name != "key_mask"}, {}
        if case.kept is not None and case.lengths is None:
            padding = torch.from_numpy(~case.kept)
            options["key_padding_mask"] = padding
            as_numbers = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
            of_call["key_padding_mask"] = draw(st.sampled_from([padding, as_numbers]))
        if attention.causal and draw(st.booleans()):
            shape, offset = (x.shape[1], k.shape[2]), case.offset or 0
            mask = torch.ones(shape, dtype=torch.bool).triu(1 + offset)
            of_call["attn_mask"] = draw(
                st.sampled_from(
                    [mask, torch.zeros(shape).masked_fill(mask, -torch.inf), mask.expand(len(x) * heads, *shape)]
                )
            )
            of_call["is_causal"] = draw(st.booleans())
        inputs = (x,) if is_self else (x, other, other)
        found, report = layer(*inputs, report=True, **{**options, **of_call})
        projected = layer._project(*(inputs * 3)[:3])
        bias = layer.position_slopes if kind == "alibi" else layer.position_bias
        y, expected = nprf.torch.attention(
            *projected, bias, position=kind, layout="tokens_first", bias_layout="heads_first", report=True,
            **of_layer, **options,
        )  # fmt: skip
        assert torch.equal(found, layer.out_proj(y.flatten(2))) and report == expected
        if is_self and not options:
            nested = torch.nested.nested_tensor(list(x))
            if x.numel() > 0 and "attn_mask" not in of_call:
                torch.testing.assert_close(torch.stack(layer(nested)[0].unbind()), found, rtol=1e-9, atol=1e-9)

    random_call()


def test_decoders_of_layers_equal_those_of_arrays():
    @given(st.data(), valid_calls(of_decoder=True, curves=False))
    def random_calls(data, case):
        torch.manual_seed(data.draw(st.integers(0, 2**32)))
        attention, (q, _, _, _), draw = case.attention, case.arrays, data.draw
        heads, d, batch = q.shape[1], q.shape[3], max(q.shape[0], 1)
        kind = draw(st.sampled_from([None, "table", "t5", "alibi"]))
        dtype = draw(st.sampled_from([torch.float32, torch.float64]))
        options = {name: getattr(attention, name) for name in ("features", "near", "sinks", "normalization")}
        layer = nprf.torch.Attention(heads * d, heads, position=kind, causal=True, dtype=dtype, **options)
        for each in layer.parameters():
            torch.nn.init.normal_(each, std=0.5)
        position = None
        if kind is not None:
            parameters = (layer.position_slopes if kind == "alibi" else layer.position_bias).detach().numpy()
            of_kind = {"table": nprf.RelativePosition, "t5": nprf.T5, "alibi": lambda x, layout: nprf.Alibi(x)}[kind]
            position = of_kind(parameters, layout="heads_first")
        sizes = {"heads": heads, "batch": batch, "rollback": draw(st.integers(0, 3))}
        decoder = layer.decoder(batch, sizes["rollback"])
        other = nprf.Decoder(position=position, dtype=str(dtype).split(".")[1], **options, **sizes)
        for _ in range(draw(st.integers(1, 5))):
            n = draw(st.integers(0, 20))
            x, call = torch.randn(batch, n, heads * d, dtype=dtype), {}
            lengths = draw(st.none() | st.lists(st.integers(0, n), min_size=batch, max_size=batch))
            with torch.no_grad():
                rows = other.prefill(*layer._project(x, x, x), layout="tokens_first", lengths=lengths)
                if lengths is not None and draw(st.booleans()):  # the same tokens after padding
                    shifts = [n - each for each in lengths]
                    x = torch.stack([each.roll(shift, 0) for each, shift in zip(x, shifts)])
                    rows = np.stack([np.roll(each, shift, 0) for each, shift in zip(rows, shifts)])
                    call["key_padding_mask"] = torch.arange(n) < torch.tensor(shifts)[:, None]
                elif lengths is not None:
                    call["lengths"] = lengths
                expected = layer.out_proj(torch.from_numpy(rows).flatten(2))
                # rows that fail may be NaN; other orders of tokens may be multiplied in other orders
                growth = 0 if "key_padding_mask" not in call else 1e3 * torch.finfo(dtype).eps
                torch.testing.assert_close(decoder(x, **call), expected, rtol=growth, atol=growth, equal_nan=True)
            b = draw(st.integers(0, batch - 1))
            if min(other.tokens[b], sizes["rollback"]) > 0 and draw(st.booleans()):
                of_each = []
                for each in (other, decoder.state):
                    try:
                        of_each.append(each.rollback(b, 1))
                    except ValueError as error:
                        of_each.append(str(error))
                assert of_each[0] == of_each[1]
            assert decoder.state.tokens == other.tokens

    random_calls()


class T5Attention(torch.nn.Module):
    """What replace_attention() replaces."""

    def __init__(self, heads, d, causal, max_distance):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(heads * d, heads * d, bias=False) for _ in range(4))
        self.n_heads, self.is_decoder, self.has_relative_attention_bias = heads, causal, True
        self.relative_attention_max_distance = max_distance
        self.relative_attention_bias = torch.nn.Embedding(8, heads)

    def forward(self, hidden_states):
        raise NotImplementedError


def exact_t5(layer, x, kept):
    """Softmax attention in float64, with n x n matrices."""
    n, split, causal = x.shape[1], layer.attention_sizes(), layer.is_decoder
    q, k, v = (
        torch.nn.functional.linear(x.double(), each.weight.double()).unflatten(-1, split).transpose(1, 2)
        for each in (layer.q, layer.k, layer.v)
    )
    bucket = nprf._native.core.t5_bucket
    buckets = [[bucket(j - i, 8, causal, layer.relative_attention_max_distance) for j in range(n)] for i in range(n)]
    bias = layer.relative_attention_bias.weight.double()[torch.tensor(buckets, dtype=torch.long).reshape(n, n)]
    attends = kept[:, None, None, :].expand(len(x), 1, n, n)
    attends = attends.tril() if causal else attends
    scores = (q @ k.mT + bias.permute(2, 0, 1)).masked_fill(~attends, -torch.inf)
    y = scores.softmax(-1).nan_to_num(0) @ v  # rows without keys
    return torch.nn.functional.linear(y.transpose(1, 2).flatten(2), layer.o.weight.double())


def test_replaced_layers_equal_the_formula():
    """With any map they are attention() of their projections, and where all pairs are exact softmax attention."""

    @given(st.data(), valid_calls(curves=False))
    def random_call(data, case):
        torch.manual_seed(data.draw(st.integers(0, 2**32)))
        attention, (q, _, _, _), draw = case.attention, case.arrays, data.draw
        (batch, heads, n, d), max_distance = q.shape, draw(st.sampled_from([9, 20]))
        all_exact = draw(st.booleans())
        near, sinks = (max(n, 1) + 3, 0) if all_exact else (attention.near, attention.sinks)
        features = draw(st.sampled_from([None, nprf.taylor(d)])) if all_exact else attention.features
        made = T5Attention(heads, d, attention.causal, max_distance)
        for each in made.parameters():
            torch.nn.init.normal_(each, std=0.5)
        (layer,) = nprf.torch.replace_attention(made, features, near, sinks=sinks).values()
        x = torch.randn(batch, n, heads * d, requires_grad=True)
        kept = torch.rand(batch, n) < draw(st.sampled_from([0.0, 0.5, 1.1]))
        mask = kept[:, None, None, :]
        shape = draw(st.sampled_from(["none", "keys", "short", "rows", "heads"]))
        if shape == "none":
            kept = torch.ones_like(kept)
        elif shape in ("rows", "heads"):
            mask = mask.expand(batch, heads if shape == "heads" else 1, n, n)
            mask = mask.tril() if attention.causal else mask.clone()
        if n > 0 and attention.causal and shape in ("rows", "heads"):
            kept = mask[:, 0, -1]
        mask = None if shape == "none" else kept if shape == "keys" else mask
        if mask is not None and draw(st.booleans()):
            mask = torch.zeros(mask.shape).masked_fill(~mask, draw(st.sampled_from([-torch.inf, -1e9])))
        y = layer(x, mask=mask)[0]
        dy = torch.randn_like(y)
        wanted = [x, *layer.parameters()]
        gradients = torch.autograd.grad(y, wanted, dy)
        if all_exact:
            exact = exact_t5(layer, x, kept)
            of_exact = torch.autograd.grad(exact, wanted, dy.double())
            growth = 1000 * torch.finfo(torch.float32).eps
            assert (y - exact).abs().amax() <= growth * exact.abs().amax() if y.numel() > 0 else y.shape == exact.shape
            largest = max(each.abs().max() for each in of_exact if each.numel() > 0)  # small ones are differences
            for one, other in zip(gradients, of_exact):
                assert (one - other).abs().sum() <= growth * largest * other.numel()
            return
        q, k, v = (each(x).unflatten(-1, (heads, d)) for each in (layer.q, layer.k, layer.v))
        rows = nprf.torch.attention(
            q * d**0.5, k, v, layer.relative_attention_bias, features=features, position=("t5", max_distance),
            causal=attention.causal, near=near, sinks=sinks, normalization=nprf.Normalization.none(),
            layout="tokens_first", key_padding_mask=~kept,
        )  # fmt: skip
        assert torch.equal(layer.o(rows.flatten(2)), y)
        assert all(map(torch.equal, torch.autograd.grad(layer.o(rows.flatten(2)), wanted, dy), gradients))

    random_call()
