// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "nprf/core/compensated_sum.hpp"
#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/running_log_scale.hpp"

namespace nprf {

/// Rows of a state are padded with zeros to multiples of this number of scalars, for any instruction set.
inline constexpr Index state_lanes = 16;
constexpr Index padded_to_lanes(Index n) { return (n + state_lanes - 1) / state_lanes * state_lanes; }

/// Divides the packs 0..packs-1 into pieces of 8, 4 or 1, and calls use.operator()<count>(first) for each piece, the
/// packs first..first+count-1.
template <class Use>
void for_each_columns(Index packs, Use&& use) {
  Index first = 0;
  for (; first + 8 <= packs; first += 8) use.template operator()<8>(first);
  for (; first + 4 <= packs; first += 4) use.template operator()<4>(first);
  for (; first < packs; ++first) use.template operator()<1>(first);
}

/// Enlarges x to `size` entries if it has fewer. It keeps its entries, and the new ones are zero. If the allocation
/// throws, x is left as it is.
template <class T>
void enlarge(Vector<T>& x, Index size) {
  if (x.size() >= size) return;
  Vector<T> larger(size);
  std::fill(std::copy_n(x.data(), x.size(), larger.data()), larger.data() + size, T(0));
  x = std::move(larger);
}

/// N (stride) += factor A S for A (rows) and S (rows,stride). The stride is a multiple of state_lanes.
template <Real T>
void add_scaled_rows(const T* A, T factor, const T* S, Index rows, Index stride, T* N) {
  using P = Pack<T>;
  for_each_columns(stride / P::size, [&]<Index packs>(Index first) {
    const T* from = S + first * P::size;
    // two sums, of even and of odd rows, hide the latency of an addition
    P even[packs], odd[packs];
    NPRF_UNROLL
    for (Index at = 0; at < packs; ++at) even[at] = odd[at] = P::all(0);
    const auto add = [&](Index k, P(&sum)[packs]) {
      const P a = P::all(A[k]);
      NPRF_UNROLL
      for (Index at = 0; at < packs; ++at)
        sum[at] = multiply_add(a, P::load(from + k * stride + at * P::size), sum[at]);
    };
    for (Index k = 0; k + 1 < rows; k += 2) add(k, even), add(k + 1, odd);
    if (rows % 2 == 1) add(rows - 1, even);
    for (Index at = 0; at < packs; ++at) {
      T* to = N + (first + at) * P::size;
      multiply_add(P::all(factor), even[at] + odd[at], P::load(to)).store(to);
    }
  });
}

template <Real T>
struct StateToken {
  const T* features;   // phi of its key (r), without the factor exp(log_scale); zeros if the key is non-finite
  Index feature_step;  // the distance of two features in memory
  const T* value;      // (d_v)
  double log_scale;    // -infinity if the key is non-finite
  T norm;              // |phi|, if features can be negative
  T largest_value;     // the largest finite |v|
  bool has_finite_key, has_finite_value;
};

/// The sums over the tokens that have left the ring of a state (token_ring.hpp),
///
///     S = sum_j w_j phi(k_j)^T v_j   (r,d_v)      z = sum_j w_j phi(k_j)   (r)
///
/// with weights w_j = exp(log_scale_j + slope (age of j - age of the last token)). Both are stored divided by
/// exp(log_scale()), which is at least the largest weight. When a token with a larger weight is added, log_scale()
/// grows by a multiple of ln 2, and S and z are multiplied by a power of two, which is exact. The rounding error of an
/// addition is added with the next token (Kahan's compensated summation, compensated_sum.hpp), so that errors do not
/// grow with the number of tokens.
template <Real T>
class RunningSums {
 public:
  RunningSums() = default;
  RunningSums(Index r, Index d_v)
      : m_r(r),
        m_d_v(d_v),
        m_stride(padded_to_lanes(d_v)),
        m_S(Vector<T>::Zero(2 * r * m_stride)),
        m_z(Vector<T>::Zero(2 * padded_to_lanes(r))),
        m_non_finite_values(Vector<T>::Zero(d_v)) {}

  /// The most tokens that are added at a time.
  static constexpr Index block = 8;

  /// Adds at most `block` successive tokens, the oldest first. Non-finite keys are counted instead of added, and
  /// non-finite entries of values are summed separately. O(tokens r d_v), with one addition to S and z for all tokens.
  void add(std::span<const StateToken<T>> tokens, double slope, Workspace& scratch) {
    const Workspace::Scope scope(scratch);
    const auto n = static_cast<Index>(tokens.size());
    const double shift = slope * static_cast<double>(n);
    m_log_scale.shift(shift, std::fma(slope, static_cast<double>(n), -shift));
    double log_scales[block], largest = -std::numeric_limits<double>::infinity();
    const T* values[block];
    for (Index j = 0; j < n; ++j) {
      const StateToken<T>& token = tokens[static_cast<std::size_t>(j)];
      m_non_finite_keys += !token.has_finite_key;  // its weight is 0
      m_largest_value = std::max(m_largest_value, token.largest_value);
      values[j] = token.has_finite_value ? token.value : finite_part(token.value, scratch);
      log_scales[j] = token.log_scale + slope * static_cast<double>(n - 1 - j);
      largest = std::max(largest, log_scales[j]);
    }
    if (largest > log_scale()) scale_down(m_log_scale.raise(largest));
    if (m_log_scale.is_empty()) return;
    T* weighted_features = scratch.take<T>(m_r * block);  // (r,tokens)
    for (Index j = 0; j < n; ++j) {
      const StateToken<T>& token = tokens[static_cast<std::size_t>(j)];
      const T weight = static_cast<T>(std::exp(m_log_scale.relative(log_scales[j])));
      m_norms += weight * token.norm;
      for (Index k = 0; k < m_r; ++k)
        weighted_features[k * block + j] = weight * token.features[k * token.feature_step];
    }
    T *z = m_z.data(), *z_errors = z + m_z.size() / 2;
    for (Index k = 0; k < m_r; ++k) {
      T sum = z_errors[k];
      for (Index j = 0; j < n; ++j) sum += weighted_features[k * block + j];
      z[k] = fast_two_sum(z[k], sum, z_errors[k]);
    }
    Index k = 0;
    for (; k + 4 <= m_r; k += 4) add_rows<4>(k, weighted_features + k * block, values, n);
    for (; k < m_r; ++k) add_rows<1>(k, weighted_features + k * block, values, n);
  }

