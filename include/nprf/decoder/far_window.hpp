// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "nprf/core/pack.hpp"
#include "nprf/core/power_of_two.hpp"
#include "nprf/core/types.hpp"
#include "nprf/core/workspace.hpp"
#include "nprf/decoder/exponentials.hpp"
#include "nprf/decoder/running_sums.hpp"
#include "nprf/decoder/token_ring.hpp"
#include "nprf/decoder/window_kernels.hpp"
#include "nprf/fft/lanes.hpp"
#include "nprf/toeplitz/fft/convolution_error.hpp"
#include "nprf/toeplitz/fft/error_bound.hpp"
#include "nprf/toeplitz/fft/spectral_ops.hpp"

namespace nprf {

/// The signals of a state: products of a feature and a column of [1 v], W = lane_count of them in a register. First
/// come `ones` registers for the column of ones, whose lanes are features; if features can be negative, |phi| is one
/// more feature there. Then each feature has `groups` registers, whose lanes are columns of v.
template <Real T>
struct FarSignals {
  static constexpr Index W = fft::lane_count<T>;

  FarSignals(const TokenShape& shape, bool has_norms)
      : r(shape.r),
        lanes_of_ones(shape.r + has_norms),
        ones((lanes_of_ones + W - 1) / W),
        groups((shape.d_v + W - 1) / W) {}

  Index registers() const { return ones + r * groups; }

  Index r, lanes_of_ones, ones, groups;
};

/// The sum for each query t of a window over the tokens s before the window's far_end(), by one online convolution,
///
///     S_t = sum_s c(t - s) phi(k_s)^T [v_s 1]   (r,d_v + 1)
///
/// Here phi(k_s) includes the factor exp(log-scale). The sums do not depend on the queries, so they are computed before
/// these are known. The work is divided into units of about equal time: for each register of signals, the transform of
/// each block of tokens (window_kernels.hpp), and the inverse transform of the sum of their spectra. O(t r d_v log M)
/// for t tokens before a window of M queries; memory O(M r d_v). A query then takes O(r d_v).
///
/// In the sums, log-scales are relative to the largest one of the tokens, and values to a power of two above the
/// largest value. No bit depends on when the units of work are done.
template <Real T>
class FarWindow {
 public:
  using Kernels = WindowKernels<T>;
  using Z = fft::ComplexLanes<T>;

  /// The window; Window{} if there is none.
  const Window& window() const { return m_window; }
  void clear() { m_window = {}, m_done = 0; }
  /// Begins the work on another window. Requires reserve() for its size.
  void start(const Window& window) { m_window = window, m_done = 0; }

  static Index units(const FarSignals<T>& signals, Index blocks) { return 1 + signals.registers() * (blocks + 1); }
  Index done() const { return m_done; }

  /// Continues the work until `until` units are done in all. The caller keeps `sums` (2 M registers of complex lanes)
  /// between calls.
  void advance(const Kernels& kernels, const FarSignals<T>& signals, const TokenRing<T>& ring, Index until, T* sums,
               Workspace& scratch) {
    const Index blocks = kernels.blocks(m_window);
    for (; m_done < until; ++m_done) {
      const Workspace::Scope scope(scratch);
      if (m_done == 0) {
        set_units(kernels, signals, ring);
        continue;
      }
      const Index signal = (m_done - 1) / (blocks + 1), block = (m_done - 1) % (blocks + 1);
      auto* to = reinterpret_cast<Z*>(sums);
      if (block == 0)
        std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(kernels.tree().length()) * sizeof(Z));
      if (block == blocks)
        store_rows(kernels, signals, signal, to, scratch);
      else if (signal < signals.ones)
        add_ones(kernels, signals, ring, signal, block, to, scratch);
      else
        add_columns(kernels, signals, ring, signal - signals.ones, block, to, scratch);
    }
  }

