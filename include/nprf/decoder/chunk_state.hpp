// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/chunk_model.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/token_ring.hpp"
#include "nprf/toeplitz/smooth/chunk_blocks.hpp"
#include "nprf/toeplitz/smooth/chunk_sums.hpp"

namespace nprf {

/// The sums of chunks of tokens (chunk_model.hpp) of the state of a head. All sums of a chunk are multiples of a power
/// of two, which depends on the log-scales of its tokens.
///
/// The sums of different features do not depend on each other. So the work for a chunk is divided by features over the
/// steps of the chunk after it: while tokens are appended to chunk I, the moments of chunk I - 1 are computed, and L of
/// chunk I + 1, which needs no later tokens. What is not done when it is needed (after a prompt, a rollback or load())
/// is done at once. No bit depends on when it is done.
template <Real T>
class ChunkState {
 public:
  using Model = ChunkModel<T>;
  using Coupling = typename Model::Coupling;

  ChunkState() = default;
  ChunkState(const Model& model, const TokenShape& shape)
      : m_shape(shape),
        m_width(padded_to_lanes(shape.d_v)),
        m_levels(static_cast<std::size_t>(model.levels())),
        m_weights(model.any() ? chunk : 0) {}

  /// Allocates memory for sequences of `tokens` tokens. Throws std::bad_alloc, and then keeps its contents.
  void reserve(const Model& model, Index tokens) {
    const Index scalars = Model::scalars(m_shape, model.terms());
    for (Index l = 0; l < model.levels() && tokens >= chunk << l; ++l) {
      const Index kept = model.level(l).kept;
      Moments& level = m_levels[static_cast<std::size_t>(l)];
      level.units.resize(static_cast<std::size_t>(kept));
      enlarge(level.M, kept * scalars);
    }
    if (model.any() && tokens >= chunk) enlarge(m_present.L, scalars), enlarge(m_next.L, scalars);
  }

  /// Must be called after each new token: computes moments of which the ring will lose tokens.
  void append(const Model& model, const TokenRing<T>& ring, Index tokens, Workspace& scratch) {
    if (!model.any()) return;
    while (m_complete + 2 <= (tokens - 1) / chunk) set_moments(model, ring, steps(), scratch);
  }
  /// Must be called before any() and add_product(): completes L of the chunk of the last token, and the part of the
  /// work for the next chunk that is due.
  void advance(const Model& model, const TokenRing<T>& ring, Index tokens, Workspace& scratch) {
    if (!model.any() || tokens == 0) return;
    const Index I = (tokens - 1) / chunk, due = (steps() * ((tokens - 1) % chunk + 1) + chunk - 1) / chunk;
    if (m_present.I != I && m_next.I == I) std::swap(m_present, m_next);
    set_sums(model, m_present, I, steps(), scratch);
    if (I == 0) return;
    if (m_complete < I) set_moments(model, ring, due, scratch);
    set_sums(model, m_next, I + 1, due, scratch);
  }

  /// Must be called after a rollback to `tokens` tokens: drops sums of tokens that were taken back.
  void roll_back(Index tokens) {
    if (m_done > 0 && (m_complete + 1) * chunk > tokens) m_done = 0;
    if (m_complete * chunk > tokens) m_complete = tokens / chunk, m_done = 0;
    for (Sums* each : {&m_present, &m_next})
      if ((each->I - 1) * chunk > tokens) each->I = -1;
  }
  void clear() {
    m_complete = m_done = 0;
    m_present.I = m_next.I = -1;
  }

  /// Whether older tokens have sums. The sums of add_product() are in units of exp(log_unit()).
  bool any() const { return m_present.unit.exponent > minus_infinity; }
  double log_unit() const { return m_present.unit.exponent * std::numbers::ln2; }
  /// The largest finite |v| of the tokens in the sums.
  T largest_value() const { return m_present.unit.largest_value; }

