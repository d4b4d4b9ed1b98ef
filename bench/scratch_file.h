// ScratchFile: the file aio_bench measures on, in one folder or striped over several.
//
// The file has no name, so that it disappears with the process, however that ends. Sessions open it
// again through /proc/self/fd. create() reserves its space. The first write to reserved space is
// slow, and reads of it never reach the drive, so write it once before measuring.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/aio_session.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {

class ScratchFile {
 public:
  struct Options {
    std::vector<std::string> folders;
    std::uint64_t size_bytes = 0;
    std::uint64_t stripe_bytes = 1 << 20;
    std::vector<int> weights;  // one per folder
  };
  static Result<std::unique_ptr<ScratchFile>> create(const Options& options);

  const BenchTarget& target() const { return target_; }

 private:
  ScratchFile() = default;

  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::IoTarget> file_;
  BenchTarget target_;
};

// Measures how fast each folder's drive writes, in GB/s, for StripedFile::weights_from_speeds. A
// scratch file of at most probe_bytes is written twice; the second time counts.
Result<std::vector<double>> measure_write_speeds(
    const std::vector<std::string>& folders, std::uint64_t probe_bytes, aio::BackendKind backend,
    const tools::Interrupt& interrupt,
    const std::function<void(const std::string&, double)>& on_progress);

}  // namespace sluice::bench
