// SPDX-License-Identifier: MIT
#include "nprf/core/function_ref.hpp"

#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace nprf::test::core_function_ref {

namespace {

// a function that is compiled once, whatever it is called with
int twice(FunctionRef<int(int)> f, int x) { return f(f(x)); }

}  // namespace

TEST_CASE("a FunctionRef calls the object that it refers to", "[core]") {
  int calls = 0;
  const auto add = [&](int x) { return ++calls, x + 10; };
  CHECK(twice(add, 1) == 21);
  CHECK(calls == 2);
  CHECK(twice([](int x) { return -3 * x; }, 2) == 18);
  const auto negate = [](int x) { return -x; };
  FunctionRef<int(int)> first = add;
  const FunctionRef<int(int)> copy = first;
  first = negate;  // the copy refers to `add`, not to `first`
  CHECK((first(5) == -5 && copy(5) == 15));
  CHECK(calls == 3);
}

TEST_CASE("a FunctionRef forwards references, and converts results", "[core]") {
  const auto append = [](std::vector<int>& to, const int& x) -> std::vector<int>& {
    to.push_back(x);
    return to;
  };
  std::vector<int> x;
  const FunctionRef<std::vector<int>&(std::vector<int>&, const int&)> f = append;
  CHECK(&f(x, 7) == &x);
  CHECK(x == std::vector<int>{7});
  const FunctionRef<void(std::vector<int>&, int)> without_result = append;
  without_result(x, 8);
  CHECK(x == std::vector<int>{7, 8});
  static_assert(!std::is_constructible_v<FunctionRef<int(int)>, int (*)(const char*)>);
  static_assert(!std::is_constructible_v<FunctionRef<int(int)>, int(int)>);  // only function objects
}

}  // namespace nprf::test::core_function_ref
