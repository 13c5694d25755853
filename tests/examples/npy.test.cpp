// SPDX-License-Identifier: MIT

#include "examples/support/npy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "support/catch.hpp"

#if __has_include(<sys/resource.h>)
#include <sys/resource.h>

#include <csignal>
#endif

namespace nprf::test::examples_npy {

namespace {

using namespace std::string_literals;
namespace fs = std::filesystem;
using Bytes = std::vector<unsigned char>;

Bytes to_bytes(std::string_view text) { return {text.begin(), text.end()}; }

template <class T>
Bytes to_bytes(const std::vector<T>& values) {
  const auto* const data = reinterpret_cast<const unsigned char*>(values.data());
  return {data, data + values.size() * sizeof(T)};
}

Bytes joined(Bytes first, const Bytes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A file as the format describes it, whatever `header` and `data` hold.
Bytes file_with(std::string_view header, const Bytes& data, unsigned char major = 1) {
  Bytes bytes = to_bytes("\x93NUMPY");
  bytes.insert(bytes.end(), {major, 0});
  for (std::size_t i = 0; i < (major == 1 ? 2 : 4); ++i)
    bytes.push_back(static_cast<unsigned char>(header.size() >> 8 * i & 0xff));
  return joined(joined(bytes, to_bytes(header)), data);
}

std::string header_of(std::string_view descr, std::string_view order, std::string_view shape) {
  return "{'descr': " + std::string(descr) + ", 'fortran_order': " + std::string(order) +
         ", 'shape': " + std::string(shape) + ", }\n";
}

std::string header_of_shape(std::string_view shape) { return header_of("'<f4'", "False", shape); }

const Bytes one_float = to_bytes(std::vector<float>{1.5F});

// Written by numpy.lib.format.write_array of NumPy 2.4, one for each version of the format.
const Bytes numpy_version_1 = to_bytes(
    "\x93NUMPY\x01\x00v\x00"
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    "                                                          \n"
    "\x00\x00\x00\x00\x00\x00\xc0?\x00\x00\x00\xc0\x00\x00@@\x00\x00\x80@\xcd\xcc\xcc="s);
const Bytes numpy_version_2 = to_bytes(
    "\x93NUMPY\x02\x00t\x00\x00\x00"
    "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }"
    "                                                          \n"
    "UUUUUU\xd5?\x9cu\x00\x88<\xe4"
    "7\xfe"s);
const Bytes numpy_version_3 = to_bytes(
    "\x93NUMPY\x03\x00t\x00\x00\x00"
    "{'descr': '<f2', 'fortran_order': False, 'shape': (), }"
    "                                                            \n"
    "f."s);
const Bytes numpy_empty = to_bytes(
    "\x93NUMPY\x01\x00v\x00"
    "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 3), }"
    "                                                          \n"s);
// Compares bits, so that a NaN is equal to itself and a zero is not equal to the other zero.
template <class T>
bool same(const npy::Array<T>& a, const npy::Array<T>& b) {
  return a.shape == b.shape && to_bytes(a.values) == to_bytes(b.values);
}

template <class T>
npy::Array<T> parse(const Bytes& bytes) {
  return npy::parse<T>(bytes, "some.npy");
}

// The message of the npy::Error that `action` throws, or nothing.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const npy::Error& error) {
    return error.what();
  }
  return "";
}

void require_message(const std::string& message, std::string_view name, std::string_view expected,
                     std::string_view got) {
  CAPTURE(message, name, expected, got);
  REQUIRE(message.starts_with(std::string(name) + ": expected "));
  const std::size_t middle = message.rfind(", got ");
  REQUIRE(middle != std::string::npos);
  REQUIRE(message.substr(0, middle).find(expected) != std::string::npos);
  REQUIRE(message.substr(middle).find(got) != std::string::npos);
}

void require_refusal(const Bytes& bytes, std::string_view expected, std::string_view got) {
  require_message(error_of([&] { parse<float>(bytes); }), "some.npy", expected, got);
  REQUIRE_THROWS_AS(parse<double>(bytes), npy::Error);
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : m_path(fs::temp_directory_path() / ("npy-test-" + std::to_string(std::random_device()()))) {
    fs::create_directory(m_path);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(m_path, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  fs::path operator/(std::string_view name) const { return m_path / name; }

  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(m_path), fs::directory_iterator()));
  }

