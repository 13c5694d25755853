// SPDX-License-Identifier: MIT

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/calibration/calibrate_definition.hpp"
#include "nprf/feature_map/elu.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/feature_map/taylor.hpp"
#include "nprf/position/alibi.hpp"
#include "nprf/position/grid.hpp"
#include "nprf/position/relative.hpp"
#include "nprf/reference/kernelized_attention.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

/// With every engine a non-finite input propagates to exactly those results that depend on it in the formula.
namespace nprf::test::attention_fallback_non_finite {

namespace {

constexpr Index d = 4, m = 6, d_v = 3;

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T nan = std::numeric_limits<T>::quiet_NaN();

// whether y is non-finite in the same entries as the reference, and within the tolerance of it elsewhere
template <class T, class A>
void check_propagation(const A& attention, const Tokens<T>& x, const Tokens<T>& clean) {
  const Matrix<T> y = attention(x.q, x.k, x.v), expected = reference::kernelized_attention(attention, x.q, x.k, x.v);
  Index wrong = 0, non_finite = 0;
  double worst = 0;
  for (Index i = 0; i < y.rows(); ++i)
    for (Index p = 0; p < y.cols(); ++p) {
      wrong += std::isfinite(y(i, p)) != std::isfinite(expected(i, p));
      non_finite += !std::isfinite(y(i, p));
      if (std::isfinite(y(i, p)) && std::isfinite(expected(i, p)))
        worst = std::max(worst, static_cast<double>(std::abs(y(i, p) - expected(i, p))));
    }
  CHECK(wrong == 0);
  CHECK(non_finite > 0);
  CHECK(non_finite < y.size());
  CHECK(worst <= default_tolerance<T> * static_cast<double>(clean.v.cwiseAbs().maxCoeff()));
}

}  // namespace

TEMPLATE_TEST_CASE("a non-finite query, key or value propagates to the rows of the formula", "[attention]",
                   NPRF_TEST_SCALARS) {
  using T = TestType;
  const Index n = 260;
  Vector<T> b = random_table<T>(n, 3);
  for (Index l = 0; l < b.size(); ++l)  // a window, so that some rows attend to no key
    if (std::abs(l - (n - 1)) > 110) b[l] = -infinity<T>;
  const RelativePosition<T> position(b);
  const Tokens<T> clean = random_tokens<T>(n, n, d, d_v);
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const T non_finite_value : {nan<T>, infinity<T>, -infinity<T>})
        for (const Index at : NPRF_TEST_SANITIZED ? std::vector<Index>{130} : std::vector<Index>{5, 130}) {
          INFO(name(engine) << (direction == Direction::causal ? ", causal" : "") << ", " << non_finite_value << " at "
                            << at);
          const auto with = [&](const auto& features, Normalization normalization) {
            const Attention attention(features, position, {direction, normalization, engine});
            for (Matrix<T> Tokens<T>::*part : {&Tokens<T>::q, &Tokens<T>::k, &Tokens<T>::v}) {
              Tokens<T> x = clean;
              (x.*part)(at, 1) = non_finite_value;
              check_propagation(attention, x, clean);
            }
          };
          with(orf<T>(d, m, 7), Normalization::unit());
          if (non_finite_value != -infinity<T>) with(orf<T>(d, m, 7), Normalization::none());
          if (std::isnan(non_finite_value)) with(EluFeatures<T>(d), Normalization::unit());
        }
}

