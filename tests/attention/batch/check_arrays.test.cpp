// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/check_arrays.hpp"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_check_arrays {

namespace {

constexpr Index batch = 2, heads = 3, tokens = 4, channels = 5;

// the value of each scalar is its index
std::vector<double> numbered() {
  std::vector<double> values(batch * heads * tokens * channels);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

}  // namespace

TEST_CASE("a view of heads converts to a read-only view, but not the reverse", "[multi_head]") {
  std::vector<double> values = numbered();
  const HeadsView<double> x{values.data(), batch, heads, tokens, channels};
  const HeadsView<const double> read = x;
  CHECK(read.data == x.data);
  CHECK(read.size() == x.size());
  CHECK((read.batch == batch && read.heads == heads && read.tokens == tokens && read.channels == channels));
  CHECK(read(1, 0) == x(1, 0));
  static_assert(std::convertible_to<HeadsView<double>, HeadsView<const double>>);
  static_assert(!std::convertible_to<HeadsView<const double>, HeadsView<double>>);
  static_assert(!std::convertible_to<HeadsView<double>, HeadsView<const float>>);
  static_assert(std::same_as<HeadsView<const double>::Scalar, double>);
  static_assert(std::is_assignable_v<decltype(x(0, 0)(0, 0)), double>);
  static_assert(!std::is_assignable_v<decltype(read(0, 0)(0, 0)), double>);
}

TEST_CASE("a view of heads of a wrong shape is rejected", "[multi_head]") {
  std::vector<double> values = numbered();
  const HeadsView<double> x{values.data(), batch, heads, tokens, channels};
  check_heads(x, "x", 2, 3, 4, 5);
  const auto check = [&](Index b, Index h, Index n, Index c, std::string_view expected) {
    check_invalid([&] { check_heads(x, "x", b, h, n, c); },
                  {"x: expected ", expected, "(batch, heads, tokens, channels)", "got 2 x 3 x 4 x 5"});
  };
  check(1, 3, 4, 5, "1 x 3 x 4 x 5");
  check(2, 2, 4, 5, "2 x 2 x 4 x 5");
  check(2, 3, 3, 5, "2 x 3 x 3 x 5");
  check(2, 3, 4, 6, "2 x 3 x 4 x 6");
  check(3, 2, 4, 5, "3 x 2 x 4 x 5");  // the same number of scalars
}

TEST_CASE("a view of heads of a negative size is rejected", "[multi_head]") {
  double value = 0;
  const auto check = [&](Index b, Index h, Index n, Index c, std::string_view got) {
    check_invalid(
        [&] {
          check_heads(HeadsView<double>{&value, b, h, n, c}, "x", b, h, n, c);
        },
        {"x: expected no negative size", got});
  };
  check(-1, 1, 1, 1, "got -1 x 1 x 1 x 1");
  check(1, -1, 1, 1, "got 1 x -1 x 1 x 1");
  check(1, 1, -1, 1, "got 1 x 1 x -1 x 1");
  check(1, 1, 1, -1, "got 1 x 1 x 1 x -1");
  check(-1, -1, 1, 1, "got -1 x -1 x 1 x 1");  // the product is positive
}

TEST_CASE("a view of heads whose size overflows is rejected", "[multi_head]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  const auto check = [](Index b, Index h, Index n, Index c) {
    check_invalid(
        [&] {
          check_heads(HeadsView<const double>{nullptr, b, h, n, c}, "x", b, h, n, c);
        },
        {"x: expected sizes whose product does not overflow", "got " + std::to_string(b)});
  };
  check(most, 1, 1, 1);  // the size in bytes overflows
  check(most / 2, 3, 1, 1);
  check(1, Index{1} << 32, Index{1} << 32, 1);
  check(Index{1} << 40, Index{1} << 40, 0, 5);  // although one size is zero
  check(0, 1, most, most);
}

