// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>

#include "nprf/core/error.hpp"
#include "nprf/core/types.hpp"

/// A state as a binary file: a mark, a number that identifies the byte order, the size of the content, a checksum of
/// this size and the content, and the content. Numbers have the machine's byte order.
namespace nprf {

/// The 64-bit hash of Fowler, Noll and Vo (FNV-1a). It differs for contents that differ in one byte.
class Checksum {
 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t k = 0; k < size; ++k) m_hash = (m_hash ^ bytes[k]) * 0x100000001b3u;
  }
  template <class X>
    requires std::is_arithmetic_v<X>
  void add(X x) {
    add(&x, sizeof(x));
  }
  std::uint64_t value() const { return m_hash; }

 private:
  std::uint64_t m_hash = 0xcbf29ce484222325u;
};

/// Collects numbers and arrays, and writes them as one file.
class StateWriter {
 public:
  template <class X>
  void operator()(const X& x) {
    if constexpr (std::is_same_v<X, bool>)
      append(std::uint8_t{x});
    else if constexpr (std::is_arithmetic_v<X>)
      append(x);
    else
      m_content.append(reinterpret_cast<const char*>(x.data()), static_cast<std::size_t>(x.size()) * sizeof(*x.data()));
  }

  /// Does nothing. It is here because StateReader has such a function, and transfer() takes either.
  void expect(Index) const {}

  /// Throws InvalidArgument if the stream fails.
  void write(std::ostream& out) const;

 private:
  template <class X>
  void append(X x) {
    m_content.append(reinterpret_cast<const char*>(&x), sizeof(x));
  }

  std::string m_content;
};

/// Reads what a StateWriter has written, in the same order.
class StateReader {
 public:
  /// Reads all of a file. Throws InvalidArgument if it is not one of a StateWriter, was cut, or has changed.
  explicit StateReader(std::istream& in);

  /// Reads a number, or an array of the size that x has. Throws InvalidArgument if fewer bytes are left.
  template <class X>
  void operator()(X& x) {
    if constexpr (std::is_same_v<X, bool>) {
      std::uint8_t byte = 0;
      read(&byte, 1);
      require(byte <= 1, "state: expected 0 or 1, got ", static_cast<int>(byte));
      x = byte == 1;
    } else if constexpr (std::is_arithmetic_v<X>) {
      read(&x, sizeof(x));
    } else {
      read(x.data(), static_cast<std::size_t>(x.size()) * sizeof(*x.data()));
    }
  }
  template <class X>
  X next() {
    X x{};
    (*this)(x);
    return x;
  }

  /// Throws InvalidArgument unless at least `bytes` bytes have not been read: a wrong size must not allocate memory.
  void expect(Index bytes) const {
    require(bytes >= 0 && static_cast<std::size_t>(bytes) <= rest(), "state: expected ", bytes,
            " further bytes at least, got ", rest());
  }

  /// The number of bytes that have not been read.
  std::size_t rest() const { return m_content.size() - m_at; }

 private:
  void read(void* to, std::size_t size) {
    require(size <= rest(), "state: expected ", size, " further bytes, got ", rest());
    if (size > 0) std::memcpy(to, m_content.data() + m_at, size);
    m_at += size;
  }

  std::string m_content;
  std::size_t m_at = 0;
};

namespace detail {

struct StateFileHead {
  char mark[8] = {'n', 'p', 'r', 'f', 'd', 'e', 'c', '\0'};
  std::uint64_t byte_order = 0x0102030405060708u;
  std::uint64_t size = 0, checksum = 0;

  static std::uint64_t checksum_of(std::string_view content) {
    Checksum sum;
    sum.add(std::uint64_t{content.size()});
    sum.add(content.data(), content.size());
    return sum.value();
  }
};
static_assert(sizeof(StateFileHead) == 32);

}  // namespace detail

inline void StateWriter::write(std::ostream& out) const {
  detail::StateFileHead head;
  head.size = m_content.size();
  head.checksum = detail::StateFileHead::checksum_of(m_content);
  out.write(reinterpret_cast<const char*>(&head), sizeof(head));
  out.write(m_content.data(), static_cast<std::streamsize>(m_content.size()));
  require(out.good(), "stream: expected one that can be written, got one that fails");
}

inline StateReader::StateReader(std::istream& in) {
  const detail::StateFileHead expected;
  detail::StateFileHead head;
  in.read(reinterpret_cast<char*>(&head), sizeof(head));
  require(in.gcount() == sizeof(head), "stream: expected a decoder's state, of at least ", sizeof(head), " bytes, got ",
          in.gcount());
  require(std::memcmp(head.mark, expected.mark, sizeof(head.mark)) == 0,
          "stream: expected a decoder's state, got another file");
  require(head.byte_order == expected.byte_order, "stream: expected a state in this machine's byte order, got another");
  constexpr std::size_t piece = std::size_t{1} << 20;  // a wrong size must not allocate much
  while (m_content.size() < head.size) {
    const std::size_t before = m_content.size(), more = std::min<std::size_t>(piece, head.size - before);
    m_content.resize(before + more);
    in.read(m_content.data() + before, static_cast<std::streamsize>(more));
    require(in.gcount() == static_cast<std::streamsize>(more), "stream: expected ", head.size,
            " bytes of a decoder's state, got ", before + static_cast<std::size_t>(in.gcount()), ": the file was cut");
  }
  require(detail::StateFileHead::checksum_of(m_content) == head.checksum,
          "stream: expected a decoder's state as it was saved, got one with another checksum: the file has changed");
}

}  // namespace nprf