 private:
  fs::path m_path;
};

void store(const fs::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  REQUIRE(file.good());
}

Bytes load(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

npy::Array<double> counting(std::size_t count) {
  npy::Array<double> array{{count}, std::vector<double>(count)};
  std::iota(array.values.begin(), array.values.end(), 0.5);
  return array;
}

#if __has_include(<sys/resource.h>)
// While this lives, no file of this process grows beyond `size`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t size) : m_old_handler(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &m_old_limit);
    const rlimit limit{size, m_old_limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &m_old_limit);
    std::signal(SIGXFSZ, m_old_handler);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*m_old_handler)(int);
  rlimit m_old_limit{};
};
#endif

}  // namespace

TEMPLATE_TEST_CASE("npy: an array comes back from its bytes and from its file", "[npy]", NPRF_TEST_SCALARS) {
  using Limits = std::numeric_limits<TestType>;
  const std::vector<std::vector<std::size_t>> shapes = {
      {},           {1},          {7},    {2, 3}, {1, 1},    {2, 3, 4},    {2, 1, 3, 2},
      {1000000, 0}, {0, 1000000}, {0},    {0, 0}, {3, 0, 2}, {0, 1, 2, 3}, {1, 2, 1, 2, 1, 2, 1, 2},
      {100000},     {300, 301},   {3, 16}};
  const std::vector<TestType> notable = {-TestType(0),        Limits::denorm_min(), Limits::min(),
                                         Limits::max(),       Limits::lowest(),     Limits::infinity(),
                                         -Limits::infinity(), Limits::quiet_NaN(),  TestType(0.1)};
  const TemporaryDirectory directory;
  for (const auto& shape : shapes) {
    npy::Array<TestType> array{shape, {}};
    std::size_t count = 1;
    for (const std::size_t extent : shape) count *= extent;
    for (std::size_t i = 0; i < count; ++i)
      array.values.push_back(i % 2 == 0 ? notable[i / 2 % notable.size()] : static_cast<TestType>(i));
    CAPTURE(shape);
    const Bytes bytes = npy::serialise(array, "some.npy");
    REQUIRE((bytes.size() - count * sizeof(TestType)) % 64 == 0);
    REQUIRE(same(parse<TestType>(bytes), array));

    npy::write(directory / "array.npy", array);
    REQUIRE(load(directory / "array.npy") == bytes);
    REQUIRE(same(npy::read<TestType>(directory / "array.npy"), array));
    REQUIRE(directory.entries() == 1);
  }
}

TEST_CASE("npy: files that NumPy wrote", "[npy]") {
  const npy::Array<float> floats{{2, 3}, {0.0F, 1.5F, -2.0F, 3.0F, 4.0F, 0.1F}};
  const npy::Array<double> doubles{{2}, {1.0 / 3.0, -1e300}};
  REQUIRE(same(parse<float>(numpy_version_1), floats));
  REQUIRE(same(parse<double>(numpy_version_1), {{2, 3}, {0.0, 1.5, -2.0, 3.0, 4.0, double(0.1F)}}));
  REQUIRE(same(parse<double>(numpy_version_2), doubles));
  REQUIRE(same(parse<float>(numpy_version_3), {{}, {0x1.998p-4F}}));
  REQUIRE(same(parse<double>(numpy_version_3), {{}, {0x1.998p-4}}));
  REQUIRE(same(parse<float>(numpy_empty), {{0, 3}, {}}));

  SECTION("are the very bytes that are written here") {
    REQUIRE(npy::serialise(floats, "some.npy") == numpy_version_1);
    REQUIRE(npy::serialise(npy::Array<double>{{0, 3}, {}}, "some.npy") == numpy_empty);
  }
}

TEST_CASE("npy: every half is read exactly", "[npy]") {
  std::vector<std::uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  const Bytes bytes = file_with(header_of("'<f2'", "False", "(65536,)"), to_bytes(halves));
  const std::vector<float> floats = parse<float>(bytes).values;
  const std::vector<double> doubles = parse<double>(bytes).values;
  REQUIRE((floats.size() == halves.size() && doubles.size() == halves.size()));
  for (unsigned half = 0; half < 65536; ++half) {
    const int exponent = static_cast<int>(half / 1024 % 32), fraction = static_cast<int>(half % 1024);
    const double expected = exponent == 0   ? std::ldexp(fraction, -24)
                            : exponent < 31 ? std::ldexp(1024 + fraction, exponent - 25)
                            : fraction == 0 ? std::numeric_limits<double>::infinity()
                                            : std::nan("");
    const auto is_right = [&](double got) {
      return std::signbit(got) == (half >= 32768) &&
             (std::isnan(expected) ? std::isnan(got) : std::abs(got) == expected);
    };
    if (is_right(floats[half]) && is_right(doubles[half])) continue;
    CAPTURE(half, floats[half], doubles[half], expected);
    FAIL("the half is read wrongly");
  }
}

