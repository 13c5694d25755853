// SPDX-License-Identifier: MIT
#include "nprf/attention/saved.hpp"

#include <limits>
#include <vector>

#include "nprf/attention/attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_saved {

namespace {

using Plain = Attention<PositiveFeatures<double>, NoPosition<double>>;

Plain make() { return Plain(orf<double>(3, 4, 7)); }

}  // namespace

TEST_CASE("backward rejects data of another attention, and an object that was never filled", "[attention]") {
  const Tokens<double> x = random_tokens<double>(5, 6, 3, 2);
  const Plain attention = make(), other = make();
  Saved<double> saved;
  check_invalid([&] { attention.backward(saved, Matrix<double>(0, 0)); }, {"saved", "call forward first"});
  const Matrix<double> y = other.forward(x.q, x.k, x.v, saved);
  check_invalid([&] { attention.backward(saved, y); }, {"saved", "got another's"});
  const Plain copy = other;
  CHECK(same_bits<double>(copy.backward(saved, y).values, other.backward(saved, y).values));
}

TEST_CASE("backward rejects dy of a wrong shape", "[attention]") {
  const Tokens<double> x = random_tokens<double>(5, 6, 3, 2);
  const Plain attention = make();
  Saved<double> saved;
  attention.forward(x.q, x.k, x.v, saved);
  check_invalid([&] { attention.backward(saved, Matrix<double>::Zero(6, 2)); }, {"dy: expected 5 x 2", "got 6 x 2"});
  check_invalid([&] { attention.backward(saved, Matrix<double>::Zero(5, 3)); }, {"dy: expected 5 x 2", "got 5 x 3"});
}

TEST_CASE("saved data are copies, and the object can be reused for another call", "[attention]") {
  Tokens<double> x = random_tokens<double>(5, 6, 3, 2);
  const Plain attention = make();
  Saved<double> saved, fresh;
  const Matrix<double> y = attention.forward(x.q, x.k, x.v, saved);
  const Gradients<double> before = attention.backward(saved, y);
  x.q.setZero();
  x.k.setZero();
  x.v.setZero();
  CHECK(same_bits<double>(attention.backward(saved, y).keys, before.keys));

  const Tokens<double> longer = random_tokens<double>(9, 4, 3, 1);
  const Matrix<double> again = attention.forward(longer.q, longer.k, longer.v, saved);
  attention.forward(longer.q, longer.k, longer.v, fresh);
  CHECK(same_bits<double>(attention.backward(saved, again).queries, attention.backward(fresh, again).queries));
}

TEST_CASE("a rejected call leaves the saved data of an earlier one unchanged", "[attention]") {
  Tokens<double> x = random_tokens<double>(5, 6, 3, 2);
  const Plain attention = make();
  Saved<double> saved;
  const Matrix<double> y = attention.forward(x.q, x.k, x.v, saved);
  const Gradients<double> before = attention.backward(saved, y);
  const auto refused = [&](const CallOptions& call, const char* words) {
    check_invalid([&] { attention.forward(x.q, x.k, x.v, saved, call); }, {words});
    CHECK(same_bits(attention.backward(saved, y), before));
  };
  const std::vector<Index> backwards{0, 7, 5};
  refused({.tolerance = -1}, "tolerance");
  refused({.cumulative_lengths = backwards}, "cumulative_lengths");
  x.v(5, 1) = std::numeric_limits<double>::infinity();
  refused({.check_finite = true}, "got inf in row 5, column 1");
}

TEST_CASE("without queries or without keys all gradients have their shapes and are zero", "[attention]") {
  const Plain attention = make();
  for (const auto& [n_q, n_k] : {std::pair<Index, Index>{0, 4}, {4, 0}, {0, 0}}) {
    const Tokens<double> x = random_tokens<double>(n_q, n_k, 3, 2);
    const auto [y, g, report] = both_passes(attention, x, Matrix<double>::Ones(n_q, 2));
    CHECK((g.queries.rows() == n_q && g.queries.cols() == 3 && g.queries.isZero(0)));
    CHECK((g.keys.rows() == n_k && g.keys.cols() == 3 && g.keys.isZero(0)));
    CHECK((g.values.rows() == n_k && g.values.cols() == 2 && g.values.isZero(0)));
    CHECK(g.bias.size() == 0);
  }
}

}  // namespace nprf::test::attention_saved
