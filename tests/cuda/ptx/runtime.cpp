// SPDX-License-Identifier: MIT
//
// The CUDA runtime, as far as nprf and its tests use it, over the interpreter. A program that nvcc has compiled links
// with it in place of the runtime. Everything runs at once, on the calling thread: streams and events do nothing.
//
// A launch in which something is found fails: its error's text is what was found. The environment variable NPRF_PTX
// lists what a GPU leaves open: "backward" and "shuffled" are orders of blocks, the former also of warps; "perturbed"
// makes approximate instructions less exact. With "barriers" the program prints at its end the source lines of the
// barriers that it has executed, and with "without=header.cuh:123" it leaves out those of a line.
#include "cuda/ptx/runtime.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ptx/machine.hpp"
#include "cuda/ptx/text.hpp"

namespace nprf::ptx {

namespace {

constexpr std::size_t memory_bytes = std::size_t{8} << 30;
constexpr int multiprocessors = 132, default_shared = 48 * 1024;

/// The device code of a translation unit. It is parsed at the first launch of one of its kernels.
struct Unit {
  std::string source;
  std::unique_ptr<Module> module;
};
struct Kernel {
  Unit* unit = nullptr;
  std::string name;
  int allowed_shared = default_shared;
};

// barriers of a block or a warp that only synchronise
bool is_barrier(const Instruction& x) {
  return x.control == Control::warp_barrier || (x.control == Control::block_barrier && !x.has_vote);
}
// those whose source ends with `line`
void leave_out_barriers(Module& module, std::string_view line) {
  for (const auto& function : module.functions)
    for (Instruction& x : function->code)
      if (is_barrier(x) && module.source_of(x).ends_with(line)) {
        x.control = Control::none;
        x.execute = [](Warp&, const Instruction&, Lanes) {};
      }
}

class Runtime {
 public:
  static Runtime& get() {
    static Runtime* runtime = new Runtime;  // never destroyed: static objects of tests may outlive it
    return *runtime;
  }

  Machine machine;
  std::vector<std::unique_ptr<Unit>> units;
  std::map<const void*, Kernel> kernels;
  std::string failure;  // what the last failed launch found
  cudaError_t last_error = cudaSuccess;

  cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
  }

  Kernel* kernel(const void* handle) {
    const auto at = kernels.find(handle);
    return at == kernels.end() ? nullptr : &at->second;
  }

  const Function& function(const Kernel& kernel) {
    Unit& unit = *kernel.unit;
    if (!unit.module) {
      unit.module = std::make_unique<Module>(parse(std::move(unit.source)));
      if (!m_left_out.empty()) leave_out_barriers(*unit.module, m_left_out);
    }
    const Function* found = unit.module->find(kernel.name);
    if (!found) {
      std::fprintf(stderr, "no kernel %s\n", kernel.name.c_str());
      std::abort();
    }
    return *found;
  }

  // ten times the compute capability that the program was compiled for
  int capability() const {
    for (const auto& unit : units) {
      const std::string& source = unit->module ? *unit->module->source : unit->source;
      const std::size_t at = source.find(".target sm_");
      if (at != source.npos) return std::atoi(source.c_str() + at + std::strlen(".target sm_"));
    }
    return 90;
  }
  // bytes of shared memory that a block may be allowed
  int most_shared() const {
    const int of = capability();
    return 1024 * (of >= 90 ? 227 : of >= 80 ? 163 : of >= 75 ? 64 : 96);
  }

  void report(const std::vector<Finding>& findings) {
    failure.clear();
    for (const Finding& finding : findings) {
      const std::string text = finding.text();
      if (!failure.empty()) failure += '\n';
      failure += text;
      std::fprintf(stderr, "PTX: %s\n", text.c_str());
    }
  }