  /// A query multiplies S and z by exp(log_scale() + b), where b is its bias for the last token in them. -infinity if
  /// no token is in them.
  double log_scale() const { return m_log_scale.sum(); }

  /// N (padded d_v) += factor A S and returns factor A z, for A (r) padded with zeros. O(r d_v).
  T add_product(const T* A, T factor, T* N) const {
    constexpr Index W = Pack<T>::size;
    add_scaled_rows(A, factor, m_S.data(), m_r, m_stride, N);
    Pack<T> sum = Pack<T>::all(0);
    for (Index k = 0; k < m_z.size() / 2; k += W)
      sum = multiply_add(Pack<T>::load(A + k), Pack<T>::load(m_z.data() + k), sum);
    return factor * sum.sum();
  }

  /// The sum of w_j |phi(k_j)|, if features can be negative.
  T norms() const { return m_norms; }
  T largest_value() const { return m_largest_value; }
  Index non_finite_keys() const { return m_non_finite_keys; }
  bool has_finite_values() const { return m_has_finite_values; }
  /// (d_v)  For each column, the sum of the non-finite entries of values; 0 if there are none.
  const Vector<T>& non_finite_values() const { return m_non_finite_values; }

  void clear() {
    m_S.setZero(), m_z.setZero(), m_non_finite_values.setZero();
    m_log_scale = {};
    m_norms = m_largest_value = 0;
    m_non_finite_keys = 0;
    m_has_finite_values = true;
  }

  std::size_t bytes() const {
    return static_cast<std::size_t>(m_S.size() + m_z.size() + m_non_finite_values.size()) * sizeof(T);
  }

  /// Calls archive(x) for each part of the state: an array or a number, to be written or read.
  template <class Archive>
  void transfer(Archive&& archive) {
    archive(m_S), archive(m_z), archive(m_non_finite_values);
    archive(m_log_scale.value), archive(m_log_scale.rest), archive(m_norms), archive(m_largest_value);
    archive(m_non_finite_keys), archive(m_has_finite_values);
  }

 private:
  void scale_down(double exponent) {
    const T factor = exponent < 4000 ? std::ldexp(T(1), -static_cast<int>(exponent)) : T(0);
    m_S *= factor, m_z *= factor, m_norms *= factor;
  }

  // a copy without the non-finite entries, which are added to m_non_finite_values
  const T* finite_part(const T* value, Workspace& scratch) {
    T* finite = scratch.take<T>(m_d_v);
    for (Index p = 0; p < m_d_v; ++p) {
      const bool is_finite = std::isfinite(value[p]);
      finite[p] = is_finite ? value[p] : T(0);
      if (!is_finite) m_non_finite_values[p] += value[p], m_has_finite_values = false;
    }
    return finite;
  }

  // adds B^T V to the rows k..k+rows-1 of S, for the first n columns of Bt (rows,block) and the n values V (n,d_v)
  template <Index rows>
  void add_rows(Index k, const T* Bt, const T* const* values, Index n) {
    using P = Pack<T>;
    T *sums = m_S.data() + k * m_stride, *errors = sums + m_r * m_stride;
    for (Index p = 0; p < m_d_v; p += P::size) {
      P term[rows];
      for (Index i = 0; i < rows; ++i) term[i] = P::load(errors + i * m_stride + p);
      for (Index j = 0; j < n; ++j) {
        const P v = P::load(values[j] + p, m_d_v - p);
        for (Index i = 0; i < rows; ++i) term[i] = multiply_add(P::all(Bt[i * block + j]), v, term[i]);
      }
      for (Index i = 0; i < rows; ++i) {
        const Index at = i * m_stride + p;
        const P old = P::load(sums + at), sum = old + term[i];
        sum.store(sums + at);
        (term[i] - (sum - old)).store(errors + at);
      }
    }
  }

  Index m_r = 0, m_d_v = 0, m_stride = 0;
  Vector<T> m_S;                  // (2,r,padded d_v)  sums, and the rounding errors of their last additions
  Vector<T> m_z;                  // (2,padded r)  sums, and the rounding errors of their last additions
  Vector<T> m_non_finite_values;  // (d_v)
  RunningLogScale m_log_scale;
  T m_norms = 0, m_largest_value = 0;
  Index m_non_finite_keys = 0;
  bool m_has_finite_values = true;
};

}  // namespace nprf