TEST_CASE("npy: doubles read as float", "[npy]") {
  const auto narrowed = [](double value) {
    return parse<float>(file_with(header_of("'<f8'", "False", "()"), to_bytes(std::vector<double>{value})))
        .values.at(0);
  };
  constexpr double max = std::numeric_limits<float>::max();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  REQUIRE(narrowed(1.0 / 3.0) == 1.0F / 3.0F);
  REQUIRE(narrowed(1.0 + 0x1.8p-24) == 1.0F + 0x1p-23F);
  REQUIRE(narrowed(1e-300) == 0.0F);
  REQUIRE(narrowed(max) == std::numeric_limits<float>::max());
  REQUIRE(narrowed(-max) == -std::numeric_limits<float>::max());
  REQUIRE(narrowed(infinity) == std::numeric_limits<float>::infinity());
  REQUIRE(narrowed(-infinity) == -std::numeric_limits<float>::infinity());
  REQUIRE(std::isnan(narrowed(std::nan(""))));
  require_message(error_of([&] { narrowed(std::nextafter(max, infinity)); }), "some.npy", "range of float", "0");
  require_message(error_of([&] { narrowed(-1e300); }), "some.npy", "range of float", "0");
  require_message(error_of([&] { parse<float>(numpy_version_2); }), "some.npy", "range of float", "index 1");
}

TEST_CASE("npy: every form of header that NumPy has written", "[npy]") {
  const npy::Array<float> number{{}, {1.5F}};
  SECTION("keys in any order") {
    const std::array<std::string, 3> pairs = {"'descr': '<f4'", "'fortran_order': False", "'shape': ()"};
    for (const auto& [a, b, c] :
         {std::array{0U, 1U, 2U}, {0U, 2U, 1U}, {1U, 0U, 2U}, {1U, 2U, 0U}, {2U, 0U, 1U}, {2U, 1U, 0U}}) {
      const std::string header = "{" + pairs[a] + ", " + pairs[b] + ", " + pairs[c];
      REQUIRE(same(parse<float>(file_with(header + ", }\n", one_float)), number));
      REQUIRE(same(parse<float>(file_with(header + "}\n", one_float)), number));
    }
  }
  SECTION("spaces anywhere or nowhere, and data at any alignment") {
    for (const char* const header :
         {"{'descr':'<f4','fortran_order':False,'shape':()}\n",
          "  {  'descr'  :  '<f4'  ,  'fortran_order'  :  False  ,  'shape'  :  (  )  ,  }  \n",
          "{'descr': '<f4', 'fortran_order': False, 'shape': (), }           \n"}) {
      CAPTURE(header);
      for (unsigned char major = 1; major <= 3; ++major)
        REQUIRE(same(parse<float>(file_with(header, one_float, major)), number));
    }
  }
  SECTION("shapes of one number") {
    using Shape = std::vector<std::size_t>;
    const std::vector<std::pair<const char*, Shape>> shapes = {
        {"()", {}},         {"(1,)", {1}},        {"( 1 , )", {1}},   {"(1L,)", {1}},
        {"(1, 1)", {1, 1}}, {"(1L, 1L)", {1, 1}}, {"(1,1,)", {1, 1}}, {"(1, 1, 1, 1, 1, 1, 1, 1)", Shape(8, 1)}};
    for (const auto& [text, shape] : shapes) {
      CAPTURE(text);
      REQUIRE(same(parse<float>(file_with(header_of_shape(text), one_float)), {shape, {1.5F}}));
    }
  }
}

