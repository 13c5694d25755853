// SPDX-License-Identifier: MIT
#include "nprf/decoder/state_stream.hpp"

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/throws.hpp"

namespace nprf::test::decoder_state_stream {

namespace {

std::string file_of(const std::vector<double>& array) {
  StateWriter out;
  out(Index{-7}), out(true), out(array), out(1.5f);
  std::ostringstream stream;
  out.write(stream);
  return stream.str();
}

}  // namespace

TEST_CASE("state stream: the same numbers in the same order", "[decoder]") {
  const std::vector<double> array{1, 2, 3};
  std::istringstream stream(file_of(array) + "what follows");
  StateReader in(stream);
  CHECK(in.next<Index>() == -7);
  CHECK(in.next<bool>());
  std::vector<double> read(3);
  in(read);
  CHECK(read == array);
  CHECK(in.rest() == sizeof(float));
  check_invalid([&] { (void)in.next<double>(); }, {"state", "expected 8 further bytes", "got 4"});
  CHECK(in.next<float>() == 1.5f);
  CHECK(in.rest() == 0);
  std::string rest;
  std::getline(stream, rest);
  CHECK(rest == "what follows");
}

TEST_CASE("state stream: wrong files", "[decoder]") {
  const auto refused = [](const std::string& file, std::string_view piece) {
    check_invalid(
        [&] {
          std::istringstream stream(file);
          StateReader{stream};
        },
        {"stream", piece});
  };
  const std::string file = file_of({1, 2, 3});
  refused("", "got 0");
  refused(file.substr(0, 31), "at least 32 bytes");
  refused(file.substr(0, file.size() - 1), "the file was cut");
  std::string changed = file;
  changed[0] = 'N';
  refused(changed, "another file");
  changed = file;
  std::swap(changed[8], changed[15]);
  refused(changed, "byte order");
  changed = file;
  changed[40] ^= 1;
  refused(changed, "checksum");
  changed = file;
  changed[23] = 127;  // a size of 2^62 bytes
  refused(changed, "the file was cut");
}

TEST_CASE("state stream: a byte that is neither false nor true", "[decoder]") {
  StateWriter out;
  out(std::uint8_t{2});
  std::stringstream stream;
  out.write(stream);
  StateReader in(stream);
  check_invalid([&] { (void)in.next<bool>(); }, {"expected 0 or 1", "got 2"});
}

TEST_CASE("state stream: the published value of the checksum", "[decoder]") {
  Checksum sum;
  sum.add("a", 1);
  CHECK(sum.value() == 0xaf63dc4c8601ec8cu);
}

}  // namespace nprf::test::decoder_state_stream
