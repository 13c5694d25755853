// SPDX-License-Identifier: MIT
//
// Arithmetic of floats that IEEE 754 defines.
#include <cmath>
#include <functional>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/lanewise.hpp"
#include "cuda/ptx/rounding.hpp"

namespace nprf::ptx {

namespace floats {

struct Fma {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return 1 / a;
  }
};
struct SquareRoot {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
// NaN only if both are; -0 is below 0
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    if (a == b) return std::signbit(a) ? b : a;
    return std::fmax(a, b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    if (a == b) return std::signbit(a) ? a : b;
    return std::fmin(a, b);
  }
};
struct Magnitude {
  template <class T>
  T operator()(T a) const {
    return std::fabs(a);
  }
};
struct CopySign {
  template <class T>
  T operator()(T sign, T magnitude) const {
    return std::copysign(magnitude, sign);
  }
};

template <class Operation>
struct Flushed {
  template <class... T>
  auto operator()(T... x) const {
    return flushed(Operation()(flushed(x)...));
  }
};
template <class Operation>
struct Saturated {
  template <class... T>
  auto operator()(T... x) const {
    const auto y = Operation()(x...);
    return y >= 1 ? decltype(y)(1) : y > 0 ? y : decltype(y)(0);
  }
};

template <class Operation, int arity, class T>
void rounded(Warp& warp, const Instruction& x, Lanes lanes) {
  const HostRounding rounding(x.rounding);
  lanewise<Operation, arity, T>(warp, x, lanes);
}

template <class Operation, int arity>
Execute of_floats(const Instruction& x) {
  if (x.type == Type::f64) return rounded<Operation, arity, double>;
  if (x.type != Type::f32) return nullptr;
  if (x.flushes && x.saturates) return rounded<Saturated<Flushed<Operation>>, arity, float>;
  if (x.flushes) return rounded<Flushed<Operation>, arity, float>;
  if (x.saturates) return rounded<Saturated<Operation>, arity, float>;
  return rounded<Operation, arity, float>;
}

template <class T>
void test_property(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const T a = warp.get<T>(x.operands[1], lane);
    const bool result = x.mode == 0   ? std::isinf(a)
                        : x.mode == 1 ? std::isfinite(a)
                        : x.mode == 2 ? !std::isnan(a)
                                      : std::isnan(a);
    warp.put<std::uint32_t>(x.operands[0], lane, result);
  });
}

}  // namespace floats

Execute select_floating(Instruction& x, const Opcode& opcode) {
  using namespace floats;
  const std::string_view base = opcode.base();
  if ((x.type != Type::f32 && x.type != Type::f64) || opcode.has("approx") || opcode.has("full")) return nullptr;
  if (base == "add") return of_floats<std::plus<>, 2>(x);
  if (base == "sub") return of_floats<std::minus<>, 2>(x);
  if (base == "mul") return of_floats<std::multiplies<>, 2>(x);
  if (base == "fma" || base == "mad") return of_floats<Fma, 3>(x);
  if (base == "div") return of_floats<std::divides<>, 2>(x);
  if (base == "rcp") return of_floats<Reciprocal, 1>(x);
  if (base == "sqrt") return of_floats<SquareRoot, 1>(x);
  if (base == "max" && !opcode.has("NaN")) return of_floats<Max, 2>(x);
  if (base == "min" && !opcode.has("NaN")) return of_floats<Min, 2>(x);
  if (base == "neg") return of_floats<std::negate<>, 1>(x);
  if (base == "abs") return of_floats<Magnitude, 1>(x);
  if (base == "copysign") return of_floats<CopySign, 2>(x);
  if (base == "testp") {
    x.mode = opcode.has("infinite") ? 0 : opcode.has("finite") ? 1 : opcode.has("number") ? 2 : 3;
    return x.type == Type::f64 ? test_property<double> : test_property<float>;
  }
  return nullptr;
}

}  // namespace nprf::ptx
