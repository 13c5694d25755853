// SPDX-License-Identifier: MIT
#include "cuda/ptx/scope.hpp"

#include <bit>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/ptx/text.hpp"

namespace nprf::ptx {

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// of "%r17": "%r" and 17
std::optional<std::pair<std::string_view, unsigned>> numbered(std::string_view name) {
  std::size_t first = name.size();
  while (first > 0 && is_digit(name[first - 1])) --first;
  if (first == 0 || first == name.size() || name.size() - first > 9) return std::nullopt;
  unsigned number = 0;
  for (const char c : name.substr(first)) number = 10 * number + static_cast<unsigned>(c - '0');
  return std::pair{name.substr(0, first), number};
}

// the bits of an immediate of this type; nothing if the text is not a number
std::optional<std::uint64_t> immediate(std::string_view text, Type type) {
  if (text.empty()) return std::nullopt;
  const std::string copy(text);
  if (copy.size() > 2 && copy[0] == '0' && (copy[1] == 'f' || copy[1] == 'F'))
    return std::strtoull(copy.c_str() + 2, nullptr, 16);
  if (copy.size() > 2 && copy[0] == '0' && (copy[1] == 'd' || copy[1] == 'D')) {
    const std::uint64_t bits = std::strtoull(copy.c_str() + 2, nullptr, 16);
    if (bytes_of(type) == 8) return bits;
    return std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
  }
  if (is_digit(copy[0]) || (copy[0] == '-' && copy.size() > 1)) return static_cast<std::uint64_t>(integer(text));
  return std::nullopt;
}

}  // namespace

Operand Scope::add_registers(std::uint8_t width, unsigned count) {
  const std::size_t at = m_function.registers.size();
  m_function.registers.resize(at + std::size_t{warp_size} * width * count);
  return {static_cast<std::uint32_t>(at), width};
}

void Scope::declare_registers(std::string_view name, std::uint8_t width, std::optional<unsigned> count) {
  // a count of 0 stands for one register whose name has no number
  m_blocks.back().registers[name] = {add_registers(width, count.value_or(1)), count.value_or(0)};
}

const Variable* Scope::variable(std::string_view name) const {
  for (auto block = m_blocks.rbegin(); block != m_blocks.rend(); ++block)
    if (const auto at = block->variables.find(name); at != block->variables.end()) return &at->second;
  const auto at = m_module_variables.find(name);
  return at == m_module_variables.end() ? nullptr : &at->second;
}

std::optional<Operand> Scope::find_register(std::string_view name) const {
  const auto parts = numbered(name);
  for (auto block = m_blocks.rbegin(); block != m_blocks.rend(); ++block) {
    if (const auto at = block->registers.find(name); at != block->registers.end() && at->second.count == 0)
      return at->second.first;
    if (!parts) continue;
    const auto at = block->registers.find(parts->first);
    if (at == block->registers.end() || parts->second >= at->second.count) continue;
    const Operand& first = at->second.first;
    return Operand{first.at + parts->second * warp_size * first.width, first.width};
  }
  return std::nullopt;
}

Operand Scope::constant(std::uint64_t value, std::uint8_t width) {
  const auto [at, is_new] = m_constants.try_emplace({value, width});
  if (!is_new) return at->second;
  at->second = add_registers(width, 1);
  for (std::size_t lane = 0; lane < warp_size; ++lane)
    std::memcpy(m_function.registers.data() + at->second.at + lane * width, &value, width);
  return at->second;
}

std::optional<Operand> Scope::special(std::string_view name) {
  if (const auto at = m_specials.find(name); at != m_specials.end()) return at->second;
  const auto of_axis = [&](std::string_view prefix) {
    return name.size() == prefix.size() + 2 && name.starts_with(prefix) && name[prefix.size()] == '.';
  };
  const int axis = name.ends_with(".y") ? 1 : name.ends_with(".z") ? 2 : 0;
  Special which;
  if (of_axis("%tid"))
    which = Special::thread;
  else if (of_axis("%ntid"))
    which = Special::threads;
  else if (of_axis("%ctaid"))
    which = Special::block;
  else if (of_axis("%nctaid"))
    which = Special::blocks;
  else
    return std::nullopt;
  const Operand place = add_registers(4, 1);
  m_function.specials.push_back({which, axis, place});
  return m_specials[name] = place;
}

Operand Scope::operand(std::string_view text, Type type) {
  if (const auto found = find_register(text)) return *found;
  const std::uint8_t width = bytes_of(type) == 8 ? 8 : 4;
  if (const auto bits = immediate(text, type)) return constant(width == 4 ? *bits & 0xffffffffu : *bits, width);
  if (const auto found = special(text)) return *found;
  if (const Variable* found = variable(text)) return constant(found->at, width);
  throw std::runtime_error("unknown operand " + std::string(text));
}

}  // namespace nprf::ptx
