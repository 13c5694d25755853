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
template <class Operation, int arity, class T>
void rounded(Warp& warp, const Instruction& x, Lanes lanes) {
  const HostRounding rounding(x.rounding);
  lanewise<Operation, arity, T>(warp, x, lanes);
}

template <class Operation, int arity>
Execute of_floats(const Instruction& x) {
  return x.type == Type::f64 ? rounded<Operation, arity, double> : rounded<Operation, arity, float>;
}

}  // namespace floats

Execute select_floating(Instruction& x, const Opcode& opcode) {
  using namespace floats;
  const std::string_view base = opcode.base();
  if ((x.type != Type::f32 && x.type != Type::f64) || opcode.has("approx") || opcode.has("full") || opcode.has("NaN") ||
      x.flushes || x.saturates)
    return nullptr;
  if (base == "add") return of_floats<std::plus<>, 2>(x);
  if (base == "sub") return of_floats<std::minus<>, 2>(x);
  if (base == "mul") return of_floats<std::multiplies<>, 2>(x);
  if (base == "fma") return of_floats<Fma, 3>(x);
  if (base == "div") return of_floats<std::divides<>, 2>(x);
  if (base == "rcp") return of_floats<Reciprocal, 1>(x);
  if (base == "sqrt") return of_floats<SquareRoot, 1>(x);
  if (base == "max") return of_floats<Max, 2>(x);
  if (base == "min") return of_floats<Min, 2>(x);
  if (base == "neg") return of_floats<std::negate<>, 1>(x);
  if (base == "abs") return of_floats<Magnitude, 1>(x);
  return nullptr;
}

}  // namespace nprf::ptx
