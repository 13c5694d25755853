// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/lag_bias.hpp"
#include "nprf/core/resize.hpp"

namespace nprf {

/// A learned bias for each displacement between two cells of an H x W grid (Liu et al. 2021, Swin). Tokens outside the
/// grid, such as a class token, have biases of their own (as in Bao et al. 2022, BEiT).
///
/// Token i < E is an extra token, and token E + r W + c is cell (r, c). The bias of query (r, c) and key (r', c') is
///     b[r' - r + H - 1, c' - c + W - 1]
/// (Swin itself stores query minus key). The bias is extra(e, 0) for extra query e and every cell, extra(e, 1) for
/// every cell and extra key e, and extra(e, 2 + f) for extra query e and extra key f. The causal direction uses the
/// order of the tokens: extra tokens first, then the cells row by row.
///
/// Cell (r, c) has the slot r (2W-1) + c. The difference of the slots of two cells is then the index of their bias in
/// the table b, in row-major order and counted from the centre of b. So b is a one-dimensional table over differences
/// of slots.
template <OnlyReal T>
class GridPosition {
 public:
  using Scalar = T;

  /// b (2H-1,2W-1) and extra (E,E+2) are as in the comment of the class; -infinity means weight 0. Throws
  /// InvalidArgument for other shapes, NaN or +infinity.
  GridPosition(Index height, Index width, const Matrix<T>& b, Matrix<T> extra = Matrix<T>(0, 2))
      : m_height(height), m_width(width), m_extra(std::move(extra)) {
    constexpr Index most = Index{1} << 30;
    require(1 <= height && height <= most, "height: expected 1 to 2^30, got ", height);
    require(1 <= width && width <= most, "width: expected 1 to 2^30, got ", width);
    require(b.rows() == 2 * height - 1 && b.cols() == 2 * width - 1, "b: expected ", 2 * height - 1, " x ",
            2 * width - 1, " (2H-1 x 2W-1 for a grid of ", height, " x ", width, "), got ", b.rows(), " x ", b.cols());
    require(m_extra.cols() == m_extra.rows() + 2, "extra: expected ", m_extra.rows(), " x ", m_extra.rows() + 2,
            " (E x E+2 for E extra tokens), got ", m_extra.rows(), " x ", m_extra.cols());
    check(b, "b");
    check(m_extra, "extra");
    m_bias.first = -(b.size() / 2);
    m_bias.table = Vector<T>(Eigen::Map<const Vector<T>>(b.data(), b.size()));
  }

  Index height() const { return m_height; }
  Index width() const { return m_width; }
  /// E + H W, the required number of queries and of keys.
  Index tokens() const { return m_extra.rows() + m_height * m_width; }

  /// The biases of the E extra tokens (E,E+2), with the columns that the comment of the class lists.
  const Matrix<T>& extra() const { return m_extra; }

  /// The slot of a cell, given by its index r W + c.
  Index slot(Index cell) const { return cell / m_width * pitch() + cell % m_width; }
  /// The difference of the slots of a cell and of the one below it.
  Index pitch() const { return 2 * m_width - 1; }
  /// b as a function of the difference of two slots.
  const LagBias<T>& bias() const { return m_bias; }

  /// The bias of query token i and key token j.
  T bias(Index i, Index j) const {
    const Index E = m_extra.rows(), W = m_width;
    if (i < E) return j < E ? m_extra(i, 2 + j) : m_extra(i, 0);
    if (j < E) return m_extra(j, 1);
    const Index row = (j - E) / W - (i - E) / W + m_height - 1, column = (j - E) % W - (i - E) % W + W - 1;
    return m_bias.table[row * (2 * W - 1) + column];
  }

  /// Sets d (2H-1,2W-1) to the gradient of b; db holds dL/db of the slot differences first, first + 1, ...
  void gradient(Index first, std::span<const double> db, Matrix<double>& d) const {
    resize(d, 2 * m_height - 1, 2 * m_width - 1);
    d.setZero();
    for (std::size_t l = 0; l < db.size(); ++l) {
      const Index at = first + static_cast<Index>(l) - m_bias.first;
      if (0 <= at && at < d.size()) d.data()[at] = db[l];
    }
  }

 private:
  static void check(const Matrix<T>& x, const char* name) {
    for (Index i = 0; i < x.rows(); ++i)
      for (Index j = 0; j < x.cols(); ++j)
        require(x(i, j) < std::numeric_limits<T>::infinity(), name, "(", i, ", ", j,
                "): expected a finite number or -infinity, got ", x(i, j));
  }

  Index m_height, m_width;
  Matrix<T> m_extra;
  LagBias<T> m_bias;
};

}  // namespace nprf
