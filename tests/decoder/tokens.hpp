// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/error.hpp"

namespace nprf::test {

/// A row-major array [batch, heads, tokens, channels].
template <Real T>
struct TokenArray {
  TokenArray(Index batch, Index heads, Index tokens, Index channels, std::uint64_t seed)
      : values(normal<T>(batch * heads * tokens, channels, seed)),
        view{values.data(), batch, heads, tokens, channels} {}
  TokenArray(const TokenArray&) = delete;
  TokenArray& operator=(const TokenArray&) = delete;

  /// The rows of a head.
  auto operator()(Index b, Index h) { return view(b, h); }
  /// The tokens first..first+count-1 of all heads and sequences.
  HeadsView<T> part(Index first, Index count) const {
    HeadsView<T> x = view;
    x.strides = x.all_strides();
    x.data += first * x.channels;
    x.tokens = count;
    return x;
  }

  Matrix<T> values;
  HeadsView<T> view;
};

/// The queries, keys, values and rows of a batch.
template <Real T>
struct TokenBatch {
  TokenBatch(Index batch, Index heads, Index kv_heads, Index tokens, Index d, Index d_v, std::uint64_t seed = 1)
      : q(batch, heads, tokens, d, 4 * seed),
        k(batch, kv_heads, tokens, d, 4 * seed + 1),
        v(batch, kv_heads, tokens, d_v, 4 * seed + 2),
        y(batch, heads, tokens, d_v, 4 * seed + 3) {}

  void prefill(Decoder<T>& decoder, Index first, Index count, const CallOptions& call = {}) {
    decoder.prefill(q.part(first, count), k.part(first, count), v.part(first, count), y.part(first, count), call);
  }
  void step(Decoder<T>& decoder, Index first, Index count, const CallOptions& call = {}) {
    decoder.step(q.part(first, count), k.part(first, count), v.part(first, count), y.part(first, count), call);
  }

  TokenArray<T> q, k, v, y;
};

/// The largest difference of y from `expected`, divided by the bound, which is relative to the largest value; infinity
/// for a NaN.
template <Real T>
double ratio_to_bound(const Matrix<T>& y, const Matrix<T>& expected, double bound, const Matrix<T>& v) {
  return worst_ratio(y, expected, bound * static_cast<double>(v.cwiseAbs().maxCoeff()));
}

}  // namespace nprf::test
