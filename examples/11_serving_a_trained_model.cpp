// SPDX-License-Identifier: MIT

// A model that was trained with softmax, served in n log n. calibrate_heads() finds feature maps for the queries and
// keys of its heads on the first half of a text, and measures their error on the second half. The near field computes
// exactly what is close. Attention over the second half has the error that calibration promised. The biases here fall
// by 0.08 a token up to a distance of 40.
//
//     11_serving_a_trained_model [FOLDER]     reads queries.npy, keys.npy, values.npy (heads, tokens, channels)

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <span>
#include <vector>

#include "examples/support/npy.hpp"

using namespace nprf;

namespace {

// all heads, one after the other: (heads tokens, channels)
struct Heads {
  explicit Heads(const std::filesystem::path& file) {
    const npy::Array<float> array = npy::read<float>(file);
    require(array.shape.size() == 3, file.string(), ": expected (heads, tokens, channels)");
    heads = static_cast<Index>(array.shape[0]), tokens = static_cast<Index>(array.shape[1]);
    rows = Eigen::Map<const Matrix<float>>(array.values.data(), heads * tokens, static_cast<Index>(array.shape[2]));
  }

  // `count` tokens of every head, from token `first` on
  HeadsView<const float> part(Index first, Index count) const {
    const Index d = rows.cols();
    return {rows.data() + first * d, 1, heads, count, d, {d, tokens * d, heads * tokens * d}};
  }

  // tokens first..first+count-1 of a head, repeated to n tokens
  Matrix<float> repeated(Index head, Index first, Index count, Index n) const {
    Matrix<float> all(n, rows.cols());
    for (Index i = 0; i < n; ++i) all.row(i) = rows.row(head * tokens + first + i % count);
    return all;
  }

  Index heads, tokens;
  Matrix<float> rows;
};

template <class F>
double milliseconds(const F& run) {
  double best = 1e30;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

bool serve(const std::filesystem::path& folder) {
  const Heads q(folder / "queries.npy"), k(folder / "keys.npy"), v(folder / "values.npy");
  const Index half = q.tokens / 2;
  Vector<float> b(81);
  for (Index lag = -40; lag <= 40; ++lag) b[lag + 40] = -0.08f * static_cast<float>(std::abs(lag));
  const RelativePosition<float> position(b);

  std::printf("%td heads, %td tokens to calibrate, %td others to measure; errors against exact softmax in per cent\n\n",
              q.heads, half, q.tokens - half);
  std::printf("%-22s %5s %9s %9s %15s\n", "queries and keys", "near", "features", "error", "promised error");
  double norm_1 = 1, own_norms = 1;
  for (const bool normalized : {true, false})
    for (const Index near : {Index{0}, Index{32}, Index{64}})
      for (const Index features : {33, 69}) {
        const Normalization normalization = normalized ? Normalization::unit(1) : Normalization::none();
        const HeadsCalibration<float> calibration = calibrate_heads<float>(
            q.part(0, q.tokens), k.part(0, q.tokens), v.part(0, q.tokens), std::span(&position, 1),
            {.num_features = features, .near = near, .normalization = normalization});
        const MultiHeadAttention attention(calibration.features, position,
                                           {.normalization = normalization, .near = near});
        Matrix<float> y(q.heads * (q.tokens - half), v.rows.cols());
        Report report;
        attention(q.part(half, q.tokens - half), k.part(half, q.tokens - half), v.part(half, q.tokens - half),
                  {y.data(), 1, q.heads, q.tokens - half, v.rows.cols()},
                  {.compared_rows = q.tokens, .report = &report});
        std::printf("%-22s %5td %9td %9.2f %15.2f\n", normalized ? "of norm 1" : "as in the model", near,
                    calibration.features[0].output_dim(), 100 * report.softmax_error, 100 * calibration.softmax_error);
        if (near == 32) (normalized ? norm_1 : own_norms) = report.softmax_error;
      }

  constexpr Index n = 4096;
  const auto calibration = calibrate<float>(q.repeated(0, 0, q.tokens, q.tokens), k.repeated(0, 0, q.tokens, q.tokens),
                                            v.repeated(0, 0, q.tokens, q.tokens), position,
                                            {.num_features = 33, .near = 32, .normalization = Normalization::none()});
  const Attention attention(calibration.features, position, {.normalization = Normalization::none(), .near = 32});
  const Matrix<float> queries = q.repeated(0, half, half, n), keys = k.repeated(0, half, half, n),
                      values = v.repeated(0, half, half, n);
  const double fast = milliseconds([&] { attention(queries, keys, values); }),
               exact = milliseconds([&] {
                 reference::softmax_attention<float>(queries, keys, values, position, Direction::bidirectional,
                                                     Normalization::none());
               });
  std::printf("\none head, the text repeated to %td tokens: %.1f ms; exact softmax %.1f ms\n", n, fast, exact);
  return norm_1 < 0.007 && own_norms < 0.1;  // 0.24 and 7.5 % on the data of the demo
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
