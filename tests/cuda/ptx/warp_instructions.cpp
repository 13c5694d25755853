// SPDX-License-Identifier: MIT
//
// Instructions in which the lanes of a warp exchange values.
#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/brain_float.hpp"
#include "cuda/ptx/rounding.hpp"
#include "cuda/ptx/warp.hpp"

namespace nprf::ptx {

namespace warp_operations {

enum Shuffle : std::uint8_t { exclusive_or, index, from_below, from_above };
enum Vote : std::uint8_t { all_of, any_of, ballot };

// the lane that a lane reads from, or itself if that is outside of its segment
int source_lane(std::uint8_t mode, int lane, std::uint32_t operand, std::uint32_t clamp, bool& is_inside) {
  const int b = static_cast<int>(operand & 31), segment = static_cast<int>(clamp >> 8 & 31),
            c = static_cast<int>(clamp & 31);
  const int first = lane & segment, last = first | (c & ~segment);
  const int source = mode == exclusive_or ? lane ^ b
                     : mode == index      ? first | (b & ~segment)
                     : mode == from_below ? lane - b
                                          : lane + b;
  is_inside = mode == from_below ? source >= last : source <= last;
  return is_inside ? source : lane;
}

void shuffle(Warp& warp, const Instruction& x, Lanes lanes) {
  const std::size_t first = x.destinations;
  std::array<std::uint32_t, warp_size> values{};
  for (int lane = 0; lane < warp_size; ++lane)
    values[static_cast<std::size_t>(lane)] = warp.get<std::uint32_t>(x.operands[first], lane);
  for_lanes(lanes, [&](int lane) {
    bool is_inside = false;
    const int source = source_lane(x.mode, lane, warp.get<std::uint32_t>(x.operands[first + 1], lane),
                                   warp.get<std::uint32_t>(x.operands[first + 2], lane), is_inside);
    if ((lanes & lane_bit(source)) == 0)
      warp.report(x, "a shuffle reads from a lane that takes no part: lane " + std::to_string(source));
    warp.put<std::uint32_t>(x.operands[0], lane, values[static_cast<std::size_t>(source)]);
    if (first == 2) warp.put<std::uint32_t>(x.operands[1], lane, is_inside);
  });
}

void vote(Warp& warp, const Instruction& x, Lanes lanes) {
  Lanes agreeing = 0;
  for_lanes(lanes, [&](int lane) {
    if ((warp.get<std::uint32_t>(x.operands[1], lane) != 0) != x.predicate_is_negated) agreeing |= lane_bit(lane);
  });
  const std::uint32_t result = x.mode == ballot ? agreeing : x.mode == any_of ? agreeing != 0 : agreeing == lanes;
  for_lanes(lanes, [&](int lane) { warp.put<std::uint32_t>(x.operands[0], lane, result); });
}

// The sum of c and 16 products, as Hopper's tensor cores compute it (measured by others; PTX leaves it open): all terms
// are cut to 25 bits below the largest, added exactly, and the sum is cut to a float.
float cut_sum(float c, const std::array<double, 16>& products) {
  double largest = std::fabs(static_cast<double>(c));
  bool is_finite = std::isfinite(c);
  for (const double p : products) {
    largest = std::max(largest, std::fabs(p));
    is_finite = is_finite && std::isfinite(p);
  }
  double sum = static_cast<double>(c);
  if (!is_finite || largest == 0) {
    for (const double p : products) sum += p;
    return static_cast<float>(sum);
  }
  const int exponent = std::ilogb(largest) - 24;
  const double unit = std::ldexp(1.0, exponent), inverse = std::ldexp(1.0, -exponent);
  sum = std::trunc(sum * inverse);
  for (const double p : products) sum += std::trunc(p * inverse);
  sum *= unit;
  const auto nearest = static_cast<float>(sum);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafter(nearest, 0.0f) : nearest;
}

// D = A B + C for A (16,16) and B (16,8) of bfloat16. Lane 4 g + t has of A the rows g and g + 8, of B the column g.
void multiply_matrices(Warp& warp, const Instruction& x, Lanes) {
  std::array<std::array<double, 16>, 16> A;  // (row,k)
  std::array<std::array<double, 16>, 8> B;   // (column,k)
  const auto halves = [&](std::size_t operand, int lane, double& lower, double& upper) {
    const auto number = [](std::uint32_t bits) {
      return static_cast<double>(static_cast<float>(BrainFloat::of_bits(static_cast<std::uint16_t>(bits))));
    };
    const auto word = warp.get<std::uint32_t>(x.operands[operand], lane);
    lower = number(word & 0xffff);
    upper = number(word >> 16);
  };
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto g = static_cast<std::size_t>(lane) / 4, t = static_cast<std::size_t>(lane) % 4;
    for (std::size_t e = 0; e < 4; ++e) {
      auto& row = A[g + 8 * (e % 2)];
      const std::size_t k = 2 * t + 8 * (e / 2);
      halves(4 + e, lane, row[k], row[k + 1]);
    }
    for (std::size_t e = 0; e < 2; ++e) halves(8 + e, lane, B[g][2 * t + 8 * e], B[g][2 * t + 8 * e + 1]);
  }
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto g = static_cast<std::size_t>(lane) / 4, t = static_cast<std::size_t>(lane) % 4;
    for (std::size_t e = 0; e < 4; ++e) {
      const auto &a = A[g + 8 * (e / 2)], &b = B[2 * t + e % 2];
      std::array<double, 16> products;
      for (std::size_t k = 0; k < 16; ++k) products[k] = a[k] * b[k];
      warp.put<float>(x.operands[e], lane, cut_sum(warp.get<float>(x.operands[10 + e], lane), products));
    }
  }
}