  /// N (padded d_v) += factor A S, and returns factor A z, where S (r,padded d_v) and z (r) are the sums for the query
  /// at a position, and A (r) is padded with zeros. O(terms r d_v).
  T add_product(const Model& model, Index position, const T* A, T factor, T* N, Workspace& scratch) const {
    const Workspace::Scope scope(scratch);
    const Index terms = model.terms();
    const T *P = polynomials(position), *z = m_present.L.data() + terms * m_shape.r * m_width;
    T* rows = scratch.take<T>(m_shape.r * terms);
    for (Index k = 0; k < m_shape.r; ++k)
      for (Index p = 0; p < terms; ++p) rows[k * terms + p] = A[k] * P[p];
    add_scaled_rows(rows, factor, m_present.L.data(), m_shape.r * terms, m_width, N);
    T D = 0;
    for (Index p = 0; p < terms; ++p) D += P[p] * dot_by_packs(A, z + p * padded_to_lanes(m_shape.r), m_shape.r);
    return factor * D;
  }

  std::size_t bytes() const {
    std::size_t sum = static_cast<std::size_t>(m_present.L.size() + m_next.L.size() + m_weights.size()) * sizeof(T);
    for (const Moments& level : m_levels)
      sum += static_cast<std::size_t>(level.M.size()) * sizeof(T) + level.units.size() * sizeof(Unit);
    return sum;
  }

  /// How many scalars transfer() writes for a sequence of `tokens` tokens, at least.
  static Index saved_scalars(const Model& model, const TokenShape& shape, Index tokens) {
    Index sum = 0;
    for (Index l = 0; l < model.levels() && tokens >= chunk << l; ++l)
      sum += model.level(l).kept * Model::scalars(shape, model.terms());
    return sum;
  }
  /// Calls archive(x) for each part of the state, to be written or read. Requires reserve(). The work that is not
  /// complete is not saved, but done again.
  template <class Archive>
  void transfer(const Model& model, Index tokens, Archive&& archive) {
    if (!model.any()) return;
    for (const Index expected : {model.terms(), model.near_chunks(), saved_scalars(model, m_shape, tokens)}) {
      Index saved = expected;
      archive(saved);
      require(saved == expected, "state: expected sums of chunks as this machine computes them, got others");
    }
    archive(m_complete);
    const Index least = std::max<Index>((tokens + chunk - 1) / chunk - 2, 0);
    require(least <= m_complete && m_complete <= tokens / chunk, "state: expected moments of ", least, " to ",
            tokens / chunk, " chunks, got ", m_complete);
    for (std::size_t l = 0; l < m_levels.size() && tokens >= chunk << l; ++l) {
      archive(m_levels[l].M);
      for (Unit& unit : m_levels[l].units) archive(unit.exponent), archive(unit.largest_value);
    }
  }

 private:
  static constexpr Index chunk = Model::chunk;
  static constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

  // sums are multiples of 2^exponent; -infinity if no token has a weight
  struct Unit {
    double exponent = minus_infinity;
    T largest_value = 0;                               // the largest finite |v|
    void join(const Unit& other, double factor = 0) {  // `other` times 2^factor
      exponent = std::max(exponent, other.exponent + factor);
      largest_value = std::max(largest_value, other.largest_value);
    }
  };
  // the moments of a level: chunk J is number J mod kept
  struct Moments {
    Vector<T> M;              // (r,kept,terms,padded d_v) for values; then (kept,terms,padded r) for the column of ones
    std::vector<Unit> units;  // (kept)
  };
  // L of chunk I, of which the first `done` steps of the work are done
  struct Sums {
    Vector<T> L = {};  // (r,terms,padded d_v), (terms,padded r)
    Index I = -1, done = 0;
    Unit unit = {};
  };

  // a sum of terms 2^exponent M x, for exponents <= 0 and each x (terms,width)
  struct ScaledSum {
    Workspace& scratch;
    toeplitz::MixedTerm<T>* terms;
    std::size_t count = 0;

