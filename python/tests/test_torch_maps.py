# SPDX-License-Identifier: MIT
"""Feature maps in tensors: the map of a layer is what its buffer says, whoever has written it, and a stored graph has
the map in it, for another process."""

import copy
import pickle
import subprocess
import sys

import nprf
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
import nprf.torch  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from nprf.torch import _functional, _maps  # noqa: E402

E, H, N, D = 24, 3, 30, 8

pytestmark = pytest.mark.usefixtures("seeded_on_one_thread")


def calibrated(seed, num_features=9):
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, H, 60, D)) * np.linspace(0.3, 1, D)
    return nprf.calibrate(q, k, v, num_features=num_features).features


def maps():
    """Two of each kind, that have a seed, bytes, and neither."""
    return {
        "seed": [nprf.orf(D, 6, seed=seed) for seed in (3, 2**64 - 1)],
        "bytes": [calibrated(0), calibrated(1)],
        "seeds of heads": [nprf.HeadFeatures(nprf.orf(D, 6, seed) for seed in range(s, s + H)) for s in (0, 10**9)],
        "none": [nprf.taylor(D), nprf.taylor(D)],
    }


def layer_with(features, **options):
    layer = nprf.torch.Attention(E, H, position="t5", near=2, features=features, **options)
    if not layer.position_bias.is_meta:
        torch.nn.init.normal_(layer.position_bias)
    return layer


