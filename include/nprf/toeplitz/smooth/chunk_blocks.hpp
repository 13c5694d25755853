// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "nprf/config.hpp"
#include "nprf/core/index.hpp"
#include "nprf/core/lags.hpp"
#include "nprf/toeplitz/smooth/polynomials.hpp"

namespace nprf {

// core/pack.hpp, which needs a matrix library: the plans of GPUs use a PlainPack in its place
template <Real T>
struct Pack;

}  // namespace nprf

/// Blocks of the Toeplitz matrix C of a chunk of queries and a chunk of keys, and whether products of polynomials
/// represent them. With the distance D of the two chunks, the block of chunks of N slots is
///
///     c[v - u - D N] = sum_pq P_p(u) K_D[p,q] P_q(v)    for u, v < N
///
/// for the first `terms` polynomials of ChunkPolynomials{N}, up to an error that is relative to each c.
namespace nprf::toeplitz {

/// The number of polynomials. Matrices (terms,terms) are stored as (most_terms,most_terms).
inline constexpr Index least_terms = 4, most_terms = 8, term_pairs = most_terms * most_terms;

/// Calls use.operator()<count>() for the constant `count` that equals `terms`.
template <Index count = least_terms, class Use>
void with_terms(Index terms, Use&& use) {
  if (terms == count)
    use.template operator()<count>();
  else if constexpr (count < most_terms)
    with_terms<count + 1>(terms, use);
}

/// The slots of a chunk of the lowest level.
inline constexpr Index smooth_chunk = 64;

/// Tables of the polynomials of a chunk, which do not depend on c.
template <Real T>
struct ChunkBasis {
  static constexpr Index chunk = smooth_chunk, lags = 2 * chunk - 1;

  T by_slot[chunk * most_terms];  // P_p(u) at u, p
  T by_term[most_terms * chunk];  // P_p(u) at p, u
  // sum_u P_p(u) P_q(u + x - chunk + 1) at x, p, q, for x < chunk. That of x' = lags - 1 - x is (-1)^(p+q) times it
  double by_lag[chunk * term_pairs];
  double end[most_terms];  // the largest |P_p|

  static const ChunkBasis& get() {
    static const ChunkBasis basis;
    return basis;
  }

 private:
  ChunkBasis() {
    double P[chunk][most_terms];
    ChunkPolynomials{double(chunk)}.values(chunk - 1, most_terms, end);
    for (Index u = 0; u < chunk; ++u) {
      ChunkPolynomials{double(chunk)}.values(u, most_terms, P[u]);
      for (Index p = 0; p < most_terms; ++p)
        by_slot[u * most_terms + p] = by_term[p * chunk + u] = static_cast<T>(P[u][p]);
    }
    for (Index x = 0; x < chunk; ++x)
      for (Index p = 0; p < most_terms; ++p)
        for (Index q = 0; q < most_terms; ++q) {
          double& sum = by_lag[x * term_pairs + p * most_terms + q] = 0;
          for (Index u = chunk - 1 - x; u < chunk; ++u) sum += P[u][p] * P[u + x - chunk + 1][q];
        }
  }
};

/// How a block is computed. empty: all weights are 0. smooth: by polynomials. rough: by tiles.
enum class BlockKind : unsigned char { rough, smooth, empty };

/// The polynomials of one level by those of its halves (ChunkPolynomials::halves()), and the transposes.
struct Halves {
  double W[2][term_pairs], Wt[2][term_pairs];
  double end[most_terms], whole_end[most_terms];  // the largest |P_p| of a half, and of the whole

