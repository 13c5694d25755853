// SPDX-License-Identifier: MIT
#include "plan.cuh"

std::unique_ptr<nprf::python::Plan> nprf::python::make_plan_bfloat16(PlanProblem problem) {
  return std::make_unique<PlanOf<__nv_bfloat16>>(std::move(problem));
}
