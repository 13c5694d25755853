// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "differential/inputs.hpp"
#include "differential/reference.hpp"
#include "differential/run.hpp"

/// Checks of results against the promises in tests/accuracy.md, whose notation is used here.
namespace nprf::test::differential {

enum class Kind {
  y,
  saved_y,
  bound,
  empty_rows,
  indefinite_rows,
  dq,
  dk,
  dv,
  db,
  zero,
  not_finite,
  later,
  repeat,
  thrown,
  cancelled,
  tokens
};
inline constexpr std::array kind_names{
    "y",  "saved y", "bound",      "empty rows",   "indefinite rows", "dq",     "dk",        "dv",
    "db", "zero",    "not finite", "later tokens", "repeat",          "thrown", "cancelled", "tokens"};
inline constexpr std::size_t num_kinds = kind_names.size();

struct Failure {
  Kind kind;
  double error, bound;
  std::string where;
};

/// Statistics of all cases.
struct Tally {
  std::array<double, num_kinds> worst{};  // error over bound
  std::uint64_t gradients = 0, rows = 0, ill_conditioned_rows = 0, unrepresentable = 0;
  std::uint64_t mixed_rows = 0, softmax_rows = 0;  // where rows may be those of exact softmax
  double largest_gradient_bound = 0;               // relative to what is allowed if none is reported
};

/// What Report::error_bound is at most, of positive features.
template <Real T>
double largest_bound(const Case& c, const Truth& truth) {
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon()), R = static_cast<double>(truth.longest_row),
               largest_bias = static_cast<double>(truth.largest_bias);
  const double usual = sizeof(T) == 4 ? 1e-4 : 1e-10, tolerance = c.tolerance > 0 ? c.tolerance : usual;
  const double features = (tolerance + usual) / 2 + 4 * eps * R * (R + static_cast<double>(truth.longest_w)) +
                          1e-15 * std::min(largest_bias, 400.0);
  if (!c.has_exact_pairs() && std::ranges::count(truth.is_softmax, true) == 0) return features;
  // of scores of d channels and of biases, whose weights are not negligible
  const double d = static_cast<double>(c.d), of_products = std::min(d, 1.5 * std::sqrt(d) + d / 8),
               largest_exponent = sizeof(T) == 4 ? 104 : 745;
  return features + eps * (R * R * (1 + of_products / 2) + std::min(2 * largest_bias, largest_exponent));
}

template <Real T>
class Checker {
 public:
  using Limits = std::numeric_limits<T>;

  /// has_free_biases: the gradient of each bias is its own, which Engine::smooth does not give.
  Checker(const Inputs<T>& x, const Truth& truth, Tally& tally, bool has_free_biases)
      : m(x),
        m_truth(truth),
        m_tally(tally),
        m_has_free_biases(has_free_biases),
        m_allowed(largest_bound<T>(x.c, truth)) {
    const double eps = static_cast<double>(Limits::epsilon());
    m_all_rows = std::ranges::all_of(x.is_checked, [](char is) { return is; });
    m_allowed_gradient =
        3 * (m_allowed + static_cast<double>(std::max(x.c.n_q, x.c.n_k)) * eps) * static_cast<double>(truth.condition);
  }

  std::vector<Failure> operator()(const Result<T>& result) {
    m_failures.clear();
    check_report(result.report);
    check_report(result.saved_report);
    check_rows(Kind::y, result.y, result.report);
    check_rows(Kind::saved_y, result.saved_y, result.saved_report);
    const double G = result.gradient_bound >= 0 ? result.gradient_bound : m_allowed_gradient;
    m_tally.largest_gradient_bound = std::max(m_tally.largest_gradient_bound, G / m_allowed_gradient);
    check_queries(result.dq, G);
    check_keys(result, G);
    if (m_has_free_biases) check_biases(result.db, G);
    return m_failures;
  }

 private:
  static constexpr Exact smallest = Limits::min(), largest = Limits::max();

  // stores the worst failure of each kind
  void fail(Kind kind, double error, double bound, const std::string& where) {
    const auto same = [&](const Failure& f) { return f.kind == kind; };
    if (const auto it = std::ranges::find_if(m_failures, same); it == m_failures.end())
      m_failures.push_back({kind, error, bound, where});
    else if (error - bound > it->error - it->bound)
      *it = {kind, error, bound, where};
  }

  void compare(Kind kind, Exact error, Exact bound, const char* what, Index at) {
    if (error == 0) return;
    if (error <= bound) {
      double& worst = m_tally.worst[static_cast<std::size_t>(kind)];
      worst = std::max(worst, static_cast<double>(error / bound));
      return;
    }
    const double e = std::isnan(error) ? std::numeric_limits<double>::infinity() : static_cast<double>(error);
    fail(kind, e, static_cast<double>(bound), std::string(what) + " " + std::to_string(at));
  }

  // the error of weights below the square root of the smallest normal number
  Exact underflow_error(const std::vector<Exact>& unweighted, std::size_t at) const {
    return std::sqrt(smallest) * unweighted[at];
  }