  /// The largest log-scale of the tokens. The sums of add_product() are in units of exp(log_unit() +
  /// WindowKernels::log_unit()).
  double log_unit() const { return m_log_unit; }
  T largest_value() const { return m_largest_value; }

  struct Row {
    T D, norms;  // norms: the sum of c |phi|, if features can be negative
  };
  /// N (padded d_v) += factor A S_t for the query t at `position`. Returns the denominator and the norms, both times
  /// the factor.
  Row add_product(const FarSignals<T>& signals, Index position, const T* A, T factor, T* N) const {
    const T* row = row_of(signals, position - m_window.first);
    Row sums{0, 0};
    Lanes of_D{};
    for (Index at = 0; at * W < signals.r; ++at)
      of_D += fft::load_lanes(A + at * W) * fft::load_lanes(row + at * tile * W);
    sums.D = fft::sum_lanes<T>(of_D);
    if (signals.lanes_of_ones > signals.r) sums.norms = row[signals.r / W * tile * W + signals.r % W];
    row += signals.ones * tile * W;
    for (Index g = 0; g < signals.groups; ++g)
      add_group(signals, row + g * tile * W, A, factor * m_value_scale, N + g * W);
    return {factor * sums.D, factor * sums.norms};
  }

  /// Bounds of the errors of N and D as add_product() computes them for the factor 1.
  struct Errors {
    double N, D;
  };
  Errors errors(const FarSignals<T>& signals, const T* A) const {
    Errors sum{0, 0};
    for (Index k = 0; k < signals.r; ++k) {
      const double a = std::abs(static_cast<double>(A[k]));
      sum.D += a * m_errors[2 * k], sum.N += a * m_errors[2 * k + 1];
    }
    constexpr double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
    return {eps * sum.N * static_cast<double>(m_value_scale), eps * sum.D};
  }

  /// Allocates memory for windows of `size` queries, and keeps its contents, also if it throws std::bad_alloc.
  void reserve(const FarSignals<T>& signals, Index size) {
    enlarge(m_errors, 2 * signals.r);
    enlarge(m_rows, size * signals.registers() * W);
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(m_rows.size()) * sizeof(T) +
           static_cast<std::size_t>(m_errors.size()) * sizeof(double);
  }

 private:
  using Lanes = fft::Lanes<T>;
  static constexpr Index W = fft::lane_count<T>, tile = TokenRing<T>::tile;

  // the sums of query i of the window, in m_rows (M / tile,registers,tile,W)
  T* row_of(const FarSignals<T>& signals, Index i) {
    return m_rows.data() + (i / tile * signals.registers() * tile + i % tile) * W;
  }
  const T* row_of(const FarSignals<T>& signals, Index i) const {
    return const_cast<FarWindow*>(this)->row_of(signals, i);
  }

  // N (W) += factor sum_k A_k (the sums of feature k and W columns of values), for A (r)
  static void add_group(const FarSignals<T>& signals, const T* row, const T* A, T factor, T* N) {
    const Index step = signals.groups * tile * W;
    Lanes even{}, odd{};
    Index k = 0;
    for (; k + 1 < signals.r; k += 2, row += 2 * step) {
      even += A[k] * fft::load_lanes(row);
      odd += A[k + 1] * fft::load_lanes(row + step);
    }
    if (k < signals.r) even += A[k] * fft::load_lanes(row);
    fft::store_lanes<T>(fft::load_lanes(N) + factor * (even + odd), N);
  }

