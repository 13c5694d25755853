// SPDX-License-Identifier: MIT
//
// head_errors [FOLDER [SAMPLE ...]]: how far attention is from exact softmax on the heads of a trained model:
// queries.npy, keys.npy and values.npy (heads, tokens, channels) of FOLDER, or the demo's. Constants and maps are from
// the first half of the text, or from the whole texts of the folders SAMPLE; errors over its second half, in per cent
// by the Frobenius norm over all heads, bidirectional and causal. The bias falls by 0.08 a token up to a distance of
// 40; if FOLDER has bias.npy (heads, lags), the model's own one is a further table.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nprf/nprf.hpp>
#include <utility>
#include <vector>

#include "examples/support/head_arrays.hpp"
#include "examples/support/second_half.hpp"
#include "nprf/calibration/calibrate_definition.hpp"

namespace nprf::bench {
namespace {

constexpr std::uint64_t seeds = 10;

void print(const char* name, Index features, Index near, double error, Index recomputed) {
  std::printf("| %-36s | %4td | %3td | %7.2f | %td |\n", name, features, near, 100 * error, recomputed);
}

// of maps for all heads
template <class F>
void print_error(const char* name, const demo::SecondHalf& half, const std::vector<F>& maps, Index near) {
  const Report report = half.report(maps, near);
  print(name, maps[0].output_dim(), near, report.softmax_error, report.repaired_rows);
}

// the mean over seeds of the error of maps make(q, k, seed), from the first half of a head or from other texts
template <class Make>
void print_random(const char* name, const demo::SecondHalf& half, const Make& make) {
  double sum = 0;
  Index features = 0, recomputed = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    std::vector<decltype(make(Matrix<float>(), Matrix<float>(), seed))> maps;
    for (Index h = 0; h < half.heads(); ++h)
      maps.push_back(make(half.first_queries(h), half.first_keys(h), seed * 100 + static_cast<std::uint64_t>(h)));
    features = maps[0].output_dim();
    const Report report = half.report(std::move(maps), 0);
    sum += report.softmax_error, recomputed += report.repaired_rows;
  }
  print(name, features, 0, sum / static_cast<double>(seeds), recomputed / static_cast<Index>(seeds));
}

PositiveFeatures<float> positive(Index d, Index m, Projection projection, std::uint64_t seed, Tilt tilt = {}) {
  return PositiveFeatures<float>(
      {.input_dim = d, .num_features = m, .projection = projection, .seed = seed, .tilt = std::move(tilt)});
}

// the map F of queries and keys that are centred and balanced
template <class Make>
auto centred(const Matrix<float>& q, const Matrix<float>& k, const Make& make) {
  const Centring<float> constants = balance<float>(q, k).constants;
  const Matrix<float> z_q = (q.rowwise() - constants.query_mean.transpose()) * constants.query_axes.transpose(),
                      z_k = (k.rowwise() - constants.key_mean.transpose()) * constants.key_axes.transpose();
  return Centred(make(z_q, z_k), constants);
}

// maps with the means and covariances of the second half itself, of the first order and the second of `second` axes
std::vector<CalibratedFeatures<float>> maps_of_measured_tokens(const demo::SecondHalf& half, Index second) {
  std::vector<CalibratedFeatures<float>> maps;
  for (Index h = 0; h < half.heads(); ++h)
    maps.push_back(
        hermite_features(balance<float>(half.second_queries(h), half.second_keys(h)), half.channels(), second));
  return maps;
}

using Folders = std::vector<std::filesystem::path>;

// queries, keys and values of the texts of folders
struct Arrays {
  explicit Arrays(const Folders& folders)
      : q(files(folders, "queries.npy")), k(files(folders, "keys.npy")), v(files(folders, "values.npy")) {}
  static Folders files(Folders folders, const char* name) {
    for (auto& each : folders) each /= name;
    return folders;
  }
  demo::HeadArray q, k, v;
};

void print_table(const std::filesystem::path& folder, const Folders& samples, const char* title,
                 Normalization normalization, Direction direction,
                 const demo::SecondHalf::Positions& positions = {demo::falling_bias()}) {
  const Arrays text({folder}), sample(samples);
  demo::SecondHalf half(text.q.from(0), text.k.from(0), text.v.from(0), normalization, positions, direction);
  if (!samples.empty()) half.set_sample(sample.q.from(0), sample.k.from(0), sample.v.from(0));
  const Index d = half.channels();
  std::printf("\n%s\n\n| %-36s | features | near | error | recomputed rows |\n|---|---|---|---|---|\n", title, "map");
  using Projection::orthogonal, Projection::simplex, Projection::sphere_simplex;
  print_random("orthogonal", half,
               [&](const auto&, const auto&, auto seed) { return positive(d, d, orthogonal, seed); });
  print_random("simplex", half, [&](const auto&, const auto&, auto seed) { return positive(d, d, simplex, seed); });
  print_random("simplex, centred", half, [&](const auto& queries, const auto& keys, auto seed) {
    return centred(queries, keys, [&](const auto&, const auto&) { return positive(d, d, simplex, seed); });
  });
  print_random("simplex, SDERF, centred", half, [&](const auto& queries, const auto& keys, auto seed) {
    return centred(queries, keys, [&](const auto& z_q, const auto& z_k) {
      return positive(d, d, simplex, seed, sderf_tilt<float>(z_q, z_k));
    });
  });
  print_random("simplex on a sphere", half,
               [&](const auto&, const auto&, auto seed) { return positive(d, d, sphere_simplex, seed); });
  print_random("simplex on a sphere, centred", half, [&](const auto& queries, const auto& keys, auto seed) {
    return centred(queries, keys, [&](const auto&, const auto&) { return positive(d, d, sphere_simplex, seed); });
  });
  for (const Index near : {0, 32})
    print_error("Taylor", half, std::vector{TaylorFeatures<float>({.input_dim = d})}, near);
  for (const Index near : {0, 32, 64})
    for (const Index features : {d + 1, d + 37}) print_error("calibrated", half, half.calibrated(features, near), near);
  if (direction == Direction::bidirectional)  // causal ones would depend on later tokens
    for (const Index near : {0, 32, 64})
      for (const Index second : {0, 8})
        print_error("constants of the measured tokens", half, maps_of_measured_tokens(half, second), near);
  print("the bias alone", 0, 0, half.error_of_bias_alone(), 0);
  print("mean of the values", 0, 0, half.error_of_mean_value(), 0);
}

}  // namespace
}  // namespace nprf::bench

int main(int argc, char** argv) {
  using nprf::Normalization, nprf::bench::print_table;
  using enum nprf::Direction;
  const std::filesystem::path folder = argc > 1 ? argv[1] : NPRF_DEMO_DATA;
  const nprf::bench::Folders samples(argv + std::min(argc, 2), argv + argc);
  try {
    print_table(folder, samples, "Queries and keys of norm 1", Normalization::unit(1), bidirectional);
    print_table(folder, samples, "Queries and keys of norm 2", Normalization::unit(2), bidirectional);
    print_table(folder, samples, "Queries and keys of the model, q.k / sqrt(d)", Normalization::none(), bidirectional);
    print_table(folder, samples, "Causal, queries and keys of norm 1", Normalization::unit(1), causal);
    print_table(folder, samples, "Causal, queries and keys of norm 2", Normalization::unit(2), causal);
    print_table(folder, samples, "Causal, queries and keys of the model, q.k / sqrt(d)", Normalization::none(), causal);
    if (exists(folder / "bias.npy"))
      print_table(folder, samples, "Queries and keys of the model, with its own bias", Normalization::none(),
                  bidirectional, demo::biases_of(folder / "bias.npy"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "head_errors: %s\n", error.what());
    return 1;
  }
}
