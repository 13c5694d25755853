// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "differential/bias.hpp"
#include "differential/features.hpp"
#include "nprf/core/types.hpp"

/// Attention and its gradients by the formula, in long double. From the library it uses only types
/// (nprf/core/types.hpp).
namespace nprf::test::differential {

struct Model {
  Kernel kernel;
  Side queries, keys;
  Bias bias;
};

/// One of the sequences that are packed in an array.
struct Packed {
  Index first_query, queries, first_key, keys;
};

/// One call. Arrays are [batch, heads, tokens, channels].
struct Problem {
  Index batch = 1, heads = 1, n_q = 0, n_k = 0, d = 0, d_v = 0;
  bool causal = false;
  Index offset = 0;
  Index near = 0;                // the width of the near field
  Index sinks = 0;               // of each sequence: so many first keys that take part have exact weights
  Exact radius = 0;              // 0: rows are not normalised
  Exact largest = 0;             // gradients are checked if dy_i.v_j is below this; 0: always
  Exact root = 0;                // square root of the smallest normal number
  std::vector<Model> models;     // one for each head
  std::vector<char> takes_part;  // [batch, n_k]
  std::vector<Packed> sequences;
  std::vector<char> is_checked;  // (n_q): other rows are not computed, and their dy is zero
  std::vector<Exact> q, k, v, dy;
  bool may_fall_back = false;  // rows whose features underflow may be those of exact softmax
  // [batch, heads, n_q]  the rows that are those of exact softmax; empty: those whose terms cancel, if any may
  std::vector<char> is_softmax;

  bool is_signed() const { return models[0].kernel == Kernel::trigonometric || is_series(); }
  bool is_series() const { return models[0].kernel == Kernel::taylor; }
  /// Whether rows whose terms cancel are those of exact softmax.
  bool replaces_cancelled_rows() const { return near > 0 || sinks > 0 || is_series(); }
  /// Whether the other formula of a row is computed too.
  bool has_other_formula() const { return replaces_cancelled_rows() || may_fall_back; }
  bool has_softmax_rows() const { return replaces_cancelled_rows() || std::ranges::count(is_softmax, true) > 0; }
  /// Whether the direction and the padding allow query i to attend to key j of its sequence.
  bool may_attend(Index b, const Packed& x, Index i, Index j) const {
    return (!causal || j <= i + offset) && takes_part[static_cast<std::size_t>(b * n_k + x.first_key + j)];
  }
};

enum class Row : char {
  unknown,  // not checked
  empty,    // attends to no key
  regular,
  non_finite,      // the query, or a key or value that it attends to, is non-finite
  ill_conditioned  // a denominator of both signs that is not positive, or far smaller than its terms
};

/// The exact results, and the magnitudes that errors are relative to: see tests/accuracy.md.
struct Truth {
  std::vector<Row> rows;             // [batch, heads, n_q]
  std::vector<Exact> y, dq, dk, dv;  // shapes as in Problem
  std::vector<char> is_softmax;      // [batch, heads, n_q]  the rows of exact softmax
  std::vector<Exact> other_y;        // y by the other formula, if rows whose terms cancel have it; else empty
  std::vector<Exact> y_condition;  // [batch, heads, n_q]  the sum of the terms' magnitudes over D; infinity for D <= 0
  std::vector<Exact> y_size, dq_size;  // [batch, heads, n_q]
  std::vector<Exact> dq_unweighted, dk_unweighted,
      dv_unweighted;  // the sizes for all rows of the sequence with p_ij = 1
  std::vector<Exact> q_steepness, k_steepness;
  std::vector<Exact> dk_size, dv_size;           // [batch, heads, n_k]
  std::vector<char> is_attended, is_non_finite;  // [batch, heads, n_k]  by any checked row; the gradient of the key
  std::vector<char> dv_is_non_finite;            // [batch, heads, n_k, d_v]
  std::vector<std::vector<Exact>> db, db_size;   // for each head: all parameters
  std::vector<std::vector<Exact>> db_unweighted, db_factor;  // the sum of the magnitudes of the derivatives
  std::vector<std::vector<char>> db_is_non_finite;
  Exact longest_row = 0, longest_w = 0, largest_bias = 0;
  Exact condition = 1;  // with features of both signs: the largest y_condition (1 + |y| / v_max) / 2
  Index count(Row kind) const { return std::count(rows.begin(), rows.end(), kind); }
};

namespace detail {

/// Rows with a larger condition are ill-conditioned.
inline constexpr Exact worst_condition = 1e6L;

/// Where rows may be those of exact softmax, those with a larger condition are.
inline constexpr Exact worst_sum_of_features = 16;

/// One sequence of one head, row by row.
class Sequence {
 public:
  Sequence(Problem& problem, Truth& truth, Index b, Index h, const Packed& sequence)
      : m(problem),
        m_truth(truth),
        m_b(b),
        m_h(h),
        m_at(sequence),
        m_model(problem.models[static_cast<std::size_t>(h)]),
        m_first_q((b * m.heads + h) * m.n_q + sequence.first_query),
        m_first_k((b * m.heads + h) * m.n_k + sequence.first_key),
        m_queries(m_model.kernel, m_model.queries, m.radius, m.q.data() + m_first_q * m.d, sequence.queries, m.d),
        m_keys(m_model.kernel, m_model.keys, m.radius, m.k.data() + m_first_k * m.d, sequence.keys, m.d),
        m_dkeys(Matrix<Exact>::Zero(sequence.keys, m_keys.phi.cols())),
        m_factors(truth.db[static_cast<std::size_t>(h)].size(), 0) {
    if (m.has_softmax_rows()) add_steepness_of_softmax();
    for (Index i = 0; i < sequence.queries; ++i) set_steepness(m_queries, i, m_truth.q_steepness, m_first_q);
    for (Index j = 0; j < sequence.keys; ++j) {
      if (!m.takes_part[static_cast<std::size_t>(b * m.n_k + sequence.first_key + j)]) continue;
      set_steepness(m_keys, j, m_truth.k_steepness, m_first_k);
      if (!is_finite(j)) m_non_finite_keys.push_back(j);
    }
  }

