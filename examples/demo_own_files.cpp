// SPDX-License-Identifier: MIT

// demo_own_files DEMO DATA WORK: writes valid and invalid .npy files to the folder WORK, runs the demo on them, and
// checks its output.

#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nprf/nprf.hpp>
#include <string>
#include <vector>

#include "examples/support/npy.hpp"

using namespace nprf;
namespace fs = std::filesystem;

namespace {

std::string demo, data;
int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Answer {
  int status;
  std::string out, err;
};

Answer run(const std::string& arguments) {
  const int status = std::system(("\"" + demo + "\" " + arguments + " > answer.out 2> answer.err").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content("answer.out"), content("answer.err")};
}

// one line that holds every part, status 1, and an output file that stays as it was
void refuses(const std::string& arguments, const std::vector<std::string>& parts) {
  std::ofstream("kept.npy") << "kept";
  const Answer answer = run(arguments);
  check(answer.status == 1, arguments + ": expected status 1, got " + std::to_string(answer.status));
  check(answer.err.starts_with("demo: error: ") && answer.err.find('\n') == answer.err.size() - 1,
        arguments + ": expected one line of error, got " + answer.err);
  for (const std::string& part : parts)
    check(answer.err.find(part) != std::string::npos, arguments + ": expected \"" + part + "\" in " + answer.err);
  check(content("kept.npy") == "kept", arguments + ": expected the output file as it was");
}

npy::Array<float> accepts(const std::string& arguments) {
  fs::remove("out.npy");
  const Answer answer = run(arguments + " --out out.npy");
  check(answer.status == 0 && answer.err.empty(), arguments + ": expected success, got " + answer.err);
  return fs::exists("out.npy") ? npy::read<float>("out.npy") : npy::Array<float>{};
}

// numbers that look random and are the same everywhere
template <class T>
void make(const char* path, std::vector<std::size_t> shape, T scale = 1) {
  std::size_t size = 1;
  for (const std::size_t extent : shape) size *= extent;
  npy::Array<T> array{std::move(shape), std::vector<T>(size)};
  for (std::size_t i = 0; i < size; ++i)
    array.values[i] = scale * static_cast<T>(std::sin(1.0 + 77.0 * static_cast<double>(i)));
  npy::write<T>(path, array);
}

void with_number(const char* from, const char* to, std::size_t at, float number) {
  npy::Array<float> array = npy::read<float>(from);
  array.values.at(at) = number;
  npy::write<float>(to, array);
}

void good_files() {
  const std::string real =
      "--queries " + data + "/queries.npy --keys " + data + "/keys.npy --values " + data + "/values.npy";
  const npy::Array<float> y = accepts(real + " --features 16 --seed 5");
  check(y.shape == std::vector<std::size_t>{12, 512, 32}, "the committed arrays: expected an output (12, 512, 32)");
  if (failures > 0) return;

  const auto head = [](const npy::Array<float>& a, Index h) {
    return Eigen::Map<const Matrix<float>>(a.values.data() + h * 512 * 32, 512, 32);
  };
  const npy::Array<float> q = npy::read<float>(data + "/queries.npy"), k = npy::read<float>(data + "/keys.npy"),
                          v = npy::read<float>(data + "/values.npy");
  const Attention attention(orf<float>(32, 16, 5), NoPosition<float>{});
  for (const Index h : {0, 11}) {
    const Matrix<float> expected = attention(head(q, h), head(k, h), head(v, h));
    check((head(y, h) - expected).norm() <= 1e-5f * expected.norm(),
          "the committed arrays: expected nprf's own output");
  }

  // calibrated maps and a near field, which are far nearer to softmax than random features
  const npy::Array<float> calibrated =
      accepts(real + " --map calibrated --features 33 --near 32 --sinks 1 --bias window_of_12.npy");
  const Index h = 3;
  const RelativePosition<float> window(
      Eigen::Map<const Vector<float>>(npy::read<float>("window_of_12.npy").values.data() + 3 * h, 3));
  const auto c =
      calibrate<float>(head(q, h), head(k, h), head(v, h), window, {.num_features = 33, .near = 32, .sinks = 1});
  const Matrix<float> with_near =
      Attention(c.features, window, {.near = 32, .sinks = 1})(head(q, h), head(k, h), head(v, h));
  check((head(calibrated, h) - with_near).norm() <= 1e-5f * with_near.norm(),
        "--map calibrated --near: expected nprf's own output");
  const auto error_of = [](const std::string& arguments) {
    const std::string out = run(arguments).out;
    const std::size_t at = out.find("error    ");
    check(at != std::string::npos, arguments + ": expected a line with the error, got " + out);
    return at == std::string::npos ? 1 : std::strtod(out.c_str() + at + 9, nullptr);
  };
  check(error_of(real + " --map calibrated --features 33 --near 32") < 0.2 * error_of(real + " --features 33"),
        "--map calibrated --near: expected a fifth of the error of random features");
  check(error_of(real + " --map taylor --near 8") < 0.5 * error_of(real),
        "--map taylor --near: expected half the error");

  // n_q != n_k, d_v != d, float64, one bias for both heads or one a head
  const auto cross = accepts("--queries q.npy --keys k.npy --values v.npy --bias window.npy --map hyperbolic --causal");
  check(cross.shape == std::vector<std::size_t>{2, 7, 3}, "cross attention: expected an output (2, 7, 3)");
  check(accepts("--queries q.npy --keys k.npy --values v.npy --bias window_a_head.npy").values.size() == 42,
        "a bias a head: expected 42 numbers");
  check(accepts("--queries flat.npy --keys flat.npy --values flat.npy --map elu --normalization none").shape ==
            std::vector<std::size_t>{9, 4},
        "one head without an axis of heads: expected an output (9, 4)");
}

void bad_files() {
  const std::string trio = "--queries q.npy --keys k.npy --values v.npy", out = " --out kept.npy";
  refuses("--queries q.npy" + out, {"expected all three, got no --keys and no --values"});
  refuses("--queries none.npy --keys k.npy --values v.npy" + out, {"none.npy: expected a regular file"});
  refuses("--queries q.npy --keys three_heads.npy --values v.npy" + out,
          {"three_heads.npy: expected 2 heads", "got 3"});
  refuses("--queries q.npy --keys v.npy --values v.npy" + out, {"v.npy: expected 5 channels", "got 3"});
  refuses("--queries q.npy --keys k.npy --values q.npy" + out, {"q.npy: expected 11 tokens", "got 7"});
  refuses("--queries window.npy --keys k.npy --values v.npy" + out,
          {"window.npy: expected an array", "got shape (3,)"});
  refuses("--queries empty.npy --keys k.npy --values v.npy" + out, {"empty.npy: expected", "got shape (0, 5)"});
  refuses("--queries nan.npy --keys k.npy --values v.npy" + out,
          {"nan.npy: expected finite numbers, got nan at [0, 1, 2]"});
  refuses("--queries kept.npy --keys k.npy --values v.npy" + out, {"kept.npy: expected"});
  refuses(trio + out + " --bias even.npy", {"even.npy: expected an odd number of scalars", "got 4"});
  refuses(trio + out + " --bias nan_bias.npy", {"nan_bias.npy", "b[1]", "got nan"});
  refuses(trio + out + " --bias k.npy", {"k.npy: expected a bias of shape (2R+1,) or (2, 2R+1), got (2, 11, 5)"});
  refuses(trio + " --out no_such_folder/y.npy", {"--out: expected a folder that exists, got no_such_folder"});
  refuses(trio + " --out .", {"--out: expected the name of a file"});
  refuses(trio + " --out /dev/null", {"--out: expected"});
  refuses(trio + " --quick", {"--quick: expected without --queries"});
  refuses("--features 8", {"--features: expected with --queries"});
  refuses("--data no_such_folder", {"no_such_folder/queries.npy: expected a regular file"});
  refuses("--picture no_such_folder/p.svg", {"--picture: expected a folder that exists"});
  refuses("--picture p.png", {"--picture: expected a name that ends in .svg, got p.png"});
  refuses(trio + out + " --map elu --near 2", {"near: expected 0 for a feature map that does not estimate exp"});
  check(run(trio + " --near -1").status > 1, "a negative near field: expected a usage error");
  check(run("--map nonsense").status > 1, "an unknown map: expected a usage error");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  demo = argv[1];
  data = argv[2];
  fs::remove_all(argv[3]);
  fs::create_directories(argv[3]);
  fs::current_path(argv[3]);

  make<float>("q.npy", {2, 7, 5});
  make<double>("k.npy", {2, 11, 5});
  make<float>("v.npy", {2, 11, 3}, 3);
  make<float>("flat.npy", {9, 4});
  make<float>("window.npy", {3});
  make<float>("window_a_head.npy", {2, 5});
  make<float>("window_of_12.npy", {12, 3});
  with_number("window_a_head.npy", "window_a_head.npy", 0, -std::numeric_limits<float>::infinity());
  make<float>("three_heads.npy", {3, 11, 5});
  make<float>("empty.npy", {0, 5});
  make<float>("even.npy", {4});
  with_number("q.npy", "nan.npy", 7, std::nanf(""));
  with_number("window.npy", "nan_bias.npy", 1, std::nanf(""));

  good_files();
  bad_files();
  return failures == 0 ? 0 : 1;
}