class T5Attention(torch.nn.Module):
    """What replace_attention() replaces."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(E, E, bias=False) for _ in range(4))
        self.n_heads, self.has_relative_attention_bias = H, True
        self.relative_attention_bias = torch.nn.Embedding(16, H)

    def forward(self, hidden_states):
        raise NotImplementedError


def replaced_with(features):
    """Whose first parameter is the weight of queries."""
    (layer,) = nprf.torch.replace_attention(T5Attention(), features, near=2).values()
    return layer


def tensors_of(layer):
    return [*layer.parameters(), *layer.buffers()]


def write(layer, other, how):
    """Writes the tensors of another layer into those of this one, in place."""
    if how == "load_state_dict":
        layer.load_state_dict(other.state_dict())
    elif how == "load_state_dict(assign=True)":
        layer.load_state_dict(other.state_dict(), assign=True)
    elif how == "swap_tensors":
        for x, y in zip(tensors_of(layer), tensors_of(copy.deepcopy(other))):
            torch.utils.swap_tensors(x, y)
    for x, y in zip(tensors_of(layer), tensors_of(other)):
        if how == "copy_":
            with torch.no_grad():
                x.copy_(y)
        elif how == "data":
            x.data.copy_(y.data)
        elif how == "NumPy":  # which PyTorch does not see
            x.detach().numpy()[...] = y.detach().numpy()


@pytest.mark.parametrize(
    "how", ["load_state_dict", "load_state_dict(assign=True)", "swap_tensors", "copy_", "data", "NumPy"]
)
@pytest.mark.parametrize("kind", maps())
@pytest.mark.parametrize("make", [layer_with, replaced_with])
def test_a_layer_has_the_map_that_was_written(make, kind, how):
    layer, other = map(make, maps()[kind])
    x = torch.randn(2, N, E)
    expected = other(x)[0]
    assert kind == "none" or layer.features != other.features
    write(layer, other, how)
    assert layer.features == other.features and torch.equal(layer(x)[0], expected)
    write(layer, make(maps()[kind][0]), how)  # and back
    assert layer.features == maps()[kind][0]


@pytest.mark.parametrize("how", ["load_state_dict(assign=True)", "NumPy"])
@pytest.mark.parametrize("kind", ["seed", "bytes"])
@pytest.mark.parametrize("make", [layer_with, replaced_with])
def test_a_compiled_layer_has_the_map_that_was_written(make, kind, how):
    """In the same graph."""
    layer, other = map(make, maps()[kind])
    x = torch.randn(2, N, E)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=graphs)
    assert torch.equal(compiled(x)[0], layer(x)[0])
    write(layer, other, how)
    assert torch.equal(compiled(x)[0], other(x)[0]) and graphs.frame_count == 1


@pytest.mark.parametrize("kind", ["seed", "bytes"])
@pytest.mark.parametrize("how", ["plain", "compiled", "operator", "operator, and forward again"])
@pytest.mark.parametrize("make", [layer_with, replaced_with])
def test_gradients_are_those_of_the_map_of_forward(make, kind, how, monkeypatch):
    """Even if another one was written between, as DDP does when it sends buffers before the next forward."""
    layer, other = map(make, maps()[kind])
    x, weight = torch.randn(2, N, E), next(layer.parameters())
    expected = torch.autograd.grad(layer(x)[0].square().sum(), weight)[0]
    torch._dynamo.reset()
    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if how == "compiled" else layer
    if how.startswith("operator"):
        monkeypatch.setattr(_functional, "is_plain", lambda *x: False)
    keep = (lambda x: x.clone()) if how.endswith("again") else (lambda x: x)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = call(x)[0].square().sum()
    for mine, its in zip(layer.buffers(), other.buffers()):
        mine.copy_(its)
    assert torch.equal(torch.autograd.grad(loss, weight)[0], expected)
    assert not torch.equal(call(x)[0].square().sum(), loss)


@pytest.mark.parametrize("kind", maps())
def test_copies_of_a_layer_have_its_map(kind):
    first, layer = map(layer_with, maps()[kind])
    x = torch.randn(2, N, E)
    expected = layer(x)[0]
    average = torch.optim.swa_utils.AveragedModel(first, avg_fn=lambda old, new, n: new, use_buffers=True)
    average.update_parameters(layer)
    other = nprf.torch.Attention(E, H, position="t5", near=2, features=maps()[kind][0], device="meta")
    assert all(each.is_meta for each in tensors_of(other)) and other.features == maps()[kind][0]
    on_meta = copy.deepcopy(other)
    on_meta.load_state_dict(layer.state_dict(), assign=True)
    other.to_empty(device="cpu").load_state_dict(layer.state_dict())
    for each in (average.module, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), on_meta, other):
        assert each.features == layer.features and torch.equal(each(x)[0], expected)
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    assert torch.equal(torch.func.functional_call(first, tensors, (x,))[0], expected)
    other.to_empty(device="cpu").reset_parameters()
    assert other.features == maps()[kind][0]


@pytest.mark.parametrize("kind", maps())
def test_copies_of_a_replaced_layer_have_its_map(kind):
    """And it loads the state dict of what it has replaced, in strict mode, which leaves its map."""
    layer, x = replaced_with(maps()[kind][1]), torch.randn(2, N, E)
    y = layer(x)[0]
    for each in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert each.features == layer.features and torch.equal(each(x)[0], y)
    for assign in (False, True):
        original = {name: each for name, each in layer.state_dict().items() if not name.startswith("features")}
        original["q.weight"] = torch.randn(E, E)
        other = replaced_with(maps()[kind][0])
        other.load_state_dict(original, assign=assign)
        assert other.features == maps()[kind][0] and torch.equal(other.q.weight, original["q.weight"])
        assert not any(name.startswith("features") for name in original)
        other.load_state_dict(layer.state_dict(), assign=assign)
        assert other.features == layer.features and torch.equal(other(x)[0], y)
        other.reset_features()
        assert other.features == maps()[kind][0]


def test_many_models_at_once_are_refused():
    """Their tensors in one, as torch.func.stack_module_state makes it."""
    layers = [layer_with(features) for features in maps()["seed"]]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = torch.randn(2, N, E)

    def call(buffers):
        return torch.func.functional_call(layers[0], buffers, (x,))[0]

    with pytest.raises(NotImplementedError, match="features: expected a tensor that vmap does not map"):
        torch.func.vmap(call)(buffers)


def test_processes_of_ddp_have_one_map(tmp_path):
    """One of them loads a checkpoint, and DDP sends its tensors to the other."""
    program = """