  // whether the magnitudes of terms, results and bounds do not overflow, so that the results can be checked
  bool is_representable(Exact size, Exact bound, const Exact* exact, Index n) {
    const auto fits_in = [](Exact x) { return std::abs(x) <= largest / 4; };
    const bool fits = fits_in(size) && fits_in(bound) && std::all_of(exact, exact + n, fits_in);
    m_tally.unrepresentable += !fits;
    return fits;
  }

  template <class Got>
  static bool all_zero(const Got* x, Index n) {
    return std::all_of(x, x + n, [](Got value) { return value == 0; });
  }

  void check_report(const Report& report) {
    const bool has_non_finite_inputs = m.c.non_finite_in != NonFiniteIn::none;
    if (m_all_rows) {
      if (const Index empty = m_truth.count(Row::empty); report.empty_rows != empty)
        fail(Kind::empty_rows, static_cast<double>(report.empty_rows), static_cast<double>(empty), "report");
    }
    if (m.c.has_signs() && !m.c.replaces_cancelled_rows()) return;
    if (!has_non_finite_inputs && report.indefinite_rows > 0)
      fail(Kind::indefinite_rows, static_cast<double>(report.indefinite_rows), 0, "report");
    if (!has_non_finite_inputs && !m.c.has_signs() && !(report.error_bound <= m_allowed))
      fail(Kind::bound, report.error_bound, m_allowed, "report");
  }

  void check_rows(Kind kind, const std::vector<T>& got, const Report& report) {
    const Index d_v = m.c.d_v;
    std::vector<char> is_zero(static_cast<std::size_t>(d_v), true);
    for (std::size_t at = 0; at < m.v.size(); ++at)
      if (m.v[at] != 0) is_zero[at % is_zero.size()] = false;
    double bound = report.error_bound;
    if (m.c.non_finite_in != NonFiniteIn::none && !m.c.has_signs() && !(bound <= m_allowed)) bound = m_allowed;
    Index softmax_rows = 0;
    for (Index row = 0; row < static_cast<Index>(m_truth.rows.size()); ++row) {
      const T* y = got.data() + row * d_v;
      const Exact v_max = m_truth.y_size[static_cast<std::size_t>(row)];
      const Exact condition = m_truth.y_condition[static_cast<std::size_t>(row)];
      const Row is = m_truth.rows[static_cast<std::size_t>(row)];
      if (is == Row::unknown) continue;
      if (is == Row::empty && !all_zero(y, d_v)) fail(Kind::zero, 1, 0, "empty row " + std::to_string(row));
      if (kind == Kind::saved_y && m.c.replaces_cancelled_rows()) check_choice(row);
      const Exact* exact = exact_row(kind, y, row, bound * v_max + smallest, softmax_rows);
      if (kind == Kind::y) m_tally.rows += is != Row::empty, m_tally.ill_conditioned_rows += is == Row::ill_conditioned;
      for (Index p = 0; p < d_v; ++p) {
        if ((is == Row::regular || is == Row::ill_conditioned) &&
            (is_zero[static_cast<std::size_t>(p)] || v_max == 0) && y[p] != 0)
          fail(Kind::zero, static_cast<double>(std::abs(y[p])), 0, "zero values in row " + std::to_string(row));
        if (is == Row::non_finite && !std::isfinite(exact[p])) {
          if (std::isfinite(y[p])) fail(Kind::not_finite, static_cast<double>(y[p]), 0, "row " + std::to_string(row));
        } else if (is == Row::regular || (is == Row::ill_conditioned && condition < 1e-2 / Limits::epsilon()) ||
                   (is == Row::non_finite && std::isfinite(v_max) && !m.c.has_signs())) {
          compare(kind, std::abs(y[p] - exact[p]), bound * v_max + smallest, "row", row);
        }
      }
    }
    if (softmax_rows > report.repaired_rows)
      fail(kind, static_cast<double>(softmax_rows), static_cast<double>(report.repaired_rows),
           "recomputed rows, of which the report has fewer");
  }

  // where rows may be those of exact softmax, those whose terms cancel are
  void check_choice(Index row) {
    const auto at = static_cast<std::size_t>(row);
    const Row is = m_truth.rows[at];
    if (is != Row::regular && is != Row::ill_conditioned) return;
    ++(m_truth.is_softmax[at] ? m_tally.softmax_rows : m_tally.mixed_rows);
    constexpr Exact margin = 1.01L;  // for the library's rounding errors
    if (const Exact condition = m_truth.y_condition[at];
        !m_truth.is_softmax[at] && !(condition <= margin * detail::worst_sum_of_features))
      fail(Kind::cancelled, static_cast<double>(condition), static_cast<double>(detail::worst_sum_of_features),
           "row " + std::to_string(row));
  }

