// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <utility>

#include "examples/support/npy.hpp"

namespace demo {

/// Queries, keys or values of all heads of a text: a file (heads, tokens, channels).
class HeadArray {
 public:
  /// Throws npy::Error if the file is no such array, and InvalidArgument for another number of dimensions.
  explicit HeadArray(const std::filesystem::path& file) : m_array(npy::read<float>(file)) {
    nprf::require(m_array.shape.size() == 3, file.string(), ": expected (heads, tokens, channels), got ",
                  m_array.shape.size(), " dimensions");
  }

  nprf::Index heads() const { return static_cast<nprf::Index>(m_array.shape[0]); }
  nprf::Index tokens() const { return static_cast<nprf::Index>(m_array.shape[1]); }
  nprf::Index channels() const { return static_cast<nprf::Index>(m_array.shape[2]); }

  /// The tokens from `first` on of every head (1,heads,tokens - first,channels).
  nprf::HeadsView<const float> from(nprf::Index first) const {
    const nprf::Index d = channels(), n = tokens();
    return {m_array.values.data() + first * d, 1, heads(), n - first, d, {d, n * d, heads() * n * d}};
  }

  /// The tokens of head 0 from `first` on, repeated to n tokens (n,channels).
  nprf::Matrix<float> repeated(nprf::Index first, nprf::Index n) const {
    const auto rows = from(first)(0, 0);
    nprf::Matrix<float> all(n, channels());
    for (nprf::Index i = 0; i < n; ++i) all.row(i) = rows.row(i % rows.rows());
    return all;
  }

 private:
  npy::Array<float> m_array;
};

/// A bias that falls by 0.08 a token up to a distance of 40.
inline nprf::RelativePosition<float> falling_bias() {
  nprf::Vector<float> b(81);
  for (nprf::Index lag = -40; lag <= 40; ++lag) b[lag + 40] = -0.08f * static_cast<float>(std::abs(lag));
  return nprf::RelativePosition<float>(b);
}

}  // namespace demo
