// SPDX-License-Identifier: MIT
#include <cufft.h>  // the stand-in of the host, or the toolkit's where kernels are interpreted

#include <fftw3.h>

#include <cstring>
#include <map>

namespace {

struct Plan {
  int length = 0, batch = 0, automatic = 1;
  void* memory = nullptr;
};

constexpr std::size_t plan_bytes = 512;  // the workspace size that every plan reports, and overwrites

std::map<cufftHandle, Plan>& plans() {
  static std::map<cufftHandle, Plan> all;
  return all;
}

}  // namespace

cufftResult cufftCreate(cufftHandle* plan) {
  static int next = 1;  // 0 is not a valid handle
  *plan = next++;
  plans()[*plan];
  return CUFFT_SUCCESS;
}

cufftResult cufftDestroy(cufftHandle plan) { return plans().erase(plan) == 1 ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN; }

cufftResult cufftSetAutoAllocation(cufftHandle plan, int automatic) {
  plans().at(plan).automatic = automatic;
  return CUFFT_SUCCESS;
}

cufftResult cufftMakePlanMany(cufftHandle plan, int rank, int* n, int*, int istride, int idist, int*, int ostride,
                              int odist, cufftType, int batch, std::size_t* bytes) {
  if (rank != 1 || n[0] < 1 || batch < 1 || istride != 1 || ostride != 1 || idist != n[0] || odist != n[0])
    return CUFFT_INVALID_VALUE;
  Plan& p = plans().at(plan);
  p.length = n[0];
  p.batch = batch;
  *bytes = plan_bytes;
  return CUFFT_SUCCESS;
}

cufftResult cufftSetWorkArea(cufftHandle plan, void* memory) {
  plans().at(plan).memory = memory;
  return CUFFT_SUCCESS;
}

cufftResult cufftSetStream(cufftHandle plan, cudaStream_t) {
  return plans().contains(plan) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}

cufftResult cufftExecC2C(cufftHandle plan, cufftComplex* in, cufftComplex* out, int direction) {
  const Plan& p = plans().at(plan);
  if (p.automatic || !p.memory || in != out) return CUFFT_EXEC_FAILED;
  std::memset(p.memory, 0xff, plan_bytes);
  auto* data = reinterpret_cast<fftwf_complex*>(in);
  const fftwf_plan transform = fftwf_plan_many_dft(1, &p.length, p.batch, data, nullptr, 1, p.length, data, nullptr, 1,
                                                   p.length, direction, FFTW_ESTIMATE | FFTW_UNALIGNED);
  fftwf_execute(transform);
  fftwf_destroy_plan(transform);
  return CUFFT_SUCCESS;
}
