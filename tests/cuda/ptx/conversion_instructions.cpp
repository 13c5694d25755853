// SPDX-License-Identifier: MIT
//
// Conversions between types of numbers.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/brain_float.hpp"
#include "cuda/ptx/lanewise.hpp"
#include "cuda/ptx/rounding.hpp"

namespace nprf::ptx {

namespace conversions {

using Half = _Float16;

enum Integral : std::uint8_t { any, to_nearest, to_zero, down, up };  // the mode of a conversion to integral values

template <class T>
constexpr bool has_fraction = !std::is_integral_v<T>;

double integral(double x, std::uint8_t mode) {
  switch (mode) {
    case to_nearest: return std::nearbyint(x);
    case to_zero: return std::trunc(x);
    case down: return std::floor(x);
    case up: return std::ceil(x);
    default: return x;
  }
}

template <class T>
double to_double(T x) {
  if constexpr (std::is_same_v<T, BrainFloat>)
    return static_cast<double>(static_cast<float>(x));
  else
    return static_cast<double>(x);
}

// clamped to the range of the integers; NaN is 0
template <class To>
To to_integer(double x, std::uint8_t mode) {
  if (std::isnan(x)) return 0;
  x = integral(x, mode == any ? std::uint8_t{to_zero} : mode);
  constexpr To least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
  if (x <= static_cast<double>(least)) return least;
  if (x >= static_cast<double>(most)) return most;
  return static_cast<To>(x);
}

template <class To>
To to_float(double x) {
  if constexpr (std::is_same_v<To, BrainFloat>)
    return BrainFloat(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

template <class To, class From>
To converted(From a, const Instruction& x) {
  if constexpr (has_fraction<From> && !has_fraction<To>) {
    return to_integer<To>(to_double(a), x.mode);
  } else if constexpr (has_fraction<From>) {
    double y = integral(to_double(a), x.mode);
    if (x.saturates) y = y >= 1 ? 1 : y > 0 ? y : 0;
    if (x.flushes) y = std::fabs(y) < 0x1p-126 ? std::copysign(0.0, y) : y;
    return to_float<To>(y);
  } else {
    return static_cast<To>(a);
  }
}

template <class To, class From>
void convert(Warp& warp, const Instruction& x, Lanes lanes) {
  const HostRounding rounding(x.rounding);
  for_lanes(lanes, [&](int lane) {
    From a;
    if constexpr (std::is_integral_v<From>)
      a = static_cast<From>(warp.get_wide(x.operands[1], lane));
    else
      a = warp.get<From>(x.operands[1], lane);
    warp.put_extended<To>(x.operands[0], lane, converted<To, From>(a, x));
  });
}

// two floats to two numbers of 16 bits, the first to the upper half
template <class To>
void convert_pair(Warp& warp, const Instruction& x, Lanes lanes) {
  static_assert(sizeof(To) == sizeof(std::uint16_t));
  for_lanes(lanes, [&](int lane) {
    const auto bits = [&](std::size_t k) {
      const auto rounded = static_cast<To>(warp.get<float>(x.operands[k], lane));
      return std::uint32_t{std::bit_cast<std::uint16_t>(rounded)};
    };
    warp.put<std::uint32_t>(x.operands[0], lane, bits(1) << 16 | bits(2));
  });
}

template <class To>
Execute converting(Type from) {
  switch (from) {
    case Type::u8: return convert<To, std::uint8_t>;
    case Type::s8: return convert<To, std::int8_t>;
    case Type::u16: return convert<To, std::uint16_t>;
    case Type::s16: return convert<To, std::int16_t>;
    case Type::u32: return convert<To, std::uint32_t>;
    case Type::s32: return convert<To, std::int32_t>;
    case Type::u64: return convert<To, std::uint64_t>;
    case Type::s64: return convert<To, std::int64_t>;
    case Type::f16: return convert<To, Half>;
    case Type::bf16: return convert<To, BrainFloat>;
    case Type::f32: return convert<To, float>;
    case Type::f64: return convert<To, double>;
    default: return nullptr;
  }
}

}  // namespace conversions

Execute select_conversion(Instruction& x, const Opcode& opcode) {
  using namespace conversions;
  if (opcode.base() != "cvt") return nullptr;
  if (x.type == Type::f16x2 || x.type == Type::bf16x2) {
    if (x.source_type != Type::f32 || x.saturates) return nullptr;
    return x.type == Type::f16x2 ? convert_pair<Half> : convert_pair<BrainFloat>;
  }
  x.mode = opcode.has("rni")   ? to_nearest
           : opcode.has("rzi") ? to_zero
           : opcode.has("rmi") ? down
           : opcode.has("rpi") ? up
                               : any;
  switch (x.type) {
    case Type::u8: return converting<std::uint8_t>(x.source_type);
    case Type::s8: return converting<std::int8_t>(x.source_type);
    case Type::u16: return converting<std::uint16_t>(x.source_type);
    case Type::s16: return converting<std::int16_t>(x.source_type);
    case Type::u32: return converting<std::uint32_t>(x.source_type);
    case Type::s32: return converting<std::int32_t>(x.source_type);
    case Type::u64: return converting<std::uint64_t>(x.source_type);
    case Type::s64: return converting<std::int64_t>(x.source_type);
    case Type::f16: return converting<Half>(x.source_type);
    case Type::bf16: return x.source_type == Type::f32 ? convert<BrainFloat, float> : nullptr;
    case Type::f32: return converting<float>(x.source_type);
    case Type::f64: return converting<double>(x.source_type);
    default: return nullptr;
  }
}

}  // namespace nprf::ptx
