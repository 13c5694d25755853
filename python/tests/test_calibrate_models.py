# SPDX-License-Identifier: MIT
"""Calibrations of models: from texts, without padding, with a near field, sinks and features chosen for each layer."""

import itertools
import math

import nprf
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from nprf.torch._budget import Choice, best_choices  # noqa: E402
from test_served_models import CHANNELS, HEADS, VOCABULARY, kinds, language_model_of, model_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded_on_one_thread")


def tokenizer_of(words, **options):
    """Of words and, before and after each text, special tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="it is not installed: pip install tokenizers")
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install transformers")
    names = ["<s>", "<pad>", "</s>", "<unk>", *words]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(names, range(len(names)))), unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("<s>", 0), ("</s>", 2)]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", **options)


WORDS = [f"word{i}" for i in range(VOCABULARY - 4)]


@pytest.mark.filterwarnings("error")
def test_texts():
    model, tokenizer = model_of("MPNet")[0], tokenizer_of(WORDS, model_max_length=34)
    numbers = torch.randint(4, VOCABULARY, (30, 11)).tolist()
    numbers[0] = []  # a text without words
    texts = [" ".join(WORDS[i - 4] for i in each) for each in numbers]
    joined, given = sum(numbers, []), []

    def endless():
        yield from texts
        raise AssertionError("more texts than are needed")

    hook = model.register_forward_pre_hook(lambda _, args, named: given.append(named["input_ids"]), with_kwargs=True)
    features = nprf.torch.calibrate(model, endless(), tokenizer=tokenizer, sequences=7, near=4)
    assert (features.sequences, features.tokens) == (7, 34)  # tokens: the tokenizer's most
    ids = torch.cat(given)
    assert ids.tolist() == [[0, *joined[32 * i : 32 * i + 32], 2] for i in range(7)]
    assert 9 < features.calibrations["encoder.layer.0.attention.attn"].features.output_dim <= 8 + 8
    # as of a function that gives all sequences at once
    hook.remove()
    expected = nprf.torch.calibrate(model, lambda: model(input_ids=ids), near=4, num_features=16)
    for name, error in expected.softmax_errors.items():
        assert features.softmax_errors[name] == pytest.approx(error, rel=1e-3)
    # fewer texts give fewer sequences
    one = nprf.torch.calibrate(model, " ".join(texts), tokenizer=tokenizer, sequences=99, tokens=50, near=4)
    assert (one.sequences, one.tokens) == (29 * 11 // 48, 50)


def test_texts_for_an_encoder_and_a_decoder():
    model, tokenizer = language_model_of("T5"), tokenizer_of(WORDS)
    features = nprf.torch.calibrate(model, " ".join(WORDS * 9), tokenizer=tokenizer, tokens=40, near=4)
    assert len(features.calibrations) == 4 and (features.sequences, features.tokens) == (46 * 9 // 38, 40)


def test_texts_that_are_refused():
    model, tokenizer = model_of("MPNet")[0], tokenizer_of(WORDS)
    for error, text, options in (
        ("tokenizer: expected that of the model, .* got None", "word1", {}),
        ("sample: expected texts of at least 1020 tokens, for 2 sequences of 512 .*, got 3", "word1 word2 word3", {}),
        ("sample: expected texts of at least 76 tokens, for 2 .*, got 0", [], {"tokens": 38}),
        ("sample: expected texts of at least 1 tokens, for 1 .*, got 0", "", {"tokens": 1, "sequences": 1}),
        (r"tokens: expected more than 2 \(special tokens\), got 2", "word1", {"tokens": 2}),
        ("sequences: expected at least 1, got 0", "word1", {"sequences": 0}),
    ):
        with pytest.raises(ValueError, match=error):
            nprf.torch.calibrate(
                model, text, **({"tokenizer": tokenizer} if "tokenizer" not in error else {}), **options
            )
    with pytest.raises(TypeError, match="sample: expected a function or strings, got int"):
        nprf.torch.calibrate(model, [3], tokenizer=tokenizer)


@pytest.mark.parametrize("kind", kinds)
def test_padding_is_refused(kind):
    model, run = model_of(kind)
    x, kept = torch.randn(2, 60, CHANNELS), torch.ones(2, 60, dtype=torch.bool)
    before = {name: list(vars(each)) for name, each in model.named_modules()}
    kept[1, 50:] = False
    with pytest.raises(ValueError, match="sample: expected sequences (without padding|of equal lengths)"):
        nprf.torch.calibrate(model, lambda: run(model, x, kept), near=4, num_features=10)
    assert {name: list(vars(each)) for name, each in model.named_modules()} == before
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_thebest_choices_of_random_costs():
    for layers, count in ((1, 5), (2, 6), (4, 5)):
        costs = torch.randint(1, 9, (layers, count)).tolist()
        choices = [[Choice(i, 0, 1, cost, float(torch.rand(()))) for i, cost in enumerate(each)] for each in costs]
        for budget in (3, 4.5, 100, None):
            most = math.inf if budget is None else budget * layers
            within = [each for each in itertools.product(*choices) if sum(of.cost for of in each) <= most]
            if not within:
                with pytest.raises(ValueError, match="budget: expected at least"):
                    best_choices(choices, budget)
                continue
            least = min(sum(of.error**2 for of in each) for each in within)
            best = best_choices(choices, budget)
            assert sum(of.cost for of in best) <= most and sum(of.error**2 for of in best) == pytest.approx(least)


def keys_of_cost(r, near, sinks, d=CHANNELS // HEADS):
    """What a layer of MPNet costs, from the multiply-adds of features, tails, band, near field and sinks."""
    buckets = [nprf._native.core.t5_bucket(lag, 32, False, 128) for lag in range(-128, 129)]
    band = sum(each not in (buckets[0], buckets[-1]) for each in buckets)
    return 2 * near - 1 + sinks + math.ceil((2 * d * d + 4 * r * (d + 1) + band * (r + d + 1)) / (2 * d + 1))


def test_a_budget(tmp_path):
    """The choice is the best of all combinations, and its promised errors hold in the served model."""
    model, run = model_of("MPNet")
    torch.nn.init.normal_(model.encoder.layer[0].attention.attn.q.weight, std=0.03)  # which has smaller errors
    x, kept = torch.randn(6, 160, CHANNELS), torch.ones(6, 160, dtype=torch.bool)

    def calibrated(**options):
        return nprf.torch.calibrate(model, lambda: run(model, x, kept), num_features=30, **options)

    near, sinks, errors = (4, 8, 16, 32), (0, 3), {}
    for of in itertools.product(near, sinks):
        for name, each in calibrated(near=of[0], sinks=of[1]).calibrations.items():
            for first, second, error in each.candidates:
                errors.setdefault(name, {})[(*of, 1 + first + second * (second + 1) // 2)] = error
    costs = {each: keys_of_cost(each[2], *each[:2]) for each in next(iter(errors.values()))}
    cheapest = min(costs.values())
    with pytest.raises(ValueError, match=f"budget: expected at least {cheapest} keys .*, got {cheapest - 1}"):
        calibrated(near=near, sinks=sinks, budget=cheapest - 1)
    for budget in (cheapest, 200, 260, None):
        features = calibrated(near=near, sinks=sinks, budget=budget)
        chosen = {}
        for name, each in features.calibrations.items():
            chosen[name] = features.near[name], features.sinks[name], each.features.maps[0].output_dim
            assert features.costs[name] == costs[chosen[name]]
        most = math.inf if budget is None else 2 * budget
        assert sum(features.costs.values()) <= most
        one, other = errors.values()
        least = min(one[a] ** 2 + other[b] ** 2 for a in one for b in other if costs[a] + costs[b] <= most)
        found = sum(errors[name][each] ** 2 for name, each in chosen.items())
        assert least <= found <= 1.02 * least  # a map may have fewer features, if its error is larger by a hundredth
        if budget == 260:
            between = features
    pytest.importorskip("safetensors", reason="it is not installed: pip install safetensors")
    between.save(tmp_path / "calibration.safetensors")
    features = nprf.torch.ModelCalibration.load(tmp_path / "calibration.safetensors")
    assert features == between and str(features) == str(between)
    found = {}
    with torch.no_grad():
        served = nprf.torch.replace_attention(model, features, report=found.__setitem__, softmax_samples=40)
        run(model, x, kept)
    for name, promised in features.softmax_errors.items():
        assert (served[name].served.near, served[name].served.sinks) == (features.near[name], features.sinks[name])
        assert 0.5 * promised < found[name].softmax_error < 2 * promised < 0.9
    one, other = sorted(set(features.near.values()))
    with pytest.raises(ValueError, match=f"near: expected {one} and {other}, for which the features were calibrated"):
        nprf.torch.replace_attention(model, features, near=one)
    for options in ({"budget": 300}, {"near": [4, 8]}, {"sinks": (0, 1)}):
        with pytest.raises(ValueError, match="target_error: expected 0 with a budget, or several near or sinks"):
            nprf.torch.calibrate(model, None, target_error=0.1, **options)
    with pytest.raises(ValueError, match="near: expected a number, or some, got none"):
        nprf.torch.calibrate(model, None, near=[])


def test_what_exact_layers_cost():
    model, run = model_of("Bloom")
    x, kept = torch.randn(2, 60, CHANNELS), torch.ones(2, 60, dtype=torch.bool)
    features = nprf.torch.calibrate(model, lambda: run(model, x, kept), near=4, sinks=1, num_features=9)
    (one, of_one), (other, of_other) = ((name, each.head_errors) for name, each in features.calibrations.items())
    cost = features.costs[one]
    assert cost == 4 + 1 + math.ceil((2 * 64 + 2 * 9 * 9 + 9 + 9) / 17)  # of one tail, and the lag 0
    for most in (sorted(of_one)[3], min(of_other), 0.0):
        stay = [sum(error > most for error in errors) for errors in (of_one, of_other)]
        lines = features.table(max_error=most, tokens=1000).splitlines()
        exact = sum(stay) / 12
        assert lines[-1] == (
            f"{sum(stay)} of 12 heads stay exact, {stay.count(6)} of 2 layers as a whole; at 1000 tokens all have "
            f"{100 * (exact + (1 - exact) * cost / 1000):.0f} % of the multiply-adds of softmax, {100 * exact:.0f} % in "
            "exact heads"
        )
        for name, count, line in zip((one, other), stay, lines[1:]):
            assert line.startswith(name) and line.endswith(f"  {count} of 6 heads stay exact") == (count > 0)
            assert len(features.exact_heads(name, most)) == count
    assert f"0 of 12 heads stay exact, 0 of 2 layers as a whole; at 60 tokens all have {100 * cost / 60:.0f} %" in str(
        features
    )
    with pytest.raises(ValueError, match="tokens: expected at least 1, got 0"):
        features.table(tokens=0)


def test_a_file_of_version_1(tmp_path):
    torch_files = pytest.importorskip("safetensors.torch", reason="it is not installed: pip install safetensors")
    model, run = model_of("JinaBert")
    x, kept = torch.randn(2, 60, CHANNELS), torch.ones(2, 60, dtype=torch.bool)
    features = nprf.torch.calibrate(model, lambda: run(model, x, kept), near=8, sinks=2, num_features=9)
    texts = {
        name: torch.tensor(list(each.save().encode()), dtype=torch.uint8)
        for name, each in features.calibrations.items()
    }
    of_file = {"near": "8", "sinks": "2", "sequences": "2", "tokens": "60", "seconds": "1.5", "names": "\n".join(texts)}
    torch_files.save_file(texts, tmp_path / "old.safetensors", {"nprf": "calibration 1", **of_file})
    old = nprf.torch.ModelCalibration.load(tmp_path / "old.safetensors")
    assert (old.calibrations, old.near, old.sinks) == (features.calibrations, features.near, features.sinks)
    assert all(math.isnan(each) for each in old.costs.values()) and "nan" in str(old)
