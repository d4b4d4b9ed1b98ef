// The start of a run from Python: its configuration, the ranks that a launcher started, and the run
// itself, for a module with described parameters or for a family's.
//
// Threads: one at a time.
// Errors:  exceptions, with the engine's sentence; an error on one rank ends the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/rank_context.h"
#include "engine/config/resolve.h"
#include "engine/module/family_model.h"
#include "engine/module/module_layout.h"
#include "engine/module/module_run.h"

namespace sluice::engine {

// The configuration of a module's run, from the JSON text of a run file or of DeepSpeed's.
struct ResolvedConfig {
  config::Config config;
  std::vector<std::pair<std::string, std::string>> ignored;  // keys and reasons
  config::Resolved resolved;                                 // as given by the text
  std::string given_run_dir;                                 // empty: not given
  std::int64_t steps_per_print = 0;                          // 0: not given
  bool has_threads = false;                                  // run.cpu_threads was given
  bool asks_length = false;  // data.sequence_length was given; a family's units are planned for it
};

ResolvedConfig resolve_config(const std::string& text, bool of_deepspeed,
                              const std::vector<std::string>& overrides, int world);
// Warnings about keys that are not used, and about unusual values.
std::vector<std::string> warnings_of(const ResolvedConfig& config);

// The ranks that a launcher started with this process.
class Ranks {
 public:
  // Waits for the other ranks.
  explicit Ranks(const std::map<std::string, std::string>& environment);
  const RankContext& context() const { return context_; }
  Communicator& link() const { return *link_; }
  void abort(const std::string& reason) const;
  // The first known failure of any rank, without waiting; empty: none.
  std::string failure() const;
  // The text of each rank.
  std::vector<std::string> all_gather(const std::string& text) const;
  // Copies rank 0's values of a CPU tensor to all ranks.
  void broadcast(const at::Tensor& values) const;
  // Sends one CPU tensor and receives another at once; without a tensor the rank does not count.
  void send_receive(const std::optional<at::Tensor>& sent, int to,
                    const std::optional<at::Tensor>& received, int from) const;
  // These ranks as a world of their own. Only they call this. It must not outlive this object.
  std::unique_ptr<Ranks> part(const std::vector<int>& ranks) const;

 private:
  Ranks(const RankContext& context, std::unique_ptr<Communicator> link);

  RankContext context_;
  std::unique_ptr<Communicator> link_;
};

using PythonUnit = std::pair<std::string, std::vector<ModuleParameter>>;
ModuleLayout layout_of(const std::vector<PythonUnit>& described);

// `stages`: ModuleRun::Environment::stages.
std::unique_ptr<ModuleRun> make_run(const ResolvedConfig& config,
                                    const std::vector<PythonUnit>& described, const Ranks& ranks,
                                    const std::string& speeds, std::int64_t unix_s,
                                    double checkpointed, const Ranks* stages);
// For a family's model, whose units are the family's instead of being described.
std::unique_ptr<ModuleRun> make_family_run(const ResolvedConfig& asked, const FamilyModel& family,
                                           const Ranks& ranks, const std::string& cache_path,
                                           double checkpointed);

}  // namespace sluice::engine
