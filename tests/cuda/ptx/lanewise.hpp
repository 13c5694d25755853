// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "cuda/ptx/warp.hpp"

/// Operations of each lane by itself: function objects of one type of operands and results.
namespace nprf::ptx {

template <class Operation, int arity, class T>
void lanewise(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const auto get = [&](std::size_t k) { return warp.get<T>(x.operands[k], lane); };
    if constexpr (arity == 1)
      warp.put<T>(x.operands[0], lane, Operation()(get(1)));
    else if constexpr (arity == 2)
      warp.put<T>(x.operands[0], lane, Operation()(get(1), get(2)));
    else
      warp.put<T>(x.operands[0], lane, Operation()(get(1), get(2), get(3)));
  });
}

/// For the integers of the instruction's type.
template <class Operation, int arity>
Execute of_integers(Type type) {
  switch (type) {
    case Type::b16:
    case Type::u16: return lanewise<Operation, arity, std::uint16_t>;
    case Type::s16: return lanewise<Operation, arity, std::int16_t>;
    case Type::b32:
    case Type::u32: return lanewise<Operation, arity, std::uint32_t>;
    case Type::s32: return lanewise<Operation, arity, std::int32_t>;
    case Type::b64:
    case Type::u64: return lanewise<Operation, arity, std::uint64_t>;
    case Type::s64: return lanewise<Operation, arity, std::int64_t>;
    default: return nullptr;
  }
}

/// For unsigned numbers of the same size: what operations compute whose result does not depend on the sign.
template <class Operation, int arity>
Execute of_bits(Type type) {
  if (type == Type::f32 || type == Type::f64 || type == Type::f16 || type == Type::bf16) return nullptr;
  switch (bytes_of(type)) {
    case 2: return lanewise<Operation, arity, std::uint16_t>;
    case 4: return lanewise<Operation, arity, std::uint32_t>;
    case 8: return lanewise<Operation, arity, std::uint64_t>;
    default: return nullptr;
  }
}

}  // namespace nprf::ptx
