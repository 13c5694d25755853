// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/long_sums.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/fft/polynomial_tree.hpp"
#include "nprf/toeplitz/engine.hpp"
#include "nprf/toeplitz/factors.hpp"
#include "nprf/toeplitz/fft/backward.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/fft/signal_layout.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by the library's own FFT (fft/polynomial_tree.hpp), for lane_count columns of U at a time. Its
/// names are Engine::lanes, since a transform has a column in each lane of a register, and Engine::grid, for images,
/// whose slots have gaps.
///
/// Each pair of a feature and a column is a signal x = B_r o U_p with its own transform, so that no two share their
/// rounding errors. Against overflow and underflow each column of B and of U is divided by its power-of-two scale,
/// which is exact, and the same column of A or of Y is multiplied by this scale. Left-over columns of U (ColumnGroups),
/// often the column of ones, have features as lanes instead.
///
/// Time O(r p n log n); workspace O(n (16 + lane_count * threads)), for gradients O(n (r + p)). If slots are empty,
/// the factors are copied to one row for each slot first. Rounding errors are relative to the largest row of Y. Threads
/// share out groups of columns.
template <Real T>
class FftEngine {
 public:
  static constexpr Engine names[] = {Engine::lanes, Engine::grid};
  static constexpr Rounding rounding = Rounding::global;
  static constexpr bool accepts_key_log_scales = false, is_automatic = true;
  static Engine name_for(const LagWeightsView<T>&) { return names[0]; }

  /// 2 n * (signals + W) * (fft_level * log2(2 n) + fft_point), for n = max(n_q, n_k) slots and the signals that
  /// signals() counts. The weights count as W signals, the lanes of a register.
  static double cost(const CostInputs<T>& x) {
    if (x.tokens.empty()) return 0;
    constexpr double left_over = 1.4;
    const double length = static_cast<double>(2 * std::max(x.span.n_q, x.span.n_k));
    // the last column, that of ones, is a separate product
    const double columns = signals<T>(x.span.r, std::max<Index>(x.span.p - 1, 0), left_over),
                 ones = signals<T>(x.span.r, 1, left_over), weights = static_cast<double>(W);
    return length * (columns + ones + weights) * fft_value_cost(length);
  }

  FftEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_n_q(span.n_q), m_n_k(span.n_k), m_tree(Tree::shared(Tree::length_for(std::max(span.n_q, span.n_k)))) {
    // y[i] = sum_j c[j-i] x[j] is the product of the polynomials x and g modulo the polynomial z^(2L) + 1, with
    //     g[-lag] = c[lag] for lag <= 0    g[2L - lag] = -c[lag] for lag > 0
    const Index L = m_tree->length();
    T* spectrum = team.workspace().take<T>(2 * L);
    const Workspace::Scope scope(team.workspace());
    Z* z = team.workspace().take<Z>(L);
    const T scale = 1 / static_cast<T>(L);
    m_tree->values(
        [&](Index j) {
          const T past = j < m_n_q ? lags[-j] : T(0), ahead = j > 0 && L - j < m_n_k ? lags[L - j] : T(0);
          return Z{Lanes() + scale * past, Lanes() - scale * ahead};
        },
        z);
    for (Index k = 0; k < L; ++k) {
      spectrum[2 * k] = z[k].re[0];
      spectrum[2 * k + 1] = z[k].im[0];
    }
    m_spectrum = spectrum;
    for (Index lag = -(m_n_q - 1); lag < m_n_k; ++lag) m_norms.add(static_cast<double>(lags[lag]));
  }

  void contract(const Factors<T>& x, MatrixRef<T> Y, const Team& team, T* sums = nullptr) const {
    if (sums) contract_ones(*this, x, team, sums);
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const Factors<T> by_slot = in_slots(x, {m_n_q}, {m_n_k}, team);
    if (x.queries.slots.count == m_n_q) return contract_slots(by_slot, Y, team);
    auto all = workspace.matrix<T>(m_n_q, Y.cols());
    contract_slots(by_slot, all, team);
    from_slots(all, x.queries.slots, Y, team);
  }

  /// sizes[j] (n_k) is the largest |U_jp| of key j.
  void row_error_bounds(const Factors<T>& x, const T* sizes, RowErrorBounds out, const Team& team) const {
    fft_row_error_bounds(m_norms, period(), x, sizes, out, team);
  }

  void gradient_error_bounds(const Factors<T>& x, const GradientScales<T>& of, GradientErrorBounds out,
                             const Team& team) const {
    fft_gradient_error_bounds(m_norms, period(), x, of, out, team);
  }

