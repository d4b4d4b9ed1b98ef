// Monitors: runs sluice-log next to a run whose configuration enables DeepSpeed's monitors:
// tensorboard, csv_monitor or wandb. sluice-log reads the run's files, so it costs the run nothing
// but a process. Its failure is at most a warning.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "engine/config/config.h"
#include "tools/cli/child_process.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {

class Monitors {
 public:
  // Starts sluice-log if any monitor is enabled. `run_dir`: the run's folder.
  Monitors(const config::Config& config, const std::string& run_dir);
  ~Monitors();  // sluice-log ends by itself once it has written everything
  Monitors(const Monitors&) = delete;
  Monitors& operator=(const Monitors&) = delete;

  // Called after each step: warns if sluice-log has ended.
  void look();
  // Called after the run's last event: gives sluice-log some time to write the rest.
  void finish(const Interrupt& interrupt);

 private:
  void report_end();

  std::unique_ptr<ChildProcess> child_;
  int said_ = -1;  // an in-memory file with sluice-log's output
};

}  // namespace sluice::tools
