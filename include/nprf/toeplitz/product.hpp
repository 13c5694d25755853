// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>
#include <variant>

#include "nprf/config.hpp"
#include "nprf/core/error.hpp"
#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/toeplitz/banded/engine.hpp"
#include "nprf/toeplitz/block_causal/engine.hpp"
#include "nprf/toeplitz/direct/engine.hpp"
#include "nprf/toeplitz/fft/backward_error_bound.hpp"
#include "nprf/toeplitz/fft/engine.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/fftw/engine.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/plan/planner.hpp"

/// The one product under every attention and every gradient:  Y = ((A B^T) o C) U,  C[i,j] = c[j-i].
///
/// | engine       | time                 | good for                                                             |
/// |--------------|----------------------|----------------------------------------------------------------------|
/// | direct       | n_q n_k (r + p)      | short n; keeps every digit                                           |
/// | banded       | n ((r + p) R + r p)  | weights that are constant beyond R lags; keeps every digit           |
/// | recurrence   | the same             | weights that fall exponentially beyond R lags; likewise              |
/// | lanes        | r p n log n          | long n and weights that leave all rows of a size                     |
/// | grid         | the same             | lanes, where the slots are a picture's                               |
/// | block_causal | r p n log^2 n        | long n and one-sided weights: no bit depends on what is later        |
/// | fftw         | r p n log n          | what lanes does, by FFTW: a rival                                    |
namespace nprf::toeplitz {

/// Throws InvalidArgument for an engine that this build does not have, and for a number that is none.
inline void require_available(Engine engine) {
  check_engine(engine);
  require(NPRF_USE_FFTW || engine != Engine::fftw,
          "engine: expected one that this build has (it is without FFTW), got ", name(engine));
}

/// [U 1] (n,p+1), in the team's workspace.
template <Real T>
MatrixMap<T> with_ones(const MatrixView<T>& U, const Team& team) {
  auto all = team.workspace().template matrix<T>(U.rows(), U.cols() + 1);
  team.run_tiles(U.rows(), [&](Index i0, Index rows, Workspace&) {
    all.block(i0, 0, rows, U.cols()) = U.middleRows(i0, rows);
    all.block(i0, U.cols(), rows, 1).setOnes();
  });
  return all;
}

template <class E, class T>
concept HasNoise = requires(const E& engine, const ProductFactors<T>& x, const T* sizes, RowNoises out,
                            const Team& team) { engine.noise(x, sizes, out, team); };

/// The product with one set of weights, by one engine, ready for any factors: what depends on the weights alone is
/// computed once. Its tables lie in the workspace of the team that it was made with; threads may share it.
template <Real T>
class Product {
 public:
  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1 of `span`; `tokens` is how many there will be in them,
  /// which Engine::automatic reckons with. Throws InvalidArgument for engines that this build does not have.
  Product(Engine engine, LagWeightsView<T> lags, const ProductShape& tokens, const ProductShape& span,
          const Team& team);

