// SPDX-License-Identifier: MIT
//
// figure BENCHMARK.json POINTS: what figure.gp draws, out of Google Benchmark's JSON. One block a curve, its name
// first, then lines of n and median milliseconds of processor time.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/support/race.hpp"

namespace {

struct Axes {
  std::string curve;  // "softmax_attention", "fftw m=32"
  long n = 0;
};

// kernelized_attention/fftw/n:256/m:32/... -> {fftw m=32, 256}
Axes axes_of(const std::string& run_name) {
  Axes axes;
  std::istringstream parts(run_name);
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.starts_with("n:"))
      axes.n = std::stol(part.substr(2));
    else if (part.starts_with("m:"))
      axes.curve += " m=" + part.substr(2);
    else if (part.find(':') == std::string::npos && axes.n == 0)
      axes.curve = part;
  }
  return axes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: figure BENCHMARK.json POINTS\n";
    return EXIT_FAILURE;
  }
  try {
    std::ifstream in(argv[1]);
    const nlohmann::json report = nlohmann::json::parse(in);
    std::map<std::string, std::map<long, std::vector<double>>> curves;
    for (const auto& run : report.at("benchmarks")) {
      if (run.at("run_type") != "iteration") continue;
      const Axes axes = axes_of(run.at("run_name"));
      curves[axes.curve][axes.n].push_back(run.at("cpu_time"));
    }
    std::ofstream out(argv[2]);
    for (const auto& [curve, points] : curves) {
      out << "# " << curve << '\n';
      for (const auto& [n, times] : points) out << n << ' ' << nprf::bench::median(times) << '\n';
      out << "\n\n";
    }
    if (!out) throw std::runtime_error(std::string("cannot write ") + argv[2]);
  } catch (const std::exception& error) {
    std::cerr << "figure: " << argv[1] << ": " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
