// SPDX-License-Identifier: MIT
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace nprf {

/// A wrong shape or value. The message names the argument, what was expected and what came.
struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A library underneath (FFTW, CUDA) refused.
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

/// Throws InvalidArgument with the concatenated parts unless `holds`. Always on, in release builds too.
template <class... Parts>
  requires(sizeof...(Parts) > 0)
void require(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw InvalidArgument(detail::sentence(parts...));
}

}  // namespace nprf
