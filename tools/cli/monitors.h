// Monitors: sluice-log beside a run, where its configuration asks for DeepSpeed's monitors
// (tensorboard, csv_monitor, wandb). It reads the run's files, so it costs the run nothing but a
// process, and whatever becomes of it is a warning at most.
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
  // Starts it if any is enabled. `run_dir`: of the run, whose files are there.
  Monitors(const config::Config& config, const std::string& run_dir);
  ~Monitors();  // it ends by itself, once it has written what is there
  Monitors(const Monitors&) = delete;
  Monitors& operator=(const Monitors&) = delete;

  // After a step: says so if it has ended.
  void look();
  // After the run's last event: gives it some time to write what is there.
  void finish(const Interrupt& interrupt);

 private:
  void report_end();

  std::unique_ptr<ChildProcess> child_;
  int said_ = -1;  // a file in memory: what it prints
};

}  // namespace sluice::tools
