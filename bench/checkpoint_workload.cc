#include "bench/checkpoint_workload.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "aio/split_mix.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/remove_checkpoint.h"

namespace sluice::bench {
namespace {

constexpr std::int64_t kStep = 1;  // step number of the checkpoint

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kTensorElements = 38'597'376 / 3;  // about a matrix of GPT-2 XL
constexpr std::uint64_t kRangeElements = 65'536;           // elements in a range of the offloader
constexpr std::uint64_t kWindows = 61;                     // number of distinct begins of a range
constexpr std::uint64_t kWindowStep = 257;

std::vector<engine::TensorSpec> parameters_of(std::uint64_t elements) {
  std::vector<engine::TensorSpec> parameters;
  for (std::uint64_t done = 0; done < elements;) {
    const std::uint64_t count = std::min(kTensorElements, elements - done);
    parameters.push_back(
        {.name = "h." + std::to_string(parameters.size()) + ".weight", .shape = {count}});
    done += count;
  }
  return parameters;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

// The progress of a pass.
class CheckpointWorkload::Watch {
 public:
  Watch(const tools::Interrupt& interrupt, const OnProgress& on_progress, std::uint64_t total_bytes)
      : interrupt_(interrupt), on_progress_(on_progress), total_bytes_(total_bytes) {}

  Status advance(std::uint64_t bytes) {
    done_bytes_ += bytes;
    if (interrupt_.requested()) return Error(ErrorCode::kCancelled, "interrupted");
    const auto done = static_cast<double>(done_bytes_);
    on_progress_(done / static_cast<double>(total_bytes_), done / seconds_since(begin_) / 1e9);
    return {};
  }
  double seconds() const { return seconds_since(begin_); }

 private:
  const tools::Interrupt& interrupt_;
  const OnProgress& on_progress_;
  const std::uint64_t total_bytes_;
  const Clock::time_point begin_ = Clock::now();
  std::uint64_t done_bytes_ = 0;
};

CheckpointWorkload::CheckpointWorkload(const CheckpointBenchOptions& options)
    : options_(options),
      home_(options.path() + "/checkpoint_bench"),
      folder_(home_ + "/" + engine::checkpoint_name(kStep)),
      parameters_(parameters_of(options.parameters)),
      values_(kRangeElements + kWindows * kWindowStep) {
  aio::SplitMix mix(1);
  for (float& value : values_) value = static_cast<float>(mix.unit()) - 0.5F;
}

CheckpointWorkload::~CheckpointWorkload() { static_cast<void>(remove()); }

Result<std::unique_ptr<CheckpointWorkload>> CheckpointWorkload::create(
    const CheckpointBenchOptions& options) {
  std::unique_ptr<CheckpointWorkload> workload(new CheckpointWorkload(options));
  const AioOptions& io = options.io;
  SLUICE_ASSIGN_OR_RETURN(workload->backend_,
                          aio::make_backend({.kind = io.backend, .queue_depth = io.queue_depth}));
  SLUICE_ASSIGN_OR_RETURN(
      workload->queue_, aio::IoQueue::create(*workload->backend_, {.block_bytes = io.block_bytes,
                                                                   .queue_depth = io.queue_depth}));
  SLUICE_RETURN_IF_ERROR(workload->take_home());
  return workload;
}

// Takes the folder for one program at a time, and removes what a killed program left there.
Status CheckpointWorkload::take_home() {
  aio::FileSystem& files = backend_->files();
  SLUICE_RETURN_IF_ERROR(files.make_directories(home_));
  auto lock = files.lock(home_ + "/lock");
  if (!lock.ok())
    return std::move(lock).error().with_context("another checkpoint_bench may be running");
  lock_ = std::move(*lock);
  SLUICE_RETURN_IF_ERROR(engine::settle_replacement(*queue_, folder_));
  return engine::remove_checkpoint(*queue_, folder_);
}

Status CheckpointWorkload::remove() {
  if (lock_ == nullptr) return {};
  aio::FileSystem& files = backend_->files();
  SLUICE_RETURN_IF_ERROR(engine::remove_checkpoint(*queue_, folder_));
  SLUICE_RETURN_IF_ERROR(files.remove(home_ + "/lock"));
  lock_.reset();
  return files.remove(home_);
}

std::uint64_t CheckpointWorkload::staging_bytes() const {
  return engine::PartWriter::staging_bytes({.chunks_in_flight = options_.chunks});
}

std::span<const float> CheckpointWorkload::source(std::size_t field, std::uint64_t element,
                                                  std::uint64_t count) const {
  const std::uint64_t window = (element / kRangeElements * 3 + field) % kWindows;
  return std::span(values_).subspan(window * kWindowStep, count);
}

Result<CheckpointPass> CheckpointWorkload::save(const tools::Interrupt& interrupt,
                                                const OnProgress& on_progress) {
  SLUICE_RETURN_IF_ERROR(engine::remove_checkpoint(*queue_, folder_));
  Watch watch(interrupt, on_progress, options_.state_bytes());
  CheckpointPass pass;
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          engine::CheckpointWriter::begin(*queue_, folder_, parameters_,
                                                          {.max_shard_bytes = options_.shard_bytes,
                                                           .chunks_in_flight = options_.chunks}));
  pass.begin_seconds = watch.seconds();
  for (const engine::TensorSpec& parameter : parameters_) {
    for (std::uint64_t first = 0; first < parameter.shape[0]; first += kRangeElements) {
      const std::uint64_t count = std::min(kRangeElements, parameter.shape[0] - first);
      SLUICE_RETURN_IF_ERROR(writer->append(
          parameter.name,
          {first, {source(0, first, count), source(1, first, count), source(2, first, count)}}));
      SLUICE_RETURN_IF_ERROR(watch.advance(12 * count));
    }
  }
  pass.end_seconds = watch.seconds();
  SLUICE_RETURN_IF_ERROR(
      writer->commit({.position = {.global_step = kStep}, .program_version = "bench"}));
  pass.seconds = watch.seconds();
  pass.end_seconds = pass.seconds - pass.end_seconds;
  pass.bytes = writer->total_bytes();
  return pass;
}

Result<CheckpointPass> CheckpointWorkload::read_all(const tools::Interrupt& interrupt,
                                                    const OnProgress& on_progress, bool compare) {
  Watch watch(interrupt, on_progress, options_.state_bytes());
  CheckpointPass pass;
  SLUICE_ASSIGN_OR_RETURN(
      const auto reader,
      engine::CheckpointReader::open(*queue_, folder_, {.chunks_ahead = options_.chunks}));
  pass.begin_seconds = watch.seconds();
  std::vector<float> room(offload::kStateFields.size() * kRangeElements);
  for (const engine::TensorInfo& parameter : reader->parameters()) {
    for (std::uint64_t first = 0; first < parameter.elements; first += kRangeElements) {
      const std::uint64_t count = std::min(kRangeElements, parameter.elements - first);
      const auto to = offload::state_slice_in(room, first, count, kRangeElements);
      SLUICE_RETURN_IF_ERROR(reader->read(parameter.name, to));
      SLUICE_RETURN_IF_ERROR(watch.advance(12 * count));
      for (std::size_t field = 0; compare && field < to.fields.size(); ++field) {
        const auto saved = source(field, first, count);
        if (std::memcmp(to.fields[field].data(), saved.data(), saved.size_bytes()) != 0)
          return Error(ErrorCode::kCorrupt, "the data loaded of " + parameter.name +
                                                " differs from the data saved, near element " +
                                                std::to_string(first));
      }
    }
  }
  pass.seconds = watch.seconds();
  pass.bytes = reader->manifest().total_bytes();
  return pass;
}

Result<CheckpointPass> CheckpointWorkload::load(const tools::Interrupt& interrupt,
                                                const OnProgress& on_progress) {
  return read_all(interrupt, on_progress, /*compare=*/false);
}

Status CheckpointWorkload::check(const tools::Interrupt& interrupt, const OnProgress& on_progress) {
  return read_all(interrupt, on_progress, /*compare=*/true).status();
}

}  // namespace sluice::bench