  /// Each signal needs four transforms; in contract() it needs two.
  void gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>& sizes,
                 const Team& team) const {
    const Workspace::Scope scope(team.workspace());
    const Factors<T> by_slot = in_slots(x, {m_n_q}, {m_n_k}, team);
    const MatrixView<T> G_by_slot = in_slots(G, x.queries.slots, {m_n_q}, team);
    SlotGradients<T> slots(x, {m_n_q}, {m_n_k}, out, sizes, team);
    slot_gradients(by_slot, G_by_slot, slots.refs(), slots.sizes(), team);
    slots.copy_back(team);
  }

  Index longest_plain_sum(Index n_k) const { return std::min(n_k, plain_sum_of_fft); }

  /// 2 L, the number of coefficients of a product modulo z^(2L) + 1, at least n_q + n_k; for error bounds, the length
  /// of the FFTs.
  Index period() const { return 2 * m_tree->length(); }

 private:
  using Tree = fft::PolynomialTree<T>;
  using Z = fft::ComplexLanes<T>;
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;

  // contract() for factors with one row for each slot
  void contract_slots(const Factors<T>& x, MatrixRef<T> Y, const Team& team) const {
    const Index r = x.A.cols(), p = x.U.cols(), L = m_tree->length();
    Workspace& workspace = team.workspace();
    auto scales = workspace.vector<T>(r);
    column_scales(x.B, scales);
    // The number of features in a block. Each block costs a pass over U and Y; each feature of a block costs memory
    const Index about = L <= (Index{1} << 17) ? 16 : 4, blocks = std::max<Index>(1, (r + about / 2) / about),
                block = (r + blocks - 1) / blocks;
    const FeatureColumns<T> b(workspace, block, L), a(workspace, block, L, m_tree->twist());
    const ColumnGroups<T> groups(r, p);
    for (Index r0 = 0; r0 < r; r0 += block) {
      const Index features = std::min(block, r - r0);
      team.run_tiles(groups.count > 0 ? L : 0, [&](Index j0, Index rows, Workspace&) {
        for (Index k = 0; k < features; ++k) {
          b.read(k, x.B, r0 + k, finite(1 / scales[r0 + k]), j0, rows);
          a.read(k, x.A, r0 + k, finite(scales[r0 + k]), j0, rows);
        }
      });
      team.run(groups.count + (r0 == 0 ? groups.left_over : 0), [&](Index task, Workspace& scratch) {
        Z* z = scratch.take<Z>(staggered<Z>(L));
        if (task >= groups.count) {
          const Index column = p - groups.left_over + task - groups.count;
          return contract_column(x, scales, column, Y, z, scratch);
        }
        const Index p0 = task * W, width = groups.width(task);
        ColumnLanes<T> u(scratch, m_n_k, L, width), y(scratch, m_n_q, L, width);
        u.read(x.U, p0);
        const Lanes u_scales = u.scales();
        u.scale(inverse<T>(u_scales));
        y.set_zero();
        for (Index k = 0; k < features; ++k) add(b[k], u.values, a[k], y.values, z);
        y.scale(finite_lanes<T>(u_scales));
        if (r0 == 0)
          y.write(Y, p0);
        else
          y.add_to(Y, p0);
      });
    }
  }

  // y += a o T(c) (b o u) for one feature, where T(c) is the Toeplitz matrix of the weights, and a a twisted column
  // (FeatureColumns): it contains the factor that the inverse transform leaves. z is scratch memory
  void add(const T* b, const Lanes* u, const T* a, Lanes* y, Z* z) const {
    m_tree->template convolve<1>(
        {z}, [=](auto, Index j) { return b[j] * u[j]; },
        [g = m_spectrum](Index k, Z(&x)[1][8]) { multiply(x[0], g + 16 * k); },
        [=](auto, Index i, const Z& t) { y[i] += real_part(t, a + 2 * i); });
  }

  // one column of Y, W features at a time
  void contract_column(const Factors<T>& x, const VectorMap<T>& scales, Index column, MatrixRef<T>& Y, Z* z,
                       Workspace& scratch) const {
    const ScaledColumn<T> u(x.U, column, scratch);
    T* y = scratch.take<T>(m_n_q);
    std::fill_n(y, m_n_q, T(0));
    for (Index f = 0; f < x.A.cols(); f += W) {
      const FeatureLanes<T> a(x.A, f), b(x.B, f);
      const Lanes scale = a.load(scales.data()), of_b = inverse<T>(scale), of_a = finite_lanes<T>(scale);
      m_tree->template convolve<1>(
          {z}, [&, n = m_n_k](auto, Index j) { return j < n ? b.row(j) * of_b * u.values[j] : Lanes{}; },
          [g = m_spectrum](Index k, Z(&values)[1][8]) { multiply(values[0], g + 16 * k); },
          [&, n = m_n_q](auto, Index i, const Z& t) {
            if (i < n) y[i] += fft::sum_lanes<T>(a.row(i) * of_a * real_part(t, m_tree->twist() + 2 * i));
          });
    }
    for (Index i = 0; i < m_n_q; ++i) Y(i, column) = y[i] * finite(u.scale);
  }

  // gradients() for factors with one row for each slot
  void slot_gradients(const Factors<T>& x, const MatrixView<T>& G, GradientRefs<T> out, const GradientSizes<T>& sizes,
                      const Team& team) const {
    const Index L = m_tree->length();
    out.set_zero();
    if (sizes) std::fill_n(sizes.keys, x.B.rows(), T(0));
    SignalBackward<T> backward(x, G, sizes, L, 2 * L, team);
    const auto add = [this](const auto& signals, Workspace& scratch) {
      const Index size = staggered<Z>(m_tree->length());
      add_gradients(signals, {scratch.take<Z>(size), scratch.take<Z>(size)});
    };
    backward.run(out, team, add, add);
    lag_gradient(backward, out.dc, sizes.lags, team.workspace());
  }

  // adds the gradients' terms of one feature and a group of columns; signal 0 is x, and signal 1 is w
  void add_gradients(const GroupSignals<T>& x, const std::array<Z*, 2>& z) const {
    m_tree->template convolve<2>(
        z, [x](auto s, Index j) { return s == 0 ? x.b[j] * x.u[j] : x.a[j] * x.g[j]; }, correlating(x.correlation),
        [x, twist = m_tree->twist()](auto s, Index j, const Z(&twisted)[8]) {
          Lanes products[8];
          for (Index l = 0; l < 8; ++l) {
            const Lanes t = real_part(twisted[l], twist + 2 * (j + l));
            products[l] = t * (s == 0 ? x.g : x.u)[j + l];
            if constexpr (s == 1) x.du[j + l] += x.b[j + l] * t;
          }
          add_lane_sums_of_eight<T>(products, (s == 0 ? x.da : x.db) + j);
        });
  }

  // adds the gradients' terms of one column, with features as lanes
  void add_gradients(const ColumnSignals<T>& x, const std::array<Z*, 2>& z) const {
    m_tree->template convolve<2>(
        z,
        [&](auto s, Index j) {
          if (s == 0) return j < m_n_k ? x.b.row(j) * x.u[j] : Lanes{};
          return j < m_n_q ? x.a.row(j) * x.g[j] : Lanes{};
        },
        correlating(x.correlation),
        [&](auto s, Index j, const Z(&twisted)[8]) {
          Lanes products[8]{};
          for (Index i = j; i < std::min(j + 8, s == 0 ? m_n_q : m_n_k); ++i) {
            const Lanes t = real_part(twisted[i - j], m_tree->twist() + 2 * i);
            if (MatrixRef<T>* d = s == 0 ? x.da : x.db) x.a.add(t * (s == 0 ? x.g : x.u)[i], *d, i);
            if constexpr (s == 1) products[i - j] = x.b.row(i) * t;
          }
          if constexpr (s == 1) add_lane_sums_of_eight<T>(products, x.du + j);
        });
  }

  // for eight values of the spectra of x (z[0]) and w (z[1]): correlation += conj(w) x, summed over lanes; then
  // x *= g and w *= conj(g)
  auto correlating(T* correlation) const {
    return [g = m_spectrum, correlation](Index k, Z(&z)[2][8]) {
      Lanes products[16];
      correlate<false>(z[1], z[0], products);
      add_lane_sums<T>(products, correlation + 16 * k);
      multiply(z[0], g + 16 * k);
      multiply_conjugate(z[1], g + 16 * k);
    };
  }

  // Writes dc of lag l to index l + n_q - 1 of `dc`, by the inverse transform of the correlation of w and x. The
  // correlation is a polynomial modulo z^2L + 1, where lag l < 0 has the coefficient l + 2L with the opposite sign: the
  // residue modulo z^L - i has lag j >= 0 as real part j, and minus lag j - L as imaginary part j. The correlation of
  // the sizes is in the second lane.
  void lag_gradient(const SignalBackward<T>& backward, Eigen::Ref<Vector<T>> dc, T* sizes, Workspace& workspace) const {
    const Index L = m_tree->length();
    const T scale = 1 / static_cast<T>(L);
    const T* from[] = {backward.correlation(), backward.size_correlation()};
    T* to[] = {dc.size() > 0 ? dc.data() : nullptr, sizes};
    m_tree->coefficients(
        workspace.take<Z>(L),
        [&](Index k, Index l) {
          Z both{Lanes{}, Lanes{}};
          for (const int lane : {0, 1}) {
            both.re[lane] = from[lane][16 * k + l];
            both.im[lane] = from[lane][16 * k + 8 + l];
          }
          return both;
        },
        [&](Index j, const Z& twisted) {
          const Z both = untwisted(twisted, m_tree->twist() + 2 * j);
          for (const int lane : {0, 1}) {
            if (to[lane] && j < m_n_k) to[lane][m_n_q - 1 + j] = scale * both.re[lane];
            if (to[lane] && L - j < m_n_q) to[lane][m_n_q - 1 + j - L] = -scale * both.im[lane];
          }
        });
  }

  Index m_n_q, m_n_k;
  std::shared_ptr<const Tree> m_tree;
  NormSums m_norms;
  const T* m_spectrum = nullptr;  // (L) of g / L, in the order of the tree, real and imaginary parts
};

}  // namespace nprf::toeplitz
