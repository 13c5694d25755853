// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/relative.hpp"
#include "support/attention.hpp"
#include "support/product.hpp"

/// Inputs for which attention by an FFT without error bounds gives wrong rows, and inputs that are hard for any engine.
/// Each case is compared with the formula in long double.
namespace nprf::test::adversarial {

/// A bias as a function of the lag, for at most n queries and at most n keys.
struct Bias {
  std::string name;
  std::function<double(Index lag, Index n)> of;
};

inline const std::vector<Bias>& biases() {
  static const std::vector<Bias> all = [] {
    constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
    std::vector<Bias> list{{"zero", [](Index, Index) { return 0.0; }}};
    const auto normal_of = [](Index lag, int seed) {
      return normal<double>(1, 1, static_cast<std::uint64_t>(1000000 + 4000 * seed + lag))(0, 0);
    };
    for (int s = 1; s <= 8; ++s)
      list.push_back({"N(0," + std::to_string(s) + "^2)", [=](Index lag, Index) { return s * normal_of(lag, s); }});
    for (const double step : {0.002, 0.01, 0.03, 0.1})
      for (const double sign : {1.0, -1.0})
        list.push_back({"ramp " + std::to_string(sign * step),
                        [=](Index lag, Index) { return sign * step * static_cast<double>(lag); }});
    for (const double slope : {0.01, 0.0625, 0.5, 4.0})
      list.push_back({"alibi " + std::to_string(slope),
                      [=](Index lag, Index) { return -slope * static_cast<double>(std::abs(lag)); }});
    for (const double height : {5.0, 20.0, 60.0})
      for (const int where : {-1, 0, 1, 2}) {  // the lag far before the query, -1, far after it, and out of reach
        const auto at = [=](Index n) { return where == 0 ? Index{-1} : where == 2 ? 2 * n : where * (n - n / 8); };
        list.push_back({"peak e^" + std::to_string(height) + " at " + std::to_string(where),
                        [=](Index lag, Index n) { return lag == at(n) ? height : 0.0; }});
      }
    list.push_back({"window", [=](Index lag, Index) {
                      return std::abs(lag) <= 5 ? 0.3 * static_cast<double>(lag) : minus_infinity;
                    }});
    list.push_back({"hole", [=](Index lag, Index n) { return std::abs(lag + n / 3) < 20 ? minus_infinity : 0.0; }});
    list.push_back({"window beside a peak", [=](Index lag, Index n) {
                      return lag == -(n / 2) ? 40.0 : std::abs(lag) < 5 ? static_cast<double>(lag % 3) : minus_infinity;
                    }});
    for (const double height : {3.0, 8.0})
      list.push_back({"cosine " + std::to_string(height),
                      [=](Index lag, Index) { return height * std::cos(0.3 * static_cast<double>(lag)); }});
    list.push_back({"a step at each power of two", [](Index lag, Index) {
                      return -4.0 * std::floor(std::log2(static_cast<double>(std::abs(lag) + 1)));
                    }});
    return list;
  }();
  return all;
}

enum class Values { benign, large, small, outlier_first, outlier_middle, outlier_last, resonant };
enum class Keys { benign, dominating, one_long, alike };
enum class Sides { bidirectional, causal, cross };

struct Case {
  std::size_t bias = 0;
  Sides sides = Sides::bidirectional;
  double norm = 1;
  bool normalised = true;  // false: Normalization::none(), with inputs scaled so that the largest norm is `norm`
  Values values = Values::benign;
  Keys keys = Keys::benign;
  Index n_q = 0, n_k = 0, d = 4, m = 6, d_v = 3;
  std::uint64_t seed = 1;

