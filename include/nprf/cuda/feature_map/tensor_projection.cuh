// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "nprf/cuda/device/mma_fragment.cuh"
#include "nprf/cuda/device/scales.cuh"
#include "nprf/cuda/device/storage.cuh"

/// Projections x w^T by tensor cores, for tokens x that are stored in 16 bits. w / unit is rounded to high + low, two
/// parts of the type of the tokens. The tensor cores multiply tokens as they are stored by both parts, and sum in
/// float. For an entry w of the projection, unit * (high + low) has an error of at most
///
///     2^-17 |w|                       of parts in bfloat16
///     2^-23 |w| + 2^-37 max |w|       of parts in half, where the maximum is that of all entries
///
/// since the low part has its own sign and 8 or 11 bits, and the smallest steps of half are 2^-24. So a projection has
/// the error 2^-17 sum_k |x_k w_k| in bfloat16, or 2^-23 sum_k |x_k w_k| + 2^-37 max |w| sum_k |x_k| in half, and also
/// the error of a sum of 2 d floats.
namespace nprf::cuda {

/// The high and low parts of a projection, on the device, in the order in which the lanes of a warp read them. If
/// `values` is null, there are none.
struct ProjectionFragments {
  const uint4* values = nullptr;  // [head, size(m, d)]
  std::ptrdiff_t stride = 0;      // between heads; 0: one projection for all heads
  float unit = 1;                 // a power of two

  // The projections of a group of 32 features are 2 products (16,16) for every step of 16 channels. For each product
  // there are 4 words for each lane of the high part, and then as many of the low part.
  static constexpr int group = 32, step = 16, features_of_lane = 8;

  __host__ __device__ static constexpr int size(int m, int d) { return (m + group - 1) / group * (d / step) * 4 * 32; }
  /// The feature of a group that column `column` (0 to 15) of product `product` stands for, and the channel of a step
  /// that row `row` stands for. So lane l reads four channels of each of its tokens, from channel 4 * (l % 4) of the
  /// step on, and gets eight features, from feature 8 * (l % 4) of the group on.
  __host__ __device__ static constexpr int feature_of(int product, int column) {
    return column % 8 / 2 * 8 + product * 4 + column / 8 * 2 + column % 2;
  }
  __host__ __device__ static constexpr int channel_of(int row) { return row % 8 / 2 * 4 + row % 2 * 2 + row / 8; }
};

/// The power of two that entries are divided by before they are split into parts of type T. `largest` is the largest
/// magnitude of the entries.
template <MmaFactor T>
float unit_of_parts(float largest) {
  // entries in the last two binades of float are up to 4 times as large as the power of two
  constexpr float top = std::is_same_v<T, __half> ? 0x1p13f : 1.0f;
  return power_of_two_scale(magnitude(std::max(largest, 0x1p-100f))).value / top;
}

/// The bits of the high or of the low part of w.
template <MmaFactor T>
unsigned part_of(float w, bool low) {
  T part;
  store(&part, w);
  if (low) store(&part, w - to_float(part));
  std::uint16_t bits;
  std::memcpy(&bits, &part, sizeof(bits));
  return bits;
}

/// Appends the parts of a projection w (m,d), where d is a multiple of 16. From feature m on they are those of feature
/// m - 1.
template <MmaFactor T>
void append_fragments(std::vector<uint4>& all, const float* w, int m, int d, float unit) {
  using Shape = ProjectionFragments;
  for (int f = 0; f < m; f += Shape::group)
    for (int k = 0; k < d; k += Shape::step)
      for (int product = 0; product < 2; ++product)
        for (const bool low : {false, true})
          for (int lane = 0; lane < 32; ++lane) {
            // the entries of a column in rows `row` and row + 1, as one word
            const auto word = [&](int column, int row) {
              const int feature = std::min(f + Shape::feature_of(product, column), m - 1);
              const float* entries = w + static_cast<std::ptrdiff_t>(feature) * d + k;
              return part_of<T>(entries[Shape::channel_of(row)] / unit, low) |
                     part_of<T>(entries[Shape::channel_of(row + 1)] / unit, low) << 16;
            };
            const int column = lane / 4, row = lane % 4 * 2;
            all.push_back({word(column, row), word(column, row + 8), word(column + 8, row), word(column + 8, row + 8)});
          }
}

/// Computes the projections of 16 tokens with one warp. A lane has some features of two tokens, g + 8 h with
/// g = lane / 4 and h = 0 or 1. Token g + 8 (lane % 2) is its own token. All lanes take part in all calls.
template <MmaFactor S>
class TensorProjection {
 public:
  static constexpr int tokens = 16, chunk = ProjectionFragments::group, group = ProjectionFragments::features_of_lane;

  /// Whether there is an instruction whose layout is that of the fragments.
  static constexpr bool exists = has_mma<S> && native_shape<S> != MmaShape::m8n8k4;

  /// The projections of `chunk` features from f0 on, which project() computes. z(h, i) is that of token g + 8 h for
  /// feature f0 + first() + i.
  class Chunk {
   public:
    __device__ __forceinline__ float z(int h, int i) const { return m_z[i / 4].x[i / 2 % 2][2 * h + i % 2]; }
    /// |x|^2 of this lane's own token.
    __device__ __forceinline__ float own_square() const {
      // m_squares has the products of tokens 0 to 7 with each other, and those of tokens 8 to 15: a token's square is
      // on the diagonal
      const int lane = TensorProjection::lane(), g = lane / 4, diagonal = g * 4 + g / 2;
      const auto [first, second] = m_squares.x;
      const float square[2] = {__shfl_sync(~0u, g % 2 ? first[1] : first[0], diagonal),
                               __shfl_sync(~0u, g % 2 ? second[3] : second[2], diagonal)};
      return square[lane % 2];
    }

