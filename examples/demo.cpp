// SPDX-License-Identifier: MIT

// The demo: errors and times of nprf's attention on the queries, keys and values of a trained encoder, or on your own.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "examples/support/calibrated.hpp"
#include "examples/support/own_files.hpp"
#include "examples/support/picture.hpp"
#include "examples/support/quality.hpp"
#include "examples/support/speed.hpp"

namespace {

struct Options {
  std::filesystem::path data = NPRF_DEMO_DATA, picture = "nprf_demo.svg";
  bool quick = false;
  demo::OwnFiles own;
};

void run_tour(const Options& options) {
  using namespace demo;
  require(options.picture.extension() == ".svg", "--picture: expected a name that ends in .svg, got ",
          options.picture.string());
  require_writable(options.picture, "--picture");

  Arrays arrays = read_arrays(options.data / "queries.npy", options.data / "keys.npy", options.data / "values.npy");
  QualityPlan quality{.nums_features = {16, 64, 256}, .seeds = 3, .first_seed = options.own.seed};
  SpeedPlan speed{.lengths = {512, 1024, 2048, 4096, 8192, 16384, 32768}, .num_features = 32, .seed = options.own.seed};
  CalibratedPlan calibrated{.near = 32, .length = 8192, .seed = options.own.seed};
  if (options.quick) {
    calibrated.near = 8;
    calibrated.length = 512;
    arrays = {arrays.queries.first(2, 128), arrays.keys.first(2, 128), arrays.values.first(2, 128)};
    quality.nums_features = {16, 64};
    quality.seeds = 2;
    speed.lengths = {128, 256, 512, 1024};
  }

  fmt::print("nprf {}.{}.{} attends to {} heads, {} tokens, {} channels from {}\n\n", NPRF_VERSION_MAJOR,
             NPRF_VERSION_MINOR, NPRF_VERSION_PATCH, arrays.queries.size(), arrays.queries.tokens(),
             arrays.queries.channels(), options.data.string());
  print_quality(arrays, quality);
  print_calibrated(arrays, calibrated);
  const auto rows = print_speed(arrays, speed);
  draw_picture(options.picture, rows, speed, arrays.queries.channels());
}

constexpr const char* tour = "The tour";
constexpr const char* own_arrays = "Your own arrays, .npy files of float16, float32 or float64 in C order";

void describe(CLI::App& app, Options& options) {
  demo::OwnFiles& own = options.own;
  app.get_formatter()->column_width(36);
  app.footer(
      "\nThe tour, without your own arrays: the errors of feature maps against exact softmax on the queries, keys and\n"
      "values of a trained encoder, also of calibrated maps with a near field, then the times of both on longer and "
      "longer sequences, and a picture of these.\n"
      "With your own arrays (all three): their attention, and its error against exact softmax. Lag = position\n"
      "of the key minus that of the query; lags beyond -R..R have the bias of the ends, and -inf is weight 0.");
  app.add_option("--seed", own.seed, "Seed of all random numbers")->capture_default_str();

  app.add_option("--data", options.data, "Folder with queries.npy, keys.npy and values.npy")->group(tour);
  app.add_option("--picture", options.picture, "SVG file for the times")->capture_default_str()->group(tour);
  app.add_flag("--quick", options.quick, "Fewer tokens, heads and seeds")->group(tour);

  app.add_option("--queries", own.queries, "(tokens, channels) or (heads, tokens, channels)")->group(own_arrays);
  app.add_option("--keys", own.keys, "The same heads and channels, any number of tokens")->group(own_arrays);
  app.add_option("--values", own.values, "The heads and tokens of the keys, any channels")->group(own_arrays);
  app.add_option("--bias", own.bias, "A bias for the lags -R..R: (2R+1,) or (heads, 2R+1)")->group(own_arrays);
  app.add_option("--out", own.out, "File for the output, float32")->group(own_arrays);
  app.add_option("--map", own.map,
                 "Feature map; elu and taylor have no random vectors, calibrated is\n"
                 "made from the first half of the tokens")
      ->check(CLI::IsMember({"orf", "prf", "hyperbolic", "trf", "sphere", "elu", "taylor", "calibrated"}))
      ->capture_default_str()
      ->group(own_arrays);
  app.add_option("--features", own.features, "Number of random vectors, m; of taylor and calibrated, the most features")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(own_arrays);
  app.add_option("--near", own.near, "Keys less than so many tokens away have exact softmax weights")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(own_arrays);
  app.add_option("--sinks", own.sinks, "So do the first keys, so many")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(own_arrays);
  app.add_option("--normalization", own.normalization,
                 "unit: q and k scaled to norm 1; none: not scaled, q.k over sqrt(channels)")
      ->check(CLI::IsMember({"unit", "none"}))
      ->capture_default_str()
      ->group(own_arrays);
  app.add_flag("--causal", own.causal, "A query attends to the keys at or before its position")->group(own_arrays);
}

// an option of the other way to run would be ignored
void check_options(const CLI::App& app, bool has_own_arrays) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    nprf::require(!has_own_arrays || option->get_group() != tour, option->get_name(),
                  ": expected without --queries, --keys and --values, got both");
    nprf::require(has_own_arrays || option->get_group() != own_arrays, option->get_name(),
                  ": expected with --queries, --keys and --values, got none of them");
  }
}

int fail(const std::string& message) {
  fmt::print(stderr, "demo: error: {}\n", message);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Attention with relative positions in n log n, against exact softmax.");
  try {
    describe(app, options);
    CLI11_PARSE(app, argc, argv);
    check_options(app, options.own.given());
    if (options.own.given())
      demo::run_own_files(options.own);
    else
      run_tour(options);
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category(), "standard output");
    return 0;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
