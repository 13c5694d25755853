// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nprf/core/pack.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/model.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/token_ring.hpp"

namespace nprf {

/// The weights exp(log_scale_j + b - reference) of the far keys of a step, by slots of the ring, and that of the sums
/// over older keys, relative to a reference near the largest exponent. The queries of a group share them.
template <Real T>
class StepWeights {
 public:
  /// For the last of `tokens` tokens, of which those from `first` on are in the ring. Tables are in the scratch memory.
  StepWeights(const StepModel<T>& model, const TokenRing<T>& ring, const RunningSums<T>& sums, Index tokens,
              Index first, Workspace& scratch)
      : m_slots(ring.used_slots(tokens)), m_weights(scratch.take<T>(m_slots)) {
    if (model.bias.has_tail() && first > 0) m_of_sums = sums.log_scale() + model.bias(tokens - first);
    m_largest_value = m_of_sums > minus_infinity ? sums.largest_value() : T(0);
    m_reference = m_of_sums;
    const Index far_end = std::max(first, tokens - model.near);
    if (far_end > first) {
      if (!set_by_tables(model.bias, ring, tokens, first, far_end))
        set_by_exponents(model.bias, ring, tokens, first, far_end, scratch);
      m_largest_value = std::max(m_largest_value, largest_of(T(0), [&, values = ring.largest_values()](Index s) {
                                   return where_not_zero(P::load(values + s), P::load(m_weights + s));
                                 }));
      m_any_pending = m_reference > minus_infinity;
    }
    if (!m_any_pending) std::fill_n(m_weights, m_slots, T(0));
    m_of_sums = m_of_sums > minus_infinity ? std::exp(m_of_sums - m_reference) : 0;
  }

  /// (slots)  0 for near keys and where there is no token.
  const T* weights() const { return m_weights; }
  Index slots() const { return m_slots; }
  bool any_pending() const { return m_any_pending; }
  /// The logarithm of the unit of all weights; -infinity if there is no far key.
  double reference() const { return m_reference; }
  T of_sums() const { return static_cast<T>(m_of_sums); }
  /// The largest finite |v| of the far keys.
  T largest_value() const { return m_largest_value; }

  /// Calls use(j, s, count) for the runs of slots of the tokens first..last-1: token j in slot s, j + 1 in s + 1, ...
  template <class Use>
  static void for_each_run(const TokenRing<T>& ring, Index first, Index last, Use&& use) {
    for (Index j = first; j < last;) {
      const Index s = ring.slot(j), count = std::min(last - j, ring.capacity() - s);
      use(j, s, count);
      j += count;
    }
  }

 private:
  using P = Pack<T>;
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  // weight = exp(b) exp(log_scale - reference), with the ring's reference, from the tables of both factors. False if a
  // product may underflow, or if all are so small that the sums would lose precision.
  bool set_by_tables(const StepBias<T>& bias, const TokenRing<T>& ring, Index tokens, Index first, Index last) {
    constexpr double most_spread = 80, most_above = 16;
    const double reference = ring.scale_reference();
    if (!(bias.spread() + ring.log_scale_spread() <= most_spread) || m_of_sums > reference + most_above) return false;
    std::fill_n(m_weights, m_slots, T(0));
    for_each_run(ring, first, last, [&](Index j, Index s, Index count) {
      const T *c = bias.weights_from(tokens - 1 - j), *scales = ring.scales() + s;
      for (Index at = 0; at < count; ++at) m_weights[s + at] = scales[at] * c[at];
    });
    if (largest_of(T(0), [&](Index s) { return P::load(m_weights + s); }) < T(0x1p-24)) return false;
    m_reference = reference;
    return true;
  }

  // weight = exp(log_scale + b - reference), where the reference is the largest exponent
  void set_by_exponents(const StepBias<T>& bias, const TokenRing<T>& ring, Index tokens, Index first, Index last,
                        Workspace& scratch) {
    const Workspace::Scope scope(scratch);
    double* exponents = scratch.take<double>(m_slots);
    std::fill_n(exponents, m_slots, minus_infinity);
    for_each_run(ring, first, last, [&](Index j, Index s, Index count) {
      const double *b = bias.from(tokens - 1 - j), *log_scales = ring.log_scales() + s;
      for (Index at = 0; at < count; ++at) exponents[s + at] = log_scales[at] + b[at];
    });
    m_reference =
        std::max(m_reference, largest_of(minus_infinity, [&](Index s) { return Pack<double>::load(exponents + s); }));
    set_weights(exponents, scratch);
  }

  // the largest scalar of the packs x(s) of the slots; at least `least`
  template <Real X, class F>
  X largest_of(X least, F&& x) const {
    auto most = Pack<X>::all(least);
    for (Index s = 0; s < m_slots; s += Pack<X>::size) most = larger(x(s), most);
    return most.largest();
  }

  // exp(e - reference) = exp(t) (1 + rest) with t = e - reference rounded to T
  void set_weights(const double* exponents, Workspace& scratch) {
    const double reference = m_reference > minus_infinity ? m_reference : 0;
    const Workspace::Scope scope(scratch);
    T* rests = scratch.take<T>(m_slots);
    for (Index s = 0; s < m_slots; ++s) {
      const double e = exponents[s] - reference;
      m_weights[s] = static_cast<T>(e);
      rests[s] = static_cast<T>(e - static_cast<double>(m_weights[s]));
    }
    for (Index s = 0; s < m_slots; s += P::size) {
      const P whole = exp(P::load(m_weights + s));
      // infinity minus itself is NaN where there is no weight
      multiply_add(weighted(P::load(rests + s), whole), P::all(1), whole).store(m_weights + s);
    }
  }

  Index m_slots;
  T* m_weights;
  double m_of_sums = minus_infinity, m_reference = minus_infinity;
  T m_largest_value = 0;
  bool m_any_pending = false;
};

}  // namespace nprf