  void solve() {
    for (Index i = 0; i < m_at.queries; ++i)
      if (m.is_checked[static_cast<std::size_t>(m_at.first_query + i)])
        solve_row(i);
      else
        propagate_non_finite(i);
    m_sizes += m.root * static_cast<Exact>(m_at.queries) * m_largest_dy * m_largest_v;
    for (Index j = 0; j < m_at.keys; ++j) {
      if (!at(m_truth.is_attended, m_first_k + j)) continue;
      m_keys.backward(j, &m_dkeys(j, 0), m_truth.dk.data() + (m_first_k + j) * m.d);
      at(m_truth.dk_size, m_first_k + j) *= m_keys.steepness[j];
      at(m_truth.dk_unweighted, m_first_k + j) = m_sizes * m_keys.steepness[j];
      at(m_truth.dv_unweighted, m_first_k + j) = m_dy_sizes;
    }
    for (std::size_t l = 0; l < m_factors.size(); ++l)
      if (m_factors[l] > 0) m_truth.db_unweighted[static_cast<std::size_t>(m_h)][l] += m_sizes * m_factors[l];
  }

 private:
  struct Term {
    Index j;
    Pair pair;
    Exact factor, weight, size;  // exp(b) of the pair, phi.phi exp(b), and its magnitude without cancellation
    bool is_exact;               // weight = factor = exp(q'.k' + b)
  };

  template <class X>
  static X& at(std::vector<X>& of, Index i) {
    return of[static_cast<std::size_t>(i)];
  }
  template <class X>
  X& parameter(std::vector<std::vector<X>>& of, Index i) const {
    return of[static_cast<std::size_t>(m_h)][static_cast<std::size_t>(i)];
  }

  void set_steepness(const Features& of, Index i, std::vector<Exact>& steepness, Index first) {
    at(steepness, first + i) = of.steepness[i];
    const Exact norm = of.x.row(i).norm();
    if (std::isfinite(norm)) m_truth.longest_row = std::max(m_truth.longest_row, norm);
  }

