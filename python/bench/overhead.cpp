// SPDX-License-Identifier: MIT
//
// The calls of overhead.py in C++, with saved state that is kept. For each line "TOKENS CHANNELS BACKWARD NEW_BIASES
// NEW_RESULTS SECONDS" of the standard input it prints the microseconds of processor time of one call: by an attention
// that is kept, or by one that is made for other biases in each call, as in training; into results that are kept, or
// that each call allocates, as in Python.

#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "nprf/attention/multi_head_attention.hpp"
#include "nprf/feature_map/paper_names.hpp"
#include "nprf/position/t5.hpp"

using namespace nprf;

namespace {

constexpr Index heads = 8;

std::mt19937 generator(0);

Matrix<float> normal(Index rows, Index cols) {
  std::normal_distribution<float> distribution;
  return Matrix<float>::NullaryExpr(rows, cols, [&] { return distribution(generator); });
}

using HeadsAttention = MultiHeadAttention<PositiveFeatures<float>, T5Position<float>>;

HeadsAttention attention_of(const PositiveFeatures<float>& features, const Matrix<float>& weights) {
  std::vector<T5Position<float>> positions;
  for (Index h = 0; h < heads; ++h) positions.emplace_back(weights.row(h).transpose(), Direction::bidirectional);
  return HeadsAttention(features, std::move(positions));
}

struct Results {
  Matrix<float> y, dq, dk, dv;  // (heads n,d)
};

struct Arrays {
  Arrays(Index n, Index d)
      : n(n),
        d(d),
        q(normal(heads * n, d)),
        k(normal(heads * n, d)),
        v(normal(heads * n, d)),
        dy(normal(heads * n, d)) {}

  HeadsView<const float> in(const Matrix<float>& a) const { return {a.data(), 1, heads, n, d}; }
  HeadsView<float> out(Matrix<float>& a) const {
    a.resize(heads * n, d);
    return {a.data(), 1, heads, n, d};
  }

  void call(const HeadsAttention& attention, bool backward, Results& to) {
    if (!backward) return attention(in(q), in(k), in(v), out(to.y), {.report = &report});
    attention.forward(in(q), in(k), in(v), out(to.y), saved, {.report = &report});
    attention.backward(saved, in(dy), out(to.dq), out(to.dk), out(to.dv), dbias);
  }
  void call(bool backward, bool new_biases, bool new_results) {
    Results of_this_call;
    Results& to = new_results ? of_this_call : results;
    if (!new_biases) return call(kept, backward, to);
    HeadsAttention attention = attention_of(features, weights);
    attention.share_scratch_memory(kept);
    call(attention, backward, to);
  }

  Index n, d;
  Matrix<float> q, k, v, dy;  // (heads n,d)
  Results results;
  Matrix<float> weights = normal(heads, 32);
  PositiveFeatures<float> features = orf<float>(d, 32);
  HeadsAttention kept = attention_of(features, weights);
  Saved<float> saved;
  std::vector<Matrix<float>> dbias;
  Report report;
};

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

int main() {
  set_num_threads(1);
  std::map<std::pair<Index, Index>, std::unique_ptr<Arrays>> all;
  Index n, d;
  bool backward, new_biases, new_results;
  for (double seconds; std::cin >> n >> d >> backward >> new_biases >> new_results >> seconds;) {
    auto& arrays = all[{n, d}];
    if (!arrays) {
      arrays = std::make_unique<Arrays>(n, d);
      arrays->call(true, false, false);
    }
    long count = 0;
    const double start = processor_seconds();
    double took = 0;
    for (; count == 0 || took < seconds; took = processor_seconds() - start, ++count)
      arrays->call(backward, new_biases, new_results);
    std::cout << 1e6 * took / static_cast<double>(count) << std::endl;
  }
}
