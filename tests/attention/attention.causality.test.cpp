// SPDX-License-Identifier: MIT

// Causal rows do not depend on later tokens: within the tolerance with every engine, bitwise with block_causal.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_causality {

namespace {

constexpr Index d = 4, m = 8, d_v = 3;

// other queries, keys and values from token `now` on
template <Real T>
Tokens<T> other_future(Tokens<T> x, Index now, T value, bool queries) {
  const Index later = x.q.rows() - now;
  if (queries) x.q.bottomRows(later).setConstant(value);
  x.k.bottomRows(later).setConstant(value);
  x.v.bottomRows(later).setConstant(value);
  return x;
}

// the tolerance of each entry before `now`: relative to the largest value that its row attends to; 0 for empty rows
template <Real T>
Matrix<double> row_tolerance(const Matrix<T>& v, Index now, const CallOptions& call) {
  Matrix<double> allowed(now, v.cols());
  double largest = 0;
  std::size_t segment = 1;
  for (Index i = 0; i < now; ++i) {
    if (!call.cumulative_lengths.empty() && i == call.cumulative_lengths[segment]) ++segment, largest = 0;
    if (call.key_mask.empty() || call.key_mask[static_cast<std::size_t>(i)])
      largest = std::max(largest, static_cast<double>(v.row(i).cwiseAbs().maxCoeff()));
    allowed.row(i).setConstant(default_tolerance<T> * largest);
  }
  return allowed;
}

template <Real T>
void check(const AttentionOptions& options, const Vector<T>& table, Index n, const CallOptions& call) {
  const Attention attention(orf<T>(d, m, 7), RelativePosition<T>(table), options);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Matrix<T> y = attention(x.q, x.k, x.v, call);
  REQUIRE(y.allFinite());
  for (const Index now : {Index{1}, n / 2, n - 1})
    for (const T value : {T(1e30), std::numeric_limits<T>::quiet_NaN()})
      for (const bool queries : {false, true}) {
        const Tokens<T> other = other_future(x, now, value, queries);
        const Matrix<T> changed = attention(other.q, other.k, other.v, call);
        INFO(std::string(name(options.engine))
             << ", n " << n << ", table of " << table.size() << (options.normalization.is_unit() ? "" : ", norms kept")
             << (call.key_mask.empty() ? "" : ", masked") << (call.cumulative_lengths.empty() ? "" : ", packed") << ": "
             << value << " from " << now << " on" << (queries ? ", queries too" : ""));
        CHECK(worst_ratio(changed.topRows(now), y.topRows(now), row_tolerance(x.v, now, call)) <= 1);
        if (options.engine == Engine::block_causal) CHECK(same_bits<T>(changed.topRows(now), y.topRows(now)));
      }
}

}  // namespace

TEMPLATE_TEST_CASE("causal rows do not depend on later tokens", "[attention]", NPRF_TEST_SCALARS) {
  using T = TestType;
  for (const Engine engine : all_engines())
    for (const Normalization normalization : {Normalization::unit(), Normalization::none()})
      for (const Index n : {97, 300, 387}) {  // a prime, and more than one and three tiles
        const AttentionOptions options{
            .direction = Direction::causal, .normalization = normalization, .engine = engine};
        check<T>(options, random_table<T>(n, 40), n, {});
        // constant beyond some lags, so that the engine carries sums over all earlier keys
        check<T>(options, random_table<T>(20, 41), n, {});
      }
}

TEMPLATE_TEST_CASE("causal rows of masked keys and of packed sequences do not depend on later tokens", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 211;
  const Mask mask = (normal_vector<double>(n, 90).array() > -0.5).eval();
  const std::vector<Index> lengths{0, 60, 61, 150, n};
  for (const Engine engine : all_engines()) {
    const AttentionOptions options{.direction = Direction::causal, .engine = engine};
    check<T>(options, random_table<T>(n, 40), n, {.key_mask = view(mask)});
    check<T>(options, random_table<T>(20, 41), n, {.cumulative_lengths = lengths});
    check<T>(options, random_table<T>(n, 40), n, {.key_mask = view(mask), .cumulative_lengths = lengths});
  }
}

}  // namespace nprf::test::attention_causality
