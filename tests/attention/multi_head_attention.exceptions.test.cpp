// SPDX-License-Identifier: MIT

// An exception in the middle of a call reaches the caller, and the attention works afterwards. A rejected call changes
// nothing.

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/core/threads.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/alibi.hpp"
#include "support/attention.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::attention_multi_head_attention_exceptions {

namespace {

// an exception of a user's own code
struct TestError {
  std::thread::id where;
};

// The map x^2. While it is armed, calls on threads other than the one that created it throw, and calls on that thread
// wait until one has thrown.
struct ThrowingMap {
  struct State {
    std::thread::id creator = std::this_thread::get_id();
    std::atomic<bool> armed = false, thrown = false;
  };

  using Scalar = float;
  Index d;
  State* state;

  Index input_dim() const { return d; }
  Index output_dim() const { return d; }
  Matrix<float> queries(const MatrixView<float>& x) const {
    throw_if_armed();
    return x.array().square();
  }
  Matrix<float> keys(const MatrixView<float>& x) const { return queries(x); }
  Matrix<float> backward(const MatrixView<float>& x, const MatrixView<float>&, const MatrixView<float>& dphi) const {
    throw_if_armed();
    return 2 * x.cwiseProduct(dphi);
  }

  void throw_if_armed() const {
    if (!state->armed) return;
    if (std::this_thread::get_id() != state->creator) {
      state->thrown = true;
      throw TestError{std::this_thread::get_id()};
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!state->thrown && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  }
};

template <class Call>
void check_throws(ThrowingMap::State& state, Call&& call) {
  state.armed = true;
  state.thrown = false;
  bool caught = false;
  try {
    call();
  } catch (const TestError& error) {
    caught = true;
    CHECK(error.where != state.creator);
  }
  state.armed = false;
  CHECK(caught);
}

// a poll that throws at the given call, and its number of calls so far
thread_local int polls = 0, stop_at = 0;

void count_or_stop() {
  if (++polls == stop_at) throw TestError{std::this_thread::get_id()};
}

}  // namespace

TEST_CASE("multi-head: a poll ends a forward and a backward, and the attention works afterwards",
          "[multi_head][threads]") {
  constexpr Index batch = 4, heads = 2, n = 300, d = 24;
  const Matrix<float> x = normal<float>(batch * heads * n, d, 3);
  Matrix<float> y = x, dq = x, dk = x, dv = x;
  const auto in = [](const Matrix<float>& a) { return HeadsView<const float>{a.data(), batch, heads, n, d}; };
  const auto out = [](Matrix<float>& a) { return HeadsView<float>{a.data(), batch, heads, n, d}; };
  const MultiHeadAttention attention(orf<float>(d, 8), AlibiPosition<float>(0.1f));
  for (const Index threads : {1, 4}) {
    const Threads some(threads);
    Saved<float> saved;
    std::vector<Matrix<float>> dbias;
    const auto forward = [&] { attention.forward(in(x), in(x), in(x), out(y), saved, {.poll = count_or_stop}); };
    const auto backward = [&] { attention.backward(saved, in(x), out(dq), out(dk), out(dv), dbias); };
    polls = stop_at = 0;
    forward();
    const Matrix<float> expected = y;
    CHECK(polls > 0);
    const int before = polls;
    backward();
    CHECK(polls > before);
    polls = 0, stop_at = 1;
    CHECK_THROWS_AS(backward(), TestError);
    polls = 0;
    CHECK_THROWS_AS(forward(), TestError);
    check_invalid(backward, {"saved: expected one filled by forward"});
    stop_at = 0;
    forward();
    CHECK(same_bits(y, expected));
    backward();
  }
}

TEST_CASE("multi-head: an exception of a feature map on another thread reaches the caller", "[multi_head][threads]") {
  constexpr Index batch = 4, heads = 2, n = 400, d = 24, d_v = 16;
  const Threads four(4);
  ThrowingMap::State state;
  const MultiHeadAttention attention(ThrowingMap{d, &state}, AlibiPosition<float>(0.1f));
  const auto view = [&](auto& x) {
    return HeadsView<std::remove_pointer_t<decltype(x.data())>>{x.data(), batch, heads, n, x.cols()};
  };
  const auto array = [&](Index channels, std::uint64_t seed) {
    return normal<float>(batch * heads * n, channels, seed);
  };
  const Matrix<float> q = array(d, 1), k = array(d, 2), v = array(d_v, 3), dy = array(d_v, 4);
  Matrix<float> y(v.rows(), d_v), dq(q.rows(), d), dk(q.rows(), d), dv(q.rows(), d_v);
  Saved<float> saved;
  std::vector<Matrix<float>> dbias;
  const auto forward = [&] { attention.forward(view(q), view(k), view(v), view(y), saved); };
  const auto backward = [&] { attention.backward(saved, view(dy), view(dq), view(dk), view(dv), dbias); };

  forward();
  backward();
  const Matrix<float> expected_y = y, expected_dq = dq;
  check_throws(state, forward);
  check_invalid(backward, {"saved: expected one filled by forward of this attention"});
  forward();
  CHECK(same_bits(y, expected_y));
  check_throws(state, backward);
  backward();
  CHECK(same_bits(dq, expected_dq));
}

TEST_CASE("multi-head: a rejected call leaves y, the report and the saved data unchanged", "[multi_head]") {
  constexpr Index batch = 3, heads = 4, n = 20, d = 5, d_v = 3;
  const MultiHeadAttention attention(orf<double>(d, 6, 1), AlibiPosition<double>(0.1));
  const auto view = [&](auto& x) {
    return HeadsView<std::remove_pointer_t<decltype(x.data())>>{x.data(), batch, heads, n, x.cols()};
  };
  const auto array = [&](Index channels, std::uint64_t seed) {
    return normal<double>(batch * heads * n, channels, seed);
  };
  Matrix<double> q = array(d, 1), k = array(d, 2), v = array(d_v, 3), y(v.rows(), d_v);
  const Matrix<double> dy = array(d_v, 4);
  Saved<double> saved;
  const auto gradients = [&] {
    Matrix<double> dq(q.rows(), d), dk(q.rows(), d), dv(q.rows(), d_v);
    std::vector<Matrix<double>> dbias;
    attention.backward(saved, view(dy), view(dq), view(dk), view(dv), dbias);
    dbias.insert(dbias.end(), {dq, dk, dv});
    return dbias;
  };
  attention.forward(view(q), view(k), view(v), view(y), saved);
  const std::vector<Matrix<double>> before = gradients();
  const Matrix<double> first = y;

  const std::vector<Index> lengths{n, n, 12};
  const auto check_nan = [&](Matrix<double>& x, Index b, Index h, Index row, Index column) {
    for (const Index threads : {1, 4}) {
      const Threads some(threads);
      const double value = std::exchange(x((b * heads + h) * n + row, column), std::nan(""));
      Report report{.empty_rows = 77};
      check_invalid(
          [&] {
            attention.forward(view(q), view(k), view(v), view(y), saved,
                              {.lengths = lengths, .check_finite = true, .report = &report});
          },
          {"expected finite numbers (check_finite), got nan in batch " + std::to_string(b) + ", head " +
           std::to_string(h) + ", row " + std::to_string(row) + ", column " + std::to_string(column)});
      x((b * heads + h) * n + row, column) = value;
      CHECK(report.empty_rows == 77);
      CHECK(same_bits(y, first));
      const std::vector<Matrix<double>> after = gradients();
      for (std::size_t g = 0; g < after.size(); ++g) CHECK(same_bits(after[g], before[g]));
    }
  };
  check_nan(q, 2, 3, 19, 4);
  check_nan(k, 1, 2, 7, 3);
  check_nan(v, 2, 0, 11, 1);
  // padding is not read
  k(((2 * heads + 1) * n) + 12, 0) = std::nan("");
  CHECK_NOTHROW(
      attention.forward(view(q), view(k), view(v), view(y), saved, {.lengths = lengths, .check_finite = true}));
}

TEST_CASE("multi-head: sizes that overflow and offsets out of range are rejected", "[multi_head]") {
  const MultiHeadAttention attention(EluFeatures<double>(1), AlibiPosition<double>(0.1));
  constexpr Index most = std::numeric_limits<Index>::max();
  double one[2] = {1, 1};
  const auto call = [&](Index batch, Index heads, Index tokens, const CallOptions& options = {}) {
    const HeadsView<double> x{one, batch, heads, tokens, 1}, y{one + 1, batch, heads, tokens, 1};
    attention(x, x, x, y, options);
  };
  check_invalid([&] { call(most, 1, 1); }, {"queries: expected sizes whose product does not overflow"});
  check_invalid([&] { call(most / 2, 4, 0); }, {"queries: expected sizes whose product does not overflow"});
  check_invalid([&] { call(1, Index{1} << 32, Index{1} << 32); }, {"queries: expected sizes whose product"});
  // sequences without tokens, whose number of segments may overflow
  const std::vector<Index> none(100, 0), far{0, most}, back{0, most, 0};
  CHECK_NOTHROW(call(Index{1} << 30, Index{1} << 29, 0, {.cumulative_lengths = none}));  // empty segments cost nothing
  CHECK_THROWS_AS(call(Index{1} << 30, Index{1} << 29, 0), std::length_error);
  check_invalid([&] { call(1, 1, 1, {.cumulative_lengths = far}); }, {"cumulative_lengths: expected to end at 1"});
  check_invalid([&] { call(1, 1, 1, {.cumulative_lengths = back}); }, {"cumulative_lengths[2]: expected at least"});
  check_invalid([&] { call(1, 1, 1, {.lengths = std::vector<Index>{most}}); }, {"lengths[0]: expected 0 to 1"});
  for (const Index offset : {most, -most - 1}) check_invalid([&] { call(1, 1, 1, {.offset = offset}); }, {"offset"});
}

}  // namespace nprf::test::attention_multi_head_attention_exceptions