TEST_CASE("npy: a magic or version that is not the format's", "[npy]") {
  require_refusal({}, "6 bytes of magic", "0");
  require_refusal(to_bytes("PK\x03\x04 is the start of an .npz"), "\\x93NUMPY", "PK??");
  for (std::size_t i = 0; i < 6; ++i) {
    Bytes bytes = numpy_version_1;
    bytes[i] ^= 0x20;
    require_refusal(bytes, "\\x93NUMPY", "\"");
  }
  for (unsigned major = 0; major < 256; ++major) {
    for (const unsigned minor : {0U, 1U, 255U}) {
      if (major >= 1 && major <= 3 && minor == 0) continue;
      Bytes bytes = numpy_version_1;
      bytes[6] = static_cast<unsigned char>(major);
      bytes[7] = static_cast<unsigned char>(minor);
      require_refusal(bytes, "version 1.0, 2.0 or 3.0", std::to_string(major) + "." + std::to_string(minor));
    }
  }
}

TEST_CASE("npy: a header longer than the file or than any honest header", "[npy]") {
  Bytes short_file = numpy_version_1;
  short_file[9] = 1;
  require_refusal(short_file, "374 bytes of header", "142");

  Bytes bytes = numpy_version_2;
  const std::uint32_t claim = 100'000'000;
  std::memcpy(&bytes[8], &claim, sizeof claim);
  require_refusal(bytes, "at most 65536 bytes", "100000000");
  std::memset(&bytes[8], 0xff, 4);
  require_refusal(bytes, "at most 65536 bytes", "4294967295");

  std::string header = header_of_shape("()");
  header.insert(header.size() - 1, 65536 - header.size(), ' ');
  REQUIRE(same(parse<float>(file_with(header, one_float, 2)), {{}, {1.5F}}));
  header.insert(header.size() - 1, 1, ' ');
  require_refusal(file_with(header, one_float, 2), "at most 65536 bytes", "65537");
}

TEST_CASE("npy: a header that is not the dictionary", "[npy]") {
  const std::string descr = "'descr': '<f4', ";
  const std::string order = "'fortran_order': False, ";
  const std::string shape = "'shape': (), ";
  const auto refuse = [](const std::string& header, std::string_view expected, std::string_view got) {
    CAPTURE(header);
    require_refusal(file_with(header, one_float), expected, got);
  };
  REQUIRE(same(parse<float>(file_with("{" + descr + order + shape + "}\n", one_float)), {{}, {1.5F}}));

  SECTION("missing keys") {
    refuse("{}\n", "keys", "}");
    refuse("{" + order + shape + "}\n", "keys", "}");
    refuse("{" + descr + shape + "}\n", "keys", "}");
    refuse("{" + descr + order + "}\n", "keys", "}");
  }
  SECTION("keys twice") {
    for (const auto& again : {descr, order, shape}) {
      const std::string_view expected = again == shape ? "}" : "once each";
      refuse("{" + again + descr + order + shape + "}\n", expected, again.substr(0, 7));
      refuse("{" + descr + order + again + shape + "}\n", expected, again.substr(0, 7));
      refuse("{" + descr + order + shape + again + "}\n", "}", again.substr(0, 7));
    }
  }
  SECTION("keys of its own") {
    refuse("{'extra': 1, " + descr + order + shape + "}\n", "keys", "'extra'");
    refuse("{" + descr + "'extra': 1, " + order + shape + "}\n", "keys", "'extra'");
    refuse("{" + descr + order + shape + "'extra': 1, }\n", "}", "'extra'");
    refuse("{'Descr': '<f4', " + order + shape + "}\n", "keys", "'Descr'");
    refuse("{'descr ': '<f4', " + order + shape + "}\n", "keys", "'descr '");
    refuse("{\"descr\": '<f4', " + order + shape + "}\n", "keys", "\"descr\"");
  }
  SECTION("punctuation") {
    refuse("", "{", "");
    refuse("\n", "{", "?");
    refuse("[" + descr + order + shape + "]\n", "{", "['descr'");
    refuse("{, " + descr + order + shape + "}\n", "keys", ", 'descr'");
    refuse("{" + descr + ", " + order + shape + "}\n", "keys", ", 'fortran");
    refuse("{" + descr + order + shape + ", }\n", "}", ", }");
    refuse("{" + descr + order + shape + "\n", "}", "?");
    refuse("{'descr'; '<f4', " + order + shape + "}\n", ":", "; '<f4'");
    refuse("{" + descr + "'fortran_order' False, " + shape + "}\n", ":", "False");
    refuse("{" + descr + order + "'shape' ()}\n", ":", "()");
    refuse("{" + descr + order + "'shape': (1, 1}\n", ")", "}");
    refuse("{'descr': '<f4' " + order + shape + "}\n", ",", "'fortran");
  }
  SECTION("an end other than spaces and one newline") {
    const std::string dictionary = "{" + descr + order + shape + "}";
    for (const auto& end : {""s, "  "s, "\t\n"s, "\r\n"s, "\0\n"s, "}\n"s, "#\n"s, "1"s})
      refuse(dictionary + end, "newline", "");
    for (const auto& end : {"\n\n"s, "\n "s, "\n\0"s}) refuse(dictionary + end, "end after its newline", "");
  }
}

