// SPDX-License-Identifier: MIT
#include "nprf/attention/fallback/row_recompute.hpp"

#include <limits>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/softmax_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"

namespace nprf::test::attention_fallback_row_recompute {

namespace {

constexpr Index d = 4, m = 6, d_v = 3;

// so long that all features of a query that do not underflow do so for its keys
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

TEST_CASE("rows whose features underflow are those of exact softmax", "[attention]") {
  const Index n = 30;
  Tokens<float> x = random_tokens<float>(n, n, d, d_v);
  const Vector<float> b = random_table<float>(n, 3), w = orf<float>(d, m, 7).projection().row(0);
  x.q = (x.q / 10).rowwise() + w.transpose(), x.k = (x.k / 10).rowwise() - w.transpose();
  const Normalization normalization = Normalization::unit(60);
  const auto in_double = [](const auto& m) { return m.template cast<double>().eval(); };
  const RelativePosition<double> position(in_double(b));
  const Matrix<double> softmax = reference::softmax_attention<double>(in_double(x.q), in_double(x.k), in_double(x.v),
                                                                      position, Direction::causal, normalization);
  // a near field of all keys has the gradients of softmax
  const Attention exact(orf<double>(d, m, 7), position,
                        {.direction = Direction::causal, .normalization = normalization, .near = n});
  const Matrix<float> dy = normal<float>(n, d_v, 6);
  const Gradients<double> h = both_passes(exact, {in_double(x.q), in_double(x.k), in_double(x.v)}, in_double(dy)).g;
  for (const Engine engine : {Engine::direct, Engine::lanes, Engine::block_causal}) {
    const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(b),
                              {Direction::causal, normalization, engine});
    const auto [y, g, report] = both_passes(attention, x, dy);
    CHECK((report.repaired_rows == n && report.indefinite_rows == 0));
    const double tolerance = 4 * 60 * 60 * epsilon<float>;  // of scores
    CHECK(worst_ratio(in_double(y), softmax, tolerance * x.v.cwiseAbs().maxCoeff()) <= 1);
    CHECK(gradients_difference(g, h, 1) <= tolerance);  // sums of terms of at least 1, some of which cancel
  }
}

TEST_CASE("tiny values do not make a row that of exact softmax", "[attention]") {
  const Index n = 70;
  const Tokens<float> x = random_tokens<float>(n, n, d, d_v);
  const float tiny = 0x1p-124F;
  const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(random_table<float>(n, 3)),
                            {.direction = Direction::causal, .engine = Engine::block_causal});
  const Matrix<float> dy = normal<float>(n, d_v, 6), without_saved = attention(x.q, x.k, tiny * x.v);
  const Passes<float> expected = both_passes(attention, x, dy);
  Passes<float> of_tiny = both_passes(attention, {x.q, x.k, tiny * x.v}, dy);
  CHECK(of_tiny.report.repaired_rows > n / 2);
  const double tolerance = 50 * epsilon<float> * x.v.cwiseAbs().maxCoeff();
  CHECK(worst_ratio(of_tiny.y / tiny, expected.y, tolerance) <= 1);
  CHECK(worst_ratio(without_saved / tiny, expected.y, tolerance) <= 1);
  for (Matrix<float>* each : {&of_tiny.g.queries, &of_tiny.g.keys, &of_tiny.g.bias}) *each /= tiny;
  CHECK(gradients_difference(of_tiny.g, expected.g, 1) <= 500 * epsilon<float>);
}

TEST_CASE("rows of exact softmax do not depend on non-finite keys that they do not attend to", "[attention]") {
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
      Report report;
      const Matrix<float> clean = attention(x.q, x.k, x.v, {.report = &report});
      CHECK(report.repaired_rows > 10);
      Tokens<float> non_finite = x;
      non_finite.k(changed_key, 1) = non_finite_value;
      const auto [y, g, of_non_finite] = both_passes(attention, non_finite, normal<float>(n, d_v, 6));
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

TEST_CASE("rows of a map that does not estimate exp are summed in double, from its features", "[attention]") {
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