  // the derivative of q'.k' with respect to an input row is at most its scale times the largest norm on the other side
  void add_steepness_of_softmax() {
    const auto longest = [](Exact most, const auto& row) {
      const Exact norm = row.norm();
      return std::isfinite(norm) ? std::max(most, norm) : most;
    };
    Exact query = 0, key = 0;
    for (Index i = 0; i < m_at.queries; ++i) query = longest(query, m_queries.x.row(i));
    for (Index j = 0; j < m_at.keys; ++j)
      if (m.takes_part[static_cast<std::size_t>(m_b * m.n_k + m_at.first_key + j)]) key = longest(key, m_keys.x.row(j));
    m_queries.steepness += key * m_queries.scale;
    m_keys.steepness += query * m_keys.scale;
  }

  const Exact* value(Index j) const { return m.v.data() + (m_first_k + j) * m.d_v; }

  // the terms of the row's formula, after y by the other one
  void find_terms_of_formula(Index i) {
    if (!m.has_other_formula()) {
      char& is_softmax = at(m_truth.is_softmax, m_first_q + i);
      is_softmax = !m.is_softmax.empty() && at(m.is_softmax, m_first_q + i);
      return find_terms(i, is_softmax);
    }
    find_terms(i, false);
    Exact D = 0, size = 0;
    for (const Term& t : m_terms) D += t.weight, size += t.size;
    if (m_terms.empty()) return;
    char& is_softmax = at(m_truth.is_softmax, m_first_q + i);
    is_softmax = m.is_softmax.empty() ? !(D > 0 && size <= worst_sum_of_features * D) : at(m.is_softmax, m_first_q + i);
    if (!is_softmax) find_terms(i, true);
    set_mean(m_truth.other_y.data() + (m_first_q + i) * m.d_v);
    find_terms(i, is_softmax);
  }

  // y = sum of weight v / sum of weight
  void set_mean(Exact* y) const {
    Exact D = 0;
    for (const Term& t : m_terms) {
      D += t.weight;
      for (Index p = 0; p < m.d_v; ++p) y[p] += t.weight * value(t.j)[p];
    }
    for (Index p = 0; p < m.d_v; ++p) y[p] /= D;
  }

  // y_i = sum_j w_ij v_j / sum_j w_ij, w_ij = phi(q_i).phi(k_j) exp(b_ij), or exp(q_i'.k_j' + b_ij)
  void solve_row(Index i) {
    find_terms_of_formula(i);
    m_has_weights = has_weights(i);
    Row& kind = at(m_truth.rows, m_first_q + i);
    kind = m_terms.empty() ? Row::empty : Row::regular;
    if (m_terms.empty()) return;
    Exact* y = m_truth.y.data() + (m_first_q + i) * m.d_v;
    set_mean(y);
    Exact D = 0, size = 0, largest = 0;
    bool finite = m_queries.x.row(i).allFinite() && m_queries.phi.row(i).allFinite();
    for (const Term& t : m_terms) {
      D += t.weight, size += t.size;
      for (Index p = 0; p < m.d_v; ++p) largest = std::max(largest, std::abs(value(t.j)[p]));
      finite =
          finite && std::isfinite(t.weight) && std::ranges::find(m_non_finite_keys, t.j) == m_non_finite_keys.end();
    }
    at(m_truth.y_size, m_first_q + i) = largest;
    at(m_truth.y_condition, m_first_q + i) = D > 0 ? size / D : -minus_infinity;
    if (!finite) {
      kind = Row::non_finite;
      // also of features that do not depend on what is not finite
      if (!m_has_weights) std::fill_n(y, m.d_v, std::numeric_limits<Exact>::quiet_NaN());
    } else if (!(D > 0) || size > worst_condition * D) {
      kind = Row::ill_conditioned;
    }
    if (kind == Row::ill_conditioned) std::fill_n(m.dy.begin() + (m_first_q + i) * m.d_v, m.d_v, Exact(0));
    const Exact* dy = m.dy.data() + (m_first_q + i) * m.d_v;
    const bool dy_finite = std::all_of(dy, dy + m.d_v, [](Exact x) { return std::isfinite(x); });
    for (const Term& t : m_terms) {
      at(m_truth.is_attended, m_first_k + t.j) = true;
      if (kind == Row::non_finite || !dy_finite) mark_non_finite(t);
    }
    if (kind == Row::regular && dy_finite)
      add_gradients(i, y, D);
    else if (kind == Row::regular || kind == Row::non_finite)
      add_value_gradients(i, D, size);
  }