 private:
  Runtime() {
    const char* listed = std::getenv("NPRF_PTX");
    for (const std::string_view option : split_list(listed ? listed : "")) {
      if (option == "backward") {
        machine.options.warps = machine.options.blocks = Options::Order::backward;
      } else if (option == "shuffled") {
        machine.options.blocks = Options::Order::shuffled;
      } else if (option == "perturbed") {
        machine.options.perturbs = true;
      } else if (option == "barriers") {
        std::atexit([] { get().print_barriers(); });
      } else if (option.starts_with("without=")) {
        m_left_out.assign(1, '/').append(option.substr(std::strlen("without=")));
      } else {
        std::fprintf(stderr,
                     "NPRF_PTX: expected backward, shuffled, perturbed, barriers or without=header.cuh:123, got %s\n",
                     listed);
        std::exit(2);
      }
    }
  }

  void print_barriers() const {
    std::set<std::string> lines;
    for (const auto& unit : units)
      if (unit->module)
        for (const auto& function : unit->module->functions)
          for (const Instruction& x : function->code)
            if (is_barrier(x) && x.executed > 0) lines.insert(unit->module->source_of(x));
    for (const std::string& line : lines) std::printf("barrier %s\n", line.c_str());
  }

  std::string m_left_out;  // the source line of barriers that are left out
};

bool is_launchable(dim3 grid, dim3 block) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  return threads > 0 && threads <= 1024 && block.z <= 64 && grid.x > 0 && grid.y > 0 && grid.z > 0 &&
         grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
}

cudaError_t launch(const void* handle, dim3 grid, dim3 block, void** arguments, std::size_t shared, bool is_early) {
  Runtime& runtime = Runtime::get();
  const Kernel* kernel = runtime.kernel(handle);
  if (!kernel) return cudaErrorInvalidDeviceFunction;
  const Function& function = runtime.function(*kernel);
  if (!is_launchable(grid, block)) return cudaErrorInvalidConfiguration;
  if (shared > static_cast<std::size_t>(kernel->allowed_shared) || block.x * block.y * block.z > function.max_threads)
    return cudaErrorInvalidValue;
  std::vector<std::byte> parameters(function.parameter_bytes);
  for (std::size_t k = 0; k < function.parameters.size(); ++k)
    std::memcpy(parameters.data() + function.parameters[k].at, arguments[k], function.parameters[k].size);
  const std::vector<Finding> findings = runtime.machine.run({*kernel->unit->module,
                                                             function,
                                                             {grid.x, grid.y, grid.z},
                                                             {block.x, block.y, block.z},
                                                             static_cast<std::uint32_t>(shared),
                                                             parameters.data(),
                                                             is_early});
  if (findings.empty()) return cudaSuccess;
  runtime.report(findings);
  return cudaErrorLaunchFailure;
}

bool is_on_device(const void* data, std::size_t bytes) {
  return bytes == 0 || Runtime::get().machine.memory.find(reinterpret_cast<std::uintptr_t>(data), bytes);
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool is_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
             is_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((is_to_device && !is_on_device(to, bytes)) || (is_from_device && !is_on_device(from, bytes)))
    return Runtime::get().result(cudaErrorInvalidValue);
  if (bytes > 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}

void add(KernelTraffic& sum, const Instruction& x) {
  const auto add_to = [](KernelTraffic::Taken& taken, const Traffic& traffic) {
    taken.moved += traffic.moved;
    taken.least += traffic.least;
  };
  sum.instructions += x.executed;
  const bool is_store = x.destinations == 0 && !x.is_copy;
  if (x.space == Space::shared)
    add_to(is_store ? sum.shared_stores : sum.shared_loads, x.traffic);
  else
    add_to(is_store ? sum.global_stores : sum.global_loads, x.traffic);
  add_to(sum.shared_stores, x.written);
}

}  // namespace

KernelTraffic traffic_of(std::string_view kernel, const std::function<void()>& run) {
  Runtime& runtime = Runtime::get();
  const auto for_code = [&](auto&& f) {
    for (const auto& unit : runtime.units)
      if (unit->module)
        for (const auto& function : unit->module->functions)
          if (function->name.find(kernel) != std::string::npos)
            for (const Instruction& x : function->code) f(x);
  };
  for_code([](const Instruction& x) { x.traffic = x.written = {}, x.executed = 0; });
  runtime.machine.options.counts = true;
  run();
  runtime.machine.options.counts = false;
  KernelTraffic sum;
  for_code([&](const Instruction& x) { add(sum, x); });
  return sum;
}

}  // namespace nprf::ptx

