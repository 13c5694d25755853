// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <type_traits>
#include <variant>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/engines.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/plan/choose.hpp"

/// The product that attention and its gradients are computed by:  Y = ((A B^T) o C) U,  C[i,j] = c[j-i].
/// In the table n is the larger of n_q and n_k.
///
/// | engine       | time                 | good for                                                             |
/// |--------------|----------------------|----------------------------------------------------------------------|
/// | direct       | n_q n_k (r + p)      | short n; rounding errors per row                                     |
/// | banded       | n ((r + p) R + r p)  | weights that are constant beyond R lags; rounding errors per row     |
/// | recurrence   | n ((r + p) R + r p)  | as banded, for weights that decay exponentially beyond R lags        |
/// | lanes        | r p n log n          | long n and weights for which all rows have similar magnitudes        |
/// | grid         | r p n log n          | the same engine as lanes, for the slots of an image                  |
/// | block_causal | r p n log^2 n        | long n and one-sided weights: no bit depends on later tokens         |
/// | smooth       | n r p                | weights that are smooth at long lags; it changes them a little       |
/// | fftw         | r p n log n          | comparison with lanes: Y by the library FFTW, gradients by lanes     |
namespace nprf::toeplitz {

/// The product with one set of weights by one engine, for any factors: what depends on the weights alone is computed
/// once. Its tables are in the workspace of the team that it is built with. Threads may share it.
template <Real T>
class Product {
 public:
  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1, where `span` has n_q and n_k. `tokens` counts only the
  /// slots that are not empty, for the cost model of Engine::automatic. Throws InvalidArgument for engines that this
  /// build does not have.
  Product(Engine engine, LagWeightsView<T> lags, const ProductShape& tokens, const ProductShape& span,
          const Team& team);

  /// The same, if there is a token in each slot.
  Product(Engine engine, LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : Product(engine, lags, span, span, team) {}

  /// The engine in use; Engine::automatic if that was requested and all products are zero.
  Engine engine() const { return m_name; }

  /// Writes Y (n_q,p) = ((A B^T) o C) U. If sums is not null, also writes sums (n_q) = ((A B^T) o C) 1. In attention
  /// these are numerators and denominators. Throws InvalidArgument for key log-scales unless accepts_key_log_scales().
  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const;

  /// The rounding of the engine; per_row if all products are zero.
  Rounding rounding() const {
    return visit([]<class E>(const E&) { return E::rounding; }, Rounding::per_row);
  }
  bool accepts_key_log_scales() const {
    return visit([]<class E>(const E&) { return E::accepts_key_log_scales; }, false);
  }

  /// Of sums over n_k keys, the largest number of keys that are summed without compensation (long_sums.hpp).
  Index longest_plain_sum(Index n_k) const {
    return visit([n_k](const auto& engine) { return engine.longest_plain_sum(n_k); }, n_k);
  }

  /// A bound of the relative difference between a weight of the product and c; 0 unless the engine is `smooth`.
  double deviation() const {
    return visit(
        []<class E>(const E& engine) {
          if constexpr (requires { engine.deviation(); })
            return engine.deviation();
          else
            return 0.0;
        },
        0.0);
  }

  /// Writes to `out` bounds of the rounding errors of contract(), or zeros if rounding is per row. sizes[j] (n_k) is
  /// the largest |U_jp| of key j. O((n_q + n_k) r).
  void row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const;

  /// Writes to `out` the gradients for G (n_q,p) = dL/dY. out.dc has the num_lags() lags from first_lag() on, or is
  /// empty. Also writes the sums of `sizes`, unless `sizes` is empty or rounding is per row. Throws like contract().
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>& sizes,
                 const Team& team) const;

  /// Writes to `out` bounds of the rounding errors of gradients(), or nothing if rounding is per row.
  void gradient_error_bounds(const Factors<T>& x, const GradientScales<T>& of, GradientErrorBounds out,
                             const Team& team) const;

  LagWeightsView<T> weights() const { return m_weights; }
  /// The first lag that slots can have, -(n_q-1), and the number of lags up to the last one, n_k-1.
  Index first_lag() const { return m_first; }
  Index num_lags() const { return m_lags; }

 private:
  using Engines = EngineList<T>;

  // returns use(engine), or `none` if all products are zero
  template <class Use, class Result>
  Result visit(Use&& use, Result none) const {
    return std::visit(
        [&]<class E>(const E& engine) -> Result {
          if constexpr (std::same_as<E, std::monostate>)
            return none;
          else
            return use(engine);
        },
        m_engine);
  }
  template <class Use>
  void visit(Use&& use) const {
    visit([&](const auto& engine) { return use(engine), 0; }, 0);
  }

  void check_log_scales(const Factors<T>& x) const {
    require(!x.key_log_scales || accepts_key_log_scales(), "key_log_scales: expected none for engine ", name(m_name));
  }

  bool is_zero(const Factors<T>& x) const {
    return std::holds_alternative<std::monostate>(m_engine) || x.A.size() == 0 || x.B.size() == 0;
  }

  Engine m_name;
  LagWeightsView<T> m_weights;
  Index m_first, m_lags;  // of the lags that the slots can reach
  typename Engines::Variant m_engine;
};

// not inline, so that it can be compiled once (implementation.hpp)
template <Real T>
Product<T>::Product(Engine engine, LagWeightsView<T> lags, const ProductShape& tokens, const ProductShape& span,
                    const Team& team)
    : m_name(engine), m_weights(lags), m_first(1 - span.n_q), m_lags(span.n_q + span.n_k - 1) {
  require_available(engine);
  if (span.empty() || lags.support().size() == 0) return;
  if (engine == Engine::automatic) m_name = choose(lags, tokens, {span.n_q}, {span.n_k}, team.workspace());
  with_engine<T>(m_name, [&]<class E>(std::type_identity<E>) { m_engine.template emplace<E>(lags, span, team); });
}

template <Real T>
void Product<T>::contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums) const {
  check_log_scales(x);
  if (is_zero(x)) {
    Y.setZero();
    if (sums) std::fill_n(sums, Y.rows(), T(0));
  } else if (x.U.cols() > 0) {
    visit([&](const auto& engine) { engine.contract(x, Y, team, sums); });
  } else if (sums) {
    visit([&](const auto& engine) { contract_ones(engine, x, team, sums); });
  }
}

template <Real T>
void Product<T>::gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out,
                           const GradientSizes<T>& sizes, const Team& team) const {
  check_log_scales(x);
  if (is_zero(x) || x.U.cols() == 0) {
    out.set_zero();
    return;
  }
  visit([&](const auto& engine) { engine.gradients(x, G, out, sizes, team); });
}

template <Real T>
void Product<T>::row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const {
  for (double* of : {out.Y, out.sums}) std::fill_n(of, x.A.rows(), 0.0);
  if (is_zero(x)) return;
  visit([&]<class E>(const E& engine) {
    if constexpr (HasErrorBounds<E, T>) engine.row_error_bounds(x, sizes, out, team);
  });
}

template <Real T>
void Product<T>::gradient_error_bounds(const Factors<T>& x, const GradientScales<T>& of, GradientErrorBounds out,
                                       const Team& team) const {
  visit([&]<class E>(const E& engine) {
    if constexpr (HasErrorBounds<E, T>) engine.gradient_error_bounds(x, of, out, team);
  });
}

}  // namespace nprf::toeplitz
