// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <nprf/nprf.hpp>
#include <string>
#include <string_view>

namespace demo {

/// A bar on stderr that shows how many steps are done; nothing where stderr is not a terminal.
class Progress {
 public:
  Progress(std::string_view what, nprf::Index steps) : m_what(what), m_steps(steps) { draw(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { erase(); }

  void step() {
    ++m_done;
    draw();
  }

  /// Clears the line, so that something else can be printed; the next step draws it again.
  void erase() {
    if (m_terminal) fmt::print(stderr, "\r\033[K");
  }

 private:
  void draw() {
    if (!m_terminal) return;
    const auto filled = static_cast<std::size_t>(width * m_done / m_steps);
    const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    fmt::print(stderr, "\r\033[K{} [{}] {}/{}", m_what, bar, m_done, m_steps);
    std::fflush(stderr);
  }

  static constexpr nprf::Index width = 40;

  std::string m_what;
  nprf::Index m_steps, m_done = 0;
  bool m_terminal = isatty(fileno(stderr)) == 1;
};

}  // namespace demo