  std::string name() const {
    static const std::array sides_of{"bidirectional", "causal", "cross"};
    static const std::array values_of{"benign",         "large",        "small",   "outlier first",
                                      "outlier middle", "outlier last", "resonant"};
    static const std::array keys_of{"benign", "one feature dominates", "one is long", "alike"};
    std::ostringstream out;
    out << biases()[bias].name << ", " << sides_of[static_cast<std::size_t>(sides)] << ", norm " << norm
        << (normalised ? "" : " of the inputs") << ", values " << values_of[static_cast<std::size_t>(values)]
        << ", keys " << keys_of[static_cast<std::size_t>(keys)] << ", n_q " << n_q << ", n_k " << n_k << ", d " << d
        << ", m " << m << ", d_v " << d_v << ", seed " << seed;
    return out.str();
  }
};

/// A random case; the same seed gives the same case on every platform.
inline Case random_case(std::uint64_t seed) {
  std::mt19937_64 draw(seed);
  const auto below = [&](std::uint64_t n) { return draw() % n; };
  static constexpr std::array norms{0.3, 1.0, 2.0, 4.0, 8.0, 30.0};
  Case c;
  c.seed = seed;
  c.bias = below(biases().size());
  c.sides = static_cast<Sides>(below(3));
  c.normalised = below(3) > 0;
  c.norm = norms[below(c.normalised ? 6 : 5)];
  c.values = static_cast<Values>(below(7));
  c.keys = static_cast<Keys>(below(4));
  const auto size = [&](std::uint64_t most) { return 1 + static_cast<Index>(below(below(2) == 0 ? most / 8 : most)); };
  c.n_q = size(420);
  c.n_k = c.sides == Sides::cross ? size(420) : c.n_q;
  c.d = size(24), c.m = size(40), c.d_v = size(16);
  return c;
}

template <Real T>
using Hostile = Attention<PositiveFeatures<T>, RelativePosition<T>>;

template <Real T>
struct Problem {
  explicit Problem(const Case& c)
      : x(random_tokens<T>(c.n_q, c.n_k, c.d, c.d_v, c.seed)), features(orf<T>(c.d, c.m, c.seed)) {
    const Index n = std::max(c.n_q, c.n_k), middle = c.n_k / 2;
    table.resize(2 * n - 1);
    for (Index lag = -(n - 1); lag < n; ++lag) table[lag + n - 1] = static_cast<T>(biases()[c.bias].of(lag, n));
    switch (c.values) {
      case Values::benign: break;
      case Values::large: x.v *= T(1e6); break;
      case Values::small: x.v *= T(1e-6); break;
      case Values::outlier_first: x.v.row(0) *= T(1e6); break;
      case Values::outlier_middle: x.v.row(middle) *= T(1e6); break;
      case Values::outlier_last: x.v.row(c.n_k - 1) *= T(1e6); break;
      case Values::resonant:
        for (Index j = 0; j < c.n_k; ++j)
          x.v.row(j).setConstant(static_cast<T>(std::cos(0.3 * static_cast<double>(j))));
    }
    switch (c.keys) {
      case Keys::benign: break;
      case Keys::dominating:
        for (Index j = 0; j < c.n_k; ++j) x.k.row(j) = features.projection().row(j % c.m);
        break;
      case Keys::one_long: x.k.row(middle) *= T(8); break;
      case Keys::alike: x.k.rowwise() = x.k.row(0).eval();
    }
    if (!c.normalised)
      for (Matrix<T>* rows : {&x.q, &x.k}) *rows *= static_cast<T>(c.norm / rows->rowwise().norm().maxCoeff());
  }

  Hostile<T> attention(const Case& c, Engine engine) const {
    return {features,
            RelativePosition<T>(table),
            {c.sides == Sides::causal ? Direction::causal : Direction::bidirectional,
             c.normalised ? Normalization::unit(c.norm) : Normalization::none(), engine}};
  }

  Tokens<T> x;
  PositiveFeatures<T> features;
  Vector<T> table;
};

/// The formula in long double, exact softmax likewise, and for each row the largest |v| that its error is relative to.
template <Real T>
struct Truth {
  Truth(const Case& c, const Problem<T>& problem)
      : y(c.n_q, c.d_v), softmax(c.n_q, c.d_v), v_max(Vector<double>::Zero(c.n_q)), largest_norm(0) {
    const Matrix<long double> q = normalised(c, problem.x.q), k = normalised(c, problem.x.k);
    const auto A = features(c, problem, problem.x.q), B = features(c, problem, problem.x.k);
    const Index n = std::max(c.n_q, c.n_k);
    for (Index i = 0; i < c.n_q; ++i) {
      Vector<long double> sum = Vector<long double>::Zero(c.d_v), softmax_sum = sum;
      long double D = 0, softmax_D = 0;
      const Index end = c.sides == Sides::causal ? std::min(i + 1, c.n_k) : c.n_k;
      for (Index j = 0; j < end; ++j) {
        const T b = problem.table[j - i + n - 1];
        if (!(b > -std::numeric_limits<T>::infinity())) continue;
        const long double w = A.row(i).dot(B.row(j)) * std::exp(static_cast<long double>(b));
        sum += w * problem.x.v.row(j).transpose().template cast<long double>();
        D += w;
        const long double e = std::exp(q.row(i).dot(k.row(j)) + static_cast<long double>(b));
        softmax_sum += e * problem.x.v.row(j).transpose().template cast<long double>();
        softmax_D += e;
        v_max[i] = std::max(v_max[i], static_cast<double>(problem.x.v.row(j).cwiseAbs().maxCoeff()));
        attends_any = true;
      }
      if (D > 0)
        y.row(i) = (sum / D).transpose(), softmax.row(i) = (softmax_sum / softmax_D).transpose();
      else
        y.row(i).setZero(), ++empty;
    }
  }

