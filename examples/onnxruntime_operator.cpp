// SPDX-License-Identifier: MIT

// nprf's attention as an operator of ONNX Runtime, on the CPU: a shared library, which a session registers, so that a
// model in ONNX needs no Python. README.md lists its attributes, and says how a model of PyTorch becomes one with it.
//
//     nprf.Attention(q, k, v, table, lengths, offset) -> y
//
//     q        float [batch, heads, n_q, d]
//     k, v     float [batch, kv_heads, n_k, d], [batch, kv_heads, n_k, d_v]; heads is a multiple of kv_heads
//     table    float, optional: the parameters of the position, with an axis of heads in front or for all heads
//     lengths  int64 [batch], optional: the number of keys that are not padding
//     offset   int64 [], [1] or [batch], optional: query i has the position i + offset, key j the position j
//     y        float [batch, heads, n_q, d_v]
//
// Without an offset, causal queries are placed as by the operator Attention of ONNX with is_causal (opsets 23 and 24,
// as ONNX 1.23 corrected them): query i attends to key j if j <= i + offset. The offset is 0 without lengths, for n_q <
// n_k too, so that the first query is beside the first key. With lengths, which are ONNX's nonpad_kv_seqlen, the keys
// are a cache and the offset is lengths[b] - n_q, so that the last query is beside the last key that is not padding.
// Padded sequences whose queries and keys both start at 0 need an offset of 0. There and here a query without keys has
// a row of zeros.
//
// Threads are nprf's (OMP_NUM_THREADS), not those of the session.

#define ORT_API_MANUAL_INIT  // the library is not linked to ONNX Runtime, which hands over its functions
#include <onnxruntime_cxx_api.h>
#undef ORT_API_MANUAL_INIT

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <nprf/nprf.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace {

using namespace nprf;
using Shape = std::vector<std::int64_t>;

/// What f() throws, as a status, since nothing may be thrown through the C interface; null if it returns.
template <class F>
OrtStatus* status_of(F&& f) noexcept {
  const OrtApi& api = Ort::GetApi();
  try {
    f();
    return nullptr;
  } catch (const Ort::Exception& error) {
    return api.CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const InvalidArgument& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "nprf: an unknown exception");
  }
}

template <class X>
std::optional<X> find_attribute(Ort::ConstKernelInfo info, const char* name) {
  try {
    return info.GetAttribute<X>(name);
  } catch (const Ort::Exception&) {  // there is none, or it has another type
    return std::nullopt;
  }
}

template <class X>
X attribute(Ort::ConstKernelInfo info, const char* name, X otherwise) {
  if (const auto found = find_attribute<X>(info, name)) return *found;
  require(!find_attribute<std::int64_t>(info, name) && !find_attribute<float>(info, name) &&
              !find_attribute<std::string>(info, name),
          name, ": expected ",
          std::is_same_v<X, std::string> ? "a string"
          : std::is_integral_v<X>        ? "an integer"
                                         : "a float",
          ", got an attribute of another type");
  return otherwise;
}

void check_name(const char* of, const std::string& name, std::initializer_list<const char*> names) {
  std::string all;
  for (const char* each : names) {
    if (name == each) return;
    all += (all.empty() ? "" : ", ") + std::string(each);
  }
  throw InvalidArgument(std::string(of) + ": expected one of " + all + ", got " + name);
}

struct Attributes {
  std::string position, features, calibration, layout;
  Index max_distance, num_features, directions;
  std::uint64_t seed;
  AttentionOptions options;

