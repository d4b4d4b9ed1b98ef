#include "engine/plan/simulate/simulated_drives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "aio/check.h"
#include "swap/record_image.h"

namespace sluice::engine {
namespace {

constexpr double kGb = 1e9;
constexpr const char* kFolder = "simulated";

// One pipe for both directions, or one for each, whichever is nearer to the rates with both at
// once.
aio::SimDrive::Options drive_options(const offload::DuplexRates& rates) {
  const double in = rates.in_bytes_per_s;
  const double out = rates.out_bytes_per_s;
  const double both = rates.in_both_bytes_per_s + rates.out_both_bytes_per_s;
  const double one_pipe = 4 / (1 / in + 1 / out);  // taking turns
  return {.read_gb_per_s = in / kGb,
          .write_gb_per_s = out / kGb,
          .half_duplex = both > 0 && both < (one_pipe / 2 + in + out) / 2,
          .capacity_bytes = std::uint64_t{1} << 46,
          .keep_data = false};
}

// As a computed image would be; its content does not matter.
void seal(swap::RecordImage& image, std::uint64_t generation) {
  image.begin_seal(generation);
  image.finish_seal();
}

Result<std::unique_ptr<aio::PinnedPool>> make_pool(const swap::StateStore& store, int buffers) {
  return aio::PinnedPool::create({.buffer_bytes = store.layout().largest_image_bytes(),
                                  .capacity = buffers,
                                  .lock = aio::MemoryLock::kNone});
}

}  // namespace

Result<std::unique_ptr<SimulatedDrives>> SimulatedDrives::create(aio::VirtualLoop& loop,
                                                                 const Options& options) {
  const aio::SimDrive::Options drive = drive_options(options.rates);
  SLUICE_RETURN_IF_ERROR(aio::SimDrive::validate(drive));
  std::unique_ptr<SimulatedDrives> drives(new SimulatedDrives());
  drives->drive_ = std::make_unique<aio::SimDrive>(loop, drive);
  SLUICE_RETURN_IF_ERROR(drives->drive_->files().make_directories(kFolder));
  SLUICE_ASSIGN_OR_RETURN(drives->reads_, aio::IoQueue::create(*drives->drive_, options.queue));
  SLUICE_ASSIGN_OR_RETURN(drives->writes_, aio::IoQueue::create(*drives->drive_, options.queue));
  if (!options.state.empty()) SLUICE_RETURN_IF_ERROR(drives->make_state(options));
  if (!options.params.empty()) SLUICE_RETURN_IF_ERROR(drives->make_params(options));
  return drives;
}

SimulatedDrives::~SimulatedDrives() {
  for (ParamTransfer& transfer : transfers_)
    if (transfer.done) transfer.done = [] {};
  wait_for_params();
}

void SimulatedDrives::wait_for_params() {
  const auto in_flight = [](const ParamTransfer& it) { return it.done != nullptr; };
  while (std::any_of(transfers_.begin(), transfers_.end(), in_flight)) drive_->pump();
}

Status SimulatedDrives::make_state(const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(state_,
                          swap::StateStore::create({*reads_, *writes_},
                                                   {.paths = {kFolder},
                                                    .run = "state",
                                                    .chunk_bytes = options.state_chunk_bytes,
                                                    .label = "optimizer state"},
                                                   options.state));
  order_.resize(state_->record_count());
  std::iota(order_.begin(), order_.end(), swap::RecordId{0});
  SLUICE_ASSIGN_OR_RETURN(state_pool_, make_pool(*state_, options.swap.buffers));
  SLUICE_RETURN_IF_ERROR(write_all(*state_, state_pool_->acquire().bytes()));
  SLUICE_ASSIGN_OR_RETURN(pipeline_,
                          swap::SwapPipeline::create(*state_, *state_pool_, options.swap));
  return {};
}

Status SimulatedDrives::make_params(const Options& options) {
  constexpr std::uint64_t kChunkBytes = 16 * kMiB;
  SLUICE_ASSIGN_OR_RETURN(params_, swap::StateStore::create({*reads_, *writes_},
                                                            {.paths = {kFolder},
                                                             .run = "parameters",
                                                             .chunk_bytes = kChunkBytes,
                                                             .label = "parameters"},
                                                            options.params));
  SLUICE_ASSIGN_OR_RETURN(params_pool_, make_pool(*params_, static_cast<int>(transfers_.size())));
  for (ParamTransfer& transfer : transfers_) {
    transfer.owner = this;
    transfer.buffer = params_pool_->acquire();
    transfer.io.set_callback(&SimulatedDrives::on_params_done, &transfer);
  }
  transfers_[1].direction = Direction::kWrite;
  return write_all(*params_, transfers_[0].buffer.bytes());
}

Status SimulatedDrives::write_all(swap::StateStore& store, std::span<std::byte> buffer) {
  swap::RecordIo io;
  bool ended = false;
  io.set_callback([](swap::RecordIo&, void* flag) noexcept { *static_cast<bool*>(flag) = true; },
                  &ended);
  for (swap::RecordId id = 0; id < store.record_count(); ++id) {
    swap::RecordImage image(store.shape(id), buffer.first(store.shape(id).image_bytes()));
    seal(image, 1);
    ended = false;
    store.write(io, id, 1, image.bytes());
    while (!ended) store.pump();
    SLUICE_RETURN_IF_ERROR(io.status());
  }
  return {};
}

void SimulatedDrives::announce() { pipeline_->expect(order_); }

void SimulatedDrives::write(swap::SwapPipeline::Loan loan) {
  seal(loan.image(), loan.next_generation());
  pipeline_->write(std::move(loan));
}

Status SimulatedDrives::drain() {
  wait_for_params();
  SLUICE_RETURN_IF_ERROR(status_);
  return pipeline_ != nullptr ? pipeline_->drain() : Status();
}

void SimulatedDrives::transfer_params(int unit, Direction direction, std::function<void()> done) {
  ParamTransfer& transfer = transfers_[static_cast<std::size_t>(direction)];
  const auto id = static_cast<swap::RecordId>(unit);
  transfer.bytes = params_->shape(id).image_bytes();
  transfer.done = std::move(done);
  const std::span<std::byte> image = transfer.buffer.bytes().first(transfer.bytes);
  if (direction == Direction::kRead) {
    params_->read(transfer.io, id, image);
    return;
  }
  const auto generation = params_->generation(id);
  SLUICE_CHECK(generation, "every unit's parameters were written");
  params_->write(transfer.io, id, *generation + 1, image);
}

void SimulatedDrives::on_params_done(swap::RecordIo& io, void* context) noexcept {
  auto& transfer = *static_cast<ParamTransfer*>(context);
  SimulatedDrives& owner = *transfer.owner;
  if (!io.status().ok() && owner.status_.ok()) owner.status_ = io.status();
  const bool read = transfer.direction == Direction::kRead;
  (read ? owner.bytes_read_ : owner.bytes_written_) += transfer.bytes;
  std::exchange(transfer.done, nullptr)();
}

}  // namespace sluice::engine
