// SPDX-License-Identifier: MIT
#include "cuda/ptx/assemble.hpp"

#include <stdexcept>
#include <string>

namespace nprf::ptx {

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

class Assembler {
 public:
  Assembler(const Statement& statement, Scope& scope)
      : m_statement(statement), m_opcode(statement.opcode), m_operands(statement.operands), m_scope(scope) {}

  Instruction run() {
    read_guard();
    read_modifiers();
    read_operands();
    m_x.text = m_statement.text;
    if (m_x.control == Control::none || m_x.control == Control::members || m_x.control == Control::whole_warp) select();
    return std::move(m_x);
  }

 private:
  void read_guard() {
    if (m_statement.guard.empty()) return;
    m_x.is_guarded = true;
    m_x.guard_is_negated = m_statement.guard_is_negated;
    m_x.guard = m_scope.operand(m_statement.guard, Type::predicate);
  }

  void read_modifiers() {
    int types = 0;
    for (std::size_t k = 1; k < m_opcode.parts.size(); ++k) {
      const std::string_view part = m_opcode.parts[k];
      if (const Type type = type_named(part); type != Type::none) {
        if (types++ == 0) m_x.type = m_x.source_type = type;
        m_x.source_type = type;
      }
      if (part == "ftz") m_x.flushes = true;
      if (part == "sat") m_x.saturates = true;
      if (part == "v2") m_x.vector = 2;
      if (part == "v4") m_x.vector = 4;
      if (part == "v8") m_x.vector = 8;
      if (part == "global") m_x.space = Space::global;
      if (part.starts_with("shared")) m_x.space = Space::shared;
      if (part == "local") m_x.space = Space::local;
      if (part == "param") m_x.space = Space::parameter;
      if (part == "rz") m_x.rounding = Rounding::zero;
      if (part == "rm") m_x.rounding = Rounding::down;
      if (part == "rp") m_x.rounding = Rounding::up;
    }
  }

  void read_operands() {
    const std::string_view base = m_opcode.base();
    if (base == "bra") return set(Control::branch);
    if (base == "ret") return set(m_scope.function().is_kernel ? Control::exit : Control::leave);
    if (base == "trap") return set(Control::trap);
    if (base == "call") return read_call();
    if (base == "ld") return read_load();
    if (base == "st") return read_store();
    if (base == "atom") return read_atomic();
    if (base == "cp") return read_copy();
    if (base == "bar") return read_barrier();
    if (base == "shfl" || base == "vote") return read_shuffle();
    if (base == "mma") {
      set(Control::whole_warp);
      add_list(m_operands.at(0), Type::b32);
      m_x.destinations = m_x.count;
      for (std::size_t k = 1; k < m_operands.size(); ++k) add_list(m_operands[k], Type::b32);
      return;
    }
    if (base == "ldmatrix") {
      set(Control::whole_warp);
      add_list(m_operands.at(0), Type::b32);
      m_x.vector = m_x.destinations = m_x.count;
      return add_address(m_operands.at(1));
    }
    if (base == "mov" && (m_operands.at(0).front() == '{' || m_operands.at(1).front() == '{')) {
      m_x.mode = m_operands[0].front() == '{' ? 1 : 2;  // unpacks, packs
      add_list(m_operands[0], m_x.type);
      m_x.destinations = m_x.count;
      return add_list(m_operands[1], m_x.type);
    }
    for (std::size_t k = 0; k < m_operands.size(); ++k) add(m_operands[k], immediate_type(k));
  }

  // the type of an immediate at place k of an arithmetic instruction
  Type immediate_type(std::size_t k) const {
    const std::string_view base = m_opcode.base();
    if (base == "cvt" && k >= 1) return m_x.source_type;
    if (base == "selp" && k == 3) return Type::predicate;
    if ((base == "shl" || base == "shr") && k == 2) return Type::u32;
    if (base == "bfi" && k >= 3) return Type::u32;
    return m_x.type;
  }

  void set(Control control) {
    m_x.control = control;
    m_x.destinations = 0;
  }

  void add(std::string_view text, Type type) {
    if (m_x.count == m_x.operands.size()) fail("too many operands");
    m_x.operands[m_x.count++] = m_scope.operand(text, type);
  }
  void add_list(std::string_view text, Type type) {
    if (text.front() != '{') return add(text, type);
    for (const std::string_view part : split_list(inside(text))) add(part, type);
  }
  void add_predicate(std::string_view text) {
    m_x.predicate_is_negated = text.starts_with('!');
    add(m_x.predicate_is_negated ? trim(text.substr(1)) : text, Type::predicate);
  }

