// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "nprf/core/lag_weights.hpp"
#include "nprf/core/shapes.hpp"
#include "nprf/core/team.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/fft/polynomial_tree.hpp"
#include "nprf/toeplitz/gradient_noise.hpp"
#include "nprf/toeplitz/gradients.hpp"
#include "nprf/toeplitz/leaf.hpp"
#include "nprf/toeplitz/panel.hpp"
#include "nprf/toeplitz/row_noise.hpp"
#include "nprf/toeplitz/signal_gradients.hpp"
#include "nprf/toeplitz/slot_gradients.hpp"

namespace nprf::toeplitz {

/// Y = ((A B^T) o C) U by our own FFT (polynomial_tree.hpp), lane_count columns of U at a time.
///
/// Features go in pairs as real and imaginary part of one signal, x = (B_r + i B_r+1) o U_p: T(c) is real, so that they
/// come apart by themselves, and one look at a row of U and Y serves both. They share their rounding, so that each
/// column of B is scaled to maximum 1 by a power of two, which is exact, and the same column of A by the inverse.
/// Columns of U that are left over, as the ones column often is, take features as lanes instead.
///
/// Time O(r p n log n); workspace O(n (16 + lane_count a thread)), for gradients O(n (r + p)); tokens with gaps are
/// copied into their slots first. Rounding is relative to the largest row of Y. Threads take groups of columns.
template <Real T>
class LanesEngine {
 public:
  /// Columns of U share next to nothing: one more costs as much as a product of its own.
  static constexpr bool columns_apart = true;

  /// For queries in slots 0..n_q-1 and keys in slots 0..n_k-1; its table lies in the team's workspace.
  LanesEngine(LagWeightsView<T> lags, const ProductShape& span, const Team& team)
      : m_n_q(span.n_q), m_n_k(span.n_k), m_tree(Tree::shared(Tree::length_for(std::max(span.n_q, span.n_k)))) {
    // y[i] = sum_j c[j-i] x[j] is the cyclic convolution of x with g[-lag mod 2L] = c[lag]
    const Index L = m_tree->length();
    T* spectrum = team.workspace().take<T>(4 * L);
    const Workspace::Scope scope(team.workspace());
    Z* z = team.workspace().take<Z>(L);
    const T scale = 1 / static_cast<T>(2 * L);
    const auto g = [&](Index k) { return scale * (k < m_n_q ? lags[-k] : 2 * L - k < m_n_k ? lags[2 * L - k] : T(0)); };
    for (const int half : {0, 1}) {
      m_tree->values(
          half,
          [&](Index j) {
            return Z{Lanes() + (half == 0 ? g(j) + g(j + L) : g(j) - g(j + L)), Lanes()};
          },
          z);
      for (Index k = 0; k < L; ++k) {
        spectrum[2 * (half * L + k)] = z[k].re[0];
        spectrum[2 * (half * L + k) + 1] = z[k].im[0];
      }
    }
    m_spectrum = spectrum;
    for (Index lag = -(m_n_q - 1); lag < m_n_k; ++lag) m_norms.add(static_cast<double>(lags[lag]));
  }

  /// Y (n_q,p) = ((A B^T) o C) U.
  void contract(const ProductFactors<T>& x, MatrixRef<T> Y, const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const MatrixView<T> A = in_slots(x.A, x.queries, m_n_q, team), B = in_slots(x.B, x.keys, m_n_k, team),
                        U = in_slots(x.U, x.keys, m_n_k, team);
    if (x.queries.count == m_n_q) return contract(A, B, U, Y, team);
    auto all = workspace.matrix<T>(m_n_q, Y.cols());
    contract(A, B, U, all, team);
    from_slots(all, x.queries, Y, team);
  }

  /// What its rounding leaves in the rows of contract(); sizes (n_k) are the largest |U_j.| of each key.
  void noise(const ProductFactors<T>& x, const T* sizes, RowNoises out, const Team& team) const {
    row_noises(m_norms, 2 * m_tree->length(), x, sizes, out, team,
               [&](const SignalNorms& norms, const SignalScale& scale, SignalNorms::Row& Y, SignalNorms::Row& sums) {
                 auto units = SignalNorms::row(Y.size(), team.workspace());
                 for (Index r = 0; r < units.size(); ++r)
                   units[r] = finite(unit_of(norms.largest()[r] * scale.B)) / scale.B;
                 share_rounding(units, 1, W, Y, team.workspace());
                 share_rounding(units, 1, W, sums, team.workspace());
                 const double lost = Underflow<T>::of_signals(2 * m_tree->length());
                 Y += lost * norms.largest_size() * norms.largest();
                 sums += lost * norms.largest();
               });
  }

