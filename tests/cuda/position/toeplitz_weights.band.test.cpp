// SPDX-License-Identifier: MIT
#include "nprf/cuda/position/toeplitz_weights.cuh"

#include <algorithm>
#include <initializer_list>

#include "nprf/core/lower_lags.hpp"
#include "support/catch.hpp"

namespace nprf::test::cuda_position_toeplitz_weights_band {

namespace {

struct Shape {
  Index n_q, n_k, offset;
};

LagProblem<float> lags_of(const Shape& s, Direction direction, LagRange table) {
  return problem_without_biases<float>(Slots{s.n_q}, Slots{s.n_k}, direction, s.offset, table);
}

}  // namespace

TEST_CASE("before and after the band all lags are on one line, or not attended", "[cuda]") {
  for (const Shape& s : {Shape{1, 1, 0}, {10, 10, 0}, {10, 30, 0}, {30, 10, 7}, {10, 10, -30}, {10, 10, 30}})
    for (const Direction direction : {Direction::bidirectional, Direction::causal})
      for (const LagRange table : {LagRange{0, 0}, {-3, 3}, {-5, 0}, {-100, 100}, {2, 4}, {-9, -7}})
        for (const bool is_linear : {false, true}) {
          if (is_linear && table.size() > 1) continue;
          const LagProblem<float> x = lags_of(s, direction, table);
          const cuda::Band band = cuda::band_of(x, is_linear);
          INFO("n_q " << s.n_q << ", n_k " << s.n_k << ", offset " << s.offset << ", table " << table.first << " to "
                      << table.last << (is_linear ? ", linear" : "")
                      << (direction == Direction::causal ? ", causal" : "") << ": band " << band.first << " to "
                      << band.last);
          CHECK(band.last >= band.first - 1);
          // of each tail: how many lags it has, and how many of them are on each line or not attended
          struct Tail {
            int lags = 0, on_first = 0, on_last = 0, not_attended = 0;
            bool is_line() const { return lags <= 1 || lags == std::max({on_first, on_last, not_attended}); }
          } before, after;
          for (Index lag = x.lags.first; lag <= x.lags.last; ++lag) {
            if (band.first <= lag && lag <= band.last) continue;
            Tail& tail = lag < band.first ? before : after;
            const bool is_attended = x.reach.first <= lag && lag <= x.reach.last;
            const bool is_constant = !is_linear && table.size() == 1;  // then both lines are one
            ++tail.lags;
            tail.on_first += is_attended && (lag <= x.table.first || is_constant);
            tail.on_last += is_attended && (lag >= x.table.last || is_constant);
            tail.not_attended += !is_attended;
          }
          CHECK(before.is_line());
          CHECK(after.is_line());
        }
}

TEST_CASE("a band has the lags of the table but for its ends", "[cuda]") {
  const auto band = [](const Shape& s, Direction direction, LagRange table, bool is_linear = false) {
    return cuda::band_of(lags_of(s, direction, table), is_linear);
  };
  const auto is = [](const cuda::Band& x, int first, int last) { return x.first == first && x.last == last; };
  const Shape all{100, 100, 0};
  CHECK(is(band(all, Direction::bidirectional, {-20, 20}), -19, 19));
  CHECK(is(band(all, Direction::causal, {-20, 20}), -19, 0));
  CHECK(is(band({100, 100, 5}, Direction::bidirectional, {-20, 20}), -14, 24));
  CHECK(is(band(all, Direction::bidirectional, {0, 0}), 100, 99));  // one weight: no lag is in the band
  CHECK(is(band(all, Direction::causal, {0, 0}), 1, 0));
  CHECK(is(band(all, Direction::bidirectional, {0, 0}, true), 1, 0));
  CHECK(is(band(all, Direction::causal, {0, 0}, true), 1, 0));
  CHECK(is(band({100, 100, -5}, Direction::causal, {0, 0}, true), -4, -5));
}

}  // namespace nprf::test::cuda_position_toeplitz_weights_band