import sys, torch, torch.distributed, nprf, nprf.torch

folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=2)
for kind in ("seed", "bytes"):
    loaded, fresh = torch.load(f"{folder}/{kind}.pt", weights_only=False)
    layer = loaded if rank == 0 else fresh
    model = torch.nn.parallel.DistributedDataParallel(layer)
    x = torch.load(f"{folder}/x.pt")
    y = model(x)[0]
    y.sum().backward()
    torch.save((y, layer.in_proj_weight.grad), f"{folder}/{kind}{rank}.pt")
torch.distributed.destroy_process_group()
"""
    x = torch.randn(2, N, E)
    torch.save(x, tmp_path / "x.pt")
    expected = {}
    for kind in ("seed", "bytes"):
        layers = [layer_with(features) for features in maps()[kind]]
        torch.save(layers, tmp_path / f"{kind}.pt")
        expected[kind] = layers[0](x)[0]
    ranks = [subprocess.Popen([sys.executable, "-c", program, tmp_path, str(rank)]) for rank in range(2)]
    assert [each.wait(timeout=300) for each in ranks] == [0, 0]
    for kind, y in expected.items():
        for rank in range(2):
            found, gradient = torch.load(tmp_path / f"{kind}{rank}.pt")
            assert torch.equal(found, y)
            assert torch.equal(gradient, torch.load(tmp_path / f"{kind}0.pt")[1])


def test_bytes_of_equal_kinds_have_one_size():
    """So that those of one process may be written over those of another."""
    of_calibration = [calibrated(0), calibrated(1), calibrated(0, 5), calibrated(0, 20)]
    assert len({each.output_dim for each in of_calibration}) == 3
    sizes = set()
    for features in of_calibration:
        for redraws in (0, 2**64 - 1):
            constants = _maps.bytes_of(features, redraws)
            assert _maps.features_of_bytes(constants) == (features, redraws)
            sizes.add(constants.shape)
    assert len(sizes) == 1
    heads = [nprf.HeadFeatures(nprf.orf(D, 6, seed) for seed in seeds) for seeds in ((0, 1), (2**64 - 1, 2**63))]
    assert len({_maps.bytes_of(each).shape for each in heads}) == 1


def test_maps_of_calls_in_a_graph():
    """Another map needs another graph, an equal one does not, and each computes with its own."""
    q, k, v = torch.randn(3, 1, H, N, D)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")

    def attend(features, q):
        return nprf.torch.attention(q, k, v, features=features, near=2)

    compiled = torch.compile(attend, fullgraph=True, backend=graphs)
    features = [*maps()["seed"], *maps()["bytes"], *maps()["seeds of heads"]]
    for _ in range(2):
        for each in features:
            for equal in (each, pickle.loads(pickle.dumps(each))):
                assert torch.equal(compiled(equal, q), attend(each, q))
        assert graphs.frame_count == len(features)
        nprf.free_memory()
    tracked = q.clone().requires_grad_()
    for each in features[1:3]:
        found, expected = (torch.autograd.grad(f(each, tracked).square().sum(), tracked) for f in (compiled, attend))
        assert torch.equal(found[0], expected[0])


def test_maps_under_modes():
    q = torch.randn(1, H, N, D)
    for features in (maps()["seed"][0], maps()["bytes"][0]):
        expected = nprf.torch.attention(q, q, q, features=features)
        graph = torch.fx.experimental.proxy_tensor.make_fx(lambda q: nprf.torch.attention(q, q, q, features=features))(
            q
        )
        assert torch.equal(graph(q), expected)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = mode.from_tensor(q)
            assert nprf.torch.attention(fake, fake, fake, features=features).shape == expected.shape


def test_a_tensor_on_a_gpu_is_copied_when_it_changes():
    """Since a copy waits for the GPU. Stands for it here: a tensor that is not on the CPU."""
    copies = []

    class Elsewhere(torch.Tensor):
        is_cpu = False

        def cpu(self):
            copies.append(self)
            return self.detach().as_subclass(torch.Tensor).clone()

    name = nprf.orf(D, 6)._content.name
    seed = torch.tensor(3).as_subclass(Elsewhere)
    bytes_there = _maps.bytes_of(maps()["bytes"][0]).as_subclass(Elsewhere)
    for _ in range(3):
        assert _maps.features_in(name, seed) == nprf.orf(D, 6, seed=3)
        assert _maps.features_in("", bytes_there) == maps()["bytes"][0]
    assert len(copies) == 2
    seed.fill_(2**62)
    bytes_there.copy_(_maps.bytes_of(maps()["bytes"][1]))
    other = torch.tensor(5).as_subclass(Elsewhere)
    for _ in range(3):
        assert _maps.features_in(name, seed) == nprf.orf(D, 6, seed=2**62)
        assert _maps.features_in("", bytes_there) == maps()["bytes"][1]
        assert _maps.features_in(name, other) == nprf.orf(D, 6, seed=5)
    assert len(copies) == 5
    address = other.data_ptr()
    del other
    for i in range(9):  # nobody else gets the address of a tensor that is known
        assert torch.tensor(i).data_ptr() != address
    with torch.inference_mode():
        inference = torch.tensor(7).as_subclass(Elsewhere)
        assert _maps.features_in(name, inference) == nprf.orf(D, 6, seed=7)
        inference.fill_(8)  # of which no version is counted
        assert _maps.features_in(name, inference) == nprf.orf(D, 6, seed=8)


class Model(torch.nn.Module):
    """A layer, and a call with a map of its own."""

    def __init__(self, features):
        super().__init__()
        self.layer, self.map = layer_with(features), features

    def forward(self, x):
        x = self.layer(x)[0]
        q = x.unflatten(-1, (H, D)).transpose(1, 2)
        return nprf.torch.attention(q, q, q, features=self.map, near=2, causal=True).transpose(1, 2).flatten(2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_stored_graphs_have_their_maps(tmp_path):
    """Another process, which has other maps, computes the same."""
    server = """
