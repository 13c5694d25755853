// SPDX-License-Identifier: MIT
#pragma once

// Reads and writes NumPy's .npy files: arrays of little-endian floating point numbers in C order.
// The format is that of NumPy Enhancement Proposal 1 and of the documentation of numpy.lib.format.
// A file is taken to be hostile: whatever it holds, reading it gives an array or an Error.

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace npy {

static_assert(std::endian::native == std::endian::little, "npy.hpp copies numbers as they lie in the file");
static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class T>
concept Real = std::same_as<T, float> || std::same_as<T, double>;

/// The last dimension varies fastest; an empty shape is that of a single number.
template <Real T>
struct Array {
  std::vector<std::size_t> shape;
  std::vector<T> values;
};

namespace detail {

inline constexpr std::string_view magic = "\x93NUMPY";
inline constexpr std::size_t max_header_size = 65536;
inline constexpr std::size_t max_preamble_size = 12 + max_header_size;
inline constexpr std::size_t max_rank = 8;
inline constexpr std::size_t data_alignment = 64;

[[noreturn]] inline void fail(std::string_view name, std::string_view expected, std::string_view got) {
  throw Error(std::string(name).append(": expected ").append(expected).append(", got ").append(got));
}

// Keeps what a hostile file holds from reaching a terminal as anything but plain text.
inline std::string quoted(std::string_view text) {
  std::string plain(text.substr(0, 32));
  for (char& c : plain) c = c < ' ' || c > '~' ? '?' : c;
  return '"' + plain + '"';
}

inline std::string to_text(std::span<const std::size_t> shape) {
  std::string text = "(";
  for (const std::size_t extent : shape) text += std::to_string(extent) + (shape.size() == 1 ? "," : ", ");
  if (shape.size() > 1) text.resize(text.size() - 2);
  return text + ")";
}

inline std::size_t data_size(std::span<const std::size_t> shape, std::size_t item_size, std::string_view name) {
  std::size_t size = item_size;
  for (const std::size_t extent : shape) {
    // As in NumPy, a zero among them does not excuse extents whose product overflows.
    if (extent > 0 && size > std::numeric_limits<std::size_t>::max() / extent) {
      fail(name, "a shape with a size in bytes that fits in std::size_t", to_text(shape));
    }
    size *= std::max<std::size_t>(extent, 1);
  }
  return std::ranges::find(shape, 0U) == shape.end() ? size : 0;
}

struct Header {
  std::size_t item_size = 0;
  std::vector<std::size_t> shape;
  std::size_t data_offset = 0;
};

// Parses the header's Python dictionary, taking no more of Python than NumPy itself has written.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view name) : m_rest(text), m_name(name) {}

  Header parse() {
    Header header;
    bool has_descr = false, has_order = false, has_shape = false;
    require("{");
    for (int pair = 0; pair < 3; ++pair) {
      if (pair > 0) require(",");
      if (accept_key("'descr'", has_descr)) {
        header.item_size = parse_item_size();
      } else if (accept_key("'fortran_order'", has_order)) {
        if (!accept("False")) fail("C order, 'fortran_order': False (np.save of np.ascontiguousarray(x))");
      } else if (accept_key("'shape'", has_shape)) {
        header.shape = parse_shape();
      } else {
        fail("the keys 'descr', 'fortran_order' and 'shape', once each");
      }
    }
    accept(",");
    require("}");
    require("\n");
    if (!m_rest.empty()) fail("the header's end after its newline");
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const { detail::fail(m_name, expected, quoted(m_rest)); }

  void skip_spaces() { m_rest.remove_prefix(std::min(m_rest.find_first_not_of(' '), m_rest.size())); }

  bool accept(std::string_view token) {
    skip_spaces();
    if (!m_rest.starts_with(token)) return false;
    m_rest.remove_prefix(token.size());
    return true;
  }

  void require(std::string_view token) {
    if (!accept(token)) fail((token == "\n" ? "a newline" : std::string(token)) + " in the header");
  }

  bool accept_key(std::string_view key, bool& seen) {
    if (seen || !accept(key)) return false;
    seen = true;
    require(":");
    return true;
  }

  std::size_t parse_item_size() {
    if (accept("'<f2'")) return 2;
    if (accept("'<f4'")) return 4;
    if (accept("'<f8'")) return 8;
    fail("the descr '<f2', '<f4' or '<f8'");
  }

  std::vector<std::size_t> parse_shape() {
    std::vector<std::size_t> shape;
    require("(");
    while (!accept(")")) {
      if (shape.size() == max_rank) fail("at most " + std::to_string(max_rank) + " dimensions");
      shape.push_back(parse_extent());
      if (shape.size() == 1) {
        require(",");  // Python takes "(1)" for a number, not for a tuple.
      } else if (!accept(",")) {
        require(")");
        break;
      }
    }
    return shape;
  }

  std::size_t parse_extent() {
    skip_spaces();
    std::size_t extent = 0;
    const auto [end, error] = std::from_chars(m_rest.data(), m_rest.data() + m_rest.size(), extent);
    const auto length = static_cast<std::size_t>(end - m_rest.data());
    if (error != std::errc() || (length > 1 && m_rest.front() == '0')) {
      fail("an extent, a non-negative integer that fits in std::size_t");
    }
    m_rest.remove_prefix(length);
    if (m_rest.starts_with('L')) m_rest.remove_prefix(1);  // Python 2's long integers, as in "(3L, 4L)".
    return extent;
  }

  std::string_view m_rest;
  std::string_view m_name;
};

// `start` is the file's beginning: all of it, or at least `max_preamble_size` bytes.
inline Header parse_header(std::span<const unsigned char> start, std::uintmax_t file_size, std::string_view name) {
  std::span<const unsigned char> rest = start;
  const auto take = [&](std::size_t size, std::string_view what) {
    if (rest.size() < size) {
      fail(name, std::to_string(size) + " bytes of " + std::string(what), std::to_string(rest.size()));
    }
    const std::string_view taken(reinterpret_cast<const char*>(rest.data()), size);
    rest = rest.subspan(size);
    return taken;
  };
  if (const auto got = take(magic.size(), "magic"); got != magic) fail(name, "\\x93NUMPY", quoted(got));
  const std::string_view version = take(2, "version");
  const int major = static_cast<unsigned char>(version[0]);
  const int minor = static_cast<unsigned char>(version[1]);
  if (major < 1 || major > 3 || minor != 0) {
    fail(name, "version 1.0, 2.0 or 3.0", std::to_string(major) + "." + std::to_string(minor));
  }
  std::uint32_t header_size = 0;
  const std::string_view size_bytes = take(major == 1 ? 2 : 4, "header size");
  std::memcpy(&header_size, size_bytes.data(), size_bytes.size());
  if (header_size > max_header_size) {
    fail(name, "a header of at most " + std::to_string(max_header_size) + " bytes", std::to_string(header_size));
  }
  Header header = HeaderParser(take(header_size, "header"), name).parse();
  header.data_offset = start.size() - rest.size();
  const std::uintmax_t got = file_size - header.data_offset;
  if (const std::size_t size = data_size(header.shape, header.item_size, name); got != size) {
    fail(name, std::to_string(size) + " bytes of data for the shape " + to_text(header.shape), std::to_string(got));
  }
  return header;
}

struct Half {
  std::uint16_t bits;

  operator float() const {
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const std::uint32_t exponent = bits >> 10 & 0x1fU;
    const std::uint32_t fraction = bits & 0x3ffU;
    const float subnormal = static_cast<float>(fraction) * 0x1p-24F;
    if (exponent == 0) return std::copysign(subnormal, std::bit_cast<float>(sign));
    const std::uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent - 15 + 127;
    return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
  }
};

template <class Stored, Real T>
std::vector<T> decode(std::span<const unsigned char> data, std::string_view name) {
  std::vector<T> values(data.size() / sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, &data[i * sizeof stored], sizeof stored);
    if constexpr (sizeof(T) < sizeof(Stored)) {
      if (std::isfinite(stored) && std::abs(stored) > std::numeric_limits<T>::max()) {
        fail(name, "numbers in the range of float", "one beyond it at index " + std::to_string(i));
      }
    }
    values[i] = static_cast<T>(stored);
  }
  return values;
}

}  // namespace detail