using nprf::ptx::Runtime;

extern "C" {

// ---- registration, which nvcc's code calls before main

void** __cudaRegisterFatBinary(void* wrapper_) {
  struct Wrapper {
    int magic, version;
    const char* data;
    void* file;
  };
  struct Header {
    std::uint32_t magic;
    std::uint16_t version, header_bytes;
    std::uint64_t bytes;
  };
  const char* data = static_cast<Wrapper*>(wrapper_)->data;
  Header header;
  std::memcpy(&header, data, sizeof(header));
  const std::string_view all(data, header.header_bytes + header.bytes);
  const std::size_t at = all.find(".version");
  auto unit = std::make_unique<nprf::ptx::Unit>();
  if (at == all.npos)
    std::fprintf(stderr,
                 "no PTX in the program; compile it by nvcc -gencode arch=compute_90,code=compute_90 -no-compress\n");
  else
    unit->source = data + at;  // ends with a zero
  Runtime::get().units.push_back(std::move(unit));
  return reinterpret_cast<void**>(Runtime::get().units.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** unit, const char* handle, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  Runtime::get().kernels[handle] = {reinterpret_cast<nprf::ptx::Unit*>(unit), name};
}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 1; }  // kernel<<<..>>> is not used
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* handle) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(handle));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}

// ---- launches

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* handle, void** arguments) {
  bool is_early = false;
  for (unsigned k = 0; k < config->numAttrs; ++k)
    is_early = is_early || (config->attrs[k].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                            config->attrs[k].val.programmaticStreamSerializationAllowed);
  return Runtime::get().result(
      nprf::ptx::launch(handle, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, is_early));
}
cudaError_t cudaFuncSetAttribute(const void* handle, cudaFuncAttribute attribute, int value) {
  nprf::ptx::Kernel* kernel = Runtime::get().kernel(handle);
  if (!kernel || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > Runtime::get().most_shared())
    return Runtime::get().result(cudaErrorInvalidValue);
  kernel->allowed_shared = std::max(nprf::ptx::default_shared, value);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* handle) {
  if (!Runtime::get().kernel(handle)) return Runtime::get().result(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = Runtime::get().capability();
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                   std::size_t shared, unsigned) {
  *blocks = std::min(2048 / threads, Runtime::get().most_shared() / static_cast<int>(std::max<std::size_t>(shared, 1)));
  return cudaSuccess;
}

// ---- the device and its errors

cudaError_t cudaGetLastError() { return std::exchange(Runtime::get().last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return Runtime::get().failure.c_str();
  return error == cudaErrorMemoryAllocation ? "out of memory" : "refused";
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorLaunchFailure: return "found by the interpreter of PTX";
    default: return "another error";
  }
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return Runtime::get().result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const Runtime& runtime = Runtime::get();
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = nprf::ptx::multiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = runtime.capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = runtime.capability() % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = runtime.most_shared(); break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return Runtime::get().result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// ---- memory and streams

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  if (bytes > nprf::ptx::memory_bytes) return Runtime::get().result(cudaErrorMemoryAllocation);
  *data = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
  if (!*data) return Runtime::get().result(cudaErrorMemoryAllocation);
  std::memset(*data, 0xff, bytes);  // NaN
  Runtime::get().machine.memory.add(*data, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data) Runtime::get().machine.memory.remove(data);
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeAsync(void* data, cudaStream_t) { return cudaFree(data); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return nprf::ptx::copy(to, from, bytes, kind);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (!nprf::ptx::is_on_device(to, bytes)) return Runtime::get().result(cudaErrorInvalidValue);
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::free(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

}  // extern "C"