TEST_CASE("npy: numbers other than little-endian ones in C order", "[npy]") {
  for (const std::string descr :
       {"'>f4'", "[('a', '<f4')]", "'=f4'",     "'|f4'",  "'f4'",   "'<i4'",  "'<u4'", "'<c8'",
        "'<f'",  "'<f3'",          "'<f16'",    "'<f44'", "' <f4'", "'<f4 '", "'<F4'", "'<f4",
        "<f4",   "\"<f4\"",        "'float32'", "''",     "None",   "4",      ""}) {
    CAPTURE(descr);
    require_refusal(file_with(header_of(descr, "False", "()"), one_float), "'<f2', '<f4' or '<f8'", descr);
  }
  for (const std::string order : {"True", "false", "0", "None", "'False'", "FALSE", ""}) {
    CAPTURE(order);
    require_refusal(file_with(header_of("'<f4'", order, "()"), one_float), "C order", order);
  }
  require_refusal(file_with(header_of("'<f4'", "Falsey", "()"), one_float), ",", "y");
}

TEST_CASE("npy: a shape that is no shape", "[npy]") {
  for (const char* const text :
       {"",        "1",       "(1)",   "(,)",    "[1]",     "[1,]",   "(1,,1)", "(1 1)",  "(1, 1 1)",
        "(-1,)",   "(1, -1)", "(+1,)", "(01,)",  "(00,)",   "(1.0,)", "(1e0,)", "(0x1,)", "(1_0,)",
        "(1LL,)",  "(1 L,)",  "(L,)",  "('1',)", "(True,)", "(1",     "(1,",    "(1, 1",  "(1, 1;",
        "((1,),)", "(",       "(1,)1", "())",    "None",    "{1}",    "(1, 1]", "(1}"}) {
    CAPTURE(text);
    require_refusal(file_with(header_of_shape(text), one_float), "", "");
  }
  require_refusal(file_with(header_of_shape("(-1,)"), one_float), "non-negative integer", "-1");
  require_refusal(file_with(header_of_shape("(1, 1, 1, 1, 1, 1, 1, 1, 1)"), one_float), "at most 8 dimensions", "1)");
  std::string endless = "(";
  for (int i = 0; i < 20000; ++i) endless += "1, ";
  require_refusal(file_with(header_of_shape(endless + ")"), one_float), "at most 8 dimensions", "1, 1");
}

TEST_CASE("npy: a shape too large for the machine", "[npy]") {
  // Sizes whose products wrap around to zero or to what the file holds are among them.
  for (const char* const shape :
       {"(18446744073709551615,)", "(18446744073709551616,)", "(36893488147419103233,)", "(4611686018427387904,)",
        "(4611686018427387905,)", "(4294967296, 4294967296)", "(4294967296, 1073741824)", "(4294967296, 4294967296, 0)",
        "(0, 4294967296, 4294967296)", "(4294967296, 0, 4294967296)", "(18446744073709551615, 0)",
        "(0, 18446744073709551615)", "(3, 6148914691236517206)", "(65536, 65536, 65536, 65536)",
        "(99999999999999999999999999999999,)"}) {
    CAPTURE(shape);
    require_refusal(file_with(header_of_shape(shape), {}), "std::size_t", std::string_view(shape).substr(1, 1));
    require_refusal(file_with(header_of_shape(shape), one_float), "std::size_t", "");
  }
  for (const char* const shape : {"(2305843009213693952,)", "(2305843009213693952, 0)"}) {
    CAPTURE(shape);
    require_refusal(file_with(header_of("'<f8'", "False", shape), {}), "std::size_t", "(2305");
  }
  const Bytes zero = file_with(header_of_shape("(0, 2305843009213693952)"), {});
  REQUIRE(same(parse<float>(zero), {{0, 2305843009213693952U}, {}}));
  // Sizes that fit, of which the file has next to nothing, are refused before memory is taken for them.
  require_refusal(file_with(header_of_shape("(1099511627776,)"), one_float), "4398046511104 bytes", "4");
  require_refusal(file_with(header_of_shape("(4611686018427387903,)"), one_float), "18446744073709551612 bytes", "4");
}