   private:
    friend TensorProjection;
    typename Fragments<S>::Sum m_z[2], m_squares;
  };
  __device__ __forceinline__ static int first() { return lane() % 4 * group; }

  /// rows[h] is the row of token g + 8 h, which begins at a multiple of 8 bytes. d is the number of channels, a
  /// multiple of 16.
  __device__ __forceinline__ TensorProjection(const S* const (&rows)[2], const uint4* fragments, int d)
      : m_rows{rows[0] + lane() % 4 * 4, rows[1] + lane() % 4 * 4}, m_fragments(fragments + lane()), m_d(d) {}

  /// Computes the projections of `chunk` features from f0 on; f0 is a multiple of `chunk`. Beyond the last feature they
  /// are copies of its projections.
  __device__ __forceinline__ void project(int f0, Chunk& to) const {
    to = {};
    const uint4* fragments = m_fragments + f0 / chunk * (m_d / step) * of_step;
    Channels x = load(0), next{};
#pragma unroll 1  // else fragments of all channels are loaded first, for which there are not enough registers
    for (int k = 0; k < m_d; k += at_once) {
      if (k + at_once < m_d) next = load(k + at_once);
      if constexpr (has_range_of_float)
        if (m_is_scaled) scale(x);
#pragma unroll
      for (int s = 0; s < at_once / step; ++s)
        if (k + s * step < m_d) add_products(x.words[s], fragments + s * of_step, to);
      x = next, fragments += at_once / step * of_step;
    }
  }

  /// True if scale_extreme() has been called, or if the type is half, whose squares cannot overflow.
  __device__ __forceinline__ bool is_scaled() const { return !has_range_of_float || m_is_scaled; }
  /// The 2^e that scale_extreme() found for this lane's own token; 1 unless the token is extreme.
  __device__ __forceinline__ float own_scale() const { return lane() % 2 ? m_scales[1] : m_scales[0]; }
  /// After this call, projections and squares of a token x that is extreme are those of x 2^e, where 2^e takes the
  /// largest |x_k| to [1/2, 1). Each lane passes whether its own token is extreme.
  __device__ __forceinline__ void scale_extreme(bool is_extreme) {
    const bool other = __shfl_xor_sync(~0u, static_cast<int>(is_extreme), 1) != 0, odd = lane() % 2 != 0;
    m_is_scaled = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = 0;
      for (int k = 0; k < m_d; k += step) {
        S values[4];
        const uint2 x = load(h, k);
        std::memcpy(values, &x, sizeof(x));
        for (const S value : values) largest = fmaxf(largest, fabsf(to_float(value)));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      m_scales[h] = (h == odd ? is_extreme : other) ? power_of_two_scale(magnitude(largest)).inverse : 1.0f;
    }
  }

 private:
  using F = Fragments<S>;
  static constexpr bool has_range_of_float = std::is_same_v<S, __nv_bfloat16>;  // squares of half do not overflow
  static constexpr int step = ProjectionFragments::step, at_once = 2 * step;
  static constexpr int of_step = 2 * 2 * 32;  // uint4 of a step: two products, two parts, 32 lanes
  struct Channels {
    uint2 words[at_once / step][2];  // of this lane's two tokens
  };

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  // this lane's four channels of the step from k on, of token g + 8 h
  __device__ __forceinline__ uint2 load(int h, int k) const {
    return __ldg(reinterpret_cast<const uint2*>(m_rows[h] + k));
  }
  __device__ __forceinline__ Channels load(int k) const {
    Channels x;
#pragma unroll
    for (int s = 0; s < at_once / step; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) x.words[s][h] = k + s * step < m_d ? load(h, k + s * step) : uint2{};
    return x;
  }
  __device__ __forceinline__ void scale(Channels& x) const {
#pragma unroll
    for (int s = 0; s < at_once / step; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        S values[4];
        std::memcpy(values, &x.words[s][h], sizeof(values));
        const auto pair = [&](int k) {
          return pack<S>(m_scales[h] * to_float(values[k]), m_scales[h] * to_float(values[k + 1]));
        };
        x.words[s][h] = {pair(0), pair(2)};
      }
  }
  __device__ __forceinline__ static unsigned even_channels(uint2 x) { return (x.x & 0xffff) | (x.y << 16); }
  __device__ __forceinline__ static unsigned odd_channels(uint2 x) { return (x.x >> 16) | (x.y & 0xffff0000); }
  // adds the products of a step of channels of this lane's tokens
  __device__ __forceinline__ void add_products(const uint2 (&x)[2], const uint4* fragments, Chunk& to) const {
    // The words of a factor must be in consecutive registers. Compilers move words that were loaded in another order
    // before each product, but not words that are computed, which takes as many instructions as one move.
    const unsigned even[2] = {even_channels(x[0]), even_channels(x[1])},
                   odd[2] = {odd_channels(x[0]), odd_channels(x[1])};
    const typename F::Left a{{even[0], even[1], odd[0], odd[1]}};
    F::multiply_add(to.m_squares, a, typename F::Right{{{even[0], odd[0]}, {even[1], odd[1]}}});
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int product = 0; product < 2; ++product) {
        const uint4 words = __ldg(fragments + (2 * product + part) * 32);
        F::multiply_add(to.m_z[product], a, typename F::Right{{{words.x, words.y}, {words.z, words.w}}});
      }
  }

  const S* m_rows[2];
  const uint4* m_fragments;
  int m_d;
  bool m_is_scaled = false;
  float m_scales[2] = {1, 1};
};

}  // namespace nprf::cuda
