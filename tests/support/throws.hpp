// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "nprf/core/error.hpp"
#include "nprf/core/function_ref.hpp"
#include "support/catch.hpp"

namespace nprf::test {

/// Checks that call() throws InvalidArgument and that the message contains every piece.
inline void check_invalid(FunctionRef<void()> call, std::initializer_list<std::string_view> pieces) {
  bool thrown = false;
  std::string message;
  try {
    call();
  } catch (const InvalidArgument& error) {
    thrown = true;
    message = error.what();
  }
  CHECK(thrown);
  if (!thrown) return;
  for (const std::string_view piece : pieces) {
    INFO("message: " << message << "\nmissing piece: " << std::string(piece));
    CHECK(message.find(piece) != std::string::npos);
  }
}

/// The message of the BackendError that call() throws.
template <class F>
std::string backend_error(F&& call) {
  try {
    std::forward<F>(call)();
  } catch (const BackendError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace nprf::test
