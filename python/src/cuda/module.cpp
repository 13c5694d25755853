// SPDX-License-Identifier: MIT
//
// nprf._cuda: plans and decoders for GPUs, for arrays in their memory. Its users are nprf/torch/_gpu.py and
// nprf/torch/_gpu_decoder.py.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "array.hpp"
#include "cuda/decoder.hpp"
#include "cuda/makers.hpp"
#include "cuda/model_capsule.hpp"
#include "cuda/plan.hpp"

namespace nprf::python {

namespace {

using Device = NPRF_PYTHON_DEVICE;  // nb::device::cuda, or nb::device::cpu over the stand-in
using InputDevice = nb::ndarray<nb::ro, Device>;
using OutputDevice = nb::ndarray<Device>;
using Floats = nb::ndarray<float, nb::c_contig, Device>;
using Mask = nb::ndarray<const bool, nb::c_contig, Device>;
using Lengths = nb::ndarray<const std::int32_t, nb::c_contig, Device>;
using Bytes = nb::ndarray<std::uint8_t, nb::c_contig, Device>;
// batch, heads, heads_k, n_q, n_k, d_v, offset
using Sizes = std::tuple<Index, Index, Index, Index, Index, Index, Index>;
// batch, heads, heads_k, d_v, max_tokens, rollback
using DecoderSizes = std::tuple<Index, Index, Index, Index, Index, Index>;

nb::dlpack::dtype dtype_of(const std::string& scalar) {
  constexpr auto code = [](nb::dlpack::dtype_code c) { return static_cast<std::uint8_t>(c); };
  if (scalar == "float32") return {code(nb::dlpack::dtype_code::Float), 32, 1};
  if (scalar == "float16") return {code(nb::dlpack::dtype_code::Float), 16, 1};
  if (scalar == "bfloat16") return {code(nb::dlpack::dtype_code::Bfloat), 16, 1};
  throw InvalidArgument(
      nprf::detail::sentence("scalars: expected float32, float16 or bfloat16 on a GPU, got ", scalar));
}

Makers makers_of(const std::string& scalar) {
#if NPRF_PYTHON_CUDA_HALVES
  if (scalar == "float16") return makers_float16();
  if (scalar == "bfloat16") return makers_bfloat16();
#endif
  require(scalar == "float32", "scalars: expected float32 in this build of nprf, got ", scalar);
  return makers_float32();
}

const cuda::AttentionModel& model_of(const nb::capsule& model) {
  const auto* described = static_cast<const cuda::AttentionModel*>(model.data(cuda_model_name));
  if (!described) throw nb::python_error();
  return *described;
}

/// The type and layout of the arrays of all calls of an object.
struct ArrayType {
  nb::dlpack::dtype dtype;
  Axes axes;

  /// Throws InvalidArgument unless `x` has this type and channels that are contiguous.
  template <class Array>
  DeviceArray view(const Array& x, const char* name) const {
    require(x.dtype() == dtype, name, ": expected the type of the other arrays, got another");
    const Layout layout = Layout::of(x, name, axes);
    require(layout.size() == 0 || layout.is_view(), name,
            ": expected an array whose channels are contiguous, got other strides");
    return {const_cast<void*>(static_cast<const void*>(x.data())),
            layout.batch,
            layout.heads,
            layout.tokens,
            layout.channels,
            layout.strides.batch,
            layout.strides.head,
            layout.strides.token};
  }
  DeviceInputs inputs(const InputDevice& q, const InputDevice& k, const InputDevice& v) const {
    return {view(q, "queries"), view(k, "keys"), view(v, "values")};
  }
};

template <class Array>
void check_size(const std::optional<Array>& x, const char* name, Index size, const char* of) {
  if (x) require(static_cast<Index>(x->size()) == size, name, ": expected ", size, of, ", got ", x->size());
}

/// The arrays of one call beside queries, keys and values, and a cudaStream_t.
struct CallArrays {
  std::optional<Floats> parameters;
  std::optional<Mask> key_mask;    // [batch, n_k], or [n_k] of one sequence
  std::optional<Lengths> lengths;  // [batch]
  Bytes workspace;
  std::uintptr_t stream;
};

void* stream_of(std::uintptr_t stream) { return reinterpret_cast<void*>(stream); }

/// A plan, and the type and layout of the arrays of its calls.
class TypedPlan {
 public:
  TypedPlan(const nb::capsule& model, const std::string& scalar, const Sizes& sizes, const std::string& engine,
            bool gradients, bool tokens_first, std::uintptr_t stream)
      : m_type{dtype_of(scalar), tokens_first ? Axes::tokens_first : Axes::heads_first} {
    const auto& [batch, heads, heads_k, n_q, n_k, d_v, offset] = sizes;
    m_batch = batch, m_n_k = n_k;
    m_plan = makers_of(scalar).plan(
        {model_of(model), batch, heads, heads_k, n_q, n_k, d_v, offset, engine, gradients, stream_of(stream)});
  }