  // unit 0 of the work: sets what log-scales and values are relative to
  void set_units(const Kernels& kernels, const FarSignals<T>& signals, const TokenRing<T>& ring) {
    constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
    auto log_scale = Pack<double>::all(minus_infinity);
    auto value = Pack<T>::all(0);
    ring.for_each_run(kernels.first_token(m_window), m_window.far_end(), [&](Index, Index s, Index count) {
      const auto join = [&](auto& most, const auto* x, auto least) {
        constexpr Index size = std::remove_reference_t<decltype(most)>::size;
        Index at = 0;
        for (; at + size <= count; at += size) most = larger(most.load(x + at), most);
        for (; at < count; ++at) least = std::max(least, x[at]);
        most = larger(most.all(least), most);
      };
      join(log_scale, ring.log_scales() + s, minus_infinity);
      join(value, ring.largest_values() + s, T(0));
    });
    m_largest_value = value.largest();
    m_log_unit = log_scale.largest();
    if (m_log_unit == minus_infinity) m_log_unit = 0;  // all keys are non-finite, and have no weight
    const T scale = power_of_two_scale(m_largest_value);
    m_value_scale = std::isfinite(scale) ? scale : T(1);
    std::fill_n(m_errors.data(), 2 * signals.r, 0.0);
  }

  // a block of `size` tokens, of which begin..size-1 exist. Token j is in slot j + shift of the ring, or from token
  // `wrap` on in slot j - wrap
  struct Block {
    Index begin, size, wrap, shift;

    Index slot(Index j) const { return j + (j < wrap ? shift : -wrap); }
  };
  Block block_of(const Kernels& kernels, const TokenRing<T>& ring, Index k) const {
    const Index size = kernels.block(), first = m_window.far_end() - (k + 1) * size,
                begin = std::max<Index>(kernels.first_token(m_window) - first, 0), slot = ring.slot(first + begin);
    return {begin, size, begin + ring.capacity() - slot, slot - begin};
  }

  // calls use(j, s, count) for runs of tokens j, j + 1, ... of a block in slots s, s + 1, ... of one tile
  template <class Use>
  static void for_each_run(const Block& block, Use&& use) {
    for (Index j = block.begin; j < block.size;) {
      const Index s = block.slot(j), count = std::min(tile - s % tile, block.size - j);
      use(j, s, count);
      j += count;
    }
  }

  // factors (size) = exp(log-scale - log_unit()) of the tokens of a block
  const T* token_factors(const Block& block, const TokenRing<T>& ring, Workspace& scratch) const {
    double* log_scales = scratch.take<double>(block.size);
    std::fill_n(log_scales, block.begin, -std::numeric_limits<double>::infinity());
    for_each_run(block,
                 [&](Index j, Index s, Index count) { std::copy_n(ring.log_scales() + s, count, log_scales + j); });
    T* factors = scratch.take<T>(block.size);
    exponentials(log_scales, m_log_unit, block.size, factors);
    return factors;
  }

  // sums += the spectrum of x times the spectrum of the weights of block k, where token j of the block has lanes x(j)
  template <class X>
  void add_spectrum(const Kernels& kernels, Index k, Z* sums, X&& x, Workspace& scratch) const {
    const Index L = kernels.tree().length(), M = kernels.size();
    Z* z = scratch.take<Z>(L + 8);
    kernels.tree().template values<1>(
        {z},
        [&](auto, Index j) {
          return Z{x(j), j < M ? x(j + L) : Lanes{}};
        },
        [sums, spectrum = kernels.spectrum(k)](Index at, Z(&values)[1][8]) {
          toeplitz::multiply(values[0], spectrum + 16 * at);
          for (Index l = 0; l < 8; ++l) sums[8 * at + l] = sums[8 * at + l] + values[0][l];
        });
  }

  void add_ones(const Kernels& kernels, const FarSignals<T>& signals, const TokenRing<T>& ring, Index at, Index k,
                Z* sums, Workspace& scratch) {
    const Block block = block_of(kernels, ring, k);
    const T* factors = token_factors(block, ring, scratch);
    T* x = scratch.take<T>(block.size * W);
    std::fill_n(x, block.size * W, T(0));
    for_each_run(block, [&](Index j, Index s, Index count) {
      for (Index l = 0; l < W && at * W + l < signals.lanes_of_ones; ++l) {
        const T* features = at * W + l < signals.r ? ring.feature(s, at * W + l) : ring.norms() + s;
        for (Index i = 0; i < count; ++i) x[(j + i) * W + l] = factors[j + i] * features[i];
      }
    });
    add_spectrum(
        kernels, k, sums, [x](Index j) { return fft::load_lanes(x + j * W); }, scratch);
    add_errors(kernels, signals, ring, at, k, block, x);
  }