  Halves(Index points, Index terms) {
    const ChunkPolynomials half{static_cast<double>(points)};
    half.values(points - 1, most_terms, end);
    std::fill(end + terms, end + most_terms, 0.0);
    ChunkPolynomials{static_cast<double>(2 * points)}.values(2 * points - 1, most_terms, whole_end);
    for (Index second : {0, 1}) {
      half.halves(second == 1, most_terms, W[second]);
      for (Index i = 0; i < most_terms; ++i)
        for (Index j = 0; j < most_terms; ++j) {
          double& w = W[second][i * most_terms + j];
          if (i >= terms || j >= terms) w = 0;
          Wt[second][j * most_terms + i] = w;
        }
    }
  }
};

namespace detail {

// a row of a matrix of terms, in registers
typedef double TermRow [[gnu::vector_size(most_terms * sizeof(double)), gnu::aligned(alignof(double)), gnu::may_alias]];

// out += x y, matrices of terms
inline void add_product(const double* x, const double* y, double* out) {
  const TermRow* rows = reinterpret_cast<const TermRow*>(y);
  for (Index i = 0; i < most_terms; ++i) {
    TermRow sum = reinterpret_cast<const TermRow*>(out)[i];
    NPRF_UNROLL
    for (Index s = 0; s < most_terms; ++s) sum += x[i * most_terms + s] * rows[s];
    reinterpret_cast<TermRow*>(out)[i] = sum;
  }
}

// out += x y z
inline void add_product(const double* x, const double* y, const double* z, double* out) {
  double xy[term_pairs] = {};
  add_product(x, y, xy);
  add_product(xy, z, out);
}

// sum_pq |M[p,q]| e_p e_q
inline double weighted_size(const double* M, const double* e) {
  double sum = 0;
  for (Index p = 0; p < most_terms; ++p) {
    double row = 0;
    for (Index q = 0; q < most_terms; ++q) row += std::abs(M[p * most_terms + q]) * e[q];
    sum += e[p] * row;
  }
  return sum;
}

}  // namespace detail

/// One block: its K and its errors.
template <Real T>
struct ChunkBlock {
  BlockKind kind = BlockKind::rough;
  T least = 0;           // the smallest weight
  double error = 0;      // the largest error of a weight, relative to it
  double condition = 0;  // a bound of the sum of the magnitudes that a weight is added from, relative to it
  double K[term_pairs];

  /// The block with these values of the lags -D chunk - (chunk - 1) ..., of which there are ChunkBasis::lags. Errors
  /// are relative to the weights c of the same lags, by default the values themselves. The block is smooth if its error
  /// is at most the tolerance, and its condition at most largest_condition. P: the packs that it computes with.
  template <class P = Pack<T>>
  static ChunkBlock of_values(const T* values, Index terms, double tolerance, const T* c = nullptr) {
    if (!c) c = values;
    ChunkBlock block;
    auto most = P::all(c[0]), minus_least = P::all(-c[0]);
    for (Index x = 0; x < ChunkBasis<T>::lags; x += P::size) {
      const P some = P::load(c + std::min(x, ChunkBasis<T>::lags - P::size));
      most = larger(most, some), minus_least = larger(minus_least, -some);
    }
    const T largest = most.largest();
    block.least = -minus_least.largest();
    if (block.least == 0 && largest == 0) block.kind = BlockKind::empty;
    if (!(block.least > 0) || !(largest <= std::numeric_limits<T>::max())) return block;
    block.project(values, terms);
    block.error = block.template error_of<P>(values, c, terms, tolerance);
    block.set_kind(ChunkBasis<T>::get().end, tolerance);
    return block;
  }

  /// The block of chunks of twice the size. inner(a, b) is the block of half a of its queries and half b of its keys,
  /// or null if there is none; it is smooth only if all four are. What a polynomial of the inner blocks lacks in those
  /// of the outer block adds to their errors.
  template <class Inner>
  static ChunkBlock of_halves(Inner&& inner, const Halves& halves, double tolerance) {
    ChunkBlock block;
    int smooth = 0, empty = 0;
    for (Index a : {0, 1})
      for (Index b : {0, 1})
        if (const ChunkBlock* each = inner(a, b))
          smooth += each->kind == BlockKind::smooth, empty += each->kind == BlockKind::empty;
    if (empty == 4) block.kind = BlockKind::empty;
    if (smooth < 4) return block;
    std::fill_n(block.K, term_pairs, 0.0);
    block.least = std::numeric_limits<T>::infinity();
    for (Index a : {0, 1})
      for (Index b : {0, 1}) detail::add_product(halves.Wt[a], inner(a, b)->K, halves.W[b], block.K);
    for (Index a : {0, 1})
      for (Index b : {0, 1}) {
        const ChunkBlock& each = *inner(a, b);
        double rest[term_pairs] = {};
        detail::add_product(halves.W[a], block.K, halves.Wt[b], rest);
        for (Index k = 0; k < term_pairs; ++k) rest[k] -= each.K[k];
        block.error = std::max(block.error,
                               each.error + detail::weighted_size(rest, halves.end) / static_cast<double>(each.least));
        block.least = std::min(block.least, each.least);
      }
    block.set_kind(halves.whole_end, tolerance);
    return block;
  }

 private:
  static constexpr double largest_condition = 32;  // rounding errors grow by it; smooth tables have less than 20

  void set_kind(const double* end, double tolerance) {
    condition = detail::weighted_size(K, end) / static_cast<double>(least);
    if (error <= tolerance && condition <= largest_condition) kind = BlockKind::smooth;
  }

