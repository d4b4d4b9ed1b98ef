#include "bench/adam_measure.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "aio/page_memory.h"

namespace sluice::bench {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Subject {
  std::string name;
  double bytes = 0;  // read + written in one pass
  std::function<void()> pass;
};

class Measurement {
 public:
  Measurement(const AdamBenchOptions& options, std::vector<Subject> subjects,
              const tools::Interrupt& interrupt, tools::ProgressLine& progress)
      : options_(options),
        subjects_(std::move(subjects)),
        interrupt_(interrupt),
        progress_(progress) {}

  void warm_up() {
    for (const Subject& subject : subjects_)
      if (!interrupt_.requested()) subject.pass();
  }

  // Passes per second of each subject. The order rotates from run to run, so that no subject always
  // follows the same other one.
  std::vector<double> run(int number) {
    std::vector<double> passes_per_s(subjects_.size());
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      const std::size_t which = (i + static_cast<std::size_t>(number)) % subjects_.size();
      passes_per_s[which] = measure(subjects_[which], number);
    }
    return passes_per_s;
  }

 private:
  // Runs whole passes, at least one, until the time is over.
  double measure(const Subject& subject, int number) {
    const std::string what = subject.name + ", run " + std::to_string(number + 1) + " of " +
                             std::to_string(options_.runs);
    const double in_all = static_cast<double>(subjects_.size()) * options_.runs;
    // Before the first pass, since that one may take all of the time.
    progress_.update(what, {.seconds_left = (in_all - done_) * options_.seconds});
    const double begin = seconds_now();
    for (int passes = 1;; ++passes) {
      if (interrupt_.requested()) return 0;
      subject.pass();
      const double elapsed = seconds_now() - begin;
      if (elapsed >= options_.seconds) {
        ++done_;
        return passes / elapsed;
      }
      const double fraction = elapsed / options_.seconds;
      progress_.update(what, {.fraction = fraction,
                              .gb_per_s = 1e-9 * subject.bytes * passes / elapsed,
                              .seconds_left = (in_all - done_ - fraction) * options_.seconds});
    }
  }

  const AdamBenchOptions& options_;
  const std::vector<Subject> subjects_;
  const tools::Interrupt& interrupt_;
  tools::ProgressLine& progress_;
  int done_ = 0;
};

}  // namespace

std::vector<PlainPass> yardsticks_of(const AdamBenchOptions& options) {
  std::vector<PlainPass> passes = {{Traffic::kCopy, Stores::kRegular},
                                   {Traffic::kCopy, Stores::kNonTemporal}};
  if (options.kernel == BenchKernel::kAdamw) return passes;
  if (options.grad == offload::GradType::kFp32) {
    passes.push_back({Traffic::kRead, Stores::kRegular});
  } else {
    passes.push_back({Traffic::kHalve, Stores::kRegular});
    passes.push_back({Traffic::kHalve, Stores::kNonTemporal});
  }
  return passes;
}

Result<std::vector<AdamRun>> measure_kernel(const AdamBenchOptions& options,
                                            KernelWorkload& workload, aio::Executor& executor,
                                            const tools::Interrupt& interrupt,
                                            tools::ProgressLine& progress) {
  const std::uint64_t plain_bytes = options.plain_pass_bytes();
  SLUICE_ASSIGN_OR_RETURN(const aio::PageMemory from,
                          aio::PageMemory::map(plain_bytes, true, &executor));
  SLUICE_ASSIGN_OR_RETURN(const aio::PageMemory to,
                          aio::PageMemory::map(plain_bytes, true, &executor));
  std::vector<Subject> subjects;
  const double kernel_bytes = static_cast<double>(options.elements) * options.bytes_per_element();
  subjects.push_back({options.kernel == BenchKernel::kAdamw ? "AdamW" : "cast", kernel_bytes,
                      [&workload] { workload.pass(); }});
  for (const PlainPass pass : yardsticks_of(options))
    subjects.push_back(
        {std::string(to_string(pass.traffic)), static_cast<double>(pass.moved_bytes(plain_bytes)),
         [&, pass] { run_plain_pass(executor, pass, to.data(), from.data(), plain_bytes); }});

  Measurement measurement(options, subjects, interrupt, progress);
  measurement.warm_up();
  std::vector<AdamRun> runs;
  for (int number = 0; number < options.runs; ++number) {
    const std::vector<double> passes_per_s = measurement.run(number);
    if (interrupt.requested()) return Error(ErrorCode::kCancelled, "interrupted");
    AdamRun& run = runs.emplace_back();
    run.kernel_elements_per_s = passes_per_s[0] * static_cast<double>(options.elements);
    for (std::size_t i = 1; i < subjects.size(); ++i)
      run.plain_gb_per_s.push_back(1e-9 * subjects[i].bytes * passes_per_s[i]);
  }
  return runs;
}

}  // namespace sluice::bench
