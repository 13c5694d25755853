// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/support/npy.hpp"

namespace demo {

using nprf::Index;
using nprf::Matrix;
using nprf::require;

inline std::string shape_text(const std::vector<std::size_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

/// Queries, keys or values: one matrix (tokens, channels) a head.
class Heads {
 public:
  Heads(Index heads, Index tokens, Index channels, bool has_head_axis = true)
      : m_heads(heads),
        m_tokens(tokens),
        m_channels(channels),
        m_has_head_axis(has_head_axis),
        m_values(static_cast<std::size_t>(heads * tokens * channels)) {}

  /// An array (tokens, channels) or (heads, tokens, channels) of finite numbers.
  static Heads read(const std::filesystem::path& path) {
    npy::Array<float> array = npy::read<float>(path);
    const auto& shape = array.shape;
    const bool fits = (shape.size() == 2 || shape.size() == 3) && !array.values.empty();
    require(fits, path.string(),
            ": expected an array (tokens, channels) or (heads, tokens, channels) that is not empty, got shape ",
            shape_text(shape));
    const auto extent = [&](std::size_t from_the_end) {
      return static_cast<Index>(shape[shape.size() - from_the_end]);
    };
    Heads heads(shape.size() == 3 ? extent(3) : 1, extent(2), extent(1), shape.size() == 3);
    for (std::size_t i = 0; i < array.values.size(); ++i)
      require(std::isfinite(array.values[i]), path.string(), ": expected finite numbers, got ", array.values[i], " at ",
              heads.place(static_cast<Index>(i)));
    heads.m_values = std::move(array.values);
    return heads;
  }

  void write(const std::filesystem::path& path) const { npy::write<float>(path, {shape(), m_values}); }

  Index size() const { return m_heads; }
  Index tokens() const { return m_tokens; }
  Index channels() const { return m_channels; }
  bool has_head_axis() const { return m_has_head_axis; }

  std::vector<std::size_t> shape() const {
    std::vector<std::size_t> shape{static_cast<std::size_t>(m_tokens), static_cast<std::size_t>(m_channels)};
    if (m_has_head_axis) shape.insert(shape.begin(), static_cast<std::size_t>(m_heads));
    return shape;
  }

  auto operator[](Index head) const {
    return Eigen::Map<const Matrix<float>>(m_values.data() + head * m_tokens * m_channels, m_tokens, m_channels);
  }
  auto operator[](Index head) {
    return Eigen::Map<Matrix<float>>(m_values.data() + head * m_tokens * m_channels, m_tokens, m_channels);
  }

  /// All of them (1,heads,tokens,channels).
  nprf::HeadsView<const float> view() const { return {m_values.data(), 1, m_heads, m_tokens, m_channels}; }

  /// At most so many heads and tokens, the first.
  Heads first(Index heads, Index tokens) const {
    Heads part(std::min(heads, m_heads), std::min(tokens, m_tokens), m_channels, m_has_head_axis);
    for (Index h = 0; h < part.size(); ++h) part[h] = (*this)[h].topRows(part.tokens());
    return part;
  }

 private:
  std::string place(Index i) const {
    const Index token = i / m_channels % m_tokens, channel = i % m_channels;
    if (!m_has_head_axis) return fmt::format("[{}, {}]", token, channel);
    return fmt::format("[{}, {}, {}]", i / (m_channels * m_tokens), token, channel);
  }

  Index m_heads, m_tokens, m_channels;
  bool m_has_head_axis;
  std::vector<float> m_values;
};

struct Arrays {
  Heads queries, keys, values;
};

/// Reads three files and checks that they fit each other.
inline Arrays read_arrays(const std::filesystem::path& queries, const std::filesystem::path& keys,
                          const std::filesystem::path& values) {
  Arrays a{Heads::read(queries), Heads::read(keys), Heads::read(values)};
  require(a.keys.size() == a.queries.size(), keys.string(), ": expected ", a.queries.size(),
          " heads (those of the queries), got ", a.keys.size());
  require(a.values.size() == a.queries.size(), values.string(), ": expected ", a.queries.size(),
          " heads (those of the queries), got ", a.values.size());
  require(a.keys.channels() == a.queries.channels(), keys.string(), ": expected ", a.queries.channels(),
          " channels (those of the queries), got ", a.keys.channels());
  require(a.values.tokens() == a.keys.tokens(), values.string(), ": expected ", a.keys.tokens(),
          " tokens (those of the keys), got ", a.values.tokens());
  return a;
}

/// Throws where a file of that name cannot be made, before any work is done for it.
inline void require_writable(const std::filesystem::path& path, std::string_view argument) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  require(std::filesystem::is_directory(parent), argument, ": expected a folder that exists, got ", parent.string());
  require(access(parent.c_str(), W_OK) == 0, argument, ": expected a folder that takes new files, got ",
          parent.string());
  // a file is replaced by a new one, which must not happen to a device
  require(path.has_filename() && (!std::filesystem::exists(path) || std::filesystem::is_regular_file(path)), argument,
          ": expected the name of a file, got ", path.string());
}

}  // namespace demo
