// SPDX-License-Identifier: MIT
#include "plan.cuh"

std::unique_ptr<nprf::python::Plan> nprf::python::make_plan_float32(PlanProblem problem) {
  return std::make_unique<PlanOf<float>>(std::move(problem));
}
