# SPDX-License-Identifier: MIT
"""ONNX Runtime computes what PyTorch computes, with the operator of examples/onnxruntime_operator.cpp, and what ONNX's
own operator Attention does where all pairs have the weights of softmax."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import nprf
import numpy as np
import pytest
from conftest import assert_as_exact, rounding

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
onnx = pytest.importorskip("onnx", reason="ONNX is not installed: pip install onnx onnxscript onnxruntime")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install onnx onnxscript onnxruntime")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed: pip install onnxruntime")
import nprf.torch.onnx  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

built = pathlib.Path(__file__).parents[2] / "build" / "demo" / "examples" / "libnprf_onnxruntime.so"
library = pathlib.Path(os.environ.get("NPRF_ONNXRUNTIME_OPERATOR", built))
if not library.exists():
    pytest.skip(f"the operator was not built: {library} (examples/README.md)", allow_module_level=True)

pytestmark = [
    pytest.mark.usefixtures("seeded_on_one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of the exporter's own code
]

INPUTS = ("q", "k", "v", "table", "lengths", "offset")
H, D = 4, 8


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    options.log_severity_level = 4  # errors are exceptions, too
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def exported(model, arguments, dynamic_shapes=None):
    """The bytes of the model in ONNX."""
    program = torch.export.export(model.eval(), arguments, dynamic_shapes=dynamic_shapes)
    made = torch.onnx.export(
        program, dynamo=True, verbose=False, custom_translation_table=nprf.torch.onnx.translations(program)
    )
    return made.model_proto.SerializeToString()


def run(session, *inputs):
    return session.run(None, {each.name: x.numpy() for each, x in zip(session.get_inputs(), inputs)})[0]


def assert_same(session, model, *inputs):
    """As exact as the model is in float32."""
    with torch.no_grad():
        in_float = model(*inputs)
        model.double()
        exact = model(*(x.double() if x.is_floating_point() else x for x in inputs))
        model.float()
    assert_as_exact([torch.from_numpy(run(session, *inputs))], [in_float], [exact])


def model_of(names, operator="Attention", domain="nprf", opset=24, **attributes):
    """A model of one operator with these inputs, of which the names that are empty are absent."""
    of = {"lengths": onnx.TensorProto.INT64, "offset": onnx.TensorProto.INT64}
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], "the node", domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info(name, of.get(name, onnx.TensorProto.FLOAT), None) for name in names if name],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("nprf", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def operator(attributes, **inputs):
    """What the operator computes of these arrays."""
    given = [name for name in INPUTS if name in inputs]
    names = [name if name in inputs else "" for name in INPUTS[: INPUTS.index(given[-1]) + 1]]
    return session_of(model_of(names, **attributes).SerializeToString()).run(None, inputs)[0]


def arrays(rng, n_q=20, n_k=20, kv_heads=H, batch=2, d_v=D):
    shapes = {"q": (batch, H, n_q, D), "k": (batch, kv_heads, n_k, D), "v": (batch, kv_heads, n_k, d_v)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        options = {"near": 4, "sinks": 1}
        self.first = nprf.torch.Attention(H * D, H, position="t5", features="orf", seed=2**64 - 3, causal=True)
        self.second = nprf.torch.Attention(H * D, H, position="alibi", features="taylor", **options)
        self.norm = torch.nn.LayerNorm(H * D)
        torch.nn.init.normal_(self.first.position_bias)
        for each in (self.first, self.second):
            torch.nn.init.normal_(each.out_proj.bias)

    def forward(self, x, lengths):
        y = x + self.first(x, lengths=lengths)[0]
        return y + self.second(self.norm(y), lengths=lengths)[0]


@pytest.fixture(scope="module")
def two_layers():
    torch.manual_seed(5)
    batch, tokens = torch.export.Dim("batch", max=64), torch.export.Dim("tokens", min=2, max=10000)
    model = TwoLayers()
    arguments = torch.randn(2, 50, H * D), torch.tensor([50, 30])
    return model, exported(model, arguments, {"x": {0: batch, 1: tokens}, "lengths": {0: batch}})


@pytest.mark.parametrize("lengths", [[50, 30], [700], [1, 0, 90], [1500, 1400]])
def test_two_layers(two_layers, lengths):
    model, in_onnx = two_layers
    assert [node.domain for node in onnx.load_from_string(in_onnx).graph.node].count("nprf") == 2
    assert_same(session_of(in_onnx), model, torch.randn(len(lengths), max(lengths), H * D), torch.tensor(lengths))


class Call(torch.nn.Module):
    """nprf.torch.attention with a bias."""

    def __init__(self, bias, **options):
        super().__init__()
        self.bias = None if bias is None else torch.nn.Parameter(bias)
        self.options = options

    def forward(self, q, k, v, *lengths):
        of_call = {"lengths": lengths[0]} if lengths else {}
        return nprf.torch.attention(q, k, v, self.bias, **self.options, **of_call)


calls = {
    "no position": {"bias": None, "features": nprf.taylor(D, 2)},
    "a table for all heads": {"bias": (9,), "position": "table", "features": nprf.orf(D, 6, 1)},
    "a smooth table": {"bias": (H, 9), "position": "smooth_table", "features": nprf.hyperbolic(D, 6, 2), "near": 3},
    "t5": {"bias": (H, 8), "position": ("t5", 40), "features": nprf.prf(D, 6, 3)},
    "alibi for all heads": {"bias": (), "position": "alibi", "features": nprf.sphere_prf(D, 6, 4), "sinks": 2},
    "alibi": {"bias": (H,), "position": "alibi", "features": nprf.trf(D, 64, 5)},
    "elu": {"bias": (H, 9), "position": "table", "features": nprf.elu(D)},
    "norm": {"bias": None, "features": nprf.orf(D, 6, 1), "normalization": nprf.Normalization.unit(0.5)},
    "own norms": {"bias": None, "features": nprf.orf(D, 6), "normalization": nprf.Normalization.none()},
    "causal, more queries": {"bias": (H, 32), "position": "t5", "features": nprf.taylor(D), "offset": 0, "n_q": 33},
    "causal, more keys": {"bias": (H, 9), "position": "table", "features": nprf.taylor(D), "offset": 13, "n_q": 7},
    "causal, the first": {"bias": (H, 9), "position": "table", "features": nprf.taylor(D), "offset": 0, "n_q": 7},
    "fewer heads of keys": {"bias": (H,), "position": "alibi", "features": nprf.taylor(D), "kv_heads": 2, "d_v": 3},
    "tokens first": {"bias": (H, 9), "position": "table", "features": nprf.taylor(D), "layout": "tokens_first"},
}


@pytest.mark.parametrize("name", calls)
def test_a_call(name, rng):
    options = dict(calls[name])
    shape = options.pop("bias")
    sizes = {key: options.pop(key) for key in ("n_q", "kv_heads", "d_v") if key in options}
    inputs = [torch.from_numpy(x) for x in arrays(rng, **sizes).values()]
    if "layout" in options:
        inputs = [x.transpose(1, 2).contiguous() for x in inputs]
    all_lengths = [] if name == "no position" else [[torch.tensor(each)] for each in ([20, 20], [20, 11], [0, 3])]
    model = Call(None if shape is None else torch.rand(shape), **options, causal=name.startswith("causal"))
    session = session_of(exported(model, (*inputs, *(all_lengths or [[]])[0])))
    for lengths in all_lengths or [[]]:
        assert_same(session, model, *inputs, *lengths)


@pytest.mark.parametrize("of_heads", [False, True], ids=["one", "of heads"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_calibrated_maps(dtype, of_heads, rng):
    q, k, v = (0.6 * x.astype(dtype)[0] for x in arrays(rng).values())
    if not of_heads:
        q, k, v = q[0], k[0], v[0]
    features = nprf.calibrate(q, k, v, num_features=9).features
    model = Call(None, features=features, near=2)
    inputs = [torch.from_numpy(x) for x in arrays(rng).values()]
    assert_same(session_of(exported(model, tuple(inputs))), model, *inputs)


@pytest.mark.parametrize("lengths", [None, [30, 12], [5, 30]], ids=str)
@pytest.mark.parametrize("n_q", [30, 9, 41])
@pytest.mark.parametrize("kv_heads", [H, 2])
def test_causal_queries_are_placed_as_by_onnx(n_q, lengths, kv_heads, rng):
    x = arrays(rng, n_q, 30, kv_heads)
    names = ["q", "k", "v"]
    if lengths is not None:
        x["lengths"] = np.array(lengths)
        names += ["", "", "", "lengths"]
    expected = ReferenceEvaluator(model_of(names, domain="", is_causal=1)).run(None, x)[0]
    y = operator({"causal": 1, "radius": 0.0, "near": 100}, **x)
    largest = np.linalg.norm(x["q"], axis=-1).max() * np.linalg.norm(x["k"], axis=-1).max() / D**0.5
    assert np.abs(y - expected).max() <= rounding(x["v"], terms=30, exponent=largest, channels=D)


def test_an_offset_for_each_sequence(rng):
    x = arrays(rng, 6, 25)
    options = {"position": "alibi", "causal": 1, "near": 3}
    slopes = nprf.alibi_slopes(H).astype(np.float32)
    lengths = np.array([25, 14])
    y = operator(options, **x, table=slopes, lengths=lengths, offset=np.array([19, 2]))
    for b, offset in enumerate((19, 2)):
        one = {name: each[[b]] for name, each in x.items()}
        own = operator(options, **one, table=slopes, lengths=lengths[[b]], offset=np.array(offset))
        expected = nprf.attention(
            *one.values(), features=nprf.taylor(D), position=nprf.Alibi(slopes), causal=True, near=3,
            lengths=[lengths[b]], offset=offset,
        )  # fmt: skip
        assert np.array_equal(y[[b]], own)
        growth = rounding(x["v"], terms=25 + D + 1, exponent=25 * slopes.max() + 2, channels=D)
        assert np.abs(own - expected).max() <= growth
    assert not np.array_equal(y, operator(options, **x, table=slopes, lengths=lengths))  # 19 and 8


def test_lengths_do_not_move_queries_that_see_both_directions(rng):
    x, slopes, lengths = arrays(rng), np.full(H, 0.3, np.float32), np.array([20, 11])
    y = operator({"position": "alibi"}, **x, table=slopes, lengths=lengths)
    assert np.array_equal(y, operator({"position": "alibi"}, **x, table=slopes, lengths=lengths, offset=np.array([0])))


def test_tables_that_change(rng):
    x = arrays(rng)
    session = session_of(model_of(["q", "k", "v", "table"], position="table").SerializeToString())
    tables = [rng.standard_normal((H, 5)).astype(np.float32), rng.standard_normal(9).astype(np.float32)]
    results = [session.run(None, {**x, "table": table})[0] for table in (*tables, tables[0])]
    assert np.array_equal(results[0], results[2])
    for table, y in zip(tables, results):
        expected = nprf.attention(*x.values(), features=nprf.taylor(D), position=nprf.RelativePosition(table))
        bound = rounding(x["v"], terms=20 + D + 1, exponent=2 + np.abs(table).max(), channels=D)
        assert np.abs(y - expected).max() <= bound


def test_calls_of_several_threads(rng):
    session = session_of(model_of(["q", "k", "v"], features="orf", seed=3).SerializeToString())
    all_inputs = [arrays(rng, 100 + n, 100 + n) for n in range(8)]
    expected = [session.run(None, x)[0] for x in all_inputs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: session.run(None, x)[0], all_inputs))
    assert all(map(np.array_equal, found, expected))


def test_empty_arrays(rng):
    for sizes in ({"n_q": 0}, {"batch": 0}, {"n_k": 0}, {"d_v": 0}):
        x = arrays(rng, **sizes)
        y = operator({}, **x)
        assert y.shape == (*x["q"].shape[:3], x["v"].shape[3]) and not y.any()
    assert not operator({}, **arrays(rng), lengths=np.zeros(2, np.int64)).any()


@pytest.mark.parametrize(
    "attributes, changes, message",
    [
        ({}, {"q": (2, H, 20)}, "q: expected 4 dimensions, batch, heads, tokens and channels, got 3"),
        ({}, {"k": (2, H, 20, D + 1)}, f"keys: expected 2 x {H} x 20 x {D} (batch, heads, tokens, channels)"),
        ({}, {"v": (2, H, 21, D)}, "values: expected"),
        ({}, {"k": (2, 3, 20, D), "v": (2, 3, 20, D)}, "heads"),
        ({}, {"k": (1, H, 20, D)}, "batch: expected as many sequences of k and v as of q, 2, got 1 and 2"),
        ({}, {"lengths": (3,)}, "lengths: expected 2 numbers, one a sequence, got 3"),
        ({}, {"lengths": (0,)}, "lengths: expected 2 numbers, one a sequence, got 0"),
        ({}, {"lengths": np.array([20, 21])}, "lengths[1]: expected 0 to 20"),
        ({"causal": 1}, {"lengths": np.array([20, -1])}, "lengths[1]: expected 0 to 20 (the number of keys), got -1"),
        ({"causal": 1}, {"offset": (3,)}, "offset: expected 1 number or 2, one a sequence, got 3"),
        ({}, {"table": (5,)}, "table: expected none with position none, got 5 numbers"),
        ({"position": "alibi"}, {}, "table: expected the parameters of position alibi, got none"),
        ({"position": "alibi"}, {"table": (H, 4)}, "table: expected 0 dimensions, or 1 with heads, for position alibi"),
        ({"position": "table"}, {"table": (H, 4)}, "b: expected an odd number of scalars"),
        ({"position": "table"}, {"table": (3, 5)}, "heads"),
        ({"position": "table"}, {"table": (0, 5)}, "table: expected at least one number, got none"),
        ({"position": "t5"}, {"table": (7,)}, "bucket_weights: expected an even number of scalars"),
        ({"position": "rope"}, {}, "position: expected one of none, table, t5, alibi, got rope"),
        ({"position": 3}, {}, "position: expected a string, got an attribute of another type"),
        ({"causal": 1.0}, {}, "causal: expected an integer, got an attribute of another type"),
        ({"causal": 2}, {}, "causal: expected 0 or 1, got 2"),
        ({"radius": -1.0}, {}, "radius: expected a positive finite number, got -1"),
        ({"features": "orf", "num_features": -1}, {}, "num_features: expected"),
        ({"features": "elu", "near": 2}, {}, "near"),
        ({"features": "calibrated", "calibration": "nothing"}, {}, "nothing"),
        ({"directions": D + 1}, {}, "directions"),
        ({"layout": "bhnd"}, {}, "layout: expected one of heads_first, tokens_first, got bhnd"),
    ],
)
def test_errors_have_a_message(attributes, changes, message, rng):
    x = arrays(rng)
    for name, change in changes.items():
        dtype = np.int64 if name in ("lengths", "offset") else np.float32
        x[name] = change if isinstance(change, np.ndarray) else np.ones(change, dtype)
    with pytest.raises(Exception) as error:
        operator(attributes, **x)
    assert message in str(error.value)
    assert "Attention" in str(error.value) and "the node" in str(error.value)


def test_a_session_after_an_error(rng):
    x = arrays(rng)
    session = session_of(model_of(["q", "k", "v"]).SerializeToString())
    y = session.run(None, x)[0]
    with pytest.raises(Exception, match="batch: expected"):
        session.run(None, {**x, "k": x["k"][:1]})
    assert np.array_equal(session.run(None, x)[0], y)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"key_padding_mask": torch.zeros(2, 20, dtype=torch.bool)}, "key_padding_mask: expected lengths"),
        ({"cumulative_lengths": torch.tensor([0, 5, 20])}, "cumulative_lengths: expected None"),
        ({"engine": "direct"}, "engine: expected 'automatic'"),
        ({"tolerance": 1e-3}, "tolerance: expected 0.0"),
        ({"salient": 2}, "salient: expected 0"),
        ({"near": 4, "query_bias": (torch.ones(2, H, 20, 5), torch.ones(5, 7))}, "query_bias: expected None"),
        ({"features": nprf.ProjectedFeatures("positive", np.ones((3, D)))}, "features: expected a map that the"),
    ],
)
def test_what_is_not_exported(options, message, rng):
    model = Call(None, **{"features": nprf.taylor(D), **options})
    with pytest.raises(Exception) as error:
        exported(model, tuple(torch.from_numpy(x) for x in arrays(rng).values()))
    causes = []
    while error is not None:
        causes.append(str(error if isinstance(error, BaseException) else error.value))
        error = error.__cause__ if isinstance(error, BaseException) else error.value.__cause__
    assert any(message in each for each in causes), causes


PROGRAM = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
session = onnxruntime.InferenceSession(sys.argv[2], options)
x = np.load(sys.argv[3])
np.save(sys.argv[4], session.run(None, {"x": x, "lengths": np.array([400, 300])})[0])
assert not {"nprf", "torch"} & set(sys.modules)
del session, options
"""