  explicit Attributes(Ort::ConstKernelInfo info)
      : position(attribute<std::string>(info, "position", "none")),
        features(attribute<std::string>(info, "features", "taylor")),
        calibration(attribute<std::string>(info, "calibration", "")),
        layout(attribute<std::string>(info, "layout", "heads_first")),
        max_distance(attribute<std::int64_t>(info, "max_distance", 128)),
        num_features(attribute<std::int64_t>(info, "num_features", 0)),
        directions(attribute<std::int64_t>(info, "directions", 0)),
        seed(static_cast<std::uint64_t>(attribute<std::int64_t>(info, "seed", 0))) {
    check_name("position", position, {"none", "table", "t5", "alibi"});
    check_name("features", features, {"taylor", "orf", "prf", "sphere_prf", "hyperbolic", "trf", "elu", "calibrated"});
    check_name("layout", layout, {"heads_first", "tokens_first"});
    const std::int64_t causal = attribute<std::int64_t>(info, "causal", 0);
    require(causal == 0 || causal == 1, "causal: expected 0 or 1, got ", causal);
    const float radius = attribute<float>(info, "radius", 1);
    options = {.direction = causal == 1 ? Direction::causal : Direction::bidirectional,
               .normalization = radius == 0 ? Normalization::none() : Normalization::unit(radius),
               .near = attribute<std::int64_t>(info, "near", 0),
               .sinks = attribute<std::int64_t>(info, "sinks", 0)};
  }
};

/// One map for all heads, or one for each.
using Features = std::variant<std::vector<PositiveFeatures<float>>, std::vector<HyperbolicFeatures<float>>,
                              std::vector<TrigonometricFeatures<float>>, std::vector<EluFeatures<float>>,
                              std::vector<TaylorFeatures<float>>, std::vector<CalibratedFeatures<float>>>;

Features features_of(const Attributes& x, Index d) {
  const Index m = x.num_features == 0 ? d : x.num_features;
  if (x.features == "orf") return std::vector{orf<float>(d, m, x.seed)};
  if (x.features == "prf") return std::vector{prf<float>(d, m, x.seed)};
  if (x.features == "sphere_prf") return std::vector{sphere_prf<float>(d, m, x.seed)};
  if (x.features == "hyperbolic") return std::vector{hyperbolic<float>(d, m, x.seed)};
  if (x.features == "trf") return std::vector{trf<float>(d, m, x.seed)};
  if (x.features == "elu") return std::vector{EluFeatures<float>(d)};
  if (x.features == "taylor") return std::vector{TaylorFeatures<float>({.input_dim = d, .directions = x.directions})};
  std::istringstream texts(x.calibration);
  std::vector<CalibratedFeatures<float>> maps;
  do {
    const auto start = texts.tellg();
    std::string kind;
    std::getline(texts, kind);
    texts.seekg(start);
    const bool is_of_double = kind.find("double") != std::string::npos;
    maps.push_back(is_of_double ? CalibratedFeatures<double>::load(texts).cast<float>()
                                : CalibratedFeatures<float>::load(texts));
  } while (!(texts >> std::ws).eof());
  return maps;
}

/// The biases of a position of any kind.
struct Biases {
  using Scalar = float;

  LagBias<float> of_lags;

  const LagBias<float>& bias() const { return of_lags; }
};

/// The input `table`, which may be absent.
struct Table {
  bool is_given = false;
  Shape shape;
  std::vector<float> numbers;

  explicit Table(const Ort::ConstValue& x) {
    if (!x) return;
    is_given = true;
    shape = x.GetTensorTypeAndShapeInfo().GetShape();
    const float* data = x.GetTensorData<float>();
    numbers.assign(data, data + x.GetTensorTypeAndShapeInfo().GetElementCount());
  }
  bool operator==(const Table&) const = default;
};

/// One position for all heads, or one for each.
std::vector<Biases> positions_of(const Attributes& x, const Table& table) {
  if (x.position == "none") {
    require(!table.is_given, "table: expected none with position none, got ", table.numbers.size(), " numbers");
    return {Biases()};
  }
  require(table.is_given, "table: expected the parameters of position ", x.position, ", got none");
  const std::size_t dims = x.position == "alibi" ? 0 : 1;  // of one head
  require(table.shape.size() == dims || table.shape.size() == dims + 1, "table: expected ", dims, " dimensions, or ",
          dims + 1, " with heads, for position ", x.position, ", got ", table.shape.size());
  const Index heads = table.shape.size() > dims ? table.shape[0] : 1;
  require(!table.numbers.empty(), "table: expected at least one number, got none");
  const Eigen::Map<const Matrix<float>> rows(table.numbers.data(), heads,
                                             static_cast<Index>(table.numbers.size()) / heads);  // (heads,p)
  std::vector<Biases> positions;
  for (Index h = 0; h < heads; ++h)
    if (x.position == "t5")
      positions.push_back({T5Position<float>(rows.row(h), x.options.direction, x.max_distance).bias()});
    else if (x.position == "alibi")
      positions.push_back({AlibiPosition<float>(rows(h, 0)).bias()});
    else
      positions.push_back({RelativePosition<float>(rows.row(h)).bias()});
  return positions;
}

