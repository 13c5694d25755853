// SPDX-License-Identifier: MIT

// A model that was trained with softmax, served in n log n. calibrate_heads() finds feature maps for the queries and
// keys of its heads on the first half of a text, and measures their error on the second half. The near field computes
// exactly what is close. Attention over the second half has the error that calibration promised. The first token of a
// whole text is attended to from everywhere: as an attention sink it is exact. The biases here fall by 0.08 a token up
// to a distance of 40.
//
//     11_serving_a_trained_model [FOLDER]     reads queries.npy, keys.npy, values.npy (heads, tokens, channels)

#include <cstdio>
#include <exception>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <span>
#include <vector>

#include "examples/support/head_arrays.hpp"
#include "examples/support/measure.hpp"

using namespace nprf;

namespace {

// the error over the whole text, whose first tokens are sinks or not
void print_sinks(const demo::HeadArray& q, const demo::HeadArray& k, const demo::HeadArray& v) {
  const RelativePosition<float> position = demo::falling_bias();
  std::printf("\nthe whole text, as in the model, near 32, at most 69 features:\n");
  for (const Index sinks : {0, 1, 4}) {
    const HeadsCalibration<float> calibration = calibrate_heads<float>(
        q.from(0), k.from(0), v.from(0), std::span(&position, 1),
        {.num_features = 69, .near = 32, .sinks = sinks, .normalization = Normalization::none()});
    const MultiHeadAttention attention(calibration.features, position,
                                       {.normalization = Normalization::none(), .near = 32, .sinks = sinks});
    Matrix<float> y(q.heads() * q.tokens(), v.channels());
    Report report;
    attention(q.from(0), k.from(0), v.from(0), {y.data(), 1, q.heads(), q.tokens(), v.channels()},
              {.report = &report, .softmax_samples = q.tokens()});
    std::printf("%td sinks: error %.2f\n", sinks, 100 * report.softmax_error);
  }
}

bool serve(const std::filesystem::path& folder) {
  const demo::HeadArray q(folder / "queries.npy"), k(folder / "keys.npy"), v(folder / "values.npy");
  const Index half = q.tokens() / 2, rest = q.tokens() - half;
  const RelativePosition<float> position = demo::falling_bias();

  std::printf("%td heads, %td tokens to calibrate, %td others to measure; errors against exact softmax in per cent\n\n",
              q.heads(), half, rest);
  std::printf("%-22s %5s %9s %9s %15s\n", "queries and keys", "near", "features", "error", "promised error");
  bool is_near = true;
  for (const bool normalized : {true, false})
    for (const Index near : {Index{0}, Index{32}, Index{64}})
      for (const Index features : {33, 69}) {
        const Normalization normalization = normalized ? Normalization::unit(1) : Normalization::none();
        const HeadsCalibration<float> calibration =
            calibrate_heads<float>(q.from(0), k.from(0), v.from(0), std::span(&position, 1),
                                   {.num_features = features, .near = near, .normalization = normalization});
        const MultiHeadAttention attention(calibration.features, position,
                                           {.normalization = normalization, .near = near});
        Matrix<float> y(q.heads() * rest, v.channels());
        Report report;
        attention(q.from(half), k.from(half), v.from(half), {y.data(), 1, q.heads(), rest, v.channels()},
                  {.report = &report, .softmax_samples = rest});
        std::printf("%-22s %5td %9td %9.2f %15.2f\n", normalized ? "of norm 1" : "as in the model", near,
                    calibration.features[0].output_dim(), 100 * report.softmax_error, 100 * calibration.softmax_error);
        // on the data of the demo 1.1 and 0.22 %, and 7.7 and 6.0 %
        const double most = normalized ? (near == 0 ? 0.022 : 0.007) : near == 0 ? 1 : near == 32 ? 0.1 : 0.075;
        is_near = is_near && report.softmax_error <= most;
      }

  print_sinks(q, k, v);

  constexpr Index n = 4096;
  const auto calibration = calibrate<float>(q.from(0)(0, 0), k.from(0)(0, 0), v.from(0)(0, 0), position,
                                            {.num_features = 33, .near = 32, .normalization = Normalization::none()});
  const Attention attention(calibration.features, position, {.normalization = Normalization::none(), .near = 32});
  const Matrix<float> queries = q.repeated(half, n), keys = k.repeated(half, n), values = v.repeated(half, n);
  const double fast = 1e3 * demo::median_seconds([&] { attention(queries, keys, values); }),
               exact = 1e3 * demo::median_seconds([&] {
                         reference::softmax_attention<float>(queries, keys, values, position, Direction::bidirectional,
                                                             Normalization::none());
                       });
  std::printf("\none head on one thread, the text repeated to %td tokens: %.1f ms; exact softmax %.1f ms\n", n, fast,
              exact);
  return is_near;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return serve(argc > 1 ? argv[1] : NPRF_DEMO_DATA) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "11_serving_a_trained_model: %s\n", error.what());
    return 1;
  }
}