namespace {

// a user's own map, whose features depend on channel 0 alone
struct OfFirstChannel {
  using Scalar = double;
  static constexpr bool is_positive = true;
  Index input_dim() const { return d; }
  Index output_dim() const { return 2; }
  Matrix<double> queries(const MatrixView<double>& x) const {
    Matrix<double> phi = Matrix<double>::Ones(x.rows(), 2);
    phi.col(1) = x.col(0).array().square();
    return phi;
  }
  Matrix<double> keys(const MatrixView<double>& x) const { return queries(x); }
  Matrix<double> backward(const MatrixView<double>& x, const MatrixView<double>&,
                          const MatrixView<double>& dphi) const {
    Matrix<double> dx = Matrix<double>::Zero(x.rows(), d);
    dx.col(0) = 2 * x.col(0).cwiseProduct(dphi.col(1));
    return dx;
  }
};

// that exactly the rows and gradients that depend on a non-finite query or key are NaN, and the others those without it
template <class F>
void check_whatever_features_depend_on(const F& features, AttentionOptions options, Index offset = 0) {
  const Index n = 60;
  Vector<double> b = random_table<double>(n, 3);
  for (Index l = 0; l < b.size(); ++l)
    if (std::abs(l - n) > 25 || l % 7 == 3) b[l] = -infinity<double>;
  const RelativePosition<double> position(b);
  const Attention attention(features, position, options);
  const CallOptions call{.offset = offset};
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v);
  const Matrix<double> dy = normal<double>(n, d_v, 6);
  const auto attends = [&](Index i, Index j) {
    return (options.direction == Direction::bidirectional || j <= i + offset) &&
           position.bias()[j - i - offset] > -infinity<double>;
  };
  Saved<double> saved;
  const Matrix<double> clean_y = attention.forward(clean.q, clean.k, clean.v, saved, call);
  const Gradients<double> clean_g = attention.backward(saved, dy);
  for (const bool is_query : {true, false})
    for (const double non_finite_value : {nan<double>, infinity<double>, -infinity<double>})
      for (const Index channel : {Index{0}, d - 1}) {
        INFO(name(options.engine) << ", near " << options.near << ", sinks " << options.sinks << ", "
                                  << non_finite_value << " in channel " << channel
                                  << (is_query ? " of a query" : " of a key"));
        constexpr Index at = 31;
        Tokens<double> x = clean;
        (is_query ? x.q : x.k)(at, channel) = non_finite_value;
        const auto depends = [&](Index i) { return is_query ? i == at : attends(i, at); };
        const Matrix<double> y = attention(x.q, x.k, x.v, call),
                             saved_y = attention.forward(x.q, x.k, x.v, saved, call);
        const Gradients<double> g = attention.backward(saved, dy);
        Index wrong = 0, rows = 0;
        const auto check = [&](const auto& got, const auto& expected, bool is_nan) {
          wrong += is_nan ? !got.array().isNaN().all()
                          : !((got - expected).cwiseAbs().maxCoeff() <= 1e-9 * (1 + expected.cwiseAbs().maxCoeff()));
        };
        for (Index i = 0; i < n; ++i) {
          rows += depends(i);
          Index j = 0;  // a row that is NaN and attends to key i
          while (j < n && !(depends(j) && attends(j, i))) ++j;
          check(y.row(i), clean_y.row(i), depends(i));
          check(saved_y.row(i), clean_y.row(i), depends(i));
          check(g.queries.row(i), clean_g.queries.row(i), depends(i));
          check(g.keys.row(i), clean_g.keys.row(i), j < n);
          if (j < n) check(g.values.row(i), clean_g.values.row(i), true);
        }
        CHECK(wrong == 0);
        CHECK(rows > 0);
      }
}

}  // namespace

TEST_CASE("a non-finite query or key propagates whatever the features depend on", "[attention]") {
  const Matrix<double> sample = normal<double>(40, d, 9);
  const auto hermite = [&](Index first, Index second) {
    return hermite_features<double>(balance<double>(sample, sample), first, second);
  };
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal}) {
      const AttentionOptions far{.direction = direction, .normalization = Normalization::none(), .engine = engine};
      check_whatever_features_depend_on(OfFirstChannel(), far);
      check_whatever_features_depend_on(hermite(0, 0), far);
      check_whatever_features_depend_on(hermite(1, 1), far);
      AttentionOptions unit{.direction = direction, .engine = engine};
      check_whatever_features_depend_on(OfFirstChannel(), unit);
      check_whatever_features_depend_on(TaylorFeatures<double>({.input_dim = d, .directions = 1}), unit);
      unit.near = 3;
      check_whatever_features_depend_on(hermite(0, 0), unit);
      check_whatever_features_depend_on(hermite(0, 0), unit, 20);  // some queries have no near key
      unit.sinks = 4;
      check_whatever_features_depend_on(hermite(0, 0), unit);
      check_whatever_features_depend_on(EluFeatures<double>(d), {.direction = direction, .engine = engine});
      check_whatever_features_depend_on(EluFeatures<double>(d), far);
    }
}