  // whether the weights of the row's terms are finite
  bool has_weights(Index i) const {
    return m_queries.x.row(i).allFinite() && m_queries.phi.row(i).allFinite() &&
           std::ranges::all_of(m_terms,
                               [&](const Term& t) { return std::isfinite(t.weight) && m_keys.x.row(t.j).allFinite(); });
  }

  void mark_non_finite(const Term& t) {
    at(m_truth.is_non_finite, m_first_k + t.j) = true;
    if (t.pair.parameter >= 0) parameter(m_truth.db_is_non_finite, t.pair.parameter) = true;
  }

  // of a row with a non-finite value or entry of dy: column c of dv_j = p_ij dy_i depends only on column c of dy
  void add_value_gradients(Index i, Exact D, Exact size) {
    at(m_truth.dq_size, m_first_q + i) = std::numeric_limits<Exact>::quiet_NaN();
    const bool is_sound = m_has_weights && D > 0 && size <= worst_condition * D;
    const Exact* dy = m.dy.data() + (m_first_q + i) * m.d_v;
    Exact dy_size = 0;
    for (Index c = 0; c < m.d_v; ++c)
      if (std::isfinite(dy[c])) dy_size += std::abs(dy[c]);
    m_dy_sizes += dy_size;
    m_largest_dy = std::max(m_largest_dy, dy_size);
    for (const Term& t : m_terms) {
      at(m_truth.dv_size, m_first_k + t.j) += is_sound ? t.size / D * dy_size : 0;
      for (Index c = 0; c < m.d_v; ++c) {
        const Index place = (m_first_k + t.j) * m.d_v + c;
        if (is_sound && std::isfinite(dy[c]))
          at(m_truth.dv, place) += t.weight / D * dy[c];
        else
          at(m_truth.dv_is_non_finite, place) = true;
      }
    }
  }

  bool is_finite(Index j) const {
    return m_keys.x.row(j).allFinite() &&
           std::all_of(value(j), value(j) + m.d_v, [](Exact v) { return std::isfinite(v); });
  }

  // propagates non-finite inputs to the gradients of a row that is not checked
  void propagate_non_finite(Index i) {
    const bool is_own = !m_queries.x.row(i).allFinite();
    if (!is_own && m_non_finite_keys.empty()) return;
    const RowBias bias(m_model.bias, i, m.offset, m_at.keys);
    const auto attends = [&](Index j) { return m.may_attend(m_b, m_at, i, j) && bias(j).bias > minus_infinity; };
    if (!is_own && std::ranges::none_of(m_non_finite_keys, attends)) return;
    for (Index j = 0; j < m_at.keys; ++j) {
      if (!attends(j)) continue;
      at(m_truth.is_non_finite, m_first_k + j) = true;
      std::fill_n(m_truth.dv_is_non_finite.begin() + (m_first_k + j) * m.d_v, m.d_v, true);
      if (const Index l = bias(j).parameter; l >= 0) parameter(m_truth.db_is_non_finite, l) = true;
    }
  }

  // q'.k'; NaN for a non-finite row, even if all products are infinities of one sign
  Exact score(Index i, Index j) const {
    const bool is_finite = m_queries.x.row(i).allFinite() && m_keys.x.row(j).allFinite();
    return is_finite ? m_queries.x.row(i).dot(m_keys.x.row(j)) : std::numeric_limits<Exact>::quiet_NaN();
  }

