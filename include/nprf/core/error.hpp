// SPDX-License-Identifier: MIT
#pragma once

#include <initializer_list>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace nprf {

/// Thrown for a wrong shape or value. The message states the argument's name, what was expected and what was given.
struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Thrown if a library that nprf calls (FFTW, CUDA) reports an error.
struct BackendError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {

/// A reference to a part of a message, of any type that a stream can write, so that sentence_of() is compiled once.
class MessagePart {
 public:
  MessagePart(const char* text)
      : m_part(text), m_write([](std::ostream& out, const void* part) { out << static_cast<const char*>(part); }) {}
  template <class X>
  MessagePart(const X& part)
      : m_part(&part), m_write([](std::ostream& out, const void* x) { out << *static_cast<const X*>(x); }) {}

  void write(std::ostream& out) const { m_write(out, m_part); }

 private:
  const void* m_part;
  void (*m_write)(std::ostream&, const void*);
};

inline std::string sentence_of(std::initializer_list<MessagePart> parts) {
  std::ostringstream out;
  for (const MessagePart& part : parts) part.write(out);
  return out.str();
}
template <class... Parts>
  requires(sizeof...(Parts) > 0)
std::string sentence(const Parts&... parts) {
  return sentence_of({parts...});
}

}  // namespace detail

/// If `holds` is false, throws InvalidArgument with the concatenated parts as its message. Release builds check too.
template <class... Parts>
  requires(sizeof...(Parts) > 0)
void require(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw InvalidArgument(detail::sentence(parts...));
}

}  // namespace nprf
