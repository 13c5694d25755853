// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string_view>

#include "bench/support/row.hpp"

namespace nprf::bench {

/// main() of a program `name` OUT.json: writes what measure() returns to that file. Prints what is wrong otherwise.
template <class Measure>
int write_results(int argc, char** argv, std::string_view name, Measure&& measure) {
  if (argc != 2) {
    std::cerr << "usage: " << name << " OUT.json\n";
    return EXIT_FAILURE;
  }
  try {
    write_json(argv[1], measure());
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace nprf::bench