TEST_CASE("infinities of a column keep their sign, and those of both signs give NaN", "[attention]") {
  const Index n = 40;
  Tokens<double> x = random_tokens<double>(n, n, d, d_v);
  const Attention attention(orf<double>(d, m, 7), RelativePosition<double>(random_table<double>(n, 3)),
                            {.direction = Direction::causal, .engine = Engine::lanes});
  const Matrix<double> clean = attention(x.q, x.k, x.v);
  x.v(10, 0) = infinity<double>;
  x.v(20, 0) = -infinity<double>;
  x.v(30, 1) = -infinity<double>;
  const Matrix<double> y = attention(x.q, x.k, x.v);
  for (Index i = 0; i < n; ++i) {
    CHECK((i < 10 ? std::isfinite(y(i, 0)) : i < 20 ? y(i, 0) == infinity<double> : std::isnan(y(i, 0))));
    CHECK((i < 30 ? std::isfinite(y(i, 1)) : y(i, 1) == -infinity<double>));
    CHECK(std::abs(y(i, 2) - clean(i, 2)) <= 1e-10);
  }
}

namespace {

// the gradients by the formula, with its non-finite entries
struct Formula {
  template <class A>
  Formula(const A& attention, const Tokens<double>& x, const Matrix<double>& dy)
      : rows(Matrix<double>::Zero(x.q.rows(), 1)),
        keys(Matrix<double>::Zero(x.k.rows(), 1)),
        values(Matrix<double>::Zero(x.k.rows(), x.v.cols())),
        lags(Vector<double>::Zero(attention.position().bias().table.size())) {
    const Matrix<double> phi_q = attention.query_features(x.q), phi_k = attention.key_features(x.k);
    for (Index i = 0; i < x.q.rows(); ++i) {
      const auto bias = [&](Index j) {
        const bool hidden = attention.options().direction == Direction::causal && j > i;
        return hidden ? -infinity<double> : attention.position().bias()[j - i];
      };
      Vector<double> N = Vector<double>::Zero(x.v.cols());
      double D = 0;
      const auto weight = [&](Index j) { return phi_q.row(i).dot(phi_k.row(j)) * std::exp(bias(j)); };
      for (Index j = 0; j < x.k.rows(); ++j)
        if (bias(j) > -infinity<double>) N += weight(j) * x.v.row(j).transpose(), D += weight(j);
      for (Index j = 0; j < x.k.rows(); ++j) {
        if (!(bias(j) > -infinity<double>)) continue;
        const double dw = (x.v.row(j) - N.transpose() / D).dot(dy.row(i)) / D;
        rows(i, 0) += dw * phi_k.row(j).sum();
        keys(j, 0) += dw * phi_q.row(i).sum();
        values.row(j) += weight(j) / D * dy.row(i);
        lags[j - i - attention.position().bias().first] += dw * weight(j);
      }
    }
  }

  Matrix<double> rows, keys, values;  // (n_q,1) (n_k,1) (n_k,d_v)
  Vector<double> lags;                // of the table
};

}  // namespace

TEST_CASE("gradients are non-finite exactly where those of the formula are", "[attention]") {
  const Index n = 150;
  Vector<double> b = random_table<double>(n, 3);
  for (Index l = 0; l < b.size(); ++l)  // a window with holes
    if (std::abs(l - n) > 30 || l % 7 == 3) b[l] = -infinity<double>;
  const RelativePosition<double> position(b);
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v);
  const Matrix<double> clean_dy = normal<double>(n, d_v, 6);
  for (const Engine engine : all_engines())
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (int part = 0; part < 4; ++part)
        for (const Index at : {Index{5}, Index{80}}) {
          INFO(name(engine) << (direction == Direction::causal ? ", causal, part " : ", part ") << part << " at "
                            << at);
          Tokens<double> x = clean;
          Matrix<double> dy = clean_dy;
          (part == 0 ? x.q : part == 1 ? x.k : part == 2 ? x.v : dy)(at, 1) = nan<double>;
          const Attention attention(orf<double>(d, m, 7), position, {direction, Normalization::unit(), engine});
          const Gradients<double> g = both_passes(attention, x, dy).g, h = both_passes(attention, clean, clean_dy).g;
          const Formula formula(attention, x, dy);
          const auto near = [](const auto& got, const auto& expected, const Matrix<double>& all) {
            return worst_ratio(got, expected, 1e-9 * all.cwiseAbs().maxCoeff()) <= 1;
          };
          Index wrong = 0, non_finite = 0;
          for (Index i = 0; i < n; ++i) {
            wrong += g.queries.row(i).allFinite() != formula.rows.row(i).allFinite();
            wrong += g.keys.row(i).allFinite() != formula.keys.row(i).allFinite();
            non_finite += !g.keys.row(i).allFinite();
            // finite gradients of queries and keys are those of the finite inputs, and of values those of the formula,
            // up to errors relative to the largest
            if (formula.rows.row(i).allFinite()) wrong += !near(g.queries.row(i), h.queries.row(i), h.queries);
            if (formula.keys.row(i).allFinite()) wrong += !near(g.keys.row(i), h.keys.row(i), h.keys);
            for (Index p = 0; p < d_v; ++p) {
              wrong += std::isfinite(g.values(i, p)) != std::isfinite(formula.values(i, p));
              if (std::isfinite(formula.values(i, p)))
                wrong += !near(g.values.block(i, p, 1, 1), formula.values.block(i, p, 1, 1), h.values);
            }
          }
          for (Index l = 0; l < b.size(); ++l) wrong += std::isfinite(g.bias(l, 0)) != std::isfinite(formula.lags[l]);
          CHECK(wrong == 0);
          CHECK(non_finite > 0);
          CHECK(non_finite < n);
        }
}