  // adds the errors of block k to the error bounds of the features in register `at`; x are these features
  // times the factors of their tokens
  void add_errors(const Kernels& kernels, const FarSignals<T>& signals, const TokenRing<T>& ring, Index at, Index k,
                  const Block& block, const T* x) {
    toeplitz::NormSums ones[W], sized[W];
    const double to_size = 1 / static_cast<double>(m_value_scale);
    for (Index j = block.begin; j < block.size; ++j) {
      const double size = to_size * static_cast<double>(ring.largest_values()[block.slot(j)]);
      for (Index l = 0; l < W; ++l) {
        const double each = static_cast<double>(x[j * W + l]);
        ones[l].add(each), sized[l].add(size * each);
      }
    }
    const Index N = 4 * kernels.size();
    const double per_value = toeplitz::fft_error_per_value(static_cast<double>(N)),
                 underflow = toeplitz::Underflow<T>::of_signals(N);
    const toeplitz::Norms c = kernels.norms(k).norms();
    for (Index l = 0; l < W && at * W + l < signals.r; ++l) {
      double* errors = m_errors.data() + 2 * (at * W + l);
      errors[0] += toeplitz::convolution_error(c, ones[l].norms(), per_value) + underflow;
      errors[1] += toeplitz::convolution_error(c, sized[l].norms(), per_value) + underflow;
    }
  }

  void add_columns(const Kernels& kernels, const FarSignals<T>& signals, const TokenRing<T>& ring, Index signal,
                   Index k, Z* sums, Workspace& scratch) const {
    const Index f = signal / signals.groups, g = signal % signals.groups;
    const Block block = block_of(kernels, ring, k);
    const T* factors = token_factors(block, ring, scratch);
    constexpr Index ahead = 8;  // tokens to fetch ahead: processors do not foresee the order in which transforms read
    T* b = scratch.take<T>(block.size);
    for_each_run(block, [&](Index j, Index s, Index count) {
      const T* features = ring.feature(s, f);
      for (Index i = 0; i < count; ++i) b[j + i] = factors[j + i] * features[i];
    });
    add_spectrum(
        kernels, k, sums,
        [=, values = ring.value(0) + g * W, step = ring.value_step(), inverse = 1 / m_value_scale](Index j) {
          if (j < block.begin) return Lanes{};
          const T* at = values + block.slot(j) * step;
          __builtin_prefetch(at + ahead * step);
          const Lanes v = fft::load_lanes(at);
          return b[j] * (inverse * (v - v == 0 ? v : Lanes{}));  // non-finite entries count as zeros
        },
        scratch);
  }

  void store_rows(const Kernels& kernels, const FarSignals<T>& signals, Index signal, const Z* sums,
                  Workspace& scratch) {
    const typename Kernels::Tree& tree = kernels.tree();
    Z* z = scratch.take<Z>(tree.length() + 8);
    tree.coefficients(
        z, [sums](Index at, Index l) { return sums[8 * at + l]; },
        [&, M = m_window.size](Index i, const Z& twisted) {
          if (i < M)
            fft::store_lanes<T>(toeplitz::real_part(twisted, tree.twist() + 2 * i),
                                row_of(signals, i) + signal * tile * W);
        });
  }

  Window m_window;
  Index m_done = 0;  // the number of units of work that are done
  double m_log_unit = 0;
  T m_value_scale = 1, m_largest_value = 0;
  Vector<T> m_rows;         // (M / tile,registers,tile,W)
  Vector<double> m_errors;  // (r,2)  convolution_error() of the signals of ones and of values, summed over blocks
};

}  // namespace nprf
