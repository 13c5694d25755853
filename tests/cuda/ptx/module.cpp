// SPDX-License-Identifier: MIT
#include "cuda/ptx/module.hpp"

#include <utility>

namespace nprf::ptx {

namespace {

struct NamedType {
  std::string_view name;
  Type type;
  int bytes;
};
constexpr NamedType types[] = {
    {"pred", Type::predicate, 4}, {"b8", Type::b8, 1},       {"b16", Type::b16, 2},       {"b32", Type::b32, 4},
    {"b64", Type::b64, 8},        {"u8", Type::u8, 1},       {"u16", Type::u16, 2},       {"u32", Type::u32, 4},
    {"u64", Type::u64, 8},        {"s8", Type::s8, 1},       {"s16", Type::s16, 2},       {"s32", Type::s32, 4},
    {"s64", Type::s64, 8},        {"f16", Type::f16, 2},     {"bf16", Type::bf16, 2},     {"f32", Type::f32, 4},
    {"f64", Type::f64, 8},        {"f16x2", Type::f16x2, 4}, {"bf16x2", Type::bf16x2, 4},
};

}  // namespace

int bytes_of(Type type) {
  for (const NamedType& t : types)
    if (t.type == type) return t.bytes;
  return 4;
}

Type type_named(std::string_view name) {
  for (const NamedType& t : types)
    if (t.name == name) return t.type;
  return Type::none;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  accesses += other.accesses;
  moved += other.moved;
  least += other.least;
  return *this;
}

const Function* Module::find(std::string_view name) const {
  const auto at = function_index.find(name);
  return at == function_index.end() ? nullptr : functions[static_cast<std::size_t>(at->second)].get();
}

std::string Module::source_of(const Instruction& x) const {
  const auto file = static_cast<std::size_t>(x.file);
  return x.line > 0 && file < files.size() ? files[file] + ":" + std::to_string(x.line) : "";
}

}  // namespace nprf::ptx
