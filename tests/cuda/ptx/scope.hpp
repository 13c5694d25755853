// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/ptx/module.hpp"

namespace nprf::ptx {

/// A variable: bytes of its space.
struct Variable {
  std::uint32_t at = 0, size = 0;
  bool is_kernel_parameter = false;
};

/// The names that a function's instructions use, and its registers.
class Scope {
 public:
  using Variables = std::unordered_map<std::string_view, Variable>;

  Scope(Function& function, const Variables& of_module) : m_function(function), m_module_variables(of_module) {
    enter();
  }

  /// A block in braces hides the names that it declares again.
  void enter() { m_blocks.emplace_back(); }
  void leave() { m_blocks.pop_back(); }

  /// Registers of one name, or name0, name1, .. if `count` is given.
  void declare_registers(std::string_view name, std::uint8_t width, std::optional<unsigned> count = std::nullopt);
  void declare(std::string_view name, const Variable& variable) { m_blocks.back().variables[name] = variable; }

  /// Null if there is none of this name.
  const Variable* variable(std::string_view name) const;
  std::optional<Operand> find_register(std::string_view name) const;
  /// A register, a special register, an immediate of this type or the address of a variable. Throws if it is none.
  Operand operand(std::string_view text, Type type);
  /// A register with this value in all lanes.
  Operand constant(std::uint64_t value, std::uint8_t width);

  const Function& function() const { return m_function; }

 private:
  struct Registers {
    Operand first;
    unsigned count;
  };
  struct Block {
    std::unordered_map<std::string_view, Registers> registers;
    Variables variables;
  };

  Operand add_registers(std::uint8_t width, unsigned count);
  std::optional<Operand> special(std::string_view name);

  Function& m_function;
  const Variables& m_module_variables;
  std::vector<Block> m_blocks;
  std::map<std::pair<std::uint64_t, std::uint8_t>, Operand> m_constants;
  std::unordered_map<std::string_view, Operand> m_specials;
};

}  // namespace nprf::ptx
