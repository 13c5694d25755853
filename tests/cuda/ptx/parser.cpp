// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "cuda/ptx/assemble.hpp"
#include "cuda/ptx/scope.hpp"
#include "cuda/ptx/text.hpp"

namespace nprf::ptx {

namespace {

/// What follows a state space: ".align 8 .b8 name[16]".
struct Declaration {
  std::string_view name;
  std::uint32_t alignment = 1, size = 0;
};

class Parser {
 public:
  explicit Parser(Module& module) : m_module(module), m_text(*module.source) {}

  void run() {
    while (skip_space(), m_at < m_text.size()) {
      const std::string_view first = word();
      if (first == ".entry")
        function(true);
      else if (first == ".func")
        function(false);
      else if (first == ".shared")
        dynamic_shared_memory();
      else if (first == ".file")
        file();
      else if (first == ".section")
        until('}');
      else if (first == ".version" || first == ".target" || first == ".address_size")
        until('\n');
      else if (first == ".pragma" || first.empty())
        until(';');
      else if (first != ".visible" && first != ".weak" && first != ".extern")
        fail("unknown directive " + std::string(first));
    }
    link();
  }

  /// The line of the text that was read last.
  std::ptrdiff_t line() const {
    return 1 + std::count(m_text.begin(), m_text.begin() + static_cast<std::ptrdiff_t>(std::min(m_at, m_text.size())),
                          '\n');
  }

 private:
  [[noreturn]] static void fail(const std::string& what) { throw std::runtime_error(what); }

  // ---- text

  void skip_space() {
    while (m_at < m_text.size() && std::isspace(static_cast<unsigned char>(m_text[m_at]))) ++m_at;
  }
  char next() {
    skip_space();
    if (m_at >= m_text.size()) fail("the text ends too early");
    return m_text[m_at];
  }
  bool accept(char c) {
    if (next() != c) return false;
    ++m_at;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("expected ") + c);
  }
  std::string_view word() {
    skip_space();
    const std::size_t first = m_at;
    const auto is_of_word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_$%.:", c) != nullptr;
    };
    while (m_at < m_text.size() && m_text[m_at] != '\0' && is_of_word(m_text[m_at])) {
      if (m_text[m_at] == ':' && (m_at + 1 >= m_text.size() || m_text[m_at + 1] != ':')) break;  // a label ends
      m_at += m_text[m_at] == ':' ? 2 : 1;                                                       // shared::cta
    }
    return m_text.substr(first, m_at - first);
  }
  // what is before c, which is skipped
  std::string_view until(char c) {
    const std::size_t end = m_text.find(c, m_at);
    if (end == m_text.npos) fail(std::string("expected ") + c);
    const std::string_view text = m_text.substr(m_at, end - m_at);
    m_at = end + 1;
    return trim(text);
  }

  // ---- declarations

  Declaration declaration() {
    Declaration x;
    while (next() == '.') {
      const std::string_view part = word();
      if (part == ".align") {
        x.alignment = static_cast<std::uint32_t>(integer(word()));
      } else if (const Type type = type_named(part.substr(1)); type != Type::none) {
        x.size = static_cast<std::uint32_t>(bytes_of(type));
        x.alignment = std::max(x.alignment, x.size);
      }
    }
    x.name = word();
    while (accept('[')) x.size *= static_cast<std::uint32_t>(integer(until(']')));
    return x;
  }

  std::uint32_t take_local(const Declaration& x) {
    const std::uint32_t at = aligned(m_module.local_bytes, x.alignment);
    m_module.local_bytes = at + x.size;
    return at;
  }

  // kernels declare their dynamic memory alone, which is all of a block's shared memory
  void dynamic_shared_memory() {
    const Declaration x = declaration();
    if (x.size != 0) fail("only dynamic shared memory is known, got " + std::string(x.name));
    m_variables[x.name] = {};
    until(';');
  }

  void file() {
    const auto number = static_cast<std::size_t>(integer(word()));
    expect('"');
    const std::string_view name = until('"');
    if (m_module.files.size() <= number) m_module.files.resize(number + 1);
    m_module.files[number] = std::string(name);
    until('\n');
  }

  // ---- functions

  void function(bool is_kernel) {
    auto made = std::make_unique<Function>();
    Function& f = *made;
    f.is_kernel = is_kernel;
    Scope scope(f, m_variables);
    if (accept('(')) {
      word();  // .param
      const Declaration x = declaration();
      f.result = {take_local(x), x.size};
      scope.declare(x.name, {f.result.at, x.size});
      expect(')');
    }
    f.name = std::string(word());
    if (next() == '(') parameters(f, scope);
    while (next() != '{' && next() != ';') {
      const std::string_view directive = word();
      if (directive == ".maxntid")
        f.max_threads = static_cast<unsigned>(integer(word()));
      else if (directive.empty())
        ++m_at;
    }
    if (accept(';')) return;  // a declaration
    ++m_at;
    body(f, scope);
    f.index = static_cast<int>(m_module.functions.size());
    m_module.function_index[f.name] = f.index;
    m_module.functions.push_back(std::move(made));
  }

