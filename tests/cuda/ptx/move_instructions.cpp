// SPDX-License-Identifier: MIT
//
// Moves, selections, comparisons and conversions of addresses.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/lanewise.hpp"
#include "cuda/ptx/memory.hpp"

namespace nprf::ptx {

namespace moves {

template <class T>
void move(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes,
            [&](int lane) { warp.put<T>(x.operands[0], lane, static_cast<T>(warp.get_wide(x.operands[1], lane))); });
}

// between one register and several, the first of which has its lowest bits
void unpack(Warp& warp, const Instruction& x, Lanes lanes) {
  const std::size_t parts = x.destinations;
  const std::size_t bits = 8 * static_cast<std::size_t>(bytes_of(x.type)) / parts;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t whole = warp.get_wide(x.operands[parts], lane);
    for (std::size_t k = 0; k < parts; ++k)
      warp.put_extended<std::uint32_t>(
          x.operands[k], lane, static_cast<std::uint32_t>(whole >> bits * k & ((std::uint64_t{1} << bits) - 1)));
  });
}
void pack(Warp& warp, const Instruction& x, Lanes lanes) {
  const std::size_t parts = x.count - std::size_t{1};
  const std::size_t bits = 8 * static_cast<std::size_t>(bytes_of(x.type)) / parts;
  for_lanes(lanes, [&](int lane) {
    std::uint64_t whole = 0;
    for (std::size_t k = 0; k < parts; ++k)
      whole |= (warp.get_wide(x.operands[k + 1], lane) & ((std::uint64_t{1} << bits) - 1)) << bits * k;
    if (x.operands[0].width == 8)
      warp.put<std::uint64_t>(x.operands[0], lane, whole);
    else
      warp.put<std::uint32_t>(x.operands[0], lane, static_cast<std::uint32_t>(whole));
  });
}

template <class T>
void select(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const bool first = warp.get<std::uint32_t>(x.operands[3], lane) != 0;
    warp.put<T>(x.operands[0], lane, first ? warp.get<T>(x.operands[1], lane) : warp.get<T>(x.operands[2], lane));
  });
}

// eq to ge are false if an operand is NaN, equ to geu are true
template <class T, Comparison comparison>
bool holds(T a, T b) {
  bool has_nan = false;
  if constexpr (std::is_floating_point_v<T>) has_nan = std::isnan(a) || std::isnan(b);
  switch (comparison) {
    case Comparison::eq: return a == b;
    case Comparison::ne: return a != b && !has_nan;
    case Comparison::lt: return a < b;
    case Comparison::le: return a <= b;
    case Comparison::gt: return a > b;
    case Comparison::ge: return a >= b;
    case Comparison::equ: return a == b || has_nan;
    case Comparison::neu: return a != b || has_nan;
    case Comparison::ltu: return a < b || has_nan;
    case Comparison::leu: return a <= b || has_nan;
    case Comparison::gtu: return a > b || has_nan;
    case Comparison::geu: return a >= b || has_nan;
    case Comparison::num: return !has_nan;
    case Comparison::nan: return has_nan;
  }
}

template <class T, Comparison comparison>
void compare(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) {
    const bool result = holds<T, comparison>(warp.get<T>(x.operands[1], lane), warp.get<T>(x.operands[2], lane));
    warp.put<std::uint32_t>(x.operands[0], lane, result);
  });
}

constexpr std::pair<std::string_view, Comparison> comparisons[] = {
    {"eq", Comparison::eq},   {"ne", Comparison::ne},   {"lt", Comparison::lt},   {"le", Comparison::le},
    {"gt", Comparison::gt},   {"ge", Comparison::ge},   {"equ", Comparison::equ}, {"neu", Comparison::neu},
    {"ltu", Comparison::ltu}, {"leu", Comparison::leu}, {"gtu", Comparison::gtu}, {"geu", Comparison::geu},
    {"num", Comparison::num}, {"nan", Comparison::nan}};

template <class T>
Execute comparing(Comparison comparison) {
  constexpr std::size_t all = static_cast<std::size_t>(Comparison::nan) + 1;
  static constexpr auto table = []<std::size_t... k>(std::index_sequence<k...>) {
    return std::array<Execute, all>{compare<T, static_cast<Comparison>(k)>...};
  }(std::make_index_sequence<all>());
  return table[static_cast<std::size_t>(comparison)];
}

// those with the name of the comparison and the type alone
Execute select_comparison(const Instruction& x, const Opcode& opcode) {
  if (opcode.parts.size() != 3) return nullptr;
  const auto* const found = std::find_if(std::begin(comparisons), std::end(comparisons),
                                         [&](const auto& known) { return known.first == opcode.parts[1]; });
  if (found == std::end(comparisons)) return nullptr;
  const Comparison comparison = found->second;
  switch (x.type) {
    case Type::b16:
    case Type::u16: return comparing<std::uint16_t>(comparison);
    case Type::s16: return comparing<std::int16_t>(comparison);
    case Type::b32:
    case Type::u32: return comparing<std::uint32_t>(comparison);
    case Type::s32: return comparing<std::int32_t>(comparison);
    case Type::b64:
    case Type::u64: return comparing<std::uint64_t>(comparison);
    case Type::s64: return comparing<std::int64_t>(comparison);
    case Type::f32: return comparing<float>(comparison);
    case Type::f64: return comparing<double>(comparison);
    default: return nullptr;
  }
}

// to a generic address, or from one
void convert_address(Warp& warp, const Instruction& x, Lanes lanes) {
  for_lanes(lanes, [&](int lane) { warp.put_extended(x.operands[0], lane, warp.address(x, x.operands[1], lane)); });
}

Execute select_address(Instruction& x, const Opcode& opcode) {
  const Window global{0};
  const Window& window = x.space == Space::shared      ? shared_window
                         : x.space == Space::local     ? local_window
                         : x.space == Space::parameter ? parameter_window
                                                       : global;
  const auto first = static_cast<std::int64_t>(window.first);
  x.offset = opcode.has("to") ? -first : first;
  return convert_address;
}

}  // namespace moves

Execute select_move(Instruction& x, const Opcode& opcode) {
  using namespace moves;
  const std::string_view base = opcode.base();
  if (base == "mov" && x.mode == 1) return unpack;
  if (base == "mov" && x.mode == 2) return pack;
  if (base == "mov") return bytes_of(x.type) == 8 ? move<std::uint64_t> : move<std::uint32_t>;
  if (base == "selp") return bytes_of(x.type) == 8 ? select<std::uint64_t> : select<std::uint32_t>;
  if (base == "setp") return select_comparison(x, opcode);
  if (base == "cvta") return select_address(x, opcode);
  return nullptr;
}

}  // namespace nprf::ptx