  const Plan& plan() const { return *m_plan; }

  void forward(const InputDevice& q, const InputDevice& k, const InputDevice& v, const OutputDevice& y,
               const CallArrays& call) {
    m_plan->forward(m_type.inputs(q, k, v), m_type.view(y, "y"), pointers(call));
  }

  void backward(const InputDevice& q, const InputDevice& k, const InputDevice& v, const InputDevice& dy,
                const OutputDevice& dq, const OutputDevice& dk, const OutputDevice& dv,
                const std::optional<Floats>& dparameters, const CallArrays& call) {
    m_plan->backward(m_type.inputs(q, k, v), m_type.view(dy, "dy"),
                     {m_type.view(dq, "dq"), m_type.view(dk, "dk"), m_type.view(dv, "dv"),
                      dparameters ? dparameters->data() : nullptr},
                     pointers(call));
  }

 private:
  DeviceCall pointers(const CallArrays& call) const {
    const auto& [parameters, key_mask, lengths, workspace, stream] = call;
    check_size(key_mask, "key_mask", m_batch * m_n_k, " entries (batch x keys)");
    check_size(lengths, "lengths", m_batch, " entries (one a sequence)");
    require(workspace.size() >= m_plan->workspace_bytes(), "workspace: expected ", m_plan->workspace_bytes(),
            " bytes, got ", workspace.size());
    return {parameters ? parameters->data() : nullptr, key_mask ? key_mask->data() : nullptr,
            lengths ? lengths->data() : nullptr, workspace.data(), stream_of(stream)};
  }

  ArrayType m_type;
  Index m_batch = 0, m_n_k = 0;
  std::unique_ptr<Plan> m_plan;
};

/// A decoder, and the type of the arrays of its calls, [batch, heads, tokens, channels].
class TypedDecoder {
 public:
  TypedDecoder(const nb::capsule& model, const std::string& scalar, const DecoderSizes& sizes, std::uintptr_t stream)
      : m_type{dtype_of(scalar), Axes::heads_first} {
    const auto& [batch, heads, heads_k, d_v, max_tokens, rollback] = sizes;
    m_batch = batch;
    m_decoder = makers_of(scalar).decoder(
        {model_of(model), batch, heads, heads_k, d_v, max_tokens, rollback, stream_of(stream)});
  }

  std::size_t bytes() const { return m_decoder->bytes(); }

  void append(const InputDevice& k, const InputDevice& v, const std::optional<Lengths>& lengths,
              std::uintptr_t stream) {
    m_decoder->append(m_type.view(k, "keys"), m_type.view(v, "values"), each(lengths, "lengths"), stream_of(stream));
  }
  void step(const InputDevice& q, const InputDevice& k, const InputDevice& v, const OutputDevice& y,
            const std::optional<Lengths>& lengths, std::uintptr_t stream) {
    m_decoder->step(m_type.inputs(q, k, v), m_type.view(y, "y"), each(lengths, "lengths"), stream_of(stream));
  }

  void rollback(Index sequence, Index tokens, std::uintptr_t stream) {
    m_decoder->rollback(sequence, tokens, stream_of(stream));
  }
  void rollback_each(const Lengths& tokens, std::uintptr_t stream) {
    m_decoder->rollback(each(std::optional(tokens), "tokens"), stream_of(stream));
  }
  void reorder(const Lengths& sequences, std::uintptr_t stream) {
    m_decoder->reorder(each(std::optional(sequences), "sequences"), stream_of(stream));
  }
  void fork(Index source, Index target, std::uintptr_t stream) { m_decoder->fork(source, target, stream_of(stream)); }
  void reset(Index sequence, std::uintptr_t stream) { m_decoder->reset(sequence, stream_of(stream)); }
  void reset_all(std::uintptr_t stream) { m_decoder->reset(stream_of(stream)); }

