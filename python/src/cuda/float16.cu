// SPDX-License-Identifier: MIT
#include "plan.cuh"

std::unique_ptr<nprf::python::Plan> nprf::python::make_plan_float16(PlanProblem problem) {
  return std::make_unique<PlanOf<__half>>(std::move(problem));
}
