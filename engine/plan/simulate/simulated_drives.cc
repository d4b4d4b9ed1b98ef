#include "engine/plan/simulate/simulated_drives.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "aio/check.h"
#include "swap/record_image.h"

namespace sluice::engine {
namespace {

constexpr double kGb = 1e9;
constexpr const char* kFolder = "simulated";

// Uses one pipe for both directions, or one for each, whichever is closer to the measured rates of
// simultaneous reads and writes.
aio::SimDrive::Options drive_options(const offload::DuplexRates& rates) {
  const double in = rates.in_bytes_per_s;
  const double out = rates.out_bytes_per_s;
  const double both = rates.in_both_bytes_per_s + rates.out_both_bytes_per_s;
  const double one_pipe = 4 / (1 / in + 1 / out);  // reads and writes take turns
  return {.read_gb_per_s = in / kGb,
          .write_gb_per_s = out / kGb,
          .half_duplex = both > 0 && both < (one_pipe / 2 + in + out) / 2,
          .capacity_bytes = std::uint64_t{1} << 46,
          .keep_data = false};
}

// Seals the record like a computed one; its content does not matter.
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
  using enum Transfer;
  SLUICE_RETURN_IF_ERROR(
      drives->make_lines(options.params, "parameters", kReadParams, drives->params_));
  SLUICE_RETURN_IF_ERROR(
      drives->make_lines(options.inputs, "inputs", kReadInputs, drives->inputs_));
  SLUICE_RETURN_IF_ERROR(
      drives->make_lines(options.gradients, "gradients", kReadGradients, drives->gradients_));
  return drives;
}

SimulatedDrives::~SimulatedDrives() {
  for (Line& line : lines_)
    if (line.done) line.done = [] {};
  wait_for_lines();
}

void SimulatedDrives::wait_for_lines() {
  const auto in_flight = [](const Line& it) { return it.done != nullptr; };
  while (std::any_of(lines_.begin(), lines_.end(), in_flight)) drive_->pump();
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

// A line for reads, followed by one for writes.
Status SimulatedDrives::make_lines(const UnitRecords& records, const char* run, Transfer first,
                                   Units& units) {
  if (records.records.empty()) return {};
  constexpr std::uint64_t kChunkBytes = 16 * kMiB;
  units.records = records;
  SLUICE_ASSIGN_OR_RETURN(
      units.store, swap::StateStore::create(
                       {*reads_, *writes_},
                       {.paths = {kFolder}, .run = run, .chunk_bytes = kChunkBytes, .label = run},
                       records.records));
  SLUICE_ASSIGN_OR_RETURN(units.pool, make_pool(*units.store, 2));
  for (std::size_t i = 0; i < 2; ++i) {
    Line& line = lines_[static_cast<std::size_t>(first) + i];
    line.owner = this;
    line.units = &units;
    line.reads = i == 0;
    line.buffer = units.pool->acquire();
    line.io.set_callback(&SimulatedDrives::on_record_done, &line);
  }
  return write_all(*units.store, lines_[static_cast<std::size_t>(first)].buffer.bytes());
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
  wait_for_lines();
  SLUICE_RETURN_IF_ERROR(status_);
  return pipeline_ != nullptr ? pipeline_->drain() : Status();
}

void SimulatedDrives::transfer(Transfer what, int unit, double bytes, std::function<void()> done) {
  Line& line = lines_[static_cast<std::size_t>(what)];
  const UnitRecords& records = line.units->records;
  line.next = static_cast<swap::RecordId>(records.first[static_cast<std::size_t>(unit)]);
  const auto of_record = static_cast<double>(records.records[line.next].payload_bytes);
  const auto count = static_cast<int>(std::lround(bytes / of_record));
  line.end = line.next + static_cast<swap::RecordId>(std::clamp(count, 1, records.of_unit));
  line.done = std::move(done);
  go_on(line);
}

void SimulatedDrives::go_on(Line& line) {
  const swap::RecordId id = line.next++;
  swap::StateStore& store = *line.units->store;
  const std::span<std::byte> image = line.buffer.bytes().first(store.shape(id).image_bytes());
  if (line.reads) {
    store.read(line.io, id, image);
    return;
  }
  const auto generation = store.generation(id);
  SLUICE_CHECK(generation, "every record was written");
  store.write(line.io, id, *generation + 1, image);
}

void SimulatedDrives::on_record_done(swap::RecordIo& io, void* context) noexcept {
  auto& line = *static_cast<Line*>(context);
  SimulatedDrives& owner = *line.owner;
  if (!io.status().ok() && owner.status_.ok()) owner.status_ = io.status();
  (line.reads ? owner.bytes_read_ : owner.bytes_written_) +=
      line.units->store->shape(line.next - 1).image_bytes();
  if (line.next < line.end) return go_on(line);
  std::exchange(line.done, nullptr)();
}

}  // namespace sluice::engine