TEST_CASE("rows that are NaN in the formula are not recomputed", "[attention]") {
  const Index n = 60;
  for (const Engine engine : all_engines())
    for (Matrix<double> Tokens<double>::*part : {&Tokens<double>::q, &Tokens<double>::k}) {
      INFO(name(engine));
      const auto check = [&](const auto& features) {
        Tokens<double> x = random_tokens<double>(n, n, d, d_v);
        (x.*part).setConstant(infinity<double>);
        Report report;
        const Matrix<double> y =
            Attention(features, RelativePosition<double>(random_table<double>(n, 3)),
                      {.normalization = Normalization::none(), .engine = engine})(x.q, x.k, x.v, {.report = &report});
        CHECK(y.array().isNaN().all());
        CHECK(report.repaired_rows == 0);
      };
      check(orf<double>(d, m, 7));
      check(EluFeatures<double>(d));
    }
}

TEST_CASE("a key that no query attends to has the gradient 0, even if it is non-finite", "[attention]") {
  const Index n_q = 40, n_k = 90;
  Vector<double> b = random_table<double>(n_k, 3);
  for (Index l = 0; l < b.size(); ++l)
    if (l % 5 == 0) b[l] = -infinity<double>;
  b.head(n_k - 30).setConstant(-infinity<double>);  // no query attends to keys more than 30 before it
  const Tokens<double> clean = random_tokens<double>(n_q, n_k, d, d_v);
  const Matrix<double> dy = normal<double>(n_q, d_v, 6);
  Mask mask = Mask::Constant(n_k, true);
  mask[3] = mask[20] = mask[70] = false;
  for (const Engine engine : all_engines())
    for (const bool masked : {false, true})
      for (const double non_finite_value : {nan<double>, infinity<double>, 1e300}) {
        INFO(name(engine) << (masked ? ", masked, " : ", ") << non_finite_value);
        const Attention attention(EluFeatures<double>(d), RelativePosition<double>(b),
                                  {Direction::causal, Normalization::none(), engine});
        const CallOptions call{.key_mask = masked ? view(mask) : std::span<const bool>(), .offset = 1};
        Tokens<double> x = clean;
        x.k.bottomRows(n_k - n_q - 1).setConstant(non_finite_value);
        x.v.bottomRows(n_k - n_q - 1).setConstant(non_finite_value);
        const auto [y, g, report] = both_passes(attention, x, dy, call);
        CHECK(y.allFinite());
        CHECK(all_zero(g.keys.bottomRows(n_k - n_q - 1)));
        CHECK(all_zero(g.values.bottomRows(n_k - n_q - 1)));
        CHECK((g.queries.allFinite() && g.keys.allFinite() && g.values.allFinite() && g.bias.allFinite()));
        CHECK(g.keys.cwiseAbs().maxCoeff() > 1e-6);
      }
}

TEST_CASE("the error bound is that of the finite rows", "[attention]") {
  const Index n = 60;
  const Tokens<float> clean = random_tokens<float>(n, n, d, d_v);
  for (const Engine engine : all_engines()) {
    const Attention attention(orf<float>(d, m, 7), RelativePosition<float>(random_table<float>(n, 3)),
                              {Direction::causal, Normalization::none(), engine});
    Report report, without;
    attention(clean.q, clean.k, clean.v, {.report = &without});
    for (Matrix<float> Tokens<float>::*part : {&Tokens<float>::q, &Tokens<float>::k})
      for (const float non_finite_value : {nan<float>, infinity<float>})
        for (const Index at : {Index{0}, Index{30}}) {
          INFO(name(engine) << ", " << non_finite_value << " at " << at);
          Tokens<float> x = clean;
          (x.*part)(at, 1) = non_finite_value;
          attention(x.q, x.k, x.v, {.report = &report});
          if (part == &Tokens<float>::k && at == 0) continue;  // all rows attend to it
          CHECK(report.error_bound >= without.error_bound / 10);
          CHECK(report.error_bound <= default_tolerance<float>);
        }
  }
}

