// SPDX-License-Identifier: MIT
//
// positions OUT.json: what training and decoding with each position cost, causal, beside exact softmax: a forward call,
// forward and backward with the gradient of the position, and a token of a decoder with its state.

#include <cstdio>
#include <string>
#include <vector>

#include "bench/support/positions.hpp"
#include "bench/support/race.hpp"
#include "bench/support/row.hpp"
#include "bench/support/write_results.hpp"

namespace nprf::bench {
namespace {

constexpr Index n = 8192, m = 32, steps = 500;

HeadsView<const float> part(const Matrix<float>& x, Index first, Index count) {
  return {x.data() + first * x.cols(), 1, 1, count, x.cols()};
}

template <class P>
nlohmann::json measure(const std::string& name, const P& position) {
  const Problem& p = problem(n);
  const auto attention = make_attention(position, m, Engine::automatic, Direction::causal);
  const Matrix<float> dy = draw(n, head_dim, 4);
  Saved<float> saved;
  Report report;
  Gradients<float> gradients;
  const Race race({[&] { keep(attention(p.q, p.k, p.v, {.report = &report})); },
                   [&] {
                     attention.forward(p.q, p.k, p.v, saved);
                     gradients = attention.backward(saved, dy);
                     keep(gradients.queries);
                   }},
                  {.budget = 4});

  Decoder decoder(MultiHeadAttention(attention.features(), position, {.direction = Direction::causal}),
                  {.most_tokens = n});
  Matrix<float> y(n, head_dim);
  const auto rows = [&](Index first, Index count) {
    return HeadsView<float>{y.data() + first * head_dim, 1, 1, count, head_dim};
  };
  decoder.prefill(part(p.q, 0, n - steps), part(p.k, 0, n - steps), part(p.v, 0, n - steps), rows(0, n - steps));
  const double seconds = seconds_of([&] {
    for (Index i = n - steps; i < n; ++i) decoder.step(part(p.q, i, 1), part(p.k, i, 1), part(p.v, i, 1), rows(i, 1));
  });
  const double forward = 1e3 * race.seconds(0), both = 1e3 * race.seconds(1), token = 1e6 * seconds / steps,
               kib = static_cast<double>(decoder.bytes()) / 1024;
  std::printf("| %-18s | %6.1f | %-10s | %6.1f | %-10s | %6.1f | %6.0f |\n", name.c_str(), forward,
              nprf::name(report.engine).data(), both, nprf::name(gradients.report.engine).data(), token, kib);
  return {{"position", name}, {"forward ms", forward}, {"both ms", both}, {"token us", token}, {"state KiB", kib}};
}

nlohmann::json measure_all() {
  const Problem& p = problem(n);
  const Race softmax_alone({[&] { keep(softmax(p, head_dim, Direction::causal)); }}, {.budget = 1});
  std::printf("\nn = %td, causal, d = d_v = 64, m = %td, float, one thread; exact softmax %.1f ms\n\n", n, m,
              1e3 * softmax_alone.seconds(0));
  std::printf("| position | forward, ms | engine | both passes, ms | of backward | a token, us | state, KiB |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  const Vector<float> buckets = draw(32, 1, 5);
  nlohmann::json all = nlohmann::json::array();
  all.push_back(measure("ALiBi", AlibiPosition<float>(1.0f / 16)));
  all.push_back(measure("T5", t5_position<float>(buckets, Direction::causal)));
  all.push_back(measure("KERPLE, log", KerpleLogPosition<float>({1, 1}, n)));
  all.push_back(measure("KERPLE, power", KerplePowerPosition<float>({0.5, 0.3}, n)));
  all.push_back(measure("spline, 16 knots", SplinePosition<float>(falling_spline(n), n)));
  all.push_back(measure("the same, zeros",
                        SplinePosition<float>(Spline(std::vector<double>(16, 0.0), log_spaced_knots(16, n - 1)), n)));
  all.push_back(measure("T5 to 2048", t5_position<float>(buckets, Direction::causal, 2048)));
  all.push_back(measure("a table", p.position));
  return {{"positions", all}};
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  return nprf::bench::write_results(argc, argv, "positions", nprf::bench::measure_all);
}