  // m_truth has the formulas of the rows of forward with saved data; a call without may recompute others. A row near
  // the other formula is compared with that, and counted if that is exact softmax
  const Exact* exact_row(Kind kind, const T* y, Index row, Exact bound, Index& softmax_rows) const {
    const Exact* exact = m_truth.y.data() + row * m.c.d_v;
    if (kind != Kind::y || !m.c.replaces_cancelled_rows()) return exact;
    const auto is_near = [&](const Exact* x) {
      return std::equal(y, y + m.c.d_v, x, [&](Exact a, Exact b) { return !(std::abs(a - b) > bound); });
    };
    const Exact* other = m_truth.other_y.data() + row * m.c.d_v;
    if (is_near(exact) || !is_near(other)) return exact;
    softmax_rows += !m_truth.is_softmax[static_cast<std::size_t>(row)];
    return other;
  }

  // |got - exact| of a row of d entries
  static Exact distance(const T* got, const Exact* exact, Index d) {
    Exact square = 0;
    for (Index c = 0; c < d; ++c) square += (got[c] - exact[c]) * (got[c] - exact[c]);
    return std::sqrt(square);
  }

  void check_queries(const std::vector<T>& got, double G) {
    const Index d = m.c.d;
    for (Index row = 0; row < static_cast<Index>(m_truth.rows.size()); ++row) {
      const Row is = m_truth.rows[static_cast<std::size_t>(row)];
      const T* dq = got.data() + row * d;
      if (is == Row::empty && !all_zero(dq, d)) fail(Kind::zero, 1, 0, "dq of empty row " + std::to_string(row));
      if (is != Row::regular) continue;
      const Exact size = m_truth.dq_size[static_cast<std::size_t>(row)];
      const Exact steepness = std::max<Exact>(m_truth.q_steepness[static_cast<std::size_t>(row)], 1);
      ++m_tally.gradients;
      const Exact* exact = m_truth.dq.data() + row * d;
      const Exact bound =
          G * size + underflow_error(m_truth.dq_unweighted, static_cast<std::size_t>(row)) + smallest * steepness;
      if (is_representable(size, bound, exact, d)) compare(Kind::dq, distance(dq, exact, d), bound, "row", row);
    }
  }

  void check_keys(const Result<T>& got, double G) {
    const Index d = m.c.d, d_v = m.c.d_v;
    for (Index row = 0; row < static_cast<Index>(m_truth.is_attended.size()); ++row) {
      const auto at = static_cast<std::size_t>(row);
      const T *dk = got.dk.data() + row * d, *dv = got.dv.data() + row * d_v;
      if (m_all_rows && !m_truth.is_attended[at] && !(all_zero(dk, d) && all_zero(dv, d_v)))
        fail(Kind::zero, 1, 0, "key that no query attends to, " + std::to_string(row));
      const Exact steepness = std::max<Exact>(m_truth.k_steepness[at], 1);
      m_tally.gradients += 2;
      const Exact *exact_dk = m_truth.dk.data() + row * d, *exact_dv = m_truth.dv.data() + row * d_v;
      const Exact dk_size = m_truth.dk_size[at], dv_size = m_truth.dv_size[at],
                  dk_bound = G * dk_size + underflow_error(m_truth.dk_unweighted, at) + smallest * steepness,
                  dv_bound = G * dv_size + underflow_error(m_truth.dv_unweighted, at) + smallest;
      if (!m_truth.is_non_finite[at] && is_representable(dk_size, dk_bound, exact_dk, d))
        compare(Kind::dk, distance(dk, exact_dk, d), dk_bound, "key", row);
      if (is_representable(dv_size, dv_bound, exact_dv, d_v))
        for (Index p = 0; p < d_v; ++p)
          if (!m_truth.dv_is_non_finite[static_cast<std::size_t>(row * d_v + p)])
            compare(Kind::dv, std::abs(dv[p] - exact_dv[p]), dv_bound, "key", row);
    }
  }

  void check_biases(const std::vector<std::vector<T>>& got, double G) {
    for (std::size_t h = 0; h < got.size(); ++h) {
      if (got[h].size() != m_truth.db[h].size()) {
        fail(Kind::db, static_cast<double>(got[h].size()), static_cast<double>(m_truth.db[h].size()), "size");
        continue;
      }
      for (std::size_t l = 0; l < got[h].size(); ++l) {
        if (m_truth.db_is_non_finite[h][l]) continue;
        ++m_tally.gradients;
        const Exact size = m_truth.db_size[h][l], exact = m_truth.db[h][l],
                    bound = G * size + underflow_error(m_truth.db_unweighted[h], l) +
                            smallest * std::max<Exact>(m_truth.db_factor[h][l], 1);
        if (is_representable(size, bound, &exact, 1))
          compare(Kind::db, std::abs(got[h][l] - exact), bound, "parameter", static_cast<Index>(l));
      }
    }
  }

  const Inputs<T>& m;
  const Truth& m_truth;
  Tally& m_tally;
  bool m_has_free_biases;
  double m_allowed, m_allowed_gradient;
  bool m_all_rows;
  std::vector<Failure> m_failures;
};

}  // namespace nprf::test::differential