TEST_CASE("non-finite inputs take time O(n log n)", "[attention][long]") {
  // each call takes milliseconds; a loop over pairs would take minutes
  const Index n = 20000, wide = 32;
  const Tokens<float> clean = random_tokens<float>(n, n, d, wide);
  Vector<float> holes = Vector<float>::Zero(2 * n - 1);
  for (Index l = 1; l < 2 * n - 1; l += 2) holes[l] = -infinity<float>;
  Mask odd = Mask::Constant(n, true);
  for (Index j = 0; j < n; j += 2) odd[j] = false;
  const auto seconds = [](auto&& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto check = [&](const auto& position, Engine engine, const CallOptions& call) {
    const Attention attention(orf<float>(d, m, 7), position, {.direction = Direction::causal, .engine = engine});
    const double finite = seconds([&] { attention(clean.q, clean.k, clean.v, call); });
    for (int part = 0; part < 3; ++part) {
      Tokens<float> x = clean;
      Matrix<float>& changed = part == 0 ? x.q : part == 1 ? x.k : x.v;
      for (Index j = 0; j < n; ++j)
        if (j % 3 == 0 || j > n / 2) changed.row(j).setConstant(j % 2 == 0 ? nan<float> : infinity<float>);
      INFO(name(engine) << ", part " << part);
      CHECK(seconds([&] { attention(x.q, x.k, x.v, call); }) <= 30 * finite + 1);
    }
  };
  check(AlibiPosition<float>(0.1f), Engine::recurrence, {});
  check(RelativePosition<float>(holes), Engine::block_causal, {});
  check(RelativePosition<float>(holes), Engine::block_causal, {.key_mask = view(odd)});
}

TEST_CASE("a grid's non-finite tokens propagate to the rows that attend to them", "[attention]") {
  const Index height = 5, width = 6, E = 2, n = E + height * width;
  Matrix<double> b = normal<double>(2 * height - 1, 2 * width - 1, 5);
  b.row(0).setConstant(-infinity<double>);
  const GridPosition<double> grid(height, width, b, normal<double>(E, E + 2, 8));
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v);
  for (const Engine engine : {Engine::direct, Engine::grid, Engine::automatic})
    for (Matrix<double> Tokens<double>::*part : {&Tokens<double>::q, &Tokens<double>::k, &Tokens<double>::v}) {
      INFO(name(engine));
      Tokens<double> x = clean;
      (x.*part)(E + 1, 1) = nan<double>;
      check_propagation(Attention(orf<double>(d, m, 7), grid, {.engine = engine}), x, clean);
    }
}

TEST_CASE("check_finite rejects non-finite inputs", "[attention]") {
  const Index n = 12;
  const Tokens<double> clean = random_tokens<double>(n, n, d, d_v);
  const Attention attention(orf<double>(d, m, 7), RelativePosition<double>(random_table<double>(n, 3)));
  Mask mask = Mask::Constant(n, true);
  mask[4] = false;
  const CallOptions call{.key_mask = view(mask), .check_finite = true};
  attention(clean.q, clean.k, clean.v, call);
  const std::array<const char*, 3> names{"queries", "keys", "values"};
  const std::array parts{&Tokens<double>::q, &Tokens<double>::k, &Tokens<double>::v};
  for (std::size_t part = 0; part < 3; ++part)
    for (const double non_finite_value : {nan<double>, infinity<double>}) {
      Tokens<double> x = clean;
      (x.*parts[part])(7, 2) = non_finite_value;
      attention(x.q, x.k, x.v);
      check_invalid([&] { attention(x.q, x.k, x.v, call); },
                    {names[part], "expected finite numbers", "in row 7, column 2"});
      // padding is not read
      x = clean;
      (x.*parts[part])(4, 2) = non_finite_value;
      if (part > 0) attention(x.q, x.k, x.v, call);
    }
}

}  // namespace nprf::test::attention_fallback_non_finite