TEST_CASE("npy: data shorter or longer than its shape", "[npy]") {
  const Bytes data = to_bytes(std::vector<float>(7, 1.0F));
  for (std::size_t size = 0; size <= data.size(); ++size) {
    const Bytes part(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(size));
    const Bytes bytes = file_with(header_of_shape("(2, 3)"), part);
    if (size == 24)
      REQUIRE(parse<float>(bytes).values.size() == 6);
    else
      require_refusal(bytes, "24 bytes of data for the shape (2, 3)", std::to_string(size));
  }
  require_refusal(file_with(header_of_shape("(0,)"), one_float), "0 bytes of data for the shape (0,)", "4");
  require_refusal(file_with(header_of_shape("()"), {}), "4 bytes of data for the shape ()", "0");
}

TEST_CASE("npy: a file cut anywhere is refused", "[npy]") {
  const TemporaryDirectory directory;
  const fs::path path = directory / "cut.npy";
  for (const Bytes& whole : {numpy_version_1, numpy_version_2, numpy_version_3, numpy_empty}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      require_refusal(part, "", "");
      store(path, part);
      require_message(error_of([&] { npy::read<double>(path); }), path.string(), "", "");
    }
    store(path, whole);
    REQUIRE(same(npy::read<double>(path), parse<double>(whole)));
  }
}

TEST_CASE("npy: a header with any one byte changed gives the same array or an error", "[npy][long]") {
  for (const Bytes& whole : {numpy_version_1, numpy_version_2, numpy_version_3}) {
    const npy::Array<double> expected = parse<double>(whole);
    const std::size_t header_end = whole.size() - whole.size() % 64;
    REQUIRE(header_end == 128);
    std::size_t refused = 0;
    for (std::size_t i = 0; i < header_end; ++i) {
      for (unsigned flip = 1; flip < 256; ++flip) {
        Bytes bytes = whole;
        bytes[i] = static_cast<unsigned char>(bytes[i] ^ flip);
        try {
          if (!same(parse<double>(bytes), expected)) {
            CAPTURE(i, flip);
            FAIL("another array is read");
          }
        } catch (const npy::Error&) {
          ++refused;
        }
      }
    }
    // Harmless are a space for the last comma and, where it has the same layout, another version.
    REQUIRE(refused == header_end * 255 - (whole == numpy_version_1 ? 1 : 2));
  }
}

TEST_CASE("npy: a message carries little and no control characters out of the file", "[npy]") {
  const std::string text = "\x1b[31m\x07\n\x7f\x80\xff\0"s + std::string(10000, '\n');
  for (const Bytes& bytes :
       {to_bytes(text), file_with(text, {}), file_with("{" + text, {}), file_with(header_of(text, "False", "()"), {}),
        file_with(header_of("'<f4'", text, "()"), {}), file_with(header_of_shape(text), {})}) {
    const std::string message = error_of([&] { parse<float>(bytes); });
    CAPTURE(message);
    REQUIRE(message.size() < 200);
    REQUIRE(message.find("?[31m?") != std::string::npos);
    REQUIRE(std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; }));
  }
}

TEST_CASE("npy: what is no regular file is not read", "[npy]") {
  const TemporaryDirectory directory;
  const auto refuse = [](const fs::path& path, std::string_view expected, std::string_view got) {
    require_message(error_of([&] { npy::read<float>(path); }), path.string(), expected, got);
  };
  refuse(directory / "missing.npy", "a regular file", "");
  refuse(directory / "missing" / "missing.npy", "a regular file", "");
  refuse(directory / "", "a regular file", "directory");
  if (fs::exists("/dev/zero")) refuse("/dev/zero", "a regular file", "special file");

  const fs::path shorter_than_its_size = "/sys/devices/system/cpu/online";
  std::error_code error;
  if (fs::file_size(shorter_than_its_size, error) == 4096) refuse(shorter_than_its_size, "4096 bytes", "an end");

  store(directory / "empty.npy", {});
  refuse(directory / "empty.npy", "6 bytes of magic", "0");

  store(directory / "closed.npy", numpy_version_1);
  fs::permissions(directory / "closed.npy", fs::perms::none);
  const bool is_open_to_all = std::ifstream(directory / "closed.npy").is_open();
  if (is_open_to_all)
    REQUIRE(same(npy::read<float>(directory / "closed.npy"), parse<float>(numpy_version_1)));
  else
    refuse(directory / "closed.npy", "can be read", "refusal");
}

