// The options of model_bench as checked values. Every error is one sentence that names the option,
// its value and what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/result.h"
#include "engine/families/families.h"

namespace sluice::bench {

enum class ActivationType : std::uint8_t { kFp32, kBf16, kFp16 };

struct ModelBenchOptions {
  engine::ModelShape shape;
  std::int64_t padded_vocab = 0;
  engine::PassShape pass;
  ActivationType dtype = ActivationType::kBf16;
  std::string dtype_name;
  bool cuda = false;
  bool deterministic = false;
  int runs = 0;
  int threads = 0;   // CPU threads
  std::string json;  // "-": standard output; empty: none
};

// The layout of the whole model: its units, their kinds and costs.
engine::ModelLayout layout_of(const ModelBenchOptions& options);

// nullopt: --help or --version was requested and printed.
Result<std::optional<ModelBenchOptions>> parse_model_command_line(int argc,
                                                                  const char* const* argv);

}  // namespace sluice::bench