def test_a_process_without_nprf_and_torch(two_layers, tmp_path):
    model, in_onnx = two_layers
    x = torch.randn(2, 400, H * D)
    (tmp_path / "model.onnx").write_bytes(in_onnx)
    np.save(tmp_path / "x.npy", x.numpy())
    files = [tmp_path / name for name in ("model.onnx", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", PROGRAM, library, *files], check=True, timeout=300)
    with torch.no_grad():
        in_float = model(x, torch.tensor([400, 300]))
        exact = model.double()(x.double(), torch.tensor([400, 300]))
        model.float()
    assert_as_exact([torch.from_numpy(np.load(files[-1]))], [in_float], [exact])


def test_the_program_of_the_page(tmp_path, monkeypatch):
    page = pathlib.Path(__file__).parents[2] / "examples" / "README.md"
    if not page.exists():
        pytest.skip("this is not a clone of the repository")
    programs = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (program,) = [each for each in programs if "onnxruntime" in each]
    assert program.count(f'"build/demo/examples/{built.name}"') == 1
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(program.replace(f"build/demo/examples/{built.name}", str(library)), "README.md", "exec"), names)
    model, x, lengths = names["model"], names["x"], names["lengths"]
    with torch.no_grad():
        in_float, exact = model(x, lengths), model.double()(x.double(), lengths)
    assert_as_exact([torch.from_numpy(names["y"])], [in_float], [exact])
    model.float()
    assert_same(names["session"], model, torch.randn(1, 70, 64), torch.tensor([66]))