  void find_terms(Index i, bool is_softmax) {
    m_terms.clear();
    // of a pair of features, beside exp(q'.k')
    const Exact of_features = m.has_other_formula() ? m_queries.exponent[i] - std::log(m_queries.num_random()) : 0;
    const RowBias bias(m_model.bias, i, m.offset, m_at.keys);
    Exact largest_bias = minus_infinity, most = minus_infinity;
    Index before = 0;  // keys that take part
    for (Index j = 0; j < m_at.keys; ++j) {
      const bool is_sink =
          m.takes_part[static_cast<std::size_t>(m_b * m.n_k + m_at.first_key + j)] && before++ < m.sinks;
      const Pair pair = bias(j);
      if (pair.bias == minus_infinity) continue;
      if (!m.causal || j <= i + m.offset)
        m_truth.largest_bias = std::max(m_truth.largest_bias, std::abs(pair.bias + bias.common_offset()));
      if (!m.may_attend(m_b, m_at, i, j)) continue;
      const bool is_exact = is_softmax || is_sink || bias.is_near(j, m.near);
      largest_bias = std::max(largest_bias, pair.bias);
      m_terms.push_back({j, pair, is_exact ? score(i, j) : of_features + m_keys.exponent[j], 0, 0, is_exact});
    }
    for (Term& t : m_terms) {
      t.factor += t.pair.bias - largest_bias;  // of which a bias of large magnitude would leave no digits
      if (t.factor > most) most = t.factor;
    }
    const Index r = m_keys.phi.cols();
    const Exact* a = &m_queries.phi(i, 0);
    for (Term& t : m_terms) {
      t.factor = std::exp(t.factor - most);
      if (t.is_exact) {
        t.weight = t.size = t.factor;
        continue;
      }
      const Exact* b = &m_keys.phi(t.j, 0);
      Exact score = 0;
      for (Index f = 0; f < r; ++f) score += a[f] * b[f];
      t.weight = score * t.factor;
      t.size = m.is_signed() ? m_queries.size[i] * m_keys.size[t.j] * t.factor : t.weight;
    }
  }

  // dL/dw_ij = dy_i.(v_j - y_i) / D_i
  void add_gradients(Index i, const Exact* y, Exact D) {
    const Exact* dy = m.dy.data() + (m_first_q + i) * m.d_v;
    Exact dy_y = 0, dy_size = 0;
    for (Index p = 0; p < m.d_v; ++p) dy_y += dy[p] * y[p], dy_size += std::abs(dy[p]);
    if (dy_size == 0) return;
    if (m.is_signed()) update_condition(i, y, D);
    Exact s = dy_size * at(m_truth.y_size, m_first_q + i);
    if (m.largest > 0 && s > m.largest) s = -minus_infinity;
    m_sizes += s, m_dy_sizes += dy_size;
    m_largest_dy = std::max(m_largest_dy, dy_size);
    m_largest_v = std::max(m_largest_v, at(m_truth.y_size, m_first_q + i));
    const Index r = m_keys.phi.cols();
    const Exact* a = &m_queries.phi(i, 0);
    m_dquery.assign(static_cast<std::size_t>(r), 0);
    Exact* dx = m_truth.dq.data() + (m_first_q + i) * m.d;  // of q', until the end
    Exact sum = 0;
    for (const Term& t : m_terms) {
      const Exact p = t.weight / D, size = t.size / D;
      const Exact* v = value(t.j);
      Exact* dv = m_truth.dv.data() + (m_first_k + t.j) * m.d_v;
      Exact dy_v = 0;
      for (Index c = 0; c < m.d_v; ++c) dy_v += dy[c] * v[c], dv[c] += p * dy[c];
      const Exact dw = (dy_v - dy_y) / D, dscore = dw * t.factor;
      const Exact* b = &m_keys.phi(t.j, 0);
      Exact* db = &m_dkeys(t.j, 0);
      if (t.is_exact)
        for (Index c = 0; c < m.d; ++c) {
          dx[c] += dw * t.weight * m_keys.x(t.j, c);
          m_truth.dk[static_cast<std::size_t>((m_first_k + t.j) * m.d + c)] += dw * t.weight * m_queries.x(i, c);
        }
      else
        for (Index f = 0; f < r; ++f) m_dquery[static_cast<std::size_t>(f)] += dscore * b[f], db[f] += dscore * a[f];
      sum += size;
      at(m_truth.dk_size, m_first_k + t.j) += size * s;
      at(m_truth.dv_size, m_first_k + t.j) += size * dy_size;
      if (t.pair.parameter < 0) continue;
      parameter(m_truth.db, t.pair.parameter) += dw * t.weight * t.pair.derivative;
      parameter(m_truth.db_size, t.pair.parameter) += size * s * std::abs(t.pair.derivative);
      parameter(m_truth.db_factor, t.pair.parameter) += std::abs(t.pair.derivative);
      at(m_factors, t.pair.parameter) += std::abs(t.pair.derivative);
    }
    m_queries.backward(i, m_dquery.data(), dx);
    at(m_truth.dq_size, m_first_q + i) = s * sum * m_queries.steepness[i];
    at(m_truth.dq_unweighted, m_first_q + i) = s * static_cast<Exact>(m_terms.size()) * m_queries.steepness[i];
  }