  void parameters(Function& f, Scope& scope) {
    expect('(');
    while (!accept(')')) {
      if (accept(',')) continue;
      word();  // .param
      const Declaration x = declaration();
      std::uint32_t at = 0;
      if (f.is_kernel) {
        at = aligned(f.parameter_bytes, x.alignment);
        f.parameter_bytes = at + x.size;
      } else {
        at = take_local(x);
      }
      f.parameters.push_back({at, x.size});
      scope.declare(x.name, {at, x.size, f.is_kernel});
    }
  }

  void body(Function& f, Scope& scope) {
    m_labels.clear();
    m_branches.clear();
    m_file = m_line = 0;
    for (int depth = 1; depth > 0;) {
      const char c = next();
      if (c == '{') {
        ++m_at, ++depth;
        scope.enter();
      } else if (c == '}') {
        ++m_at, --depth;
        scope.leave();
      } else if (c == ';') {
        ++m_at;
      } else {
        item(f, scope);
      }
    }
    Instruction end;
    end.control = f.is_kernel ? Control::exit : Control::leave;
    end.text = "the end of the function";
    f.code.push_back(std::move(end));
    for (const auto& [at, label] : m_branches) {
      const auto found = m_labels.find(label);
      if (found == m_labels.end()) fail("unknown label " + std::string(label));
      f.code[at].target = found->second;
    }
  }

  // a directive, a label or an instruction
  void item(Function& f, Scope& scope) {
    const std::size_t first = m_at;
    const std::string_view name = m_text[m_at] == '@' ? std::string_view() : word();
    if (name == ".reg") return registers(scope);
    if (name == ".local" || name == ".param") {
      const Declaration x = declaration();
      scope.declare(x.name, {take_local(x), x.size});
      until(';');
    } else if (name == ".loc") {
      m_file = static_cast<int>(integer(word()));
      m_line = static_cast<int>(integer(word()));
      until('\n');
    } else if (name == ".pragma") {
      until(';');
    } else if (name.starts_with('.')) {
      fail("unknown directive " + std::string(name));
    } else if (!name.empty() && next() == ':') {
      ++m_at;
      m_labels[name] = static_cast<int>(f.code.size());
    } else {
      m_at = first;
      instruction(f, scope);
    }
  }

  void registers(Scope& scope) {
    const Type type = type_named(word().substr(1));
    const std::uint8_t width = bytes_of(type) == 8 ? 8 : 4;
    for (const std::string_view name : split_list(until(';'))) {
      const std::size_t bracket = name.find('<');
      if (bracket == name.npos)
        scope.declare_registers(name, width);
      else
        scope.declare_registers(name.substr(0, bracket), width,
                                static_cast<unsigned>(integer(name.substr(bracket + 1, name.find('>') - bracket - 1))));
    }
  }

  void instruction(Function& f, Scope& scope) {
    const std::size_t first = m_at;
    std::string_view guard;
    bool is_negated = false;
    if (accept('@')) {
      is_negated = accept('!');
      guard = word();
    }
    const std::string_view opcode = word();
    const std::string_view operands = until(';');
    const Statement statement{Opcode(opcode), split_list(operands), guard, is_negated,
                              trim(m_text.substr(first, m_at - first))};
    if (opcode.empty()) fail("expected an instruction, got " + std::string(statement.text.substr(0, 80)));
    try {
      f.code.push_back(assemble(statement, scope));
    } catch (const std::exception& error) {
      fail(std::string(error.what()) + " in " + std::string(statement.text));
    }
    f.code.back().file = m_file;
    f.code.back().line = m_line;
    if (f.code.back().control == Control::branch) m_branches.emplace_back(f.code.size() - 1, statement.operands.at(0));
  }

  // finds the functions that are called
  void link() {
    for (const auto& function : m_module.functions)
      for (Instruction& x : function->code) {
        if (!x.call) continue;
        const auto found = m_module.function_index.find(x.call->callee);
        if (found == m_module.function_index.end()) fail("a call of an unknown function: " + x.call->callee);
        x.call->function = found->second;
      }
  }

  Module& m_module;
  std::string_view m_text;
  std::size_t m_at = 0;
  Scope::Variables m_variables;
  std::unordered_map<std::string_view, int> m_labels;
  std::vector<std::pair<std::size_t, std::string_view>> m_branches;
  int m_file = 0, m_line = 0;
};

}  // namespace

Module parse(std::string text) {
  Module module;
  module.source = std::make_unique<std::string>(std::move(text));
  blank_comments(*module.source);
  Parser parser(module);
  try {
    parser.run();
  } catch (const std::exception& error) {
    throw std::runtime_error("PTX, line " + std::to_string(parser.line()) + ": " + error.what());
  }
  return module;
}

}  // namespace nprf::ptx