/// The array in a file's bytes; `name` stands for the file in messages. Doubles read as float are rounded to
/// the nearest, and refused where they are finite and out of its range; every other conversion is exact.
template <Real T>
Array<T> parse(std::span<const unsigned char> bytes, std::string_view name) {
  const detail::Header header = detail::parse_header(bytes, bytes.size(), name);
  const std::span<const unsigned char> data = bytes.subspan(header.data_offset);
  if (header.item_size == 2) return {header.shape, detail::decode<detail::Half, T>(data, name)};
  if (header.item_size == 4) return {header.shape, detail::decode<float, T>(data, name)};
  return {header.shape, detail::decode<double, T>(data, name)};
}

/// The bytes of a file of version 1.0; `name` stands for the file in messages.
template <Real T>
std::vector<unsigned char> serialise(const Array<T>& array, std::string_view name) {
  const std::string shape = detail::to_text(array.shape);
  if (array.shape.size() > detail::max_rank) {
    detail::fail(name, "at most " + std::to_string(detail::max_rank) + " dimensions", "the shape " + shape);
  }
  const std::size_t size = detail::data_size(array.shape, sizeof(T), name);
  if (const std::size_t got = array.values.size(); got != size / sizeof(T)) {
    detail::fail(name, std::to_string(size / sizeof(T)) + " numbers for the shape " + shape, std::to_string(got));
  }
  const std::string descr = sizeof(T) == 4 ? "'<f4'" : "'<f8'";
  std::string header = "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }";
  while ((detail::magic.size() + 4 + header.size() + 1) % detail::data_alignment != 0) header += ' ';
  header += '\n';

  const auto header_size = std::bit_cast<std::array<unsigned char, 2>>(static_cast<std::uint16_t>(header.size()));
  const auto* const data = reinterpret_cast<const unsigned char*>(array.values.data());
  std::vector<unsigned char> bytes(detail::magic.begin(), detail::magic.end());
  bytes.insert(bytes.end(), {1, 0, header_size[0], header_size[1]});
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), data, data + size);
  return bytes;
}