using Heads = HeadsView<const float>;
using Attend = std::function<void(const Heads& q, const Heads& k, const Heads& v, const HeadsView<float>& y,
                                  const CallOptions& call)>;

Attend attention_of(const Attributes& x, Index d, const Table& table) {
  return std::visit(
      [&](auto maps) -> Attend {
        return [attention = MultiHeadAttention(std::move(maps), positions_of(x, table), x.options)](
                   const Heads& q, const Heads& k, const Heads& v, const HeadsView<float>& y, const CallOptions& call) {
          attention(q, k, v, y, call);
        };
      },
      features_of(x, d));
}

template <class T>
HeadsView<T> view_of(T* data, const Shape& shape, const Attributes& x) {
  if (x.layout == "tokens_first") return tokens_first(data, shape[0], shape[1], shape[2], shape[3]);
  return {data, shape[0], shape[1], shape[2], shape[3]};
}

Heads view_of(const Ort::ConstValue& input, const char* name, const Attributes& x) {
  const Shape shape = input.GetTensorTypeAndShapeInfo().GetShape();
  require(shape.size() == 4, name, ": expected 4 dimensions, batch, heads, tokens and channels, got ", shape.size());
  return view_of(input.GetTensorData<float>(), shape, x);
}

template <class T>
HeadsView<T> sequence(const HeadsView<T>& x, Index b) {
  const HeadStrides strides = x.all_strides();
  return {x.data + b * strides.batch, 1, x.heads, x.tokens, x.channels, strides};
}

/// None if the input is absent.
std::vector<Index> integers_of(const Ort::ConstValue& x) {
  if (!x) return {};
  const std::int64_t* data = x.GetTensorData<std::int64_t>();
  return {data, data + x.GetTensorTypeAndShapeInfo().GetElementCount()};
}

class Kernel {
 public:
  explicit Kernel(const OrtKernelInfo* info) : m_attributes(Ort::ConstKernelInfo(info)) {}

  OrtStatus* ComputeV2(OrtKernelContext* context) noexcept {
    return status_of([&] { compute(Ort::KernelContext(context)); });
  }

 private:
  /// What calls with the same table have in common.
  struct Model {
    Index d;
    Table table;
    Attend attend;
  };

  void compute(const Ort::KernelContext& context) {
    const Heads q = view_of(context.GetInput(0), "q", m_attributes),
                k = view_of(context.GetInput(1), "k", m_attributes),
                v = view_of(context.GetInput(2), "v", m_attributes);
    require(k.batch == q.batch && v.batch == q.batch, "batch: expected as many sequences of k and v as of q, ", q.batch,
            ", got ", k.batch, " and ", v.batch);
    const std::vector<Index> lengths = integers_of(context.GetInput(4));
    require(!context.GetInput(4) || std::ssize(lengths) == q.batch, "lengths: expected ", q.batch,
            " numbers, one a sequence, got ", lengths.size());
    for (std::size_t b = 0; b < lengths.size(); ++b)
      require(lengths[b] >= 0 && lengths[b] <= k.tokens, "lengths[", b, "]: expected 0 to ", k.tokens,
              " (the number of keys), got ", lengths[b]);
    const std::vector<Index> offsets = offsets_of(context.GetInput(5), lengths, q);
    const std::shared_ptr<const Model> model = model_of(q.channels, Table(context.GetInput(3)));

    Shape shape = context.GetInput(0).GetTensorTypeAndShapeInfo().GetShape();
    shape.back() = v.channels;
    const HeadsView<float> y = view_of(context.GetOutput(0, shape).GetTensorMutableData<float>(), shape, m_attributes);
    const bool is_one_call = std::ranges::all_of(offsets, [&](Index each) { return each == offsets[0]; });
    if (is_one_call) {
      model->attend(q, k, v, y, {.lengths = lengths, .offset = offsets.empty() ? 0 : offsets[0]});
      return;
    }
    for (Index b = 0; b < q.batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const auto own = lengths.empty() ? std::span<const Index>() : std::span(lengths).subspan(at, 1);
      model->attend(sequence(q, b), sequence(k, b), sequence(v, b), sequence(y, b),
                    {.lengths = own, .offset = offsets[at]});
    }
  }

