// The options of adam_bench as checked values. Every error is one sentence that names the option,
// its value and what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"

namespace sluice::bench {

enum class BenchKernel : std::uint8_t {
  kAdamw,  // adamw_step()
  kCast,   // cast_and_sum()
};

struct AdamBenchOptions {
  BenchKernel kernel = BenchKernel::kAdamw;
  std::uint64_t elements = 0;
  offload::GradType grad = offload::GradType::kFp32;  // for kCast: the type cast to
  // Only for kAdamw:
  offload::StateForm form = {.param = offload::ParamForm::kFp32};
  std::string grad_name, master_name, moments_name;  // for the report
  int threads = 0;
  offload::Isa isa = offload::Isa::kScalar;
  double seconds = 0;  // per measurement
  int runs = 0;
  int stagger_lines = 0;  // see kernel_workload.h
  std::string json;       // "-": standard output; empty: none

  // Moved by the kernel: read and written.
  int bytes_per_element() const;
  // The bytes that a plain pass reads, chosen so that its memory is as large as the kernel's.
  std::uint64_t plain_pass_bytes() const;
};

// nullopt: --help or --version was requested and printed.
Result<std::optional<AdamBenchOptions>> parse_adam_command_line(int argc, const char* const* argv);

}  // namespace sluice::bench
