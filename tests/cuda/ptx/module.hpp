// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// An interpreter of PTX, the intermediate code that nvcc and clang make of device code (PTX ISA 9.0).
namespace nprf::ptx {

class Warp;
struct Instruction;

/// A set of a warp's 32 lanes, a bit for each.
using Lanes = std::uint32_t;
constexpr int warp_size = 32;
constexpr Lanes all_lanes = ~Lanes{0};

enum class Type : std::uint8_t {
  none,
  predicate,
  b8,
  b16,
  b32,
  b64,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  bf16,
  f32,
  f64,
  f16x2,
  bf16x2
};
int bytes_of(Type type);
/// Type::none if it names none.
Type type_named(std::string_view name);

enum class Space : std::uint8_t { generic, global, shared, local, parameter };

constexpr std::uint32_t aligned(std::uint32_t at, std::uint32_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}

/// What an instruction does beyond writing registers and memory.
enum class Control : std::uint8_t {
  none,
  branch,
  leave,
  exit,
  call,
  trap,
  block_barrier,
  warp_barrier,
  members,    // of lanes that a mask names
  whole_warp  // of all 32 lanes
};

enum class Rounding : std::uint8_t { nearest, zero, down, up };
enum class Comparison : std::uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

/// A register: 32 values of `width` bytes, 4 or 8, from a byte of the function's registers on.
struct Operand {
  std::uint32_t at = 0;
  std::uint8_t width = 4;
};

/// Runs an instruction that is not a control transfer, for some lanes.
using Execute = void (*)(Warp&, const Instruction&, Lanes);

/// The work of a memory instruction, summed over all warps.
struct Traffic {
  std::uint64_t accesses = 0;  // warps that executed it
  std::uint64_t moved = 0;     // shared memory: passes over the banks; global memory: sectors of 32 bytes
  std::uint64_t least = 0;     // the same if addresses were laid out best
  Traffic& operator+=(const Traffic& other);
};

/// A call of a function: its arguments and its result are bytes of local memory, which have been filled.
struct Call {
  struct Range {
    std::uint32_t at = 0, size = 0;
  };
  std::string callee;
  int function = -1;  // index in the module
  std::vector<Range> arguments;
  Range result;
};

struct Instruction {
  Execute execute = nullptr;
  Control control = Control::none;
  Type type = Type::b32, source_type = Type::b32;
  Space space = Space::generic;
  Rounding rounding = Rounding::nearest;
  bool flushes = false, saturates = false;  // subnormal numbers to zero; to [0, 1]
  bool is_guarded = false, guard_is_negated = false, predicate_is_negated = false;
  bool has_vote = false;                 // of a barrier: whether any of the threads has its predicate
  bool is_of_kernel_parameters = false;  // an address in the launch's parameters
  bool is_copy = false;                  // from global to shared memory
  std::uint8_t count = 0;                // of operands
  std::uint8_t vector = 1;               // scalars that a load or a store moves
  std::uint8_t mode = 0;                 // a variant, as the function that executes it defines
  std::uint8_t destinations = 1;         // leading operands that are written
  Operand guard = {};
  std::array<Operand, 20> operands = {};
  std::int64_t offset = 0;  // of an address
  int target = -1;          // of a branch
  std::unique_ptr<Call> call = nullptr;
  std::string_view text = {};          // in the module's source
  int file = 0, line = 0;              // of the CUDA source, if the compiler noted it
  mutable std::uint64_t executed = 0;  // by warps
  mutable Traffic traffic = {};
  mutable Traffic written = {};  // to shared memory by a copy, whose traffic is what it reads from global memory
};

/// A special register that differs by lane or by block, and where its values are kept.
enum class Special : std::uint8_t { thread, threads, block, blocks };
struct SpecialRegister {
  Special which;
  int axis;
  Operand place;
};

struct Function {
  struct Parameter {
    std::uint32_t at = 0, size = 0;  // of a kernel: in the launch's parameters; else in local memory
  };
  std::string name;
  int index = 0;  // in the module
  bool is_kernel = false;
  std::vector<Instruction> code;
  std::vector<Parameter> parameters;
  std::uint32_t parameter_bytes = 0;
  Parameter result;
  std::vector<std::byte> registers;  // their values at the start: constants
  std::vector<SpecialRegister> specials;
  unsigned max_threads = 1024;  // of a block
};

struct Module {
  std::unique_ptr<std::string> source;  // keeps its place: instructions refer to it
  std::vector<std::unique_ptr<Function>> functions;
  std::map<std::string, int, std::less<>> function_index;
  std::vector<std::string> files;
  std::uint32_t local_bytes = 0;  // of local memory of a thread

  /// Null if there is no such function.
  const Function* find(std::string_view name) const;
  /// The file and the line of the CUDA source; empty if they are not known.
  std::string source_of(const Instruction& x) const;
};

/// Throws std::runtime_error with the line if the text is not PTX, or has an instruction that the interpreter does not
/// support.
Module parse(std::string text);

}  // namespace nprf::ptx
