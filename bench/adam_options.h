// The options of adam_bench: as typed, and as checked values. Every error is one sentence that
// names the option, its value and what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/result.h"
#include "offload/adamw_arrays.h"
#include "offload/isa.h"

namespace sluice::bench {

// An empty optional was not given.
struct AdamArguments {
  std::optional<std::string> elements, grad, master, copy_out, threads, isa, seconds, runs, json;
};

struct AdamBenchOptions {
  std::uint64_t elements = 0;
  offload::GradType grad = offload::GradType::kFp32;
  offload::ParamForm form = offload::ParamForm::kFp32;
  std::string grad_name, master_name;  // for the report
  int threads = 0;
  offload::Isa isa = offload::Isa::kScalar;
  double seconds = 0;  // of one measurement
  int runs = 0;
  std::string json;  // "-": standard output; empty: none

  int bytes_per_param() const { return offload::adamw_bytes_per_param(grad, form); }
  // Of all arrays together.
  std::uint64_t memory_bytes() const;
};

// Nothing when --help or --version was asked for, and printed.
Result<std::optional<AdamArguments>> parse_adam_command_line(int argc, const char* const* argv);

Result<AdamBenchOptions> parse_adam_options(const AdamArguments& arguments);

}  // namespace sluice::bench
