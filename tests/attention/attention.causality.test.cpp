// SPDX-License-Identifier: MIT

// Causal rows do not depend on later tokens: within the tolerance with every engine, bitwise with block_causal.

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_causality {

namespace {

constexpr Index d = 4, m = 8, d_v = 3;

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
struct Change {
  std::string name;
  std::function<void(Tokens<T>&, Index now)> of;  // changes tokens from `now` on
};

template <Real T>
std::vector<Change<T>> changes() {
  constexpr T nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
  const auto set = [](T value, bool queries) {
    return [=](Tokens<T>& x, Index now) {
      const Index later = x.q.rows() - now;
      if (queries) x.q.bottomRows(later).setConstant(value);
      x.k.bottomRows(later).setConstant(value);
      x.v.bottomRows(later).setConstant(value);
    };
  };
  return {{"large keys and values", set(T(1e30), false)},
          {"keys and values of zero", set(0, false)},
          {"all NaN", set(nan, true)},
          {"one number of a key", [=](Tokens<T>& x, Index now) { x.k(now, 0) = infinity; }},
          {"one value", [=](Tokens<T>& x, Index now) { x.v(now, 0) = nan; }}};
}

template <class F>
void check(const F& features, const AttentionOptions& options, const Vector<typename F::Scalar>& table, Index n,
           CallOptions call, Index repaired = 0) {
  using T = typename F::Scalar;
  const Attention attention(features, RelativePosition<T>(table), options);
  const Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  Report report;
  call.report = &report;
  const Matrix<T> y = attention(x.q, x.k, x.v, call);
  REQUIRE(y.allFinite());
  REQUIRE(report.repaired_rows >= repaired);
  for (const Index now : {Index{1}, n / 2, n - 1})
    for (const Change<T>& change : changes<T>()) {
      Tokens<T> other = x;
      change.of(other, now);
      const Matrix<T> changed = attention(other.q, other.k, other.v, call);
      INFO(std::string(name(options.engine))
           << ", n " << n << ", table of " << table.size() << (options.normalization.is_unit() ? "" : ", norms kept")
           << (call.key_mask.empty() ? "" : ", masked") << (call.cumulative_lengths.empty() ? "" : ", packed") << ": "
           << change.name << " from " << now << " on");
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
        check(orf<T>(d, m, 7), options, random_table<T>(n, 40), n, {});
        // constant beyond some lags, so that the engine carries sums over all earlier keys
        check(orf<T>(d, m, 7), options, random_table<T>(20, 41), n, {});
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
    check(orf<T>(d, m, 7), options, random_table<T>(n, 40), n, {.key_mask = view(mask)});
    check(orf<T>(d, m, 7), options, random_table<T>(20, 41), n, {.cumulative_lengths = lengths});
    check(orf<T>(d, m, 7), options, random_table<T>(n, 40), n, {.key_mask = view(mask), .cumulative_lengths = lengths});
  }
}

TEST_CASE("block-causal rows of every map, and recomputed ones, do not depend on later tokens", "[attention][long]") {
  const Index n = 700;
  for (const Normalization normalization : {Normalization::unit(), Normalization::none()}) {
    const AttentionOptions options{
        .direction = Direction::causal, .normalization = normalization, .engine = Engine::block_causal};
    check(trf<double>(d, m, 7), options, random_table<double>(n, 40), n, {});
    check(EluFeatures<double>(d), options, random_table<double>(n, 40), n, {});
    // so steep that the first rows are recomputed
    check(orf<double>(d, m, 7), options, Vector<double>::LinSpaced(2 * n - 1, 2 * n, -2 * n), n, {}, 129);
  }
}

}  // namespace nprf::test::attention_causality