  /// The largest relative error of a row; infinity if a row is non-finite. At most `softmax_rows` may be those of exact
  /// softmax.
  double error(const Matrix<T>& got, Index softmax_rows = 0) const {
    double worst = 0;
    for (Index i = 0; i < got.rows(); ++i) {
      const auto error_from = [&](const Matrix<long double>& expected) {
        const auto error =
            static_cast<double>((got.row(i).template cast<long double>() - expected.row(i)).cwiseAbs().maxCoeff());
        return error == 0 ? 0 : std::isfinite(error) && v_max[i] > 0 ? error / v_max[i] : 1 / 0.0;
      };
      const double error = error_from(y), of_softmax = v_max[i] > 0 ? error_from(softmax) : error;
      const bool is_softmax = error > default_tolerance<T> && of_softmax < error && softmax_rows > 0;
      softmax_rows -= is_softmax;
      worst = std::max(worst, is_softmax ? of_softmax : error);
    }
    return worst;
  }

  Matrix<long double> y, softmax;
  Vector<double> v_max;
  double largest_norm;
  Index empty = 0;
  bool attends_any = false;

 private:
  static Matrix<long double> normalised(const Case& c, const Matrix<T>& x) {
    Matrix<long double> rows = x.template cast<long double>();
    for (Index i = 0; i < rows.rows(); ++i)
      rows.row(i) *= c.normalised ? static_cast<long double>(c.norm) / rows.row(i).norm()
                                  : std::pow(static_cast<long double>(c.d), -0.25L);
    return rows;
  }

  Matrix<long double> features(const Case& c, const Problem<T>& problem, const Matrix<T>& x) {
    const Matrix<long double> rows = normalised(c, x), W = problem.features.projection().template cast<long double>();
    largest_norm = std::max(largest_norm, static_cast<double>(rows.rowwise().norm().maxCoeff()));
    Matrix<long double> phi = rows * W.transpose();
    phi.colwise() -= rows.rowwise().squaredNorm() / 2;
    return phi.array().exp();
  }
};

/// The result of one engine for a case.
struct Outcome {
  double error, bound, most;  // the true error, the bound of the report, and the largest bound allowed
  Report report;
  bool ok;
};

template <Real T>
Outcome run(const Case& c, const Problem<T>& problem, const Truth<T>& truth, Engine engine) {
  Report report;
  const Matrix<T> y = problem.attention(c, engine)(problem.x.q, problem.x.k, problem.x.v, {.report = &report});
  const double R = truth.largest_norm, most = default_tolerance<T> + (sizeof(T) == 4 ? 5e-7 * R * R : 0);
  const double error = truth.error(y, report.repaired_rows);
  const bool ok = error <= report.error_bound && report.error_bound <= most && report.indefinite_rows == 0 &&
                  report.empty_rows == truth.empty;
  return {error, report.error_bound, most, report, ok};
}

inline std::string message(const Case& c, const char* scalar, Engine engine, const Outcome& x) {
  std::ostringstream out;
  out << scalar << " " << nprf::name(engine) << ": error " << x.error << ", bound " << x.bound << ", allowed " << x.most
      << ", recomputed " << x.report.repaired_rows << ", indefinite " << x.report.indefinite_rows << ", empty "
      << x.report.empty_rows << ": " << c.name();
  return out.str();
}

}  // namespace nprf::test::adversarial