TEST_CASE("a view of heads without data is rejected unless it is empty", "[multi_head]") {
  const auto check = [](Index b, Index h, Index n, Index c) {
    check_heads(HeadsView<const float>{nullptr, b, h, n, c}, "x", b, h, n, c);
  };
  check_invalid([&] { check(1, 1, 1, 1); }, {"x: expected data", "got a null pointer"});
  CHECK_NOTHROW(check(0, 1, 1, 1));
  CHECK_NOTHROW(check(1, 0, 1, 1));
  CHECK_NOTHROW(check(1, 1, 0, 1));
  CHECK_NOTHROW(check(1, 1, 1, 0));
}

TEST_CASE("a view with strides reads the tokens where they are", "[multi_head]") {
  std::vector<double> values = numbered();
  const HeadsView<double> x = tokens_first(values.data(), batch, tokens, heads, channels);
  const HeadsView<const double> shared{values.data(), batch, heads, tokens, channels, {channels, 0, 60}};
  CHECK_NOTHROW(check_output(x, "x", batch, heads, tokens, channels));
  CHECK_NOTHROW(check_heads(shared, "x", batch, heads, tokens, channels));
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < tokens; ++i) {
        CHECK(x(b, h)(i, 1) == static_cast<double>(((b * tokens + i) * heads + h) * channels + 1));
        CHECK(shared(b, h)(i, 1) == static_cast<double>(b * 60 + i * channels + 1));
      }
}

TEST_CASE("strides that overlap, are negative or overflow are rejected", "[multi_head]") {
  std::vector<double> values = numbered();
  const auto check = [&](HeadStrides strides) {
    check_heads(HeadsView<double>{values.data(), batch, heads, tokens, channels, strides}, "x", batch, heads, tokens,
                channels);
  };
  check_invalid([&] { check({4, 20, 60}); }, {"x: expected strides of at least 5, 0 and 0", "got 4, 20 and 60"});
  check_invalid([&] { check({5, -20, 60}); }, {"x: expected strides of at least 5", "got 5, -20 and 60"});
  check_invalid(
      [&] {
        check({5, 20, std::numeric_limits<Index>::max() / 8});
      },
      {"x: expected strides whose array does not overflow"});
  const auto check_out = [&](HeadStrides strides) {
    check_output(HeadsView<double>{values.data(), batch, heads, tokens, channels, strides}, "y", batch, heads, tokens,
                 channels);
  };
  CHECK_NOTHROW(check_out({15, 5, 60}));
  CHECK_NOTHROW(check_out({5, 40, 20}));  // [heads, batch, tokens, channels]
  check_invalid([&] { check_out({5, 0, 60}); }, {"y: expected strides that keep tokens apart", "got 5, 0 and 60"});
  check_invalid([&] { check_out({14, 5, 60}); }, {"y: expected strides that keep tokens apart"});
  check_invalid([&] { check_out({5, 20, 40}); }, {"y: expected strides that keep tokens apart"});
}

TEST_CASE("views that are parts of one array share memory only where a scalar is in both", "[multi_head]") {
  std::vector<double> values(1000);
  const auto view = [&](Index offset, HeadStrides strides) {
    return HeadsView<double>{values.data() + offset, 2, 3, 4, 5, strides};
  };
  using detail::may_overlap;
  CHECK(may_overlap(view(0, {}), view(0, {})));
  CHECK(may_overlap(view(0, {}), view(119, {})));
  CHECK_FALSE(may_overlap(view(0, {}), view(120, {})));
  CHECK_FALSE(may_overlap(view(120, {}), view(0, {})));
  const HeadsView<double> empty{nullptr, 0, 3, 4, 5};
  CHECK_FALSE(may_overlap(view(0, {}), empty));
  // queries, keys, values and y in one array
  struct Parts {
    Index step;
    HeadStrides strides;
  };
  for (const auto& [step, strides] : {
           Parts{15, {4 * 15, 5, 4 * 60}},     // [batch, tokens, 4, heads, channels]
           Parts{60, {5, 20, 4 * 60}},         // [batch, 4, heads, tokens, channels]
           Parts{20, {5, 4 * 20, 4 * 60}},     // [batch, heads, 4, tokens, channels]
           Parts{5, {4 * 5, 4 * 20, 4 * 60}},  // [batch, heads, tokens, 4, channels]
       }) {
    for (const Index other : {1, 2, 3}) {
      CHECK_FALSE(may_overlap(view(0, strides), view(other * step, strides)));
      CHECK_FALSE(may_overlap(view(other * step, strides), view(0, strides)));
    }
    CHECK(may_overlap(view(0, strides), view(step - 1, strides)));
    CHECK(may_overlap(view(0, strides), view(200, {})));  // the second sequence begins at 240
  }
  // queries of 3 heads, and a key of one head that all share, in [batch, tokens, 20]
  const HeadsView<double> queries{values.data(), 2, 3, 4, 5, {20, 5, 80}};
  const auto key = [&](Index column) { return HeadsView<double>{values.data() + column, 2, 1, 4, 5, {20, 0, 80}}; };
  CHECK_FALSE(may_overlap(queries, key(15)));
  CHECK(may_overlap(queries, key(14)));
}