  /// The same of gradients().
  void gradient_noise(const ProductFactors<T>& x, const GradientScales<T>& of, GradientNoises out,
                      const Team& team) const {
    gradient_noises(m_norms, 2 * m_tree->length(), x, of, out, team);
  }

  /// Its gradients for G (n_q,p) = dL/dY, and what they are sums of. Four transforms a column, where contract has two.
  void gradients(const ProductFactors<T>& x, const MatrixView<T>& G_, GradientRefs<T> out,
                 const GradientSizes<T>& sizes, const Team& team) const {
    Workspace& workspace = team.workspace();
    const Workspace::Scope scope(workspace);
    const MatrixView<T> A = in_slots(x.A, x.queries, m_n_q, team), B = in_slots(x.B, x.keys, m_n_k, team),
                        U = in_slots(x.U, x.keys, m_n_k, team), G = in_slots(G_, x.queries, m_n_q, team);
    SlotGradients<T> slots(x, {m_n_q}, {m_n_k}, out, sizes, team);
    gradients(A, B, U, G, slots.refs(), slots.sizes(), team);
    slots.put_back(team);
  }

 private:
  using Tree = fft::PolynomialTree<T>;
  using Z = fft::ComplexLanes<T>;
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>;
  using Pairs = FeaturePairs<T>;
  using Column = UnitColumn<T>;
  using Features = FeatureLanes<T>;

  void contract(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, MatrixRef<T> Y,
                const Team& team) const {
    const Index r = A.cols(), p = U.cols(), L = m_tree->length();
    Workspace& workspace = team.workspace();
    auto unit = workspace.vector<T>(r);
    column_units(B, unit);
    // features whose columns are laid out at a time: each time costs a pass over U and Y, and each column memory
    const Index block = L <= (Index{1} << 17) ? 16 : 4;
    const Pairs b(workspace, block / 2, L), a(workspace, block, L);  // those of a for both halves
    const ColumnGroups<T> groups(r, p);
    for (Index r0 = 0; r0 < r; r0 += block) {
      const Index features = std::min(block, r - r0), pairs = (features + 1) / 2;
      team.run_tiles(groups.count > 0 ? L : 0, [&](Index j0, Index rows, Workspace&) {
        for (Index pair = 0; pair < pairs; ++pair) {
          b.read(pair, B, r0 + 2 * pair, unit.cwiseInverse().unaryExpr(&finite<T>), j0, rows);
          a.read(2 * pair, A, r0 + 2 * pair, unit.unaryExpr(&finite<T>), j0, rows);
          for (Index j = 2 * j0; j < 2 * (j0 + rows); j += 2)
            twist(a[2 * pair] + j, m_tree->twist() + j, a[2 * pair + 1] + j);
        }
      });
      team.run(groups.count + (r0 == 0 ? groups.left_over : 0), [&](Index task, Workspace& scratch) {
        Z* z = scratch.take<Z>(staggered<Z>(L));
        if (task >= groups.count) {
          const Index column = p - groups.left_over + task - groups.count;
          return contract_column(A, B, unit, U, column, Y, z, scratch);
        }
        const Index p0 = task * W, width = groups.width(task);
        Panel<T> u(scratch, m_n_k, L, width), y(scratch, m_n_q, L, width);
        u.read(U, p0);
        const Lanes u_unit = u.units();
        u.scale(inverse<T>(u_unit));
        y.set_zero();
        for (Index pair = 0; pair < pairs; ++pair)
          for (const int half : {0, 1}) add(half, b[pair], u.values, a[2 * pair + half], y.values, z);
        y.scale(finite_lanes<T>(u_unit));
        if (r0 == 0)
          y.write(Y, p0);
        else
          y.add_to(Y, p0);
      });
    }
  }

