// SPDX-License-Identifier: MIT
//
// figure POINTS RESULTS.json PICTURE: the curves of one picture, as gnuplot reads them: a block a curve, its name
// first, a line a point.

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "bench/support/row.hpp"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: figure POINTS RESULTS.json PICTURE\n";
    return EXIT_FAILURE;
  }
  try {
    const nlohmann::json results = nprf::bench::read_json(argv[2]);
    std::ofstream out(argv[1]);
    for (const auto& [curve, points] : results.at("pictures").at(argv[3]).items()) {
      out << "# " << curve << '\n';
      for (const auto& point : points) {
        for (const auto& coordinate : point) out << coordinate << ' ';
        out << '\n';
      }
      out << "\n\n";
    }
    if (!out.flush()) throw std::runtime_error(std::string("cannot write ") + argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "figure: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
