// SPDX-License-Identifier: MIT
//
// nprf._jax: the functions by which XLA calls attention on the CPU. nprf/jax.py registers them.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <random>

#include "plain_call.hpp"
#include "xla/ffi/api/ffi.h"

namespace nprf::python {

namespace {

namespace ffi = xla::ffi;
using In = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;

// What a program has of the process that compiled it: another one has something else at the address of an attention.
const std::int64_t this_process = static_cast<std::int64_t>(std::random_device()()) << 32 | std::random_device()();

// nprf/jax.py gives arrays of these ranks, and of the scalar type of the attention at the address `attention`
PlainShape shape_of(std::int64_t offset, const In& q, const In& k, const In& v, const In& bias) {
  const auto a = q.dimensions(), b = k.dimensions(), p = bias.dimensions();
  return {a[0], a[1], b[1], a[2], b[2], a[3], v.dimensions()[3], p[0], p[1], offset};
}

PlainInputs inputs_of(const In& q, const In& k, const In& v, const In& bias, const In& key_mask) {
  return {q.untyped_data(), k.untyped_data(), v.untyped_data(), bias.untyped_data(),
          key_mask.element_count() > 0 ? static_cast<const bool*>(key_mask.untyped_data()) : nullptr};
}

template <class Call>
ffi::Error guarded(std::int64_t process, std::int64_t attention, Call&& call) {
  if (process != this_process)
    return ffi::Error::InvalidArgument(
        "attention: expected a program that this process compiled, got one of another process, whose feature map is "
        "not here");
  try {
    call(*reinterpret_cast<const PlainAttention*>(attention));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::InvalidArgument(error.what());
  }
}

ffi::Error forward(std::int64_t process, std::int64_t attention, std::int64_t offset, In q, In k, In v, In bias,
                   In key_mask, Out y) {
  return guarded(process, attention, [&](const PlainAttention& a) {
    a.forward(shape_of(offset, q, k, v, bias), inputs_of(q, k, v, bias, key_mask), y->untyped_data());
  });
}

ffi::Error backward(std::int64_t process, std::int64_t attention, std::int64_t offset, In q, In k, In v, In bias,
                    In key_mask, In dy, Out dq, Out dk, Out dv, Out dbias) {
  return guarded(process, attention, [&](const PlainAttention& a) {
    a.backward(shape_of(offset, q, k, v, bias), inputs_of(q, k, v, bias, key_mask), dy.untyped_data(),
               {dq->untyped_data(), dk->untyped_data(), dv->untyped_data(), dbias->untyped_data()});
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(nprf_attention, forward,
                              ffi::Ffi::Bind()
                                  .Attr<std::int64_t>("process")
                                  .Attr<std::int64_t>("attention")
                                  .Attr<std::int64_t>("offset")
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(nprf_attention_backward, backward,
                              ffi::Ffi::Bind()
                                  .Attr<std::int64_t>("process")
                                  .Attr<std::int64_t>("attention")
                                  .Attr<std::int64_t>("offset")
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Arg<In>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());

}  // namespace nprf::python

NB_MODULE(_jax, m) {
  m.attr("process") = nprf::python::this_process;
  m.attr("forward") = nanobind::capsule(reinterpret_cast<void*>(nprf::python::nprf_attention));
  m.attr("backward") = nanobind::capsule(reinterpret_cast<void*>(nprf::python::nprf_attention_backward));
}
