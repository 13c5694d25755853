// SPDX-License-Identifier: MIT
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace nprf {

/// Thrown for a wrong shape or value. The message states the argument's name, what was expected and what was given.
struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Thrown if a library that nprf calls (FFTW, CUDA) reports an error.
struct BackendError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {

template <class... Parts>
  requires(sizeof...(Parts) > 0)
std::string sentence(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace detail

/// Throws InvalidArgument with the concatenated parts as its message unless `holds`. Release builds check too.
template <class... Parts>
  requires(sizeof...(Parts) > 0)
void require(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw InvalidArgument(detail::sentence(parts...));
}

}  // namespace nprf