  /// One for each sequence, or one for all.
  std::vector<Index> offsets_of(const Ort::ConstValue& given, std::vector<Index> lengths, const Heads& q) const {
    if (given) {
      std::vector<Index> offsets = integers_of(given);
      require(offsets.size() == 1 || std::ssize(offsets) == q.batch, "offset: expected 1 number or ", q.batch,
              ", one a sequence, got ", offsets.size());
      return offsets;
    }
    if (m_attributes.options.direction != Direction::causal) return {0};
    for (Index& each : lengths) each -= q.tokens;
    return lengths.empty() ? std::vector<Index>{0} : lengths;
  }

  /// The model of the last call, if that had the same table. Several threads may run a session.
  std::shared_ptr<const Model> model_of(Index d, Table table) {
    const std::scoped_lock lock(m_mutex);
    if (!m_model || m_model->d != d || m_model->table != table) {
      Attend attend = attention_of(m_attributes, d, table);
      m_model = std::make_shared<const Model>(d, std::move(table), std::move(attend));
    }
    return m_model;
  }

  Attributes m_attributes;
  std::mutex m_mutex;
  std::shared_ptr<const Model> m_model;
};

struct Operator : Ort::CustomOpBase<Operator, Kernel, true> {
  Operator() {
    // not by a function InferOutputShape, before which the base class calls functions that may throw
    OrtCustomOp::InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext* context) {
      return status_of([&] { infer_shape(Ort::ShapeInferContext(&Ort::GetApi(), context)); });
    };
  }

  OrtStatus* CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const noexcept {
    return status_of([&] {
      try {
        *kernel = new Kernel(info);
      } catch (const InvalidArgument& error) {  // ONNX Runtime names the node only in errors of its calls
        throw InvalidArgument("nprf.Attention " + Ort::ConstKernelInfo(info).GetNodeName() + ": " + error.what());
      }
    });
  }

  const char* GetName() const { return "Attention"; }
  std::size_t GetInputTypeCount() const { return 6; }
  ONNXTensorElementDataType GetInputType(std::size_t index) const {
    return index < 4 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t index) const {
    return index < 3 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }

 private:
  /// That of q with the channels of v, if both are known.
  static void infer_shape(Ort::ShapeInferContext context) {
    Ort::ShapeInferContext::Shape y = context.GetInputShape(0);
    const Ort::ShapeInferContext::Shape& v = context.GetInputShape(2);
    if (y.size() != 4 || v.size() != 4) return;
    y.back() = v.back();
    Ort::ThrowOnError(context.SetOutputShape(0, y));
  }
};

}  // namespace

/// What SessionOptions.register_custom_ops_library() of Python and SessionOptions::RegisterCustomOpsLibrary() of C++
/// call.
extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                                            const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (!api)
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED,
                                         "nprf: expected ONNX Runtime of at least the version of the headers with "
                                         "which this library was compiled, got an older one");
  Ort::InitApi(api);
  return status_of([&] {
    static const Operator attention;
    static Ort::CustomOpDomain domain = [] {
      Ort::CustomOpDomain made("nprf");
      made.Add(&attention);
      return made;
    }();
    Ort::UnownedSessionOptions(options).Add(domain);
  });
}
