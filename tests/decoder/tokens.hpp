// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/decoder/decoder.hpp"
#include "nprf/decoder/head_state.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/feature_map/centred.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
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

/// Constants for Centred: small means, and axes of other lengths.
template <Real T>
Centring<T> centring(Index d) {
  const Vector<T> lengths = Vector<T>::LinSpaced(d, T(0.8), T(1.3));
  return {T(0.2) * normal_vector<T>(d, 90), T(0.2) * normal_vector<T>(d, 91), Matrix<T>(lengths.asDiagonal()),
          Matrix<T>(lengths.cwiseInverse().asDiagonal())};
}

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

/// Appends a key (d) and a value (d_v) to the state of a head.
template <Real T>
void append(HeadState<T>& state, const StepModel<T>& model, const T* key, const T* value, Workspace& scratch) {
  const Workspace::Scope scope(scratch);
  state.append(model, model.features({key, 1}, {}, scratch)(0), value, scratch);
}

/// No position, ALiBi, T5, a window of `reach` tokens, and a table for all lags of `tokens` tokens.
template <Real T>
std::vector<HeldPosition<T>> kinds_of_positions(Index buckets, Index max_distance, Index reach, Index tokens) {
  Vector<T> window = T(0.5) * random_table<T>(reach, 3);
  window.head(4).setConstant(-std::numeric_limits<T>::infinity());
  return {{NoPosition<T>().bias()},
          {AlibiPosition<T>(T(0.3)).bias()},
          {t5_position<T>(normal<T>(1, buckets, 2).row(0), Direction::causal, max_distance).bias()},
          {RelativePosition<T>(window).bias()},
          {RelativePosition<T>(random_table<T>(tokens, 4)).bias()}};
}

/// Biases (2 tokens - 1) by the lag that are smooth for old tokens, and neither fall nor rise.
template <Real T>
Vector<T> waving_table(Index tokens) {
  Vector<T> table(2 * tokens - 1);
  for (Index l = 0; l < table.size(); ++l)
    table[l] = T(0.5) * std::cos(T(1.5) * std::log1p(static_cast<T>(std::abs(l - tokens + 1)) / 8));
  return table;
}

/// The largest difference of y from `expected`, divided by the bound, which is relative to the largest value; infinity
/// for a NaN.
template <Real T>
double ratio_to_bound(const Matrix<T>& y, const Matrix<T>& expected, double bound, const Matrix<T>& v) {
  return worst_ratio(y, expected, bound * static_cast<double>(v.cwiseAbs().maxCoeff()));
}

}  // namespace nprf::test
