// What a run from Python begins with: its configuration, the ranks that a launcher started, and the
// run itself, of a module whose parameters are described or of a family's.
//
// Threads: one at a time. Errors: exceptions, with the engine's sentence; what one rank refuses or
// fails at ends the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/launched_ranks.h"
#include "engine/config/resolve.h"
#include "engine/module/family_model.h"
#include "engine/module/module_layout.h"
#include "engine/module/module_run.h"

namespace sluice::engine {

// Of a module that is trained, as JSON text of a run file or of DeepSpeed's.
struct ResolvedConfig {
  config::Config config;
  std::vector<std::pair<std::string, std::string>> ignored;  // keys, and why
  config::Resolved resolved;                                 // as the text has it
  std::string given_run_dir;                                 // empty: nobody named one
  std::int64_t steps_per_print = 0;                          // likewise
  bool has_threads = false;                                  // run.cpu_threads was given
  bool asks_length = false;  // data.sequence_length, which the units of a family are planned for
};

ResolvedConfig resolve_config(const std::string& text, bool of_deepspeed,
                              const std::vector<std::string>& overrides, int world);
// What the configuration has and nothing reads, or what is odd about it.
std::vector<std::string> warnings_of(const ResolvedConfig& config);

// The ranks that a launcher started with this process.
class Ranks {
 public:
  // Waits for the others.
  explicit Ranks(const std::map<std::string, std::string>& environment);
  const RankContext& context() const { return context_; }
  Communicator* link() const { return link_.get(); }  // null: there is one
  void abort(const std::string& reason) const;
  // The first that is known of any rank, without waiting; empty: none.
  std::string failure() const;
  // What each rank says.
  std::vector<std::string> all_gather(const std::string& text) const;
  // Rank 0's values of a tensor on the CPU, on all of them.
  void broadcast(const at::Tensor& values) const;

 private:
  RankContext context_;
  std::unique_ptr<Communicator> link_;
};

using PythonUnit = std::pair<std::string, std::vector<ModuleParameter>>;
ModuleLayout layout_of(const std::vector<PythonUnit>& described);

std::unique_ptr<ModuleRun> make_run(const ResolvedConfig& config,
                                    const std::vector<PythonUnit>& described, const Ranks& ranks,
                                    const std::string& speeds, std::int64_t unix_s,
                                    double checkpointed);
// A family's model has the units that the family has, and they are not described.
std::unique_ptr<ModuleRun> make_family_run(const ResolvedConfig& asked, const FamilyModel& family,
                                           const Ranks& ranks, const std::string& cache_path,
                                           double checkpointed);

}  // namespace sluice::engine
