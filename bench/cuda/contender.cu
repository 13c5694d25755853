// SPDX-License-Identifier: MIT
//
// contender: measures nprf on the current GPU. It answers each line of its standard input with a line of JSON.
//
//     device       {"device": name, "capability": .., "multiprocessors": .., "bytes": ..}
//     ceilings     {"copy_bytes": .., "multiply_adds": .., "matrix_products": ..}   per second
//     case PASS STORAGE POSITION DIRECTION BATCH HEADS N M ENGINE    PASS: forward, both, or both16: with gradients on
//                  tensor cores
//                  {"engine": .., "ms": .., "error": .., "workspace_bytes": .., "table_bytes": ..}
//     decode STORAGE POSITION MAP NEAR BATCH HEADS           POSITION: alibi, t5   MAP: orf, taylor
//                  {"ms": .., "error": .., "bytes": of the states}
//                  or {"refused": error message}
//
//     echo case forward bf16 t5 bidirectional 1 1 4096 32 automatic | contender

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "bench/cuda/ceilings.cuh"
#include "bench/cuda/clock.cuh"
#include "bench/cuda/decoding.cuh"
#include "bench/cuda/problem.cuh"

namespace nprf::bench {
namespace {

std::size_t free_bytes() {
  std::size_t free = 0, all = 0;
  cuda::check(cudaMemGetInfo(&free, &all), "querying free memory");
  return free;
}

/// The arrays and the reference of one problem. They are reused while cases differ only in the engine.
template <cuda::Storage S>
struct Current {
  Case current_case;
  std::unique_ptr<Arrays<S>> arrays;
  std::unique_ptr<Reference> reference;

  void set(const Case& x) {
    if (arrays && current_case.problem() == x.problem()) return;
    reference.reset(), arrays.reset();
    current_case = x;
    arrays = std::make_unique<Arrays<S>>(x);
    reference = std::make_unique<Reference>(x, *arrays);
  }
};

template <cuda::Storage S>
void answer_case(const Case& x, Current<S>& current, const Clock& clock) {
  current.set(x);
  const Arrays<S>& arrays = *current.arrays;
  const std::size_t before = free_bytes();
  const auto plan = with_attention(x, [&](const auto& attention) {
    return std::make_unique<cuda::AttentionPlan<S>>(cuda::model_of(attention), x.shape(),
                                                    cuda::PlanOptions{.engine = x.requested_engine(),
                                                                      .gradients = x.gradients(),
                                                                      .owns_workspace = false,
                                                                      .gradients_on_tensor_cores = x.pass == "both16"});
  });
  const std::size_t after = free_bytes(), tables = before > after ? before - after : 0;
  const cuda::DeviceMemory workspace(plan->workspace_bytes());
  const cuda::PlanCall call{.workspace = workspace.data()};
  arrays.fill_results_with_nan();
  const double ms = clock.milliseconds([&](cudaStream_t stream) {
    plan->forward(arrays.q(), arrays.k(), arrays.v(), arrays.y(), call, stream);
    if (x.gradients())
      plan->backward(arrays.q(), arrays.k(), arrays.v(), arrays.dy(), arrays.gradients(), call, stream);
  });
  std::printf("{\"engine\": \"%s\", \"ms\": %.6g, \"error\": %.3g, \"workspace_bytes\": %zu, \"table_bytes\": %zu}\n",
              name(plan->engine()).data(), ms, std::min(current.reference->error(arrays), 1e30),
              plan->workspace_bytes(), tables);
}

std::string quoted(const std::string& message) {
  std::string out = "\"";
  for (const char c : message) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

class Contender {
 public:
  void answer(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "device") return answer_device();
    if (what == "ceilings") return answer_ceilings();
    if (what == "decode") return answer_decode(in);
    Case x;
    if (what != "case" || !(in >> x) || (x.pass != "forward" && !x.gradients()))
      throw std::runtime_error("not a valid command: " + line);
    // only one problem is in memory at a time
    if (x.storage == "bf16") {
      m_float = {};
      answer_case(x, m_bf16, m_clock);
    } else {
      m_bf16 = {};
      answer_case(x, m_float, m_clock);
    }
  }

 private:
  void answer_device() const {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, m_device.number), "querying device properties");
    std::printf("{\"device\": %s, \"capability\": %d, \"multiprocessors\": %d, \"bytes\": %zu}\n",
                quoted(properties.name).c_str(), m_device.capability, m_device.multiprocessors,
                properties.totalGlobalMem);
  }
  void answer_ceilings() const {
    const Ceilings found = measure_ceilings(m_device, m_clock);
    std::printf("{\"copy_bytes\": %.4g, \"multiply_adds\": %.4g, \"matrix_products\": %.4g}\n", found.copy_bytes,
                found.multiply_adds, found.matrix_products);
  }
  void answer_decode(std::istream& in) const {
    DecodeCase x;
    if (!(in >> x)) throw std::runtime_error("not a valid case of decoding");
    const DecodeTimes found =
        x.storage == "bf16" ? measure_decoding<__nv_bfloat16>(x, m_clock) : measure_decoding<float>(x, m_clock);
    std::printf("{\"ms\": %.6g, \"error\": %.3g, \"bytes\": %zu}\n", found.ms, std::min(found.error, 1e30),
                found.bytes);
  }

  cuda::Device m_device = cuda::Device::current();
  Clock m_clock;
  Current<float> m_float;
  Current<__nv_bfloat16> m_bf16;
};

void refuse(const std::exception& error) { std::printf("{\"refused\": %s}\n", quoted(error.what()).c_str()); }

}  // namespace
}  // namespace nprf::bench

int main() {
  try {
    nprf::bench::Contender contender;
    for (std::string line; std::getline(std::cin, line);) {
      try {
        contender.answer(line);
      } catch (const std::exception& error) {
        nprf::bench::refuse(error);
        if (cudaDeviceSynchronize() != cudaSuccess) return 1;  // the caller must start a new process
      }
      std::fflush(stdout);
    }
  } catch (const nprf::BackendError& error) {
    nprf::bench::refuse(error);
    return 77;
  }
}
