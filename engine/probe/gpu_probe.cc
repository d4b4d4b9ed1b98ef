#include "engine/probe/gpu_probe.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "engine/device/cuda_host_copies.h"
#include "engine/device/gpu.h"
#include "engine/device/torch_cuda.h"
#include "engine/model/torch_types.h"
#include "engine/probe/host_probe.h"
#include "engine/probe/timed_passes.h"
#include "offload/adamw/adamw_cuda.h"

namespace sluice::engine {
namespace {

using c10::cuda::CUDAStream;

constexpr int kMostPasses = 64;
// With less memory, launches would be measured instead of work.
constexpr std::uint64_t kLeastMemoryBytes = 64 * kMiB;
constexpr double kMillisecond = 1e-3;

at::Device this_gpu() { return at::Device(at::kCUDA, c10::cuda::current_device()); }

double seconds_between(at::cuda::CUDAEvent& begin, at::cuda::CUDAEvent& end) {
  end.synchronize();
  return kMillisecond * static_cast<double>(begin.elapsed_time(end));
}

// The number of passes that fit into the time, within bounds.
int passes_within(double seconds, double pass_s, int least) {
  return static_cast<int>(std::clamp(seconds / std::max(pass_s, kMillisecond * kMillisecond),
                                     static_cast<double>(least), static_cast<double>(kMostPasses)));
}

// The median time of a pass on the current stream. One pass warms up, and one determines how many
// fit into the time. `spread` may be null.
double median_gpu_seconds(double seconds, const std::function<void()>& pass, PassSpread* spread) {
  at::cuda::CUDAEvent begin(cudaEventDefault);
  at::cuda::CUDAEvent end(cudaEventDefault);
  const auto timed = [&] {
    begin.record();
    pass();
    end.record();
    return seconds_between(begin, end);
  };
  pass();
  std::vector<double> passes = {timed()};
  const int more = passes_within(seconds, passes[0], 2);
  for (int i = 0; i < more; ++i) passes.push_back(timed());
  if (spread != nullptr) spread->add(passes);
  return median_of(std::move(passes));
}

// Pins pieces of host memory until all is pinned or one is refused.
Result<PinTrial> try_pinning(std::uint64_t bytes) {
  constexpr std::uint64_t kPieceBytes = 128 * kMiB;
  PinTrial trial{.tried_bytes = static_cast<double>(bytes)};
  std::vector<aio::PageMemory> pieces;
  Status status;
  for (std::uint64_t pinned = 0; pinned < bytes;) {
    auto piece = aio::PageMemory::map(std::min(kPieceBytes, bytes - pinned), /*huge_pages=*/true);
    if (!piece.ok()) {  // host memory is short, which says nothing about pinning
      trial.tried_bytes = trial.pinned_bytes;
      break;
    }
    const auto got = cuda_host_pinning().pin(piece->bytes(), HostPinning::OnRefusal::kSayNothing);
    status = got.status();
    if (!status.ok()) break;
    pieces.push_back(*std::move(piece));
    if (!*got) break;
    pinned += pieces.back().size_bytes();
    trial.pinned_bytes = static_cast<double>(std::min(pinned, bytes));
  }
  for (const aio::PageMemory& piece : pieces) cuda_host_pinning().unpin(piece.bytes());
  SLUICE_RETURN_IF_ERROR(status);
  return trial;
}

// One direction of the bus.
class Lane {
 public:
  Lane(cudaMemcpyKind kind, std::span<std::byte> host, HostCopies::Buffer buffer)
      : kind_(kind),
        host_(host),
        device_(at::zeros({static_cast<std::int64_t>(host.size())},
                          at::TensorOptions().dtype(at::kByte).device(this_gpu()))),
        stream_(c10::cuda::getStreamFromPool(true)),
        copies_(stream_.stream(), buffer) {}

  void begin(at::cuda::CUDAEvent& begin) {
    begin.block(stream_);
    ends_.clear();
  }
  Status copy() {
    SLUICE_RETURN_IF_ERROR(kind_ == cudaMemcpyHostToDevice
                               ? copies_.in(device_.data_ptr(), host_)
                               : copies_.out(host_, device_.data_ptr()));
    ends_.emplace_back(cudaEventDefault).record(stream_);
    return {};
  }