  // y += a1 t1 + a2 t2,  t1 + i t2 = T(c) (b1 + i b2) o u, the share of one half
  void add(int half, const T* b, const Lanes* u, const T* a, Lanes* y, Z* z) const {
    m_tree->template convolve<1>(
        half, {z},
        [=](auto, Index j) {
          const Lanes value = u[j];
          return Z{b[2 * j] * value, b[2 * j + 1] * value};
        },
        [g = spectrum(half)](Index k, Z(&x)[1][8]) { multiply(x[0], g + 16 * k); },
        [=](auto, Index i, const Z& t) { y[i] += a[2 * i] * t.re + a[2 * i + 1] * t.im; });
  }

  // one column of Y, 2 W features at a time
  void contract_column(const MatrixView<T>& A, const MatrixView<T>& B, const VectorMap<T>& unit, const MatrixView<T>& U,
                       Index column, MatrixRef<T>& Y, Z* z, Workspace& scratch) const {
    const Column u(U, column, scratch);
    auto y = scratch.vector<T>(m_n_q);
    y.setZero();
    for (Index f = 0; f < A.cols(); f += 2 * W) {
      const Features a(A, f), b(B, f);
      const Z by = a.load(unit.data()), back{inverse<T>(by.re), inverse<T>(by.im)};
      const Z forth{finite_lanes<T>(by.re), finite_lanes<T>(by.im)};
      for (const int half : {0, 1})
        m_tree->template convolve<1>(
            half, {z},
            [&, n = m_n_k](auto, Index j) {
              if (j >= n) return Z{};
              const Z x = b.row(j);
              return Z{x.re * back.re * u.values[j], x.im * back.im * u.values[j]};
            },
            [g = spectrum(half)](Index k, Z(&x)[1][8]) { multiply(x[0], g + 16 * k); },
            [&, n = m_n_q](auto, Index i, const Z& t_) {
              if (i >= n) return;
              const Z t = untwisted(half, i, t_), x = a.row(i);
              y[i] += fft::sum_lanes<T>(x.re * forth.re * t.re + x.im * forth.im * t.im);
            });
    }
    Y.col(column) = y * finite(u.unit);
  }

  void gradients(const MatrixView<T>& A, const MatrixView<T>& B, const MatrixView<T>& U, const MatrixView<T>& G,
                 GradientRefs<T> out, const GradientSizes<T>& sizes, const Team& team) const {
    const Index L = m_tree->length(), size = staggered<Z>(L);
    out.set_zero();
    if (sizes) std::fill_n(sizes.keys, B.rows(), T(0));
    SignalGradients<T> frame(A, B, U, G, sizes.rows, L, 4 * L, team);
    const auto for_halves = [&](Workspace& scratch, auto&& add) {
      const std::array<Z*, 2> z{scratch.take<Z>(size), scratch.take<Z>(size)};
      for (const int half : {0, 1}) add(half, z);
    };
    frame.run(
        out, sizes.keys, team,
        [&](const GroupSignals<T>& x, Workspace& scratch) {
          for_halves(scratch, [&](int half, const std::array<Z*, 2>& z) { add_gradients(half, x, z); });
        },
        [&](const ColumnSignals<T>& x, Workspace& scratch) {
          for_halves(scratch, [&](int half, const std::array<Z*, 2>& z) { add_gradients(half, x, z); });
        });
    lag_gradient(frame, out.dc, sizes.lags, team.workspace());
  }

  // the share of one half of a group of columns and one feature
  void add_gradients(int half, const GroupSignals<T>& x, const std::array<Z*, 2>& z) const {
    m_tree->template convolve<2>(
        half, z,
        [x](auto s, Index j) {
          const Z value = s == 0 ? x.u[j] : x.g[j];
          const T feature = s == 0 ? x.b[j] : x.a[j];
          return Z{feature * value.re, feature * value.im};
        },
        correlating(half, x.correlation + half * 2 * m_tree->length()),
        [x, half, this](auto s, Index j, const Z(&twisted)[8]) {
          Lanes products[8];
          for (Index l = 0; l < 8; ++l) {
            const Z t = untwisted(half, j + l, twisted[l]), value = s == 0 ? x.g[j + l] : x.u[j + l];
            products[l] = value.re * t.re + value.im * t.im;
            if constexpr (s == 1) {
              Z& du = x.du[j + l];
              du = {du.re + x.b[j + l] * t.re, du.im + x.b[j + l] * t.im};
            }
          }
          add_lane_sums_of_eight<T>(products, (s == 0 ? x.da : x.db) + j);
        });
  }

