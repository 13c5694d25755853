// SPDX-License-Identifier: MIT
//
// Logic, shifts and fields of bits.
#include <algorithm>
#include <limits>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/lanewise.hpp"

namespace nprf::ptx {

namespace bits {

struct And {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct NotPredicate {
  std::uint32_t operator()(std::uint32_t a) const { return a == 0; }
};
// bytes of two words; the third operand has a digit for each byte of the result
struct Permute {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, std::uint32_t choice) const {
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    std::uint32_t result = 0;
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t digit = choice >> 4 * k & 15;
      std::uint32_t byte = static_cast<std::uint32_t>(both >> 8 * (digit & 7)) & 255;
      if (digit & 8) byte = byte & 128 ? 255 : 0;
      result |= byte << 8 * k;
    }
    return result;
  }
};

// shifts by as many bits as the type has, or more, leave zeros, or copies of the sign
template <class T>
void shift_left(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint32_t shift = warp.get<std::uint32_t>(x.operands[2], lane);
    const T a = warp.get<T>(x.operands[1], lane);
    warp.put<T>(x.operands[0], lane, shift < 8 * sizeof(T) ? static_cast<T>(a << shift) : T{0});
  });
}
template <class T>
void shift_right(Warp& warp, const Instruction& x, Lanes lanes) {
  constexpr std::uint32_t last = 8 * sizeof(T) - 1;
  for_lanes(lanes, [&](int lane) {
    const std::uint32_t shift = warp.get<std::uint32_t>(x.operands[2], lane);
    const T a = warp.get<T>(x.operands[1], lane);
    const bool is_zero = std::numeric_limits<T>::min() == 0 && shift > last;
    warp.put<T>(x.operands[0], lane, is_zero ? T{0} : static_cast<T>(a >> std::min(shift, last)));
  });
}

// the lowest bits of a field, to a place in a number
template <class T>
void insert_field(Warp& warp, const Instruction& x, Lanes lanes) {
  constexpr std::uint32_t bits = 8 * sizeof(T);
  for_lanes(lanes, [&](int lane) {
    const T field = warp.get<T>(x.operands[1], lane), into = warp.get<T>(x.operands[2], lane);
    const std::uint32_t at = warp.get<std::uint32_t>(x.operands[3], lane) & 255,
                        length = warp.get<std::uint32_t>(x.operands[4], lane) & 255;
    const T ones = length < bits ? (T{1} << length) - 1 : ~T{0}, mask = at < bits ? ones << at : T{0};
    warp.put<T>(x.operands[0], lane, (into & ~mask) | (field << at % bits & mask));
  });
}

Execute select_shift(Type type, bool left) {
  switch (type) {
    case Type::b16:
    case Type::u16: return left ? shift_left<std::uint16_t> : shift_right<std::uint16_t>;
    case Type::s16: return shift_right<std::int16_t>;
    case Type::b32:
    case Type::u32: return left ? shift_left<std::uint32_t> : shift_right<std::uint32_t>;
    case Type::s32: return shift_right<std::int32_t>;
    case Type::b64:
    case Type::u64: return left ? shift_left<std::uint64_t> : shift_right<std::uint64_t>;
    case Type::s64: return shift_right<std::int64_t>;
    default: return nullptr;
  }
}

}  // namespace bits

Execute select_bits(Instruction& x, const Opcode& opcode) {
  using namespace bits;
  const std::string_view base = opcode.base();
  if (base == "and") return of_bits<And, 2>(x.type);
  if (base == "or") return of_bits<Or, 2>(x.type);
  if (base == "xor") return of_bits<Xor, 2>(x.type);
  if (base == "not")
    return x.type == Type::predicate ? lanewise<NotPredicate, 1, std::uint32_t> : of_bits<Not, 1>(x.type);
  if (base == "shl" || base == "shr") return select_shift(x.type, base == "shl");
  if (base == "bfi") return bytes_of(x.type) == 8 ? insert_field<std::uint64_t> : insert_field<std::uint32_t>;
  if (base == "prmt" && opcode.parts.size() == 2) return lanewise<Permute, 3, std::uint32_t>;
  return nullptr;
}

}  // namespace nprf::ptx
