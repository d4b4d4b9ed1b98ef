#include "bench/scratch_file.h"

#include <algorithm>
#include <utility>

#include "aio/posix_backend.h"
#include "aio/striped_file.h"
#include "aio/units.h"
#include "bench/aio_workload.h"

namespace sluice::bench {

Result<std::unique_ptr<ScratchFile>> ScratchFile::create(const Options& options) {
  std::unique_ptr<ScratchFile> scratch(new ScratchFile);
  // These only keep the file open: no transfer uses them.
  SLUICE_ASSIGN_OR_RETURN(scratch->backend_, aio::PosixBackend::create({.threads = 1}));
  SLUICE_ASSIGN_OR_RETURN(
      scratch->queue_,
      aio::IoQueue::create(*scratch->backend_, {.block_bytes = kMiB, .queue_depth = 1}));
  SLUICE_ASSIGN_OR_RETURN(
      scratch->file_,
      aio::StripedFile::open(*scratch->queue_, options.folders,
                             {.stripe_bytes = options.stripe_bytes,
                              .weights = options.weights,
                              .file = {.open = {.access = aio::OpenOptions::Access::kReadWrite,
                                                .create = aio::OpenOptions::Create::kAnonymous},
                                       .size_bytes = options.size_bytes,
                                       .overwritten = true}}));  // like the state store's
  BenchTarget& target = scratch->target_;
  for (const aio::File* file : scratch->file_->files()) {
    target.open_paths.push_back("/proc/self/fd/" + std::to_string(file->descriptor()));
    target.shown_paths.push_back(file->path());
  }
  target.size_bytes = options.size_bytes;
  target.stripe_bytes = options.stripe_bytes;
  target.weights = options.weights;
  return scratch;
}

Result<std::vector<double>> measure_write_speeds(
    const std::vector<std::string>& folders, std::uint64_t probe_bytes, aio::BackendKind backend,
    const tools::Interrupt& interrupt,
    const std::function<void(const std::string&, double)>& on_progress) {
  std::vector<double> speeds;
  for (const std::string& folder : folders) {
    SLUICE_ASSIGN_OR_RETURN(
        const auto scratch,
        ScratchFile::create({.folders = {folder}, .size_bytes = probe_bytes, .weights = {1}}));
    AioSession::Options shape;
    shape.backend = backend;
    shape.block_bytes = std::min<std::uint64_t>(shape.block_bytes, probe_bytes);
    shape.writable = true;
    SLUICE_ASSIGN_OR_RETURN(const auto session, AioSession::open(scratch->target(), shape));
    const PassPlan pass{.range_bytes = probe_bytes};
    std::int64_t begin_ns = 0;
    for (int time = 0; time < 2; ++time) {
      begin_ns = session->clock().now_ns();
      SLUICE_RETURN_IF_ERROR(
          write_pass(*session, pass, interrupt, [&](double fraction, double /*gb_per_s*/) {
            on_progress(folder, (time + fraction) / 2);
          }));
    }
    speeds.push_back(gb_per_s(probe_bytes, session->clock().now_ns() - begin_ns));
  }
  return speeds;
}

}  // namespace sluice::bench