  std::vector<double> ends_s(at::cuda::CUDAEvent& begin) {
    std::vector<double> seconds;
    seconds.reserve(ends_.size());
    for (at::cuda::CUDAEvent& end : ends_) seconds.push_back(seconds_between(begin, end));
    return seconds;
  }

 private:
  cudaMemcpyKind kind_;
  std::span<std::byte> host_;
  at::Tensor device_;
  CUDAStream stream_;
  CudaHostCopies copies_;
  std::vector<at::cuda::CUDAEvent> ends_;
};

// The duration of each copy, from the ends of consecutive copies.
std::vector<double> each_of(std::vector<double> ends_s) {
  std::adjacent_difference(ends_s.begin(), ends_s.end(), ends_s.begin());
  return ends_s;
}

struct BusMeasurement {
  std::uint64_t buffer_bytes = 0;
  double seconds = 0;
  bool pageable = false;         // the host's memory
  PassSpread* spread = nullptr;  // may be null
};

Result<offload::DuplexRates> measure_bus(const BusMeasurement& how) {
  aio::PinnedPool::Options options{.buffer_bytes = how.buffer_bytes, .capacity = 2};
  if (!how.pageable) options.hook = cuda_pin_hook();
  SLUICE_ASSIGN_OR_RETURN(const auto pool, aio::PinnedPool::create(options));
  const aio::PinnedPool::Lease from = pool->acquire();
  const aio::PinnedPool::Lease to = pool->acquire();
  const auto buffer = how.pageable ? HostCopies::Buffer::kAlways : HostCopies::Buffer::kIfRefused;
  Lane in(cudaMemcpyHostToDevice, from.bytes(), buffer);
  Lane out(cudaMemcpyDeviceToHost, to.bytes(), buffer);
  at::cuda::CUDAEvent begin(cudaEventDefault);
  const auto bytes = static_cast<double>(from.bytes().size());

  const auto run = [&](Lane& lane, int copies) -> Result<double> {
    begin.record();
    lane.begin(begin);
    for (int i = 0; i < copies; ++i) SLUICE_RETURN_IF_ERROR(lane.copy());
    const std::vector<double> ends_s = lane.ends_s(begin);
    // Copies of pageable memory vary in a quiet machine too.
    if (how.spread != nullptr && !how.pageable) how.spread->add(each_of(ends_s));
    return ends_s.back() / copies;
  };
  const auto alone = [&](Lane& lane) -> Result<double> {
    SLUICE_RETURN_IF_ERROR(run(lane, 1).status());
    SLUICE_ASSIGN_OR_RETURN(const double once_s, run(lane, 1));
    SLUICE_ASSIGN_OR_RETURN(const double copy_s,
                            run(lane, passes_within(how.seconds / 3, once_s, 2)));
    return bytes / copy_s;
  };
  offload::DuplexRates rates;
  SLUICE_ASSIGN_OR_RETURN(rates.in_bytes_per_s, alone(in));
  SLUICE_ASSIGN_OR_RETURN(rates.out_bytes_per_s, alone(out));

  const auto copies_of = [&](double rate) {
    return passes_within(how.seconds / 3, bytes / rate, 4);
  };
  const int ins = copies_of(rates.in_bytes_per_s);
  const int outs = copies_of(rates.out_bytes_per_s);
  begin.record();
  in.begin(begin);
  out.begin(begin);
  for (int i = 0; i < std::max(ins, outs); ++i) {  // in turns: a copy of pageable memory may wait
    if (i < ins) SLUICE_RETURN_IF_ERROR(in.copy());
    if (i < outs) SLUICE_RETURN_IF_ERROR(out.copy());
  }
  const std::vector<double> in_ends = in.ends_s(begin);
  const std::vector<double> out_ends = out.ends_s(begin);
  const double both_s = std::min(in_ends.back(), out_ends.back());
  rates.in_both_bytes_per_s = bytes * copies_done(in_ends, both_s) / both_s;
  rates.out_both_bytes_per_s = bytes * copies_done(out_ends, both_s) / both_s;
  return rates;
}

double measure_copy(const GpuProbeOptions& probe, double seconds) {
  const auto half = static_cast<std::int64_t>(probe.memory_limit_bytes / 2);
  const auto options = at::TensorOptions().dtype(at::kByte).device(this_gpu());
  const at::Tensor from = at::zeros({half}, options);
  const at::Tensor to = at::empty({half}, options);
  const double pass_s = median_gpu_seconds(
      seconds, [&] { to.copy_(from, true); }, probe.spread);
  return 2 * static_cast<double>(half) / pass_s;
}

// Uses random numbers: with zeros a GPU switches fewer bits, draws less power and runs faster.
double measure_matmul(const GpuProbeOptions& probe, double seconds) {
  constexpr std::int64_t kLargest = 8192;
  constexpr std::int64_t kMultiple = 256;
  const double number_bytes = static_cast<double>(offload::element_bytes(probe.type));
  // Three matrices; randn of 16-bit numbers needs no additional memory.
  const auto fits = static_cast<std::int64_t>(
      std::sqrt(static_cast<double>(probe.memory_limit_bytes) / (3 * number_bytes)));
  const std::int64_t n = std::clamp(fits / kMultiple * kMultiple, kMultiple, kLargest);
  const auto options = at::TensorOptions().dtype(scalar_type(probe.type)).device(this_gpu());
  const at::Tensor a = at::randn({n, n}, options);
  const at::Tensor b = at::randn({n, n}, options);
  at::Tensor product = at::empty({n, n}, options);
  const double pass_s = median_gpu_seconds(
      seconds, [&] { at::mm_out(product, a, b); }, probe.spread);
  return 2 * std::pow(static_cast<double>(n), 3) / pass_s;
}

Result<double> measure_adamw(const GpuProbeOptions& options, double seconds) {
  constexpr std::uint64_t kMostElements = std::uint64_t{64} << 20;
  constexpr std::uint64_t kElementMultiple = 1024;
  constexpr std::uint64_t kMostBytesPerElement = 4 + 4 + 4 + 4 + 2 + 2;
  const std::uint64_t elements =
      std::min(kMostElements,
               align_down(options.memory_limit_bytes / kMostBytesPerElement, kElementMultiple));
  const auto array = [&](c10::ScalarType type) {
    return at::zeros({static_cast<std::int64_t>(elements)},
                     at::TensorOptions().dtype(type).device(this_gpu()));
  };
  const at::Tensor grad =
      array(options.grad_type == offload::GradType::kFp32 ? at::kFloat : at::kShort);
  const bool wide_moments = options.form.moments == offload::ElementType::kFp32;
  const at::Tensor m = array(wide_moments ? at::kFloat : at::kShort);
  const at::Tensor v = array(wide_moments ? at::kFloat : at::kShort);
  at::Tensor master;
  at::Tensor param16;
  at::Tensor lo;
  offload::AdamwArrays arrays{.grad_type = options.grad_type,
                              .param_form = options.form.param,
                              .moment_type = options.form.moments,
                              .grad = grad.data_ptr()};
  if (wide_moments) {
    arrays.m = m.mutable_data_ptr<float>();
    arrays.v = v.mutable_data_ptr<float>();
  } else {
    arrays.m16 = static_cast<std::uint16_t*>(m.mutable_data_ptr());
    arrays.v16 = static_cast<std::uint16_t*>(v.mutable_data_ptr());
  }
  if (options.form.param != offload::ParamForm::kSplit) {
    master = array(at::kFloat);
    arrays.master = master.mutable_data_ptr<float>();
  } else {
    lo = array(at::kShort);
    arrays.lo = static_cast<std::uint16_t*>(lo.mutable_data_ptr());
  }
  if (options.form.param != offload::ParamForm::kFp32) {
    param16 = array(at::kShort);
    arrays.param16 = static_cast<std::uint16_t*>(param16.mutable_data_ptr());
  }
  const offload::AdamwScalars scalars = probe_scalars();
  Status status;
  const auto step = [&] {
    Status done = offload::adamw_step_cuda(scalars, arrays, elements,
                                           c10::cuda::getCurrentCUDAStream().stream());
    if (!done.ok()) status = std::move(done);
  };
  const double pass_s = median_gpu_seconds(seconds, step, options.spread);
  SLUICE_RETURN_IF_ERROR(status);
  return static_cast<double>(elements) / pass_s;
}

Result<GpuSpeeds> measure_all(const GpuProbeOptions& options,
                              const std::function<void(double)>& on_progress) {
  constexpr double kParts = 4;
  const double seconds = options.seconds / kParts;
  const auto tell = [&](double parts_done) {
    return_gpu_memory();  // the next part may use the whole limit
    if (on_progress) on_progress(parts_done / kParts);
  };
  GpuSpeeds speeds;
  tell(0);
  const std::uint64_t bus_bytes =
      std::min(options.bus_buffer_bytes, align_down(options.memory_limit_bytes / 2, 4 * kKiB));
  SLUICE_ASSIGN_OR_RETURN(speeds.pin, try_pinning(options.pin_trial_bytes));
  SLUICE_ASSIGN_OR_RETURN(speeds.bus, measure_bus({.buffer_bytes = bus_bytes,
                                                   .seconds = seconds,
                                                   .pageable = speeds.pin.is_limited(),
                                                   .spread = options.spread}));
  tell(1);
  speeds.copy_bytes_per_s = measure_copy(options, seconds);
  tell(2);
  SLUICE_ASSIGN_OR_RETURN(speeds.adamw_elements_per_s, measure_adamw(options, seconds));
  tell(3);
  speeds.matmul_flops_per_s = measure_matmul(options, seconds);
  tell(4);
  return speeds;
}

// The driver's version from "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05 ...", if it
// can be read, and the driver's CUDA version.
std::string driver_version() {
  int cuda = 0;
  C10_CUDA_CHECK(cudaDriverGetVersion(&cuda));
  std::string text = "CUDA " + std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos)
      return word.append(", ").append(text);
  }
  return text;
}

}  // namespace