  // [base + offset]
  void add_address(std::string_view text) {
    if (text.empty() || text.front() != '[') fail("expected an address, got " + std::string(text));
    text = inside(text);
    const std::size_t plus = text.find('+');
    const std::string_view base = trim(text.substr(0, plus));
    if (plus != text.npos) m_x.offset = integer(text.substr(plus + 1));
    const bool is_register = m_scope.find_register(base).has_value();
    const Variable* variable = is_register ? nullptr : m_scope.variable(base);
    m_x.is_of_kernel_parameters = m_x.space == Space::parameter && m_scope.function().is_kernel &&
                                  (is_register || (variable && variable->is_kernel_parameter));
    if (m_x.space == Space::parameter && !m_x.is_of_kernel_parameters) m_x.space = Space::local;
    add(base, Type::b64);
  }

  void read_load() {
    add_list(m_operands.at(0), m_x.type);
    m_x.destinations = m_x.count;
    add_address(m_operands.at(1));
  }
  void read_store() {
    m_x.destinations = 0;
    add_address(m_operands.at(0));
    add_list(m_operands.at(1), m_x.type);
  }

  // destination, address, value
  void read_atomic() {
    add(m_operands.at(0), m_x.type);
    add_address(m_operands.at(1));
    add(m_operands.at(2), m_x.type);
  }

  // to, from, bytes, bytes that are not zero
  void read_copy() {
    m_x.destinations = 0;
    if (m_opcode.has("wait_all")) return;
    if (m_operands.size() != 4 || m_operands[2] != "16") fail("only copies of 16 bytes are known");
    add_address(m_operands[1]);
    if (m_x.offset != 0) fail("only copies from addresses without offsets are known");
    add_address(m_operands[0]);
    add(m_operands[3], Type::u32);
  }

  void read_barrier() {
    if (m_opcode.has("warp")) {
      set(Control::warp_barrier);
      return add(m_operands.at(0), Type::b32);
    }
    if (m_operands.at(m_opcode.has("red") ? 1 : 0) != "0") fail("only barrier 0 is known");
    set(Control::block_barrier);
    if (m_opcode.has("red")) {
      m_x.destinations = 1;
      m_x.has_vote = true;
      if (!m_opcode.has("or")) fail("only barriers that combine by or are known");
      if (m_operands.size() != 3) fail("only barriers of all threads are known");
      add(m_operands[0], Type::predicate);
      add_predicate(m_operands[2]);
    } else if (m_operands.size() != 1) {
      fail("only barriers of all threads are known");
    }
  }

  // shfl: value|predicate, source, lane, clamp, members; vote: result, predicate, members
  void read_shuffle() {
    set(Control::members);
    const std::vector<std::string_view> results = split(m_operands.at(0), '|');
    for (const std::string_view result : results) add(trim(result), Type::b32);
    m_x.destinations = m_x.count;
    for (std::size_t k = 1; k < m_operands.size(); ++k)
      m_operands[k].starts_with('!') ? add_predicate(m_operands[k]) : add(m_operands[k], Type::b32);
  }

  void read_call() {
    set(Control::call);
    m_x.call = std::make_unique<Call>();
    const auto range = [&](std::string_view name) {
      const Variable* found = m_scope.variable(name);
      if (!found) fail("unknown argument " + std::string(name));
      return Call::Range{found->at, found->size};
    };
    std::size_t k = 0;
    if (m_operands.at(0).front() == '(') m_x.call->result = range(inside(m_operands[k++]));
    m_x.call->callee = std::string(m_operands.at(k++));
    if (k < m_operands.size())
      for (const std::string_view name : split_list(inside(m_operands[k]))) m_x.call->arguments.push_back(range(name));
  }

  void select() {
    for (const auto family : {select_move, select_integer, select_bits, select_floating, select_approximate,
                              select_conversion, select_memory, select_atomic, select_copy, select_warp_wide})
      if ((m_x.execute = family(m_x, m_opcode))) return;
    fail("unknown operation");
  }

  const Statement& m_statement;
  const Opcode& m_opcode;
  const std::vector<std::string_view>& m_operands;
  Scope& m_scope;
  Instruction m_x;
};

}  // namespace

Instruction assemble(const Statement& statement, Scope& scope) { return Assembler(statement, scope).run(); }

}  // namespace nprf::ptx
