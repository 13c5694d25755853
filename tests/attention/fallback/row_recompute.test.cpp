// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/row_recompute.hpp"

#include <cmath>
#include <limits>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_fallback_row_recompute {

namespace {

constexpr Index d = 4, m = 6, d_v = 3;

// so long that all features of a query that do not underflow do so for some key
template <class T>
Tokens<T> long_tokens(Index n) {
  Tokens<T> x = random_tokens<T>(n, n, d, d_v);
  const Matrix<T> w = orf<T>(d, m, 7).projection();
  for (Index i = 0; i < n; ++i) {
    x.q.row(i) = w.row(i % 2);
    x.k.row(i) = -w.row(i % 3);
  }
  return x;
}

}  // namespace

TEST_CASE("rows whose features underflow are recomputed from logarithms as precisely as in double", "[attention]") {
  const Index n = 30;
  const Tokens<float> x = long_tokens<float>(n);
  Tokens<double> exact = random_tokens<double>(n, n, d, d_v);
  exact.q = x.q.cast<double>(), exact.k = x.k.cast<double>(), exact.v = x.v.cast<double>();
  const Vector<float> b = random_table<float>(n, 3);
  const double radius = 30;
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal}) {
    const AttentionOptions options{Direction::causal, Normalization::unit(radius), engine};
    const Attention single(PositiveFeatures<float>(orf<float>(d, m, 7).projection()), RelativePosition<float>(b),
                           options);
    const Attention in_double(PositiveFeatures<double>(orf<float>(d, m, 7).projection().cast<double>()),
                              RelativePosition<double>(b.cast<double>()), options);
    const Matrix<float> dy = normal<float>(n, d_v, 6);
    Saved<float> saved;
    Saved<double> exact_saved;
    Report report;
    const Matrix<float> y = single.forward(x.q, x.k, x.v, saved, {.report = &report});
    const Matrix<double> expected = in_double.forward(exact.q, exact.k, exact.v, exact_saved);
    CHECK(report.repaired_rows > 10);
    CHECK(report.indefinite_rows == 0);
    // the rounding errors of exponents up to 450
    const double tolerance = 2000 * epsilon<float>;
    CHECK(worst_ratio(y.cast<double>(), expected, tolerance * x.v.cwiseAbs().maxCoeff()) <= 1);
    const Gradients<float> g = single.backward(saved, dy);
    const Gradients<double> h = in_double.backward(exact_saved, dy.cast<double>());
    // gradients are sums of terms of at least 1, some of which cancel
    const auto near = [&](const Matrix<float>& got, const Matrix<double>& other) {
      return worst_ratio(got.cast<double>(), other, tolerance * std::max(other.cwiseAbs().maxCoeff(), 1.0)) <= 1;
    };
    CHECK(near(g.queries, h.queries));
    CHECK(near(g.keys, h.keys));
    CHECK(near(g.values, h.values));
    CHECK(near(g.bias, h.bias));
  }
}

TEST_CASE("rows from logarithms do not depend on non-finite keys that they do not attend to", "[attention]") {
  const Index n = 30, changed_key = 12;
  const Tokens<float> x = long_tokens<float>(n);
  Vector<float> b = random_table<float>(n, 3);
  b[n - 7] = -std::numeric_limits<float>::infinity();  // query 19 does not attend to key 12 either
  for (const Engine engine : all_engines())
    for (const float non_finite_value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      INFO(name(engine) << ", " << non_finite_value);
      const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(b),
                                {Direction::causal, Normalization::unit(30), engine});
      Saved<float> clean_saved, saved;
      Report report;
      const Matrix<float> clean = attention.forward(x.q, x.k, x.v, clean_saved, {.report = &report});
      CHECK(report.repaired_rows > 10);
      Tokens<float> non_finite = x;
      non_finite.k(changed_key, 1) = non_finite_value;
      const Matrix<float> y = attention.forward(non_finite.q, non_finite.k, non_finite.v, saved),
                          dy = normal<float>(n, d_v, 6);
      const Gradients<float> g = attention.backward(saved, dy);
      Index wrong = 0;
      for (Index i = 0; i < n; ++i) {
        const bool attends = i >= changed_key && i != changed_key + 7;
        if (attends)
          wrong += y.row(i).array().isFinite().any() + g.queries.row(i).array().isFinite().any();
        else
          wrong += worst_ratio(y.row(i), clean.row(i), 2000 * epsilon<float> * x.v.cwiseAbs().maxCoeff()) > 1 ||
                   !g.queries.row(i).allFinite();
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("rows of a map without logarithms are recomputed from its features", "[attention]") {
  const Index n = 40;
  const Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  const Vector<double> steep = Vector<double>::LinSpaced(2 * n - 1, 40.0 * n, -40.0 * n);
  const auto by = [&](const Vector<double>& b) {
    return Attention(EluFeatures<double>(d), RelativePosition<double>(b), {.direction = Direction::causal});
  };
  Report report;
  const Matrix<double> y = by(steep)(x.q, x.k, x.v, {.report = &report});
  CHECK(report.repaired_rows > n / 2);
  // so steep that each row has only the weight of its first key
  for (Index i = 0; i < n; ++i) CHECK(worst_ratio(y.row(i), x.v.row(0), 1e-10) <= 1);
}

}  // namespace nprf::test::attention_fallback_row_recompute
