// SPDX-License-Identifier: MIT
//
// Instructions in which the lanes of a warp exchange values.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/brain_float.hpp"
#include "cuda/ptx/rounding.hpp"
#include "cuda/ptx/warp.hpp"

namespace nprf::ptx {

namespace warp_operations {

enum Shuffle : std::uint8_t { exclusive_or, index };

// the lane that a lane reads from, or itself if that is outside of its segment
int source_lane(std::uint8_t mode, int lane, std::uint32_t operand, std::uint32_t clamp, bool& is_inside) {
  const int b = static_cast<int>(operand & 31), segment = static_cast<int>(clamp >> 8 & 31),
            c = static_cast<int>(clamp & 31);
  const int first = lane & segment, last = first | (c & ~segment);
  const int source = mode == exclusive_or ? lane ^ b : first | (b & ~segment);
  is_inside = source <= last;
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

void ballot(Warp& warp, const Instruction& x, Lanes lanes) {
  Lanes agreeing = 0;
  for_lanes(lanes, [&](int lane) {
    if ((warp.get<std::uint32_t>(x.operands[1], lane) != 0) != x.predicate_is_negated) agreeing |= lane_bit(lane);
  });
  for_lanes(lanes, [&](int lane) { warp.put<std::uint32_t>(x.operands[0], lane, agreeing); });
}

// The sum of c and of products, as Hopper's tensor cores compute it (measured by others; PTX leaves it open): all terms
// are cut to 25 bits below the largest, added exactly, and the sum is cut to a float.
template <std::size_t depth>
float cut_sum(float c, const std::array<double, depth>& products) {
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

double number_of(BrainFloat, std::uint16_t bits) {
  return static_cast<double>(static_cast<float>(BrainFloat::of_bits(bits)));
}
double number_of(_Float16, std::uint16_t bits) { return static_cast<double>(std::bit_cast<_Float16>(bits)); }

// the two factors in a register, the lower one first
template <class Number>
std::array<double, 2> factors(const Warp& warp, const Operand& operand, int lane) {
  const auto word = warp.get<std::uint32_t>(operand, lane);
  return {number_of(Number{}, static_cast<std::uint16_t>(word & 0xffff)),
          number_of(Number{}, static_cast<std::uint16_t>(word >> 16))};
}

// D = A B + C for A (16,depth) and B (depth,8). Lane 4 g + t has of A the rows g and g + 8, of B the column g.
template <class Number, std::size_t depth>
void multiply_matrices(Warp& warp, const Instruction& x, Lanes) {
  constexpr std::size_t left = 4, right = left + depth / 4, sums = right + depth / 8;
  std::array<std::array<double, depth>, 16> A;  // (row,k)
  std::array<std::array<double, depth>, 8> B;   // (column,k)
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto g = static_cast<std::size_t>(lane) / 4, t = static_cast<std::size_t>(lane) % 4;
    const auto put = [&](std::array<double, depth>& line, std::size_t k, std::size_t operand) {
      const auto two = factors<Number>(warp, x.operands[operand], lane);
      line[k] = two[0];
      line[k + 1] = two[1];
    };
    for (std::size_t e = 0; e < depth / 4; ++e) put(A[g + 8 * (e % 2)], 2 * t + 8 * (e / 2), left + e);
    for (std::size_t e = 0; e < depth / 8; ++e) put(B[g], 2 * t + 8 * e, right + e);
  }
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto g = static_cast<std::size_t>(lane) / 4, t = static_cast<std::size_t>(lane) % 4;
    for (std::size_t e = 0; e < 4; ++e) {
      const auto &a = A[g + 8 * (e / 2)], &b = B[2 * t + e % 2];
      std::array<double, depth> products;
      for (std::size_t k = 0; k < depth; ++k) products[k] = a[k] * b[k];
      warp.put<float>(x.operands[e], lane, cut_sum(warp.get<float>(x.operands[sums + e], lane), products));
    }
  }
}

enum QuadPairLayout : std::uint8_t { a_by_rows = 1, b_by_columns = 2 };

// D = A B + C for A (8,4) and B (4,8) of half, for each pair of quads 4 q .. 4 q + 3 and 4 q + 16 .. 4 q + 19. Of a
// factor that is stored along k, lane u of the eight has line u, a row of A or a column of B; of another one it has
// channel u % 4 of the lines from 4 (u / 4) on.
void multiply_quad_pairs(Warp& warp, const Instruction& x, Lanes) {
  using Lines = std::array<std::array<double, 4>, 8>;  // (line,k)
  constexpr std::size_t left = 8, right = 10, sums = 12;
  for (int first = 0; first < 16; first += 4) {
    const auto lane_of = [&](std::size_t u) { return first + static_cast<int>(u % 4 + 16 * (u / 4)); };
    const auto lines_of = [&](std::size_t operand, bool is_along_k) {
      Lines lines;
      for (std::size_t u = 0; u < 8; ++u)
        for (std::size_t e = 0; e < 4; ++e) {
          const double number = factors<_Float16>(warp, x.operands[operand + e / 2], lane_of(u))[e % 2];
          (is_along_k ? lines[u][e] : lines[e + 4 * (u / 4)][u % 4]) = number;
        }
      return lines;
    };
    const Lines A = lines_of(left, (x.mode & a_by_rows) != 0), B = lines_of(right, (x.mode & b_by_columns) != 0);
    for (std::size_t u = 0; u < 8; ++u)
      for (std::size_t e = 0; e < 8; ++e) {
        const auto &a = A[u % 2 + (e & 2) + 4 * (u / 4)], &b = B[(u & 2) + (e & 1) + (e & 4)];
        std::array<double, 4> products;
        for (std::size_t k = 0; k < 4; ++k) products[k] = a[k] * b[k];
        warp.put<float>(x.operands[e], lane_of(u),
                        cut_sum(warp.get<float>(x.operands[sums + e], lane_of(u)), products));
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

// null if it is not known
Execute select_mma(Instruction& x, const Opcode& opcode) {
  const std::string_view all = opcode.all;
  if (all == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") return multiply_matrices<BrainFloat, 16>;
  if (all == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") return multiply_matrices<_Float16, 16>;
  if (all == "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32") return multiply_matrices<_Float16, 8>;
  if (!all.starts_with("mma.sync.aligned.m8n8k4.") || !all.ends_with(".f32.f16.f16.f32")) return nullptr;
  x.mode = static_cast<std::uint8_t>((opcode.parts.at(4) == "row" ? a_by_rows : 0) |
                                     (opcode.parts.at(5) == "col" ? b_by_columns : 0));
  return multiply_quad_pairs;
}

// kernels run one after another here; that they wait is checked
void wait_for_kernels(Warp& warp, const Instruction&, Lanes lanes) { warp.wait_for_kernels(lanes); }
void allow_next_kernel(Warp&, const Instruction&, Lanes) {}

}  // namespace warp_operations

Execute select_warp_wide(Instruction& x, const Opcode& opcode) {
  using namespace warp_operations;
  const std::string_view base = opcode.base();
  if (base == "griddepcontrol") return opcode.has("wait") ? wait_for_kernels : allow_next_kernel;
  if (base == "shfl") {
    x.mode = opcode.has("bfly") ? exclusive_or : index;
    return opcode.has("bfly") || opcode.has("idx") ? shuffle : nullptr;
  }
  if (base == "vote") return opcode.has("ballot") ? ballot : nullptr;
  if (base == "mma") return select_mma(x, opcode);
  if (base == "ldmatrix") {
    x.mode = opcode.has("trans") ? 1 : 0;
    return opcode.has("m8n8") && opcode.has("b16") ? load_matrices : nullptr;
  }
  return nullptr;
}

}  // namespace nprf::ptx