std::optional<GpuIdentity> gpu_identity() {
  if (c10::cuda::device_count() == 0) return std::nullopt;
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, c10::cuda::current_device()));
  return GpuIdentity{.name = properties.name, .driver = driver_version()};
}

Result<GpuSpeeds> probe_gpu(const GpuProbeOptions& options,
                            const std::function<void(double)>& on_progress) {
  if (options.memory_limit_bytes < kLeastMemoryBytes) {
    return Error(ErrorCode::kOutOfMemory,
                 "measuring the GPU takes " + format_bytes(kLeastMemoryBytes) +
                     " of its memory or more, but only " +
                     format_bytes(options.memory_limit_bytes) +
                     " may be used: raise budget.gpu_gib, or stop other programs on the GPU");
  }
  try {
    return measure_all(options, on_progress);
  } catch (const c10::OutOfMemoryError& error) {
    return_gpu_memory();
    return Error(ErrorCode::kOutOfMemory,
                 "measuring the GPU takes " + format_bytes(options.memory_limit_bytes) +
                     " of its memory, which another program seems to be using: " +
                     error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return Error(ErrorCode::kInternal,
                 std::string("measuring the GPU failed: ") + error.what_without_backtrace());
  }
}

Result<offload::DuplexRates> probe_bus(double seconds) {
  try {
    const GpuProbeOptions usual;
    SLUICE_ASSIGN_OR_RETURN(
        const PinTrial pin,
        try_pinning(std::min(usual.pin_trial_bytes, aio::available_ram_bytes() / 16)));
    return measure_bus(
        {.buffer_bytes = usual.bus_buffer_bytes, .seconds = seconds, .pageable = pin.is_limited()});
  } catch (const c10::Error& error) {
    return Error(ErrorCode::kInternal,
                 std::string("measuring the bus failed: ") + error.what_without_backtrace());
  }
}

void return_gpu_memory() {
  if (c10::cuda::device_count() == 0) return;
  at::globalContext().lazyInitDevice(at::kCUDA);  // also initialises the allocator
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  clear_cublas_workspaces();
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device());
}

}  // namespace sluice::engine