import pickle, sys, torch, torch._dynamo, nprf, nprf.torch

torch.set_num_threads(1)
others = [nprf.orf(8, 6, seed=100 + i) for i in range(20)]
for name in sys.argv[2:]:
    path, (x, y) = f"{sys.argv[1]}/{name}", torch.load(f"{sys.argv[1]}/{name}.io")
    how = name.split()[0]
    if how == "trace":
        model = torch.jit.load(path)
    elif how == "export":
        model = torch.export.load(path).module()
    else:
        with open(path, "rb") as file:
            model = pickle.load(file)
    x.requires_grad_()
    found = model(x)
    assert torch.equal(found, y), (name, float((found - y).abs().max()))
    if how != "make_fx":  # which has no gradients that were not asked for
        assert torch.autograd.grad(found.sum(), x)[0].any()
"""
    names = []
    for kind in ("seed", "bytes"):
        model, x = Model(maps()[kind][1]), torch.randn(2, N, E)
        y = model(x).detach()
        for how in ("trace", "trace without gradients", "export", "make_fx"):
            names.append(f"{how} {kind}")
            path = str(tmp_path / names[-1])
            torch.save((x, y), f"{path}.io")
            with torch.set_grad_enabled(how in ("trace", "export")):
                if how.startswith("trace"):
                    torch.jit.save(torch.jit.trace(model, (x,)), path)
                elif how == "export":
                    torch.export.save(torch.export.export(model, (x,)), f"{path}")
                else:
                    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: model(x))(x)  # noqa: B023
                    with open(path, "wb") as file:
                        pickle.dump(graph, file)
    subprocess.run([sys.executable, "-W", "ignore", "-c", server, tmp_path, *names], check=True)
