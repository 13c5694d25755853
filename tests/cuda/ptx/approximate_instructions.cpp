// SPDX-License-Identifier: MIT
//
// Instructions whose results a GPU only approximates. Here they are rounded once, from double; if asked for, they are
// then off by up to 2 units in the last place, as PTX allows for most of them.
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/lanewise.hpp"
#include "cuda/ptx/rounding.hpp"

namespace nprf::ptx {

namespace approximations {

// off by -1, 0, 1 or 2 units, the same for the same operand
float perturbed(float y, float operand) {
  if (!std::isfinite(y) || y == 0) return y;
  const std::uint32_t hash = std::bit_cast<std::uint32_t>(operand) * 2654435761u;
  const int units = static_cast<int>(hash >> 30) - 1;
  for (int k = 0; k < std::abs(units); ++k)
    y = std::nextafter(y, std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(units)));
  return y;
}

template <class Operation>
void approximate(Warp& warp, const Instruction& x, Lanes lanes) {
  const bool perturbs = warp.options().perturbs;
  for_lanes(lanes, [&](int lane) {
    float a = warp.get<float>(x.operands[1], lane);
    if (x.flushes) a = flushed(a);
    float y = static_cast<float>(Operation()(static_cast<double>(a)));
    if (perturbs) y = perturbed(y, a);
    warp.put<float>(x.operands[0], lane, x.flushes ? flushed(y) : y);
  });
}

void approximate_quotient(Warp& warp, const Instruction& x, Lanes lanes) {
  const bool perturbs = warp.options().perturbs;
  for_lanes(lanes, [&](int lane) {
    float a = warp.get<float>(x.operands[1], lane), b = warp.get<float>(x.operands[2], lane);
    if (x.flushes) a = flushed(a), b = flushed(b);
    float y = a / b;
    if (perturbs) y = perturbed(y, a);
    warp.put<float>(x.operands[0], lane, x.flushes ? flushed(y) : y);
  });
}

// of double only the upper word of the result is computed, with 20 bits
template <class Operation>
void approximate_double(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const double y = Operation()(flushed(warp.get<double>(x.operands[1], lane)));
    constexpr std::uint64_t upper = ~std::uint64_t{0} << 32;
    const bool is_number = !std::isnan(y);
    warp.put<double>(x.operands[0], lane,
                     is_number ? flushed(std::bit_cast<double>(std::bit_cast<std::uint64_t>(y) & upper)) : y);
  });
}

struct Exp2 {
  double operator()(double a) const { return std::exp2(a); }
};
struct Log2 {
  double operator()(double a) const { return std::log2(a); }
};
struct Reciprocal {
  double operator()(double a) const { return 1 / a; }
};
struct SquareRoot {
  double operator()(double a) const { return std::sqrt(a); }
};
struct ReciprocalRoot {
  double operator()(double a) const { return 1 / std::sqrt(a); }
};
struct Sine {
  double operator()(double a) const { return std::sin(a); }
};
struct Cosine {
  double operator()(double a) const { return std::cos(a); }
};
struct HyperbolicTangent {
  double operator()(double a) const { return std::tanh(a); }
};

}  // namespace approximations

Execute select_approximate(Instruction& x, const Opcode& opcode) {
  using namespace approximations;
  const std::string_view base = opcode.base();
  if (x.type == Type::f64 && opcode.has("approx")) {
    if (base == "rcp") return approximate_double<Reciprocal>;
    if (base == "rsqrt") return approximate_double<ReciprocalRoot>;
  }
  if (x.type != Type::f32) return nullptr;
  if (base == "ex2") return approximate<Exp2>;
  if (base == "lg2") return approximate<Log2>;
  if (base == "rcp") return approximate<Reciprocal>;
  if (base == "sqrt") return approximate<SquareRoot>;
  if (base == "rsqrt") return approximate<ReciprocalRoot>;
  if (base == "sin") return approximate<Sine>;
  if (base == "cos") return approximate<Cosine>;
  if (base == "tanh") return approximate<HyperbolicTangent>;
  if (base == "div") return approximate_quotient;
  return nullptr;
}

}  // namespace nprf::ptx
