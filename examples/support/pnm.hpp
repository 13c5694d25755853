// SPDX-License-Identifier: MIT
#pragma once

// Reads and writes pictures in netpbm's binary formats, PPM (red, green, blue) and PGM (grey), of a byte a number.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

namespace pnm {

using nprf::Index;
using nprf::Matrix;
using nprf::require;

/// The pixels of a picture, row by row: red, green and blue from 0 to 1.
struct Picture {
  Index height, width;
  Matrix<float> pixels;  // (height * width, 3)
};

namespace detail {

// a decimal number after white space and comments, which run from # to the end of their line
inline Index header_number(std::istream& file, const std::string& name, const char* what, Index most) {
  while ((file >> std::ws).peek() == '#') file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  Index number = 0;
  file >> number;
  require(1 <= number && number <= most, name, ": expected a ", what, " from 1 to ", most, " in the header, got ",
          number);
  return number;
}

inline void write(const std::filesystem::path& path, const char* magic, Index height, Index width,
                  const Matrix<float>& values) {
  require(values.allFinite(), path.string(), ": expected finite numbers, got others");
  std::vector<char> bytes;
  for (const float value : values.reshaped<Eigen::RowMajor>())
    bytes.push_back(static_cast<char>(std::lround(255 * std::clamp(value, 0.0f, 1.0f))));
  std::ofstream file(path, std::ios::binary);
  file << magic << '\n' << width << ' ' << height << "\n255\n";
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  require(file.good(), path.string(), ": expected a file that can be written, got a refusal");
}

}  // namespace detail

/// Throws InvalidArgument for a file that is no binary PPM with a byte a number, or of another length.
inline Picture read_ppm(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code error;
  require(std::filesystem::is_regular_file(path, error), name, ": expected a regular file, got none");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), name, ": expected a file that can be read, got a refusal to open it");
  require(file.get() == 'P' && file.get() == '6', name, ": expected a binary PPM, which starts with P6, got another");
  const Index width = detail::header_number(file, name, "width", 65536);
  const Index height = detail::header_number(file, name, "height", 65536);
  const Index largest = detail::header_number(file, name, "largest value", 255);
  require(std::isspace(file.get()), name, ": expected white space after the header, got another character");

  // the file has to account for its size before memory of that size is taken
  const auto size = static_cast<std::uintmax_t>(3 * width * height);
  const std::uintmax_t got = std::filesystem::file_size(path) - static_cast<std::uintmax_t>(file.tellg());
  require(got == size, name, ": expected ", size, " bytes of ", height, " x ", width, " pixels, got ", got);
  std::vector<char> bytes(size);
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  require(file.good(), name, ": expected ", size, " bytes of pixels, got an end or an error before them");

  Picture picture{height, width, Matrix<float>(height * width, 3)};
  std::transform(bytes.begin(), bytes.end(), picture.pixels.data(), [largest](char byte) {
    return static_cast<float>(static_cast<unsigned char>(byte)) / static_cast<float>(largest);
  });
  return picture;
}

/// Numbers beyond 0 and 1 are cut there. Throws InvalidArgument for what is not finite, or if it cannot write.
inline void write_ppm(const std::filesystem::path& path, const Picture& picture) {
  require(picture.pixels.rows() == picture.height * picture.width && picture.pixels.cols() == 3, path.string(),
          ": expected ", picture.height * picture.width, " x 3 numbers, got ", picture.pixels.rows(), " x ",
          picture.pixels.cols());
  detail::write(path, "P6", picture.height, picture.width, picture.pixels);
}

/// The same for grey pixels (height,width).
inline void write_pgm(const std::filesystem::path& path, const Matrix<float>& grey) {
  detail::write(path, "P5", grey.rows(), grey.cols(), grey);
}

}  // namespace pnm