    ScaledSum(Workspace& of, std::size_t most)
        : scratch(of), terms(of.take<toeplitz::MixedTerm<T>>(static_cast<Index>(most))) {}
    void add(const T* M, const T* x, double exponent) {
      const T factor = exponent > -4000 ? std::ldexp(T(1), static_cast<int>(std::min(exponent, 0.0))) : T(0);
      if (factor == T(0)) return;
      T* scaled = scratch.take<T>(toeplitz::term_pairs);
      std::transform(M, M + toeplitz::term_pairs, scaled, [=](T m) { return factor * m; });
      terms[count++] = {scaled, x};
    }
    void store(Index num_terms, Index width, T* out) const {
      toeplitz::set_mixed<T>(num_terms, width, 0, {terms, count}, out);
    }
  };

  // steps of the work: one for each feature, and one for the column of ones
  Index steps() const { return m_shape.r + 1; }
  Index width(Index step) const { return step < m_shape.r ? m_width : padded_to_lanes(m_shape.r); }
  static const T* polynomials(Index position) {
    return toeplitz::ChunkBasis<T>::get().by_slot + position % chunk * toeplitz::most_terms;
  }
  Unit& unit(const Model& model, Index l, Index J) {
    return m_levels[static_cast<std::size_t>(l)].units[static_cast<std::size_t>(J % model.level(l).kept)];
  }
  // the moments of chunk J of level l, of one step: (terms,width)
  T* moments(const Model& model, Index l, Index J, Index step) {
    const Index kept = model.level(l).kept;
    return m_levels[static_cast<std::size_t>(l)].M.data() +
           model.terms() * (step * kept * m_width + J % kept * width(step));
  }
  // calls use(l, J) for the chunks J of levels l that end with chunk m_complete, from level 1 on
  template <class Use>
  void for_each_ending(const Model& model, Use&& use) const {
    Index J = m_complete;
    for (Index l = 1; J % 2 == 1 && l < model.levels(); ++l) use(l, J /= 2);
  }

  // does the steps up to `until` of the moments of chunk m_complete, and of the chunks that end with it
  void set_moments(const Model& model, const TokenRing<T>& ring, Index until, Workspace& scratch) {
    for (; m_done < until; ++m_done) {
      if (m_done == 0) set_units(model, ring);
      if (m_done < m_shape.r) set_lowest_moments(model, ring, m_done, scratch);
      for_each_ending(model, [&](Index l, Index J) {
        const Workspace::Scope scope(scratch);
        ScaledSum sum(scratch, 2);
        for (Index half : {0, 1})
          sum.add(model.level(l - 1).Wt[half], moments(model, l - 1, 2 * J + half, m_done),
                  unit(model, l - 1, 2 * J + half).exponent - unit(model, l, J).exponent);
        sum.store(model.terms(), width(m_done), moments(model, l, J, m_done));
      });
    }
    if (m_done == steps()) ++m_complete, m_done = 0;
  }

  // sets m_weights, and the units of chunk m_complete and of the chunks that end with it
  void set_units(const Model& model, const TokenRing<T>& ring) {
    Unit of;
    double log_scales[chunk];
    const Index first = m_complete * chunk;
    for (Index u = 0; u < chunk; ++u) {
      const StateToken<T> token = ring.token(first + u);
      log_scales[u] = token.log_scale;
      of.join({token.log_scale, token.largest_value});
    }
    of.exponent = std::ceil(of.exponent / std::numbers::ln2);
    for (Index u = 0; u < chunk; ++u)
      m_weights[u] = of.exponent > minus_infinity
                         ? static_cast<T>(std::exp(log_scales[u] - of.exponent * std::numbers::ln2))
                         : T(0);
    unit(model, 0, m_complete) = of;
    for_each_ending(model, [&](Index l, Index J) {
      Unit& outer = unit(model, l, J) = unit(model, l - 1, 2 * J);
      outer.join(unit(model, l - 1, 2 * J + 1));
    });
  }

