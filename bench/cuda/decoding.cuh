// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <istream>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/clock.cuh"
#include "bench/cuda/problem.cuh"
#include "nprf/cuda.hpp"
#include "nprf/nprf.hpp"

namespace nprf::bench {

/// Steps of a DecodePlan for sequences of `tokens` tokens, d = d_v = 64. Positions have a reach, so that the time of a
/// step does not depend on the number of tokens.
struct DecodeCase {
  std::string storage, position, map;
  Index near, batch, heads;

  static constexpr Index m = 32, tokens = 1024;
  cuda::DecodeShape shape() const { return {.batch = batch, .heads = heads, .d_v = head_dim}; }
};

inline std::istream& operator>>(std::istream& in, DecodeCase& x) {
  return in >> x.storage >> x.position >> x.map >> x.near >> x.batch >> x.heads;
}

/// The attention of a head in the scalar type T, with the same parameters in each.
template <Real T, class Use>
auto with_causal_attention(const DecodeCase& x, Use&& use) {
  const auto with_position = [&](const auto& map) {
    const AttentionOptions options{.direction = Direction::causal, .near = x.near};
    if (x.position == "alibi") return use(Attention(map, AlibiPosition<T>(T(0.125)), options));
    if (x.position != "t5") throw std::runtime_error("unknown position " + x.position);
    const Vector<T> buckets = draw(32, 5).cwiseMax(-3.0f).cwiseMin(3.0f).template cast<T>();
    return use(Attention(map, t5_position<T>(buckets, Direction::causal), options));
  };
  if (x.map == "taylor") return with_position(TaylorFeatures<T>({.input_dim = head_dim}));
  if (x.map != "orf") throw std::runtime_error("unknown map " + x.map);
  return with_position(PositiveFeatures<T>(orf<float>(head_dim, x.m).projection().template cast<T>()));
}

struct DecodeTimes {
  double ms, error;  // error: of the last head's row, relative to its largest entry
  std::size_t bytes;
};

/// Milliseconds of a step of one token of each sequence, after `tokens` others. The row of the first step is compared
/// with the CPU's in double.
template <cuda::Storage S>
DecodeTimes measure_decoding(const DecodeCase& x, const Clock& clock) {
  const Index n = x.tokens + 1, last = x.batch * x.heads - 1;
  const Arrays<S> arrays({"forward", x.storage, x.position, "causal", x.batch, x.heads, n, x.m, "automatic"});
  const auto tokens = [](cuda::DeviceMatrixView<S> all, Index first, Index count) {
    cuda::DeviceMatrixView<S> part = all;
    part.data += first * head_dim, part.tokens = static_cast<int>(count);
    return part;
  };
  cuda::AttentionModel model =
      with_causal_attention<float>(x, [](const auto& attention) { return cuda::model_of(attention); });
  cuda::DecodePlan<S> plan(std::move(model), x.shape());
  plan.append(tokens(arrays.k(), 0, x.tokens), tokens(arrays.v(), 0, x.tokens));
  const auto step = [&](cudaStream_t stream) {
    plan.step(tokens(arrays.q(), x.tokens, 1), tokens(arrays.k(), x.tokens, 1), tokens(arrays.v(), x.tokens, 1),
              tokens(arrays.y(), x.tokens, 1), stream);
  };
  step(nullptr);
  cuda::check(cudaDeviceSynchronize(), "a step");
  const Matrix<double> y = arrays.fetch(arrays.y(), last).bottomRows(1);
  const Matrix<double> expected = with_causal_attention<double>(x, [&](const auto& exact) -> Matrix<double> {
    return exact(Matrix<double>(arrays.fetch(arrays.q(), last).bottomRows(1)), arrays.fetch(arrays.k(), last),
                 arrays.fetch(arrays.v(), last), {.offset = x.tokens});
  });
  const double error = y.allFinite() ? (y - expected).cwiseAbs().maxCoeff() / expected.cwiseAbs().maxCoeff()
                                     : std::numeric_limits<double>::infinity();
  return {clock.milliseconds(step), error, plan.bytes()};
}

}  // namespace nprf::bench
