// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <utility>
#include <vector>

#include "examples/support/npy.hpp"

namespace demo {

/// Queries, keys or values of all heads of a text, or of several texts of the same length: a file (heads, tokens,
/// channels) for each.
class HeadArray {
 public:
  /// Throws npy::Error if a file is no such array, and InvalidArgument for another number of dimensions, or if the
  /// shapes of files are not the same.
  explicit HeadArray(const std::filesystem::path& file) : HeadArray(std::vector{file}) {}
  explicit HeadArray(const std::vector<std::filesystem::path>& files) {
    for (const auto& file : files) {
      const npy::Array<float> array = npy::read<float>(file);
      nprf::require(array.shape.size() == 3, file.string(), ": expected (heads, tokens, channels), got ",
                    array.shape.size(), " dimensions");
      nprf::require(m_array.shape.empty() || m_array.shape == array.shape, file.string(),
                    ": expected the shape of the first file, got another one");
      m_array.shape = array.shape;
      m_array.values.insert(m_array.values.end(), array.values.begin(), array.values.end());
    }
    m_texts = static_cast<nprf::Index>(files.size());
  }

  nprf::Index heads() const { return static_cast<nprf::Index>(m_array.shape[0]); }
  nprf::Index tokens() const { return static_cast<nprf::Index>(m_array.shape[1]); }
  nprf::Index channels() const { return static_cast<nprf::Index>(m_array.shape[2]); }

  /// The tokens from `first` on of every head (texts,heads,tokens - first,channels).
  nprf::HeadsView<const float> from(nprf::Index first) const {
    const nprf::Index d = channels(), n = tokens();
    return {m_array.values.data() + first * d, m_texts, heads(), n - first, d, {d, n * d, heads() * n * d}};
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
  nprf::Index m_texts = 1;
};

/// A bias that falls by 0.08 a token up to a distance of 40.
inline nprf::RelativePosition<float> falling_bias() {
  nprf::Vector<float> b(81);
  for (nprf::Index lag = -40; lag <= 40; ++lag) b[lag + 40] = -0.08f * static_cast<float>(std::abs(lag));
  return nprf::RelativePosition<float>(b);
}

/// The biases of a file (heads, 2 R + 1), of the lags from -R to R for each head. Throws npy::Error if the file is no
/// such array, and InvalidArgument for another shape.
inline std::vector<nprf::RelativePosition<float>> biases_of(const std::filesystem::path& file) {
  const npy::Array<float> array = npy::read<float>(file);
  nprf::require(array.shape.size() == 2 && array.shape[1] % 2 == 1, file.string(),
                ": expected (heads, an odd number of lags), got another shape");
  const auto lags = static_cast<nprf::Index>(array.shape[1]);
  std::vector<nprf::RelativePosition<float>> positions;
  for (std::size_t h = 0; h < array.shape[0]; ++h)
    positions.emplace_back(nprf::Vector<float>(
        Eigen::Map<const nprf::Vector<float>>(array.values.data() + static_cast<nprf::Index>(h) * lags, lags)));
  return positions;
}

}  // namespace demo