  void update_condition(Index i, const Exact* y, Exact D) {
    Exact sizes = 0, most = 0;
    for (const Term& t : m_terms) sizes += t.size;
    for (Index p = 0; p < m.d_v; ++p) most = std::max(most, std::abs(y[p]));
    const Exact v_max = at(m_truth.y_size, m_first_q + i);
    m_truth.condition = std::max(m_truth.condition, sizes / D * (v_max > 0 ? 1 + most / v_max : 1) / 2);
  }

  Problem& m;
  Truth& m_truth;
  Index m_b, m_h;
  Packed m_at;
  const Model& m_model;
  Index m_first_q, m_first_k;
  Features m_queries, m_keys;
  Matrix<Exact> m_dkeys;
  std::vector<Term> m_terms;
  bool m_has_weights = false;            // all weights of the row are finite
  std::vector<Index> m_non_finite_keys;  // with a non-finite key or value
  std::vector<Exact> m_dquery;
  Exact m_sizes = 0, m_dy_sizes = 0;  // the sums of s_i and of |dy_i|_1 over the sequence
  Exact m_largest_dy = 0, m_largest_v = 0;
  std::vector<Exact> m_factors;  // the sums of the magnitudes of the derivatives, one for each parameter
};

}  // namespace detail

/// y and the gradients of the checked rows. Sets dy of ill-conditioned rows to zero, so that only their own gradients
/// cannot be checked.
inline Truth solve(Problem& x) {
  Truth truth;
  const auto of = [](Index n) { return static_cast<std::size_t>(n); };
  const Index queries = x.batch * x.heads * x.n_q, keys = x.batch * x.heads * x.n_k;
  truth.rows.assign(of(queries), Row::unknown);
  truth.y.assign(of(queries * x.d_v), 0), truth.dq.assign(of(queries * x.d), 0);
  truth.dk.assign(of(keys * x.d), 0), truth.dv.assign(of(keys * x.d_v), 0);
  truth.is_softmax.assign(of(queries), false);
  if (x.has_other_formula()) truth.other_y.assign(of(queries * x.d_v), 0);
  for (auto* sizes : {&truth.y_condition, &truth.y_size, &truth.dq_size, &truth.dq_unweighted, &truth.q_steepness})
    sizes->assign(of(queries), 0);
  for (auto* sizes : {&truth.dk_size, &truth.dv_size, &truth.dk_unweighted, &truth.dv_unweighted, &truth.k_steepness})
    sizes->assign(of(keys), 0);
  for (auto* flags : {&truth.is_attended, &truth.is_non_finite}) flags->assign(of(keys), false);
  truth.dv_is_non_finite.assign(of(keys * x.d_v), false);
  for (const Model& model : x.models) {
    const std::size_t parameters = of(model.bias.num_parameters());
    for (auto* each : {&truth.db, &truth.db_size, &truth.db_unweighted, &truth.db_factor})
      each->emplace_back(parameters, Exact(0));
    truth.db_is_non_finite.emplace_back(parameters, false);
    if (const Matrix<Exact>& w = model.queries.w; w.size() > 0)
      truth.longest_w = std::max(truth.longest_w, w.rowwise().norm().maxCoeff());
  }
  for (Index i = 0; i < x.n_q; ++i)
    if (!x.is_checked[of(i)])
      for (Index item = 0; item < x.batch * x.heads; ++item)
        std::fill_n(x.dy.begin() + (item * x.n_q + i) * x.d_v, x.d_v, Exact(0));
  for (Index b = 0; b < x.batch; ++b)
    for (Index h = 0; h < x.heads; ++h)
      for (const Packed& sequence : x.sequences) detail::Sequence(x, truth, b, h, sequence).solve();
  return truth;
}

}  // namespace nprf::test::differential
