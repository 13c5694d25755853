// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/positive.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/position/t5.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

/// What the tests of a near field, of attention sinks and of salient keys have in common.
namespace nprf::test {

template <Real T>
PositiveFeatures<T> exact_pairs_map(Index d) {
  return PositiveFeatures<T>({.input_dim = d, .num_features = 12});
}

/// Whether a call agrees with the reference within its error bound, but for the rows that it recomputed by exact
/// softmax, of which there are few.
template <class F, class P>
bool agrees(const Attention<F, P>& attention, const Tokens<typename F::Scalar>& x, Index offset = 0,
            const Mask& mask = {}) {
  using T = typename F::Scalar;
  Report report;
  const Matrix<T> y = attention(x.q, x.k, x.v, {.key_mask = view(mask), .offset = offset, .report = &report});
  const Matrix<T> expected = reference::kernelized_attention(
      attention, x.q, x.k, x.v, offset, [&](Index, Index j) { return mask.size() == 0 || mask[j]; });
  const double bound = report.error_bound * static_cast<double>(x.v.cwiseAbs().maxCoeff());
  Index different = 0;
  for (Index i = 0; i < y.rows(); ++i)
    different += !((y.row(i) - expected.row(i)).template cast<double>().cwiseAbs().maxCoeff() <= bound);
  return different <= report.repaired_rows && 20 * report.repaired_rows <= y.rows();
}

struct ExactPairsOptions {
  Index near, sinks = 0, salient = 0;
};

/// Self-attention, with a mask too, and cross attention with offsets, by every engine and position.
template <Real T, class F>
void check_engines(const F& map, std::uint64_t seed, const Tokens<T>& x, const Tokens<T>& cross, const Mask& mask,
                   std::span<const ExactPairsOptions> all) {
  const Vector<T> table = T(0.3) * random_table<T>(40, seed), buckets = normal<T>(1, 32, seed).row(0);
  const auto check = [&](const auto& position, Direction direction) {
    for (const Engine engine : {Engine::automatic, Engine::direct, Engine::banded, Engine::lanes, Engine::block_causal})
      for (const auto [near, sinks, salient] : all) {
        if (salient > 0 && direction == Direction::causal) continue;
        const Attention attention(map, position,
                                  {.direction = direction,
                                   .normalization = Normalization::unit(1.2),
                                   .engine = engine,
                                   .near = near,
                                   .sinks = sinks,
                                   .salient = salient});
        INFO("engine " << static_cast<int>(engine) << " near " << near << " sinks " << sinks << " salient " << salient
                       << " direction " << static_cast<int>(direction));
        CHECK(agrees(attention, x));
        CHECK(agrees(attention, x, 0, mask));
        CHECK(agrees(attention, cross, -20));
        CHECK(agrees(attention, cross, 9));
      }
  };
  for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
    check(RelativePosition<T>(table), direction);
    check(NoPosition<T>(), direction);
    check(AlibiPosition<T>(T(0.05)), direction);
    check(T5Position<T>(buckets, direction), direction);
  }
}

/// check_engines() for 100 tokens, by positive features and by a series; the mask leaves out key 0, too. Under
/// sanitizers only by positive features in double, and only the first of `all`.
inline void check_engines_of_maps(std::vector<ExactPairsOptions> all) {
  constexpr Index n = 100, d = 5, d_v = 3;
  Mask mask = Mask::Constant(n, true);
  for (Index j = 0; j < n; ++j) mask[j] = j != 0 && j % 7 != 2;
  if (NPRF_TEST_SANITIZED) all.resize(1);
  const auto check = [&](const auto& map, std::uint64_t seed) {
    using T = typename std::remove_cvref_t<decltype(map)>::Scalar;
    check_engines<T>(map, seed, random_tokens<T>(n, n, d, d_v, seed), random_tokens<T>(n, 61, d, d_v, seed + 1), mask,
                     all);
  };
  check(exact_pairs_map<double>(d), 1);
  if (NPRF_TEST_SANITIZED) return;
  check(exact_pairs_map<float>(d), 2);
  check(TaylorFeatures<double>({.input_dim = d, .directions = 3}), 3);
}

}  // namespace nprf::test