  /// The same with a token in each slot.
  Product(Engine engine, LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : Product(engine, lags, span, span, team) {}

  /// The engine that works; Engine::automatic if that was asked for and all products are zero.
  Engine engine() const { return m_name; }

  /// Y (n_q,p) = ((A B^T) o C) U, and sums (n_q), unless it is null, that for a column of ones: numerators and
  /// denominators at once. Throws InvalidArgument for keys with exponents unless by Engine::block_causal.
  void contract(const ProductFactors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const;

  /// Whether rows share their rounding, as they do by an FFT.
  bool has_noise() const {
    return std::visit([]<class E>(const E&) { return HasNoise<E, T>; }, m_engine);
  }

  /// How many of n_k keys are added up in turn at most, each rounding being one of all before.
  Index keys_in_turn(Index n_k) const {
    return std::visit(
        [n_k]<class E>(const E& engine) {
          if constexpr (HasNoise<E, T>)
            return std::min<Index>(n_k, 512);
          else if constexpr (requires { engine.keys_in_turn(n_k); })
            return engine.keys_in_turn(n_k);
          else
            return n_k;
        },
        m_engine);
  }

  /// What the engine's rounding leaves in the rows of contract(), 0 unless has_noise(); sizes (n_k) are the largest
  /// |U_j.| of each key. O((n_q + n_k) r).
  void noise(const ProductFactors<T>& x, const T* sizes, RowNoises out, const Team& team) const {
    for (double* of : {out.Y, out.sums}) std::fill_n(of, x.A.rows(), 0.0);
    if (is_zero(x)) return;
    std::visit(
        [&]<class E>(const E& engine) {
          if constexpr (HasNoise<E, T>) engine.noise(x, sizes, out, team);
        },
        m_engine);
  }

  /// The gradients for G (n_q,p) = dL/dY; out.dc for the num_lags() lags of the slots from first_lag() on, or empty.
  /// With sizes what they are sums of, if has_noise(). Throws as contract() does.
  void gradients(const ProductFactors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const Team& team,
                 const GradientSizes<T>& sizes = {}) const;

  /// What the engine's rounding leaves in gradients() (fft/backward_error_bound.hpp), if has_noise().
  void gradient_noise(const ProductFactors<T>& x, const GradientScales<T>& of, GradientNoises out,
                      const Team& team) const {
    std::visit(
        [&]<class E>(const E& engine) {
          if constexpr (HasNoise<E, T>) engine.gradient_noise(x, of, out, team);
        },
        m_engine);
  }

  LagWeightsView<T> weights() const { return m_weights; }
  /// -(n_q-1)..n_k-1 of the slots.
  Index first_lag() const { return m_first; }
  Index num_lags() const { return m_lags; }

 private:
  template <class E>
  static constexpr bool is_nothing = std::is_same_v<std::remove_cvref_t<E>, std::monostate>;

  void require_known(const ProductFactors<T>& x) const {
    require(!x.exponents || m_name == Engine::block_causal, "exponents: expected none for engine ", name(m_name));
  }

  static ProductFactors<T> with_values(const ProductFactors<T>& x, const MatrixView<T>& U) {
    return {x.A, x.B, U, x.queries, x.keys, x.exponents};
  }
  static Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>> as_column(T* sums, Index n_q) {
    return {sums, n_q, 1, Eigen::OuterStride<>(1)};
  }

  // sums = W 1
  void contract_ones(const ProductFactors<T>& x, const Team& team, T* sums) const {
    const Workspace::Scope scope(team.workspace());
    auto ones = team.workspace().template matrix<T>(x.U.rows(), 1);
    ones.setOnes();
    contract(with_values(x, ones), as_column(sums, x.A.rows()), team);
  }

  // [Y sums] = W [U 1]
  template <class E>
  static void contract_with_ones(const E& engine, const ProductFactors<T>& x, MatrixRef<T>& Y, const Team& team,
                                 T* sums) {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Index n_q = x.A.rows(), p = x.U.cols();
    auto all = workspace.template matrix<T>(n_q, p + 1);
    engine.contract(with_values(x, with_ones<T>(x.U, team)), all, team);
    team.run_tiles(n_q, [&](Index i0, Index rows, Workspace&) {
      Y.middleRows(i0, rows) = all.block(i0, 0, rows, p);
      as_column(sums, n_q).middleRows(i0, rows) = all.block(i0, p, rows, 1);
    });
  }

  bool is_zero(const ProductFactors<T>& x) const {
    return std::holds_alternative<std::monostate>(m_engine) || x.A.size() == 0 || x.B.size() == 0;
  }

  Engine m_name;
  LagWeightsView<T> m_weights;
  Index m_first, m_lags;  // that the slots reach
#if NPRF_USE_FFTW
  std::variant<std::monostate, DirectEngine<T>, BandedEngine<T>, LanesEngine<T>, BlockCausalEngine<T>, FftwEngine<T>>
      m_engine;
#else
  std::variant<std::monostate, DirectEngine<T>, BandedEngine<T>, LanesEngine<T>, BlockCausalEngine<T>> m_engine;
#endif
};

// not inline: see instances.hpp
template <Real T>
Product<T>::Product(Engine engine, LagWeightsView<T> lags, const ProductShape& tokens, const ProductShape& span,
                    const Team& team)
    : m_name(engine), m_weights(lags), m_first(1 - span.n_q), m_lags(span.n_q + span.n_k - 1) {
  require_available(engine);
  if (span.empty() || lags.support().size() == 0) return;
  if (engine == Engine::automatic) m_name = choose(lags, tokens, {span.n_q}, {span.n_k}, team.workspace());
  switch (m_name) {
#if NPRF_USE_FFTW
    case Engine::fftw: m_engine.template emplace<FftwEngine<T>>(lags, span, team); break;
#endif
    case Engine::lanes:
    case Engine::grid: m_engine.template emplace<LanesEngine<T>>(lags, span, team); break;
    case Engine::banded:
    case Engine::recurrence: m_engine.template emplace<BandedEngine<T>>(lags, span, team); break;
    case Engine::block_causal: m_engine.template emplace<BlockCausalEngine<T>>(lags, span, team); break;
    default: m_engine.template emplace<DirectEngine<T>>(lags, span, team);
  }
}

template <Real T>
void Product<T>::contract(const ProductFactors<T>& x, MatrixRef<T> Y, const Team& team, T* sums) const {
  require_known(x);
  if (is_zero(x)) {
    Y.setZero();
    if (sums) std::fill_n(sums, Y.rows(), T(0));
    return;
  }
  if (x.U.cols() == 0) {
    if (sums) contract_ones(x, team, sums);
    return;
  }
  std::visit(
      [&]<class E>(const E& engine) {
        if constexpr (!is_nothing<E>) {
          if (!sums)
            engine.contract(x, Y, team);
          else if constexpr (requires { engine.contract(x, Y, team, sums); })
            engine.contract(x, Y, team, sums);
          else if constexpr (requires { E::columns_apart; })
            engine.contract(x, Y, team), contract_ones(x, team, sums);
          else
            contract_with_ones(engine, x, Y, team, sums);
        }
      },
      m_engine);
}

template <Real T>
void Product<T>::gradients(const ProductFactors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const Team& team,
                           const GradientSizes<T>& sizes) const {
  require_known(x);
  if (is_zero(x) || x.U.cols() == 0) {
    out.set_zero();
    return;
  }
  std::visit(
      [&]<class E>(const E& engine) {
        if constexpr (std::is_same_v<E, BandedEngine<T>>) {
          engine.gradients(x, G, out, team);  // it has less to do where dc is empty
        } else if constexpr (!is_nothing<E>) {
          const Workspace::Scope scope(team.workspace());
          auto unasked = team.workspace().template vector<T>(out.dc.size() == 0 ? m_lags : 0);
          const GradientRefs<T> all{out.dA, out.dB, out.dU, out.dc.size() == 0 ? unasked : out.dc};
          if constexpr (HasNoise<E, T>)
            engine.gradients(x, G, all, sizes, team);
          else
            engine.gradients(x, G, all, team);
        }
      },
      m_engine);
}

}  // namespace nprf::toeplitz
