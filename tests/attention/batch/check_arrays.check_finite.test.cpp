// SPDX-License-Identifier: MIT
#include "nprf/attention/batch/check_arrays.hpp"

#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_batch_check_finite {

namespace {

constexpr Index batch = 3, heads = 2, n_q = 9, n_k = 7, d = 4, d_v = 5;
constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// [batch, heads, tokens, channels] as one matrix of all rows
struct Arrays {
  Matrix<double> q = normal<double>(batch * heads * n_q, d, 1), k = normal<double>(batch * heads * n_k, d, 2),
                 v = normal<double>(batch * heads * n_k, d_v, 3);

  static HeadsView<const double> view_of(const Matrix<double>& x) {
    return {x.data(), batch, heads, x.rows() / (batch * heads), x.cols()};
  }
  void require(const CallOptions& call = {}, Lengths lengths = Lengths::of_keys) const {
    std::vector<Workspace> workspaces(4);
    for (const Index threads : {1, 4}) {
      const std::span<Workspace> all(workspaces);
      require_finite(view_of(q), view_of(k), view_of(v), call, Team(all.first(static_cast<std::size_t>(threads))),
                     lengths);
    }
  }
};

}  // namespace

TEST_CASE("the message names the sequence, head, row and column of a non-finite entry", "[attention]") {
  for (const double non_finite_value : {nan, infinity, -infinity})
    for (const auto& [part, name] :
         {std::pair(&Arrays::q, "queries"), std::pair(&Arrays::k, "keys"), std::pair(&Arrays::v, "values")}) {
      Arrays x;
      CHECK_NOTHROW(x.require());
      const Index n = (x.*part).rows() / (batch * heads);
      (x.*part)((1 * heads + 1) * n + 6, 3) = non_finite_value;
      check_invalid([&] { x.require(); }, {name + std::string(": expected finite numbers (check_finite), got ") +
                                           (non_finite_value > 0   ? "inf"
                                            : non_finite_value < 0 ? "-inf"
                                                                   : "nan") +
                                           " in batch 1, head 1, row 6, column 3"});
    }
}

TEST_CASE("the message names the first of several non-finite entries, for any thread count", "[attention]") {
  Arrays x;
  x.v((2 * heads + 0) * n_k + 1, 0) = nan;
  x.q((2 * heads + 1) * n_q + 0, 0) = nan;
  check_invalid([&] { x.require(); }, {"values", "batch 2, head 0, row 1, column 0"});
  x.v((1 * heads + 1) * n_k + 0, 0) = nan;
  check_invalid([&] { x.require(); }, {"values", "batch 1, head 1, row 0, column 0"});
  x.k((1 * heads + 1) * n_k + 5, 2) = infinity;
  x.k((1 * heads + 1) * n_k + 5, 1) = infinity;
  check_invalid([&] { x.require(); }, {"keys", "batch 1, head 1, row 5, column 1"});
  x.q(8, 3) = nan;
  check_invalid([&] { x.require(); }, {"queries", "batch 0, head 0, row 8, column 3"});
}

TEST_CASE("padding may be non-finite; a query is padding only if lengths are those of queries", "[attention]") {
  Arrays x;
  for (Index h = 0; h < heads; ++h) {
    x.k.row((1 * heads + h) * n_k + 4).setConstant(nan);
    x.v.row((1 * heads + h) * n_k + 4).setConstant(nan);
  }
  Mask mask = Mask::Constant(batch * n_k, true);
  mask[1 * n_k + 4] = false;
  const std::vector<Index> lengths{n_k, 4, n_k}, too_long{n_k, 5, 4};
  CHECK_NOTHROW(x.require({.key_mask = view(mask)}));
  CHECK_NOTHROW(x.require({.lengths = lengths}));
  check_invalid([&] { x.require({.lengths = too_long}); }, {"keys", "batch 1, head 0, row 4, column 0"});
  x.q((1 * heads + 0) * n_q + 4, 0) = nan;
  check_invalid([&] { x.require({.lengths = lengths}); }, {"queries", "batch 1, head 0, row 4, column 0"});
  CHECK_NOTHROW(x.require({.lengths = lengths}, Lengths::of_queries_and_keys));
  x.q((1 * heads + 0) * n_q + 3, 0) = nan;
  check_invalid([&] { x.require({.lengths = lengths}, Lengths::of_queries_and_keys); },
                {"queries", "batch 1, head 0, row 3, column 0"});
}

TEST_CASE("the message for one head of one sequence names neither", "[attention]") {
  Matrix<double> x = normal<double>(6, 3, 1);
  x(4, 1) = nan;
  const HeadsView<const double> all = one_head<double>(MatrixView<double>(x));
  Workspace workspace;
  check_invalid([&] { require_finite(all, all, all, {}, Team(workspace)); },
                {"queries: expected finite numbers (check_finite), got nan in row 4, column 1"});
}

}  // namespace nprf::test::attention_batch_check_finite
