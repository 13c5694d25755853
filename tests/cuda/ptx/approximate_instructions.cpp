// SPDX-License-Identifier: MIT
//
// Instructions whose results a GPU only approximates. Here they are rounded once, from double; if asked for, they are
// then off by up to 2 units in the last place, as PTX allows for most of them.
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/rounding.hpp"
#include "cuda/ptx/warp.hpp"

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

void exp2(Warp& warp, const Instruction& x, Lanes lanes) {
  const bool perturbs = warp.options().perturbs;
  for_lanes(lanes, [&](int lane) {
    float a = warp.get<float>(x.operands[1], lane);
    if (x.flushes) a = flushed(a);
    float y = static_cast<float>(std::exp2(static_cast<double>(a)));
    if (perturbs) y = perturbed(y, a);
    warp.put<float>(x.operands[0], lane, x.flushes ? flushed(y) : y);
  });
}

// of double only the upper word of the result is computed, with 20 bits
void reciprocal(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const double y = 1 / flushed(warp.get<double>(x.operands[1], lane));
    constexpr std::uint64_t upper = ~std::uint64_t{0} << 32;
    const bool is_number = !std::isnan(y);
    warp.put<double>(x.operands[0], lane,
                     is_number ? flushed(std::bit_cast<double>(std::bit_cast<std::uint64_t>(y) & upper)) : y);
  });
}

}  // namespace approximations

Execute select_approximate(Instruction& x, const Opcode& opcode) {
  using namespace approximations;
  if (!opcode.has("approx")) return nullptr;
  if (opcode.base() == "ex2" && x.type == Type::f32) return exp2;
  if (opcode.base() == "rcp" && x.type == Type::f64) return reciprocal;
  return nullptr;
}

}  // namespace nprf::ptx
