// SPDX-License-Identifier: MIT
//
// Arithmetic of integers. Sums and products are of unsigned numbers, whose overflow is defined.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/lanewise.hpp"

namespace nprf::ptx {

namespace integers {

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a - b);
  }
};
struct Multiply {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(std::uint64_t{a} * b);
  }
};
struct MultiplyAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    return static_cast<T>(std::uint64_t{a} * b + c);
  }
};
// the upper half of the product
struct MultiplyHigh {
  template <class T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<T>(Wide{a} * Wide{b} >> 8 * sizeof(T));
  }
};
struct Negate {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~static_cast<std::make_unsigned_t<T>>(a) + 1u);
  }
};
// PTX leaves the quotient by zero open
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return std::numeric_limits<T>::max();
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Negate()(a);
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct Magnitude {
  template <class T>
  T operator()(T a) const {
    return a < 0 ? Negate()(a) : a;
  }
};

template <class Narrow, class Wide>
void wide_product(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const Wide a = warp.get<Narrow>(x.operands[1], lane), b = warp.get<Narrow>(x.operands[2], lane);
    warp.put<Wide>(x.operands[0], lane,
                   static_cast<Wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b)));
  });
}

Execute select_wide_product(Type type) {
  switch (type) {
    case Type::u16: return wide_product<std::uint16_t, std::uint32_t>;
    case Type::s16: return wide_product<std::int16_t, std::int32_t>;
    case Type::u32: return wide_product<std::uint32_t, std::uint64_t>;
    case Type::s32: return wide_product<std::int32_t, std::int64_t>;
    default: return nullptr;
  }
}

}  // namespace integers

Execute select_integer(Instruction& x, const Opcode& opcode) {
  using namespace integers;
  const std::string_view base = opcode.base();
  const Type type = x.type;
  if (opcode.has("cc") || base == "addc" || base == "subc" || base == "madc") return nullptr;
  if (opcode.has("wide")) return base == "mul" ? select_wide_product(type) : nullptr;
  if (opcode.has("hi"))
    return base != "mul"       ? nullptr
           : type == Type::s32 ? lanewise<MultiplyHigh, 2, std::int32_t>
           : type == Type::u32 ? lanewise<MultiplyHigh, 2, std::uint32_t>
                               : nullptr;
  if (base == "add") return of_bits<Add, 2>(type);
  if (base == "sub") return of_bits<Subtract, 2>(type);
  if (base == "mul") return of_bits<Multiply, 2>(type);
  if (base == "mad") return of_bits<MultiplyAdd, 3>(type);
  if (base == "div") return of_integers<Divide, 2>(type);
  if (base == "rem") return of_integers<Remainder, 2>(type);
  if (base == "min") return of_integers<Min, 2>(type);
  if (base == "max") return of_integers<Max, 2>(type);
  if (base == "neg") return of_integers<Negate, 1>(type);
  if (base == "abs") return of_integers<Magnitude, 1>(type);
  return nullptr;
}

}  // namespace nprf::ptx
