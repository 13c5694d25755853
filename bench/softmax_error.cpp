// SPDX-License-Identifier: MIT
//
// softmax_error OUT.json: how far attention is from exact softmax, over its time. The error is that of the demo's heads
// at norm 1, with calibrated maps from the first half of the text and over its second half; the time is that of one
// head of 8192 tokens. The bias falls by 0.08 a token up to a distance of 40.

#include <filesystem>
#include <string>
#include <vector>

#include "bench/support/problem.hpp"
#include "bench/support/race.hpp"
#include "bench/support/write_results.hpp"
#include "examples/support/head_arrays.hpp"
#include "examples/support/second_half.hpp"

namespace nprf::bench {
namespace {

constexpr Index tokens = 8192;

using demo::falling_bias;

demo::HeadArray read(const char* name) { return demo::HeadArray(std::filesystem::path(NPRF_DEMO_DATA) / name); }

class Text {
 public:
  const demo::SecondHalf& second_half() const { return m_second_half; }

  // the time of one head in milliseconds
  template <class F>
  double time(const F& features, Index near) const {
    const Attention attention(features, falling_bias(), {.near = near});
    return 1e3 * Race({[&] { keep(attention(m_long_q, m_long_k, m_long_v)); }}, {.budget = 1}).seconds(0);
  }
  double softmax_time() const {
    return 1e3 * Race({[&] {
                        keep(reference::softmax_attention<float>(m_long_q, m_long_k, m_long_v, falling_bias(),
                                                                 Direction::bidirectional, Normalization::unit(1)));
                      }},
                      {.budget = 1})
                     .seconds(0);
  }

 private:
  demo::HeadArray m_q = read("queries.npy"), m_k = read("keys.npy"), m_v = read("values.npy");
  Matrix<float> m_long_q = m_q.repeated(0, tokens), m_long_k = m_k.repeated(0, tokens),
                m_long_v = m_v.repeated(0, tokens);
  demo::SecondHalf m_second_half{m_q.from(0), m_k.from(0), m_v.from(0), Normalization::unit(1)};
};

nlohmann::json print_errors() {
  const Text text;
  const demo::SecondHalf& half = text.second_half();
  const Index d = half.channels();
  nlohmann::json curves;
  std::printf("\nError against exact softmax at norm 1, and the time of one head of %td tokens, d = %td\n\n", tokens,
              d);
  std::printf("| %-24s | features | near | error %% | ms |\n|---|---|---|---|---|\n", "map");
  const auto add = [&](const std::string& curve, const auto& features, Index near) {
    const double ms = text.time(features[0], near), error = half.report(features, near).softmax_error;
    std::printf("| %-24s | %td | %td | %.3f | %.1f |\n", curve.c_str(), features[0].output_dim(), near, 100 * error,
                ms);
    curves[curve].push_back({ms, 100 * error});
  };
  for (Index m = 16; m <= 256; m *= 2) {
    add("orthogonal", std::vector{orf<float>(d, m)}, 0);
    add("simplex",
        std::vector{PositiveFeatures<float>({.input_dim = d, .num_features = m, .projection = Projection::simplex})},
        0);
    add("hyperbolic", std::vector{hyperbolic<float>(d, m / 2)}, 0);
    add("orthogonal, near 32", std::vector{orf<float>(d, m)}, 32);
  }
  add("Taylor", std::vector{TaylorFeatures<float>({.input_dim = d})}, 0);
  for (const Index directions : {0, 8, 16})
    add("Taylor, near 32", std::vector{TaylorFeatures<float>({.input_dim = d, .directions = directions})}, 32);
  for (const Index near : {0, 16, 32, 64})
    for (const Index features : {d / 4 + 1, d + 1, d + 37})
      add(near == 0 ? "calibrated" : "calibrated, near " + std::to_string(near), half.calibrated(features, near), near);
  const double softmax_ms = text.softmax_time();
  std::printf("| exact softmax            | | | 0 | %.1f |\n", softmax_ms);
  curves["exact softmax"] = {{softmax_ms, 0.01}, {softmax_ms, 30}};  // a vertical line
  std::fflush(stdout);
  return curves;
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using namespace nprf::bench;
  return write_results(argc, argv, "softmax_error", [] {
    return nlohmann::json{{"pictures", {{"softmax_error", print_errors()}}}};
  });
}