TEST_CASE("npy: a huge file is refused by its header", "[npy]") {
  const TemporaryDirectory directory;
  const fs::path path = directory / "huge.npy";
  for (const Bytes& start : {numpy_version_1, to_bytes("not an array")}) {
    store(path, start);
    std::error_code error;
    fs::resize_file(path, std::uintmax_t{1} << 40, error);
    if (error) return;  // Not every file system takes files as large.
    require_message(error_of([&] { npy::read<float>(path); }), path.string(),
                    start == numpy_version_1 ? "24 bytes of data" : "\\x93NUMPY",
                    start == numpy_version_1 ? "1099511627648" : "not an");
  }
}

TEST_CASE("npy: an array that is none is not written", "[npy]") {
  const TemporaryDirectory directory;
  const fs::path path = directory / "array.npy";
  const auto refuse = [&](const npy::Array<float>& array, std::string_view expected, std::string_view got) {
    store(path, numpy_version_1);
    require_message(error_of([&] { npy::serialise(array, "some.npy"); }), "some.npy", expected, got);
    require_message(error_of([&] { npy::write(path, array); }), path.string(), expected, got);
    REQUIRE(load(path) == numpy_version_1);
    REQUIRE(directory.entries() == 1);
  };
  refuse({{2, 3}, std::vector<float>(5)}, "6 numbers for the shape (2, 3)", "5");
  refuse({{2, 3}, std::vector<float>(7)}, "6 numbers for the shape (2, 3)", "7");
  refuse({{}, {}}, "1 numbers for the shape ()", "0");
  refuse({{0}, {1.0F}}, "0 numbers for the shape (0,)", "1");
  refuse({std::vector<std::size_t>(9, 1), {1.0F}}, "at most 8 dimensions", "(1, 1, 1, 1, 1, 1, 1, 1, 1)");
  const std::size_t half_of_all = std::numeric_limits<std::size_t>::max() / 2 + 1;
  refuse({{half_of_all, 2}, {}}, "std::size_t", std::to_string(half_of_all));
}

TEST_CASE("npy: a file is replaced whole or not at all", "[npy]") {
  const TemporaryDirectory directory;
  const fs::path path = directory / "array.npy";
  const auto refuse = [&](const fs::path& target, const npy::Array<double>& array, std::string_view expected) {
    require_message(error_of([&] { npy::write(target, array); }), target.string(), expected, "");
  };
  SECTION("a shorter array replaces a longer one") {
    npy::write(path, counting(1000));
    npy::write(path, counting(3));
    REQUIRE(same(npy::read<double>(path), counting(3)));
    REQUIRE(directory.entries() == 1);
  }
  SECTION("a missing directory stays missing") {
    refuse(directory / "missing" / "array.npy", counting(3), "a directory that takes new files");
    REQUIRE(directory.entries() == 0);
  }
  SECTION("a directory stays a directory") {
    fs::create_directory(path);
    store(path / "other", numpy_version_1);
    refuse(path, counting(3), "152 bytes");
    REQUIRE(directory.entries() == 1);
    REQUIRE(load(path / "other") == numpy_version_1);
  }
#if __has_include(<sys/resource.h>)
  SECTION("a full disk leaves the old file") {
    store(path, numpy_version_1);
    for (const std::size_t count : {std::size_t{3}, std::size_t{100000}}) {
      std::string message;
      {
        const FileSizeLimit limit(100);
        message = error_of([&] { npy::write(path, counting(count)); });
      }
      require_message(message, path.string(), std::to_string(128 + count * 8) + " bytes", "");
      REQUIRE(load(path) == numpy_version_1);
      REQUIRE(directory.entries() == 1);
    }
  }
#endif
}

}  // namespace nprf::test::examples_npy