template <Real T>
Array<T> read(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    detail::fail(name, "a regular file", error ? error.message() : "a directory or a special file");
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) detail::fail(name, "a file that can be read", "a refusal to open it");

  std::vector<unsigned char> bytes;
  const auto read_up_to = [&](std::uintmax_t end) {
    const std::size_t begin = bytes.size();
    bytes.resize(static_cast<std::size_t>(end));
    file.read(reinterpret_cast<char*>(bytes.data() + begin), static_cast<std::streamsize>(bytes.size() - begin));
    if (!file) detail::fail(name, std::to_string(size) + " bytes", "an end or an error before them");
  };
  // The header has to account for the file's size before memory of that size is taken.
  read_up_to(std::min<std::uintmax_t>(size, detail::max_preamble_size));
  detail::parse_header(bytes, size, name);
  read_up_to(size);
  return parse<T>(bytes, name);
}

/// Completes the new file under another name first: a failure leaves what was at `path` as it was.
template <Real T>
void write(const std::filesystem::path& path, const Array<T>& array) {
  const std::string name = path.string();
  const std::vector<unsigned char> bytes = serialise(array, name);
  std::filesystem::path temporary = path;
  temporary += "." + std::to_string(std::random_device()()) + ".tmp";

  std::ofstream file(temporary, std::ios::binary);
  if (!file) detail::fail(name, "a directory that takes new files", "a refusal of " + temporary.string());
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error = file ? std::error_code() : std::make_error_code(std::errc::io_error);
  if (!error) std::filesystem::rename(temporary, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    detail::fail(name, "to put " + std::to_string(bytes.size()) + " bytes there", error.message());
  }
}

}  // namespace npy