  // M[p] = sum_u P_p(u) w_u phi_uk [v_u 1] for feature k of the tokens u of chunk m_complete
  void set_lowest_moments(const Model& model, const TokenRing<T>& ring, Index k, Workspace& scratch) {
    const Workspace::Scope scope(scratch);
    const Index terms = model.terms(), first = m_complete * chunk;
    T* to = moments(model, 0, m_complete, k);
    std::fill_n(to, terms * m_width, T(0));
    T* ones = moments(model, 0, m_complete, m_shape.r) + k;
    for (Index p = 0; p < terms; ++p) ones[p * padded_to_lanes(m_shape.r)] = T(0);
    ring.for_each_run(first, first + chunk, [&](Index j, Index s, Index count) {
      T* factors = scratch.take<T>(count);
      const T* values = finite_values(ring, j, count, scratch);
      for (Index p = 0; p < terms; ++p) {
        T sum = 0;
        for (Index u = 0; u < count; ++u) {
          factors[u] = polynomials(j + u)[p] * (m_weights[j - first + u] * ring.feature(s + u, k)[0]);
          sum += factors[u];
        }
        add_scaled_rows(factors, T(1), values, count, m_width, to + p * m_width);
        ones[p * padded_to_lanes(m_shape.r)] += sum;
      }
    });
  }
  // the values of successive tokens (count,padded d_v), without non-finite entries
  const T* finite_values(const TokenRing<T>& ring, Index j, Index count, Workspace& scratch) const {
    const T* values = ring.value(ring.slot(j));
    bool all_finite = true;
    for (Index u = 0; u < count; ++u) all_finite = all_finite && ring.has_finite_value(ring.slot(j + u));
    if (all_finite) return values;
    T* copy = scratch.take<T>(count * m_width);
    std::transform(values, values + count * m_width, copy, [](T x) { return std::isfinite(x) ? x : T(0); });
    return copy;
  }

  // does the steps up to `until` of L of chunk I
  void set_sums(const Model& model, Sums& sums, Index I, Index until, Workspace& scratch) {
    if (sums.I != I) {
      sums.I = I, sums.done = 0, sums.unit = {};
      for (Index l = 0; l < model.levels(); ++l)
        for_each_coupling(model, l, I >> l,
                          [&](Index J, const Coupling& each) { sums.unit.join(unit(model, l, J), each.exponent); });
    }
    if (!(sums.unit.exponent > minus_infinity)) sums.done = until;
    for (; sums.done < until; ++sums.done) {
      const Workspace::Scope scope(scratch);
      const Index step = sums.done, size = width(step);
      const T* outer = nullptr;
      for (Index l = model.levels() - 1; l >= 0; --l) {
        const Index half = (I >> l) % 2;
        ScaledSum sum(scratch, model.level(l).coupled[half].size() + 1);
        if (outer) sum.add(model.level(l).W[half], outer, 0);
        for_each_coupling(model, l, I >> l, [&](Index J, const Coupling& each) {
          sum.add(each.scaled_K, moments(model, l, J, step),
                  each.exponent + unit(model, l, J).exponent - sums.unit.exponent);
        });
        T* to = l == 0 ? sums.L.data() + model.terms() * step * m_width : scratch.take<T>(model.terms() * size);
        sum.store(model.terms(), size, to);
        outer = to;
      }
    }
  }
  // calls use(J, coupling) for the chunks J of level l whose moments L of chunk I of this level needs
  template <class Use>
  static void for_each_coupling(const Model& model, Index l, Index I, Use&& use) {
    for (const Coupling& each : model.level(l).coupled[I % 2])
      if (I >= each.distance) use(I - each.distance, each);
  }

  Index m_complete = 0, m_done = 0;
  TokenShape m_shape{};
  Index m_width = 0;
  std::vector<Moments> m_levels;
  Vector<T> m_weights;  // (chunk)
  Sums m_present, m_next;
};

}  // namespace nprf