// matrices (8,8) of 16-bit words; lane 8 k + i has the address of row i of matrix k
void load_matrices(Warp& warp, const Instruction& x, Lanes lanes) {
  constexpr std::size_t row_bytes = 16;
  std::array<std::uint64_t, warp_size> addresses{};
  std::array<std::array<std::uint16_t, 8>, warp_size> rows;
  const Operand base = x.operands[x.destinations];
  const int addressed = 8 * x.vector;
  for (int lane = 0; lane < addressed; ++lane) {
    const std::uint64_t address = addresses[static_cast<std::size_t>(lane)] = warp.address(x, base, lane);
    std::memcpy(&rows[static_cast<std::size_t>(lane)], warp.memory(x, address, row_bytes, lane, Warp::Kind::read),
                row_bytes);
  }
  for_lanes(lanes, [&](int lane) {
    const auto major = static_cast<std::size_t>(lane) / 4, minor = static_cast<std::size_t>(lane) % 4 * 2;
    for (std::size_t k = 0; k < x.vector; ++k) {
      const auto entry = [&](std::size_t e) {
        return std::uint32_t{x.mode != 0 ? rows[8 * k + minor + e][major] : rows[8 * k + major][minor + e]};
      };
      warp.put<std::uint32_t>(x.operands[k], lane, entry(0) | entry(1) << 16);
    }
  });
  warp.count(x, addresses, addressed == warp_size ? all_lanes : lane_bit(addressed) - 1, row_bytes);
}

}  // namespace warp_operations

Execute select_warp_wide(Instruction& x, const Opcode& opcode) {
  using namespace warp_operations;
  const std::string_view base = opcode.base();
  if (base == "shfl") {
    x.mode = opcode.has("bfly") ? exclusive_or : opcode.has("idx") ? index : opcode.has("up") ? from_below : from_above;
    return shuffle;
  }
  if (base == "vote") {
    x.mode = opcode.has("ballot") ? ballot : opcode.has("any") ? any_of : all_of;
    return opcode.has("uni") ? nullptr : vote;
  }
  if (opcode.all == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") return multiply_matrices;
  if (base == "ldmatrix") {
    x.mode = opcode.has("trans") ? 1 : 0;
    return opcode.has("m8n8") && opcode.has("b16") ? load_matrices : nullptr;
  }
  return nullptr;
}

}  // namespace nprf::ptx
