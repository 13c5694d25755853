// SPDX-License-Identifier: MIT
#include "nprf/core/error.hpp"

#include <stdexcept>
#include <string>
#include <type_traits>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::core_error {

static_assert(std::is_base_of_v<std::invalid_argument, InvalidArgument>);
static_assert(std::is_base_of_v<std::runtime_error, BackendError>);
static_assert(!std::is_base_of_v<InvalidArgument, BackendError>);

TEST_CASE("a requirement that holds does not throw", "[core]") {
  CHECK_NOTHROW(require(true, "k: expected ", 3, " rows, got ", 4));
}

TEST_CASE("a requirement that fails throws InvalidArgument with its parts as one message", "[core]") {
  std::string message;
  try {
    require(false, "k: expected ", 3, " rows, got ", 4.5, std::string(", that is"), ' ', "not ", true);
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  CHECK(message == "k: expected 3 rows, got 4.5, that is not 1");
  check_invalid([] { require(false, "k: expected ", 3); }, {"k", "3"});
}

TEST_CASE("errors can be caught as standard exceptions", "[core]") {
  CHECK_THROWS_AS(require(false, "x"), std::invalid_argument);
  CHECK_THROWS_AS(require(false, "x"), std::logic_error);
  CHECK_THROWS_AS(throw BackendError("FFTW"), std::runtime_error);
}

}  // namespace nprf::test::core_error