TEST_CASE("views share memory if a scalar is in both, of any strides", "[multi_head]") {
  std::vector<float> values(400);
  std::mt19937 random(3);
  const auto up_to = [&](Index most) { return static_cast<Index>(random() % static_cast<std::uint32_t>(most + 1)); };
  const auto draw = [&] {
    const Index width = up_to(3);
    return HeadsView<float>{
        values.data() + up_to(60), up_to(3), up_to(3), up_to(3), width, {width + up_to(9), up_to(30), up_to(60)}};
  };
  const auto scalars = [](const HeadsView<float>& x) {
    std::set<const float*> all;
    for (Index b = 0; b < x.batch; ++b)
      for (Index h = 0; h < x.heads; ++h)
        for (Index i = 0; i < x.tokens; ++i)
          for (Index c = 0; c < x.channels; ++c) all.insert(&x(b, h).row(i)[c]);
    return all;
  };
  Index apart = 0;
  for (Index draws = 0; draws < 3000; ++draws) {
    const HeadsView<float> x = draw(), y = draws % 2 == 0 ? draw() : x;
    const HeadsView<float> moved{values.data() + up_to(60), y.batch, y.heads, y.tokens, y.channels, y.strides};
    const std::set<const float*> of_x = scalars(x), of_y = scalars(moved);
    const bool shared = std::ranges::any_of(of_x, [&](const float* at) { return of_y.contains(at); });
    CHECK(detail::may_overlap(x, moved) == shared);
    apart +=
        !shared && !of_x.empty() && !of_y.empty() && *of_x.begin() < *of_y.rbegin() && *of_y.begin() < *of_x.rbegin();
  }
  CHECK(apart > 100);  // within each other's extents, but without a common scalar
}

TEST_CASE("heads of queries are those of the model, and a multiple of those of keys", "[multi_head]") {
  check_head_counts(6, 2, 1);
  check_head_counts(6, 6, 6);
  check_head_counts(0, 0, 1);
  check_invalid([] { check_head_counts(4, 4, 2); },
                {"queries: expected 2 heads (the number of feature maps or positions), got 4"});
  check_invalid([] { check_head_counts(2, 2, 4); }, {"queries: expected 4 heads", "got 2"});
  check_invalid([] { check_head_counts(6, 4, 1); },
                {"keys: expected a number of heads that 6 (of queries) is a multiple of, got 4"});
  check_invalid([] { check_head_counts(6, 0, 1); }, {"keys: expected a number of heads", "got 0"});
  check_invalid([] { check_head_counts(0, 2, 1); }, {"keys: expected a number of heads", "got 2"});
}

TEST_CASE("views whose strides would take too many steps count as sharing memory", "[multi_head]") {
  double value = 0;
  constexpr Index n = Index{1} << 20;  // even scalars, and every third odd one: nothing is read
  const HeadsView<double> x{&value, 1, n, n, 1, {2, 2 * n, 0}}, y{&value + 1, 1, n, n, 1, {6, 6 * n, 0}};
  CHECK(detail::may_overlap(x, y));
}

}  // namespace nprf::test::attention_check_arrays
