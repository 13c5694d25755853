// SPDX-License-Identifier: MIT
//
// The .npy reader of the examples: bytes are an array or an Error, and what was read is written as bytes that are read
// as the same.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "examples/support/npy.hpp"
#include "fuzz/check.hpp"

namespace {

using nprf::fuzz::check;
using Bytes = std::span<const unsigned char>;

template <class T>
bool same(const npy::Array<T>& a, const npy::Array<T>& b) {
  const std::size_t size = a.values.size() * sizeof(T);
  return a.shape == b.shape && a.values.size() == b.values.size() &&
         (size == 0 || std::memcmp(a.values.data(), b.values.data(), size) == 0);
}

template <class T>
void read(Bytes bytes) {
  npy::Array<T> array;
  std::vector<unsigned char> written;
  try {
    array = npy::parse<T>(bytes, "fuzz");
    written = npy::serialise(array, "fuzz");
  } catch (const npy::Error&) {
    check(array.values.empty(), "an array with numbers is written");  // a shape of none may be too large for T
    return;
  }
  check(same(array, npy::parse<T>(written, "fuzz")), "what was written is read as the same");
}

// a header up to the first newline and the data behind it, as a file of version 1.0: chance seldom finds the length
std::vector<unsigned char> as_file(Bytes bytes) {
  constexpr std::size_t longest = 1000;
  std::size_t header = 0;
  while (header < bytes.size() && header < longest && (header == 0 || bytes[header - 1] != '\n')) ++header;
  std::vector<unsigned char> file{0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
  file.push_back(static_cast<unsigned char>(header & 0xff));
  file.push_back(static_cast<unsigned char>(header >> 8));
  file.insert(file.end(), bytes.begin(), bytes.end());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes(data, size);
  const std::vector<unsigned char> file = as_file(bytes);
  for (const Bytes input : {bytes, Bytes(file)}) {
    read<float>(input);
    read<double>(input);
  }
  return 0;
}