  // K[p,q] = sum_x c[x] sum_u P_p(u) P_q(u + x - chunk + 1)
  void project(const T* c, Index terms) {
    using detail::TermRow;
    constexpr Index middle = smooth_chunk - 1, last = ChunkBasis<T>::lags - 1;
    const TermRow* products = reinterpret_cast<const TermRow*>(ChunkBasis<T>::get().by_lag);
    TermRow sum[most_terms] = {};
    for (Index x = 0; x <= middle; ++x, products += most_terms) {
      const double a = static_cast<double>(c[x]), b = x < middle ? static_cast<double>(c[last - x]) : 0;
      const double even = a + b, odd = a - b;  // for p + q
      const TermRow rows[2] = {{even, odd, even, odd, even, odd, even, odd},
                               {odd, even, odd, even, odd, even, odd, even}};
      NPRF_UNROLL
      for (Index p = 0; p < most_terms; ++p) sum[p] += rows[p % 2] * products[p];
    }
    for (Index p = 0; p < most_terms; ++p)
      for (Index q = 0; q < most_terms; ++q) K[p * most_terms + q] = p < terms && q < terms ? sum[p][q] : 0;
  }

  // the largest error; or, if it is larger than the tolerance, that of some rows
  template <class P>
  double error_of(const T* values, const T* c, Index terms, double tolerance) const {
    constexpr Index chunk = smooth_chunk;
    const T* basis = ChunkBasis<T>::get().by_term;
    T inverse[2 * chunk], ratio[2 * chunk], rows[most_terms * chunk] = {};
    for (Index x = 0; x < ChunkBasis<T>::lags; ++x) inverse[x] = 1 / c[x], ratio[x] = values[x] * inverse[x];
    // with u = chunk - 1 - w and P_p(u) = (-1)^p P_p(w): rows[q,w] = sum_p P_p(u) K[p,q]
    for (Index q = 0; q < terms; ++q)
      for (Index p = 0; p < terms; ++p) {
        const T k = static_cast<T>(K[p * most_terms + q]), factor = p % 2 == 0 ? k : -k;
        for (Index w = 0; w < chunk; ++w) rows[q * chunk + w] += factor * basis[p * chunk + w];
      }
    auto most = P::all(0);
    for (Index w = 0; w < chunk; ++w) {
      for (Index v = 0; v < chunk; v += P::size) {
        auto y = P::all(0);
        for (Index q = 0; q < terms; ++q)
          y = multiply_add(P::all(rows[q * chunk + w]), P::load(basis + q * chunk + v), y);
        most = larger_or_nan(most, abs(multiply_add(y, P::load(inverse + w + v), -P::load(ratio + w + v))));
      }
      if (w % 16 == 15 && !(static_cast<double>(most.largest_or_nan()) <= tolerance)) break;
    }
    return static_cast<double>(most.largest_or_nan());
  }
};

/// How much farther than a weight a tangent (LagWeightsView) may be from its polynomials.
inline constexpr double tangent_factor = 4;

/// The weights of the block of chunks at distance D, with zeros for lags outside the table.
template <Real T, class P = Pack<T>>
class BlockWeights {
 public:
  BlockWeights(const LagWeightsView<T>& c, Index D) : m_max_deviation(c.max_deviation) {
    constexpr Index lags = ChunkBasis<T>::lags;
    const Index lag = -D * smooth_chunk - (smooth_chunk - 1), first = lag - c.first;
    m_is_whole = first >= 0 && first + lags <= c.size;
    m_c = m_is_whole ? c.values + first : m_partial;
    m_tangents = m_is_whole && c.tangents ? c.tangents + first : nullptr;
    for (Index x = 0; !m_is_whole && x < lags; ++x) m_partial[x] = c[lag + x];
  }
  BlockWeights(const BlockWeights&) = delete;
  BlockWeights& operator=(const BlockWeights&) = delete;

  /// Whether all lags of the block are in the table.
  bool is_whole() const { return m_is_whole; }
  ChunkBlock<T> block(Index terms) const { return ChunkBlock<T>::template of_values<P>(m_c, terms, m_max_deviation); }
  /// The block of the tangents; rough if there are none.
  ChunkBlock<T> tangents(Index terms) const {
    if (!m_tangents) return {};
    return ChunkBlock<T>::template of_values<P>(m_tangents, terms, tangent_factor * m_max_deviation, m_c);
  }

 private:
  double m_max_deviation;
  bool m_is_whole;
  const T *m_c, *m_tangents;
  T m_partial[ChunkBasis<T>::lags];
};

}  // namespace nprf::toeplitz