  // the same for a pair of columns and features as lanes
  void add_gradients(int half, const ColumnSignals<T>& x, const std::array<Z*, 2>& z) const {
    m_tree->template convolve<2>(
        half, z,
        [&](auto s, Index j) {
          if (j >= (s == 0 ? m_n_k : m_n_q)) return Z{Lanes{}, Lanes{}};
          const Lanes feature = s == 0 ? x.b.row(j) : x.a.row(j);
          const T* value = (s == 0 ? x.u : x.g) + 2 * j;
          return Z{feature * value[0], feature * value[1]};
        },
        correlating(half, x.correlation + half * 2 * m_tree->length()),
        [&](auto s, Index j, const Z(&twisted)[8]) {
          const Index rows = std::clamp<Index>((s == 0 ? m_n_q : m_n_k) - j, 0, 8);
          Z products[8];
          for (Index l = 0; l < rows; ++l) {
            const Z t = untwisted(half, j + l, twisted[l]);
            const T* value = (s == 0 ? x.g_of_da : x.u) + 2 * (j + l);
            x.a.add(t.re * value[0] + t.im * value[1], s == 0 ? *x.da : *x.db, j + l);
            if constexpr (s == 1) {
              const Lanes feature = x.b.row(j + l);
              products[l] = {feature * t.re, feature * t.im};
            }
          }
          if constexpr (s == 1) {
            for (Index l = rows; l < 8; ++l) products[l] = {Lanes{}, Lanes{}};
            if (rows > 0) add_lane_sums<T>(products, x.du + in_eights(j, 0));
          }
        });
  }

  // at a leaf: correlation += conj(W) X summed over lanes, X *= spectrum, W *= its conjugate
  auto correlating(int half, T* correlation) const {
    return [g = spectrum(half), correlation](Index k, Z(&x)[2][8]) {
      Lanes products[16];
      correlate<false>(x[1], x[0], products);
      add_lane_sums<T>(products, correlation + 16 * k);
      multiply(x[0], g + 16 * k);
      multiply_conjugate(x[1], g + 16 * k);
    };
  }

  // dc[l] at l + n_q - 1: the real part of the inverse transform of all blocks' sum, lag l at l mod 2L; the sizes of
  // lags likewise from the imaginary part of the last pair's. Side by side as lanes.
  void lag_gradient(const SignalGradients<T>& frame, Eigen::Ref<Vector<T>> dc, T* sizes, Workspace& workspace) const {
    const Index L = m_tree->length();
    auto sum = workspace.vector<T>(2 * L), size = workspace.vector<T>(2 * L);
    sum.setZero();
    size.setZero();
    Z* z = workspace.take<Z>(L);
    for (const int half : {0, 1})
      m_tree->coefficients(
          half, z,
          [&, offset = half * 2 * L](Index k, Index l) {
            Z both{Lanes{}, Lanes{}};
            for (const Index lane : {0, 1}) {
              const T* values = (lane == 0 ? frame.correlation() : frame.last_correlation()) + offset;
              both.re[lane] = values[16 * k + l];
              both.im[lane] = values[16 * k + 8 + l];
            }
            return both;
          },
          [&](Index j, const Z& twisted) {
            const Z both = untwisted(half, j, twisted);
            const T value = both.re[0] / static_cast<T>(2 * L), its_size = -both.im[1] / static_cast<T>(2 * L);
            sum[j] += value;
            sum[j + L] += half == 0 ? value : -value;
            size[j] += its_size;
            size[j + L] += half == 0 ? its_size : -its_size;
          });
    const auto at = [&](Index k) { return (2 * L + k - (m_n_q - 1)) % (2 * L); };
    for (Index k = 0; k < dc.size(); ++k) dc[k] = sum[at(k)];
    for (Index k = 0; sizes && k < m_n_q + m_n_k - 1; ++k) sizes[k] = size[at(k)];
  }

  const T* spectrum(int half) const { return m_spectrum + 2 * half * m_tree->length(); }

  // e^(-pi i j / L) z, if that is left to do
  Z untwisted(int half, Index j, const Z& z) const {
    return half == 0 ? z : toeplitz::untwisted(z, m_tree->twist() + 2 * j);
  }

  Index m_n_q, m_n_k;
  std::shared_ptr<const Tree> m_tree;
  WeightNorms m_norms;
  const T* m_spectrum = nullptr;  // (2,L) of g / 2L, as the tree orders it, real and imaginary parts
};

}  // namespace nprf::toeplitz
