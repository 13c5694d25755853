// SPDX-License-Identifier: MIT
#include "examples/support/pnm.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <string_view>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::examples_pnm {

using namespace std::string_literals;
namespace fs = std::filesystem;

namespace {

// a file of its own for each test
class TemporaryFile {
 public:
  TemporaryFile() : m_path(fs::temp_directory_path() / ("pnm-test-" + std::to_string(std::random_device()()))) {}
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(m_path, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const fs::path& path() const { return m_path; }
  void store(std::string_view bytes) const { std::ofstream(m_path, std::ios::binary) << bytes; }
  std::string load() const {
    std::ifstream file(m_path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  fs::path m_path;
};

}  // namespace

TEST_CASE("pnm: a picture is read row by row, and written as it was", "[pnm]") {
  const TemporaryFile file;
  const std::string bytes = "P6\n3 2\n255\n\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x80\xfe\xff\x20"s;
  file.store(bytes);
  const pnm::Picture picture = pnm::read_ppm(file.path());
  CHECK(picture.height == 2);
  CHECK(picture.width == 3);
  REQUIRE(picture.pixels.rows() == 6);
  CHECK(picture.pixels(0, 2) == 2.0f / 255);
  CHECK(picture.pixels(4, 0) == 12.0f / 255);
  CHECK(picture.pixels(5, 1) == 1);
  pnm::write_ppm(file.path(), picture);
  CHECK(file.load() == bytes);
}

TEST_CASE("pnm: comments, white space and a largest value of its own", "[pnm]") {
  const TemporaryFile file;
  file.store("P6 # a comment\n# another 9 9\n 1\t\n#\n2\r\n100 \x00\x32\x64\x0a\x20\x23"s);
  const pnm::Picture picture = pnm::read_ppm(file.path());
  CHECK(picture.height == 2);
  CHECK(picture.width == 1);
  CHECK(picture.pixels == Matrix<float>{{0, 0.5f, 1}, {0.1f, 0.32f, 0.35f}});
}

TEST_CASE("pnm: grey is rounded, and cut at 0 and 1", "[pnm]") {
  const TemporaryFile file;
  pnm::write_pgm(file.path(), Matrix<float>{{-3, 0, 0.5f}, {0.498f, 1, 1e30f}});
  CHECK(file.load() == "P5\n3 2\n255\n\x00\x00\x80\x7f\xff\xff"s);
}

TEST_CASE("pnm: what is no picture is refused", "[pnm]") {
  const TemporaryFile file;
  const auto refuse = [&](std::string_view bytes, std::string_view expected, std::string_view got) {
    file.store(bytes);
    check_invalid([&] { pnm::read_ppm(file.path()); }, {file.path().string() + ": expected ", expected, got});
  };
  refuse("", "a binary PPM", "another");
  refuse("P5\n1 1\n255\n\x01", "P6", "another");
  refuse("P3\n1 1\n255\n1 2 3\n", "P6", "another");
  refuse("P6", "width from 1 to 65536", "got 0");
  refuse("P6 # 1 1 255", "width", "got 0");
  refuse("P6\nx 1\n255\nabc", "width", "got 0");
  refuse("P6\n1 -1\n255\nabc", "height", "got -1");
  refuse("P6\n65537 1\n255\nabc", "width from 1 to 65536", "got 65537");
  refuse("P6\n1 99999999999999999999\n255\nabc", "height from 1 to 65536", "got 9223372036854775807");
  refuse("P6\n1 1\n65535\nabcdef", "largest value from 1 to 255", "got 65535");
  refuse("P6\n1 1\n255", "white space after the header", "another");
  refuse("P6\n1 1\n255x", "white space after the header", "another");
  refuse("P6\n2 1\n255\nabcde", "6 bytes of 1 x 2 pixels", "got 5");
  refuse("P6\n2 1\n255\nabcdefg", "6 bytes of 1 x 2 pixels", "got 7");
  refuse("P6\n65536 65536\n255\nabc", "12884901888 bytes", "got 3");
  check_invalid([] { pnm::read_ppm("missing/picture.ppm"); }, {"missing/picture.ppm: expected a regular file"});
  check_invalid([] { pnm::read_ppm("."); }, {".: expected a regular file"});
}

TEST_CASE("pnm: what cannot be written is refused", "[pnm]") {
  const TemporaryFile file;
  const Matrix<float> black = Matrix<float>::Zero(6, 3);
  check_invalid(
      [&] {
        pnm::write_ppm("missing/picture.ppm", {2, 3, black});
      },
      {"missing/picture.ppm: expected a file that can be written"});
  check_invalid([&] { pnm::write_ppm(file.path(), {2, 2, black}); }, {"expected 4 x 3 numbers", "got 6 x 3"});
  check_invalid(
      [&] { pnm::write_pgm(file.path(), Matrix<float>::Constant(1, 1, std::numeric_limits<float>::quiet_NaN())); },
      {"expected finite numbers"});
  CHECK(!fs::exists(file.path()));
}

}  // namespace nprf::test::examples_pnm