  std::vector<int> tokens(std::uintptr_t stream) const { return m_decoder->tokens(stream_of(stream)); }
  std::map<std::string, int> counts(std::uintptr_t stream) const { return m_decoder->counts(stream_of(stream)); }

 private:
  // null: none
  const int* each(const std::optional<Lengths>& x, const char* name) const {
    check_size(x, name, m_batch, " entries (one a sequence)");
    return x ? x->data() : nullptr;
  }

  ArrayType m_type;
  Index m_batch = 0;
  std::unique_ptr<DeviceDecoder> m_decoder;
};

}  // namespace

}  // namespace nprf::python

// Calls keep the GIL, since two of one object must not run at the same time. Most only queue work.
NB_MODULE(_cuda, m) {
  using namespace nprf::python;
  namespace nb = nanobind;
  nb::set_leak_warnings(false);  // plans that globals of Python keep
  m.attr("on_host") = Device::value == nb::device::cpu::value;
  m.attr("halves") = bool{NPRF_PYTHON_CUDA_HALVES};
  nb::class_<CallArrays>(m, "CallArrays")
      .def(nb::init<std::optional<Floats>, std::optional<Mask>, std::optional<Lengths>, Bytes, std::uintptr_t>(),
           nb::arg("parameters").none(), nb::arg("key_mask").none(), nb::arg("lengths").none(),
           nb::arg("workspace").noconvert(), nb::arg("stream"));
  nb::class_<TypedPlan>(m, "Plan")
      .def(nb::init<const nb::capsule&, const std::string&, const Sizes&, const std::string&, bool, bool,
                    std::uintptr_t>(),
           nb::arg("model"), nb::arg("scalar"), nb::arg("sizes"), nb::arg("engine"), nb::arg("gradients"),
           nb::arg("tokens_first"), nb::arg("stream"))
      .def_prop_ro("workspace_bytes", [](const TypedPlan& x) { return x.plan().workspace_bytes(); })
      .def_prop_ro("engine", [](const TypedPlan& x) { return x.plan().engine(); })
      .def("forward", &TypedPlan::forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("y"), nb::arg("call"))
      .def("backward", &TypedPlan::backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("dy"), nb::arg("dq"),
           nb::arg("dk"), nb::arg("dv"), nb::arg("dparameters").none().noconvert(), nb::arg("call"));
  nb::class_<TypedDecoder>(m, "Decoder")
      .def(nb::init<const nb::capsule&, const std::string&, const DecoderSizes&, std::uintptr_t>(), nb::arg("model"),
           nb::arg("scalar"), nb::arg("sizes"), nb::arg("stream"))
      .def_prop_ro("nbytes", &TypedDecoder::bytes)
      .def("append", &TypedDecoder::append, nb::arg("k"), nb::arg("v"), nb::arg("lengths").none(), nb::arg("stream"))
      .def("step", &TypedDecoder::step, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("y"),
           nb::arg("lengths").none(), nb::arg("stream"))
      .def("rollback", &TypedDecoder::rollback, nb::arg("sequence"), nb::arg("tokens"), nb::arg("stream"))
      .def("rollback_each", &TypedDecoder::rollback_each, nb::arg("tokens"), nb::arg("stream"))
      .def("reorder", &TypedDecoder::reorder, nb::arg("sequences"), nb::arg("stream"))
      .def("fork", &TypedDecoder::fork, nb::arg("source"), nb::arg("target"), nb::arg("stream"))
      .def("reset", &TypedDecoder::reset, nb::arg("sequence"), nb::arg("stream"))
      .def("reset_all", &TypedDecoder::reset_all, nb::arg("stream"))
      .def("tokens", &TypedDecoder::tokens, nb::arg("stream"))
      .def("counts", &TypedDecoder::counts, nb::arg("stream"));
}
