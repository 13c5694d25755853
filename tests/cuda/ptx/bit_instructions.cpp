// SPDX-License-Identifier: MIT
//
// Logic, shifts and fields of bits.
#include <algorithm>
#include <bit>
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
struct ReverseBits {
  std::uint32_t operator()(std::uint32_t a) const {
    std::uint32_t reversed = 0;
    for (int k = 0; k < 32; ++k) reversed |= (a >> k & 1) << (31 - k);
    return reversed;
  }
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
template <bool left, bool wraps>
struct FunnelShift {
  std::uint32_t operator()(std::uint32_t low, std::uint32_t high, std::uint32_t shift) const {
    const std::uint64_t both = std::uint64_t{high} << 32 | low;
    shift = wraps ? shift & 31 : std::min(shift, 32u);
    return static_cast<std::uint32_t>(left ? both << shift >> 32 : both >> shift);
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

template <class T>
T field_mask(std::uint32_t length) {
  return length >= 8 * sizeof(T) ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
}
template <class T>
void insert_field(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const T field = warp.get<T>(x.operands[1], lane), into = warp.get<T>(x.operands[2], lane);
    const std::uint32_t at = warp.get<std::uint32_t>(x.operands[3], lane) & 255,
                        length = warp.get<std::uint32_t>(x.operands[4], lane) & 255;
    const bool is_outside = at >= 8 * sizeof(T);
    const T mask = is_outside ? T{0} : static_cast<T>(field_mask<T>(length) << at);
    warp.put<T>(x.operands[0], lane, static_cast<T>((into & ~mask) | (is_outside ? T{0} : (field << at & mask))));
  });
}
void extract_field(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t a = warp.get<std::uint32_t>(x.operands[1], lane);
    const std::uint32_t at = warp.get<std::uint32_t>(x.operands[2], lane) & 255,
                        length = warp.get<std::uint32_t>(x.operands[3], lane) & 255;
    warp.put<std::uint32_t>(x.operands[0], lane,
                            at > 31 ? 0 : static_cast<std::uint32_t>(a >> at) & field_mask<std::uint32_t>(length));
  });
}

template <class T, bool counts_ones>
void count_bits(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const T a = warp.get<T>(x.operands[1], lane);
    warp.put<int>(x.operands[0], lane, counts_ones ? std::popcount(a) : std::countl_zero(a));
  });
}

// any function of three bits: the last operand is its table
void logic3(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const auto get = [&](std::size_t k) { return warp.get<std::uint32_t>(x.operands[k], lane); };
    const std::uint32_t a = get(1), b = get(2), c = get(3), table = get(4);
    std::uint32_t result = 0;
    for (std::uint32_t k = 0; k < 8; ++k)
      if (table >> k & 1) result |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    warp.put<std::uint32_t>(x.operands[0], lane, result);
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

Execute select_funnel_shift(const Opcode& opcode) {
  if (opcode.has("l"))
    return opcode.has("wrap") ? lanewise<FunnelShift<true, true>, 3, std::uint32_t>
                              : lanewise<FunnelShift<true, false>, 3, std::uint32_t>;
  return opcode.has("wrap") ? lanewise<FunnelShift<false, true>, 3, std::uint32_t>
                            : lanewise<FunnelShift<false, false>, 3, std::uint32_t>;
}

}  // namespace bits

Execute select_bits(Instruction& x, const Opcode& opcode) {
  using namespace bits;
  const std::string_view base = opcode.base();
  const bool is_long = bytes_of(x.type) == 8;
  if (base == "and") return of_bits<And, 2>(x.type);
  if (base == "or") return of_bits<Or, 2>(x.type);
  if (base == "xor") return of_bits<Xor, 2>(x.type);
  if (base == "not")
    return x.type == Type::predicate ? lanewise<NotPredicate, 1, std::uint32_t> : of_bits<Not, 1>(x.type);
  if (base == "shl" || base == "shr") return select_shift(x.type, base == "shl");
  if (base == "shf") return select_funnel_shift(opcode);
  if (base == "bfi") return is_long ? insert_field<std::uint64_t> : insert_field<std::uint32_t>;
  if (base == "bfe" && x.type == Type::u32) return extract_field;
  if (base == "popc") return is_long ? count_bits<std::uint64_t, true> : count_bits<std::uint32_t, true>;
  if (base == "clz") return is_long ? count_bits<std::uint64_t, false> : count_bits<std::uint32_t, false>;
  if (base == "brev" && !is_long) return lanewise<ReverseBits, 1, std::uint32_t>;
  if (base == "prmt" && opcode.parts.size() == 2) return lanewise<Permute, 3, std::uint32_t>;
  if (base == "lop3") return logic3;
  return nullptr;
}

}  // namespace nprf::ptx
