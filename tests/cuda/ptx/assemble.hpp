// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/ptx/module.hpp"
#include "cuda/ptx/scope.hpp"
#include "cuda/ptx/text.hpp"

namespace nprf::ptx {

/// The instruction of a statement, but for the target of a branch. Throws std::runtime_error if it is unknown.
Instruction assemble(const Statement& statement, Scope& scope);

// The functions that execute an operation, by family; null if it is of another family or unknown. They set what the
// functions read in the instruction.
Execute select_move(Instruction& x, const Opcode& opcode);
Execute select_integer(Instruction& x, const Opcode& opcode);
Execute select_bits(Instruction& x, const Opcode& opcode);
Execute select_floating(Instruction& x, const Opcode& opcode);
Execute select_approximate(Instruction& x, const Opcode& opcode);
Execute select_conversion(Instruction& x, const Opcode& opcode);
Execute select_memory(Instruction& x, const Opcode& opcode);
Execute select_atomic(Instruction& x, const Opcode& opcode);
Execute select_copy(Instruction& x, const Opcode& opcode);
Execute select_warp_wide(Instruction& x, const Opcode& opcode);

}  // namespace nprf::ptx
