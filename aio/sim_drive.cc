#include "aio/sim_drive.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "aio/check.h"
#include "aio/split_mix.h"

namespace sluice::aio {
namespace {

bool transfers(IoKind kind) { return kind == IoKind::kRead || kind == IoKind::kWrite; }

SimFile& sim_file(const IoOp& op, const SimFileSystem& files) {
  auto* file = dynamic_cast<SimFile*>(op.file);
  SLUICE_CHECK(file != nullptr && file->belongs_to(files), "a simulated drive got a foreign file");
  return *file;
}

}  // namespace

Status SimDrive::validate(const Options& options) {
  const auto reject = [](const char* what) {
    return Error(ErrorCode::kInvalidArgument, std::string("a simulated drive needs ") + what);
  };
  // Written so that NaN fails.
  if (!(options.read_gb_per_s > 0) || !(options.write_gb_per_s > 0)) {
    return reject("bandwidths above 0 GB/s");
  }
  for (const double time_us : {options.read_latency_us, options.write_latency_us, options.sync_us,
                               options.turnaround_us}) {
    if (!(time_us >= 0)) return reject("latencies of 0 or more microseconds");
  }
  if (!(options.latency_jitter >= 0 && options.latency_jitter <= 1)) {
    return reject("a latency jitter from 0 to 1");
  }
  if (options.depth < 1) return reject("a depth of at least 1");
  if (options.sector_bytes == 0) return reject("a sector of at least 1 byte");
  return {};
}

SimDrive::SimDrive(VirtualLoop& loop, const Options& options)
    : loop_(loop),
      options_(options),
      files_(
          {.capacity_bytes = options.capacity_bytes,
           .sector_bytes = options.sector_bytes,
           .data = {.keep_data = options.keep_data, .write_cache_bytes = options.write_cache_bytes},
           .on_change = [this] { return count_operation(); }}) {
  SLUICE_CHECK(validate(options).ok(), "a simulated drive's options make no sense");
}

SimDrive::~SimDrive() {
  loop_.run_until([this] { return events_pending_ == 0; });
}

PumpResult SimDrive::pump() {
  return loop_.run_one() ? PumpResult::kProgressed : PumpResult::kIdle;
}

// ---- stages of an op --------------------------------------------------------------------------

void SimDrive::after(std::int64_t delay_ns, void (SimDrive::*step)(Ticket), Ticket ticket) {
  ++events_pending_;
  loop_.schedule_after(delay_ns, [this, step, ticket] {
    --events_pending_;
    (this->*step)(ticket);
  });
}

void SimDrive::submit(std::span<IoOp* const> ops) noexcept {
  for (IoOp* op : ops) submit_one(*op);
}

void SimDrive::submit_one(IoOp& op) {
  const Ticket ticket = next_ticket_++;
  InFlight entry{.op = &op, .stage = Stage::kDelayed};
  if (op.kind == IoKind::kNop) {
    in_flight_.emplace(ticket, entry);
    after(op.delay_ns, &SimDrive::finish, ticket);
    return;
  }
  const SimFile& file = sim_file(op, files_);
  if (transfers(op.kind)) {
    entry.error =
        file.check_transfer(op.kind == IoKind::kWrite, op.offset_bytes, op.data, op.length_bytes);
  } else {
    entry.error = file.check_transfer(false, 0, nullptr, 0);
    // Everything that has completed so far has a smaller number.
    entry.sync_end = files_.next_sequence();
  }
  if (entry.error != 0) {
    entry.stage = Stage::kFailing;
    in_flight_.emplace(ticket, entry);
    after(0, &SimDrive::finish, ticket);
  } else {
    in_flight_.emplace(ticket, entry);
    if (op.delay_ns > 0) {
      after(op.delay_ns, &SimDrive::arrive, ticket);
    } else {
      arrive(ticket);
    }
  }
  count_operation();
}

void SimDrive::arrive(Ticket ticket) {
  const auto it = in_flight_.find(ticket);
  if (it == in_flight_.end() || it->second.stage == Stage::kFailing) return;
  it->second.stage = Stage::kWaiting;
  waiting_.push_back(ticket);
  fill_slots();
}

void SimDrive::fill_slots() {
  while (in_service_ < options_.depth && !waiting_.empty()) {
    const Ticket ticket = waiting_.front();
    waiting_.pop_front();
    InFlight& entry = in_flight_.at(ticket);
    entry.stage = Stage::kServed;
    if (in_service_++ == 0) busy_since_ns_ = loop_.now_ns();
    stats_.max_in_service = std::max(stats_.max_in_service, in_service_);
    after(latency_ns(ticket, entry.op->kind),
          transfers(entry.op->kind) ? &SimDrive::enter_pipe : &SimDrive::finish, ticket);
  }
}

std::int64_t SimDrive::latency_ns(Ticket ticket, IoKind kind) const {
  double latency_us = options_.sync_us;
  if (kind == IoKind::kRead) latency_us = options_.read_latency_us;
  if (kind == IoKind::kWrite) latency_us = options_.write_latency_us;
  const double luck = 2.0 * SplitMix(options_.seed, ticket).unit() - 1.0;
  return std::llround(latency_us * 1000.0 * (1.0 + options_.latency_jitter * luck));
}

void SimDrive::enter_pipe(Ticket ticket) {
  const auto it = in_flight_.find(ticket);
  if (it == in_flight_.end() || it->second.stage == Stage::kFailing) return;
  const IoOp& op = *it->second.op;
  const bool writes = op.kind == IoKind::kWrite;
  Pipe& pipe = pipes_[!options_.half_duplex && writes ? 1 : 0];
  const auto now_ns = static_cast<double>(loop_.now_ns());
  // Fractions of a nanosecond are kept: many small ops must add up to the bandwidth.
  double start_ns = std::max(pipe.free_ns, now_ns);
  if (pipe.used && pipe.last_was_write != writes) start_ns += options_.turnaround_us * 1000.0;
  const double gb_per_s = writes ? options_.write_gb_per_s : options_.read_gb_per_s;
  const double pass_ns = static_cast<double>(op.length_bytes) / gb_per_s;
  pipe = {.free_ns = start_ns + pass_ns, .last_was_write = writes, .used = true};
  (writes ? stats_.write : stats_.read).pipe_busy_ns += std::llround(pass_ns);
  after(static_cast<std::int64_t>(std::ceil(pipe.free_ns - now_ns)), &SimDrive::finish, ticket);
}

void SimDrive::finish(Ticket ticket) {
  const auto it = in_flight_.find(ticket);
  if (it == in_flight_.end()) return;  // a power loss has ended it
  const InFlight done = it->second;
  in_flight_.erase(it);
  if (done.stage == Stage::kServed) {
    if (--in_service_ == 0) stats_.busy_ns += loop_.now_ns() - busy_since_ns_;
  }
  const std::int64_t result = carry_out(done);
  if (result < 0) ++stats_.failed_ops;
  fill_slots();
  done.op->on_done(*done.op, result);
}

std::int64_t SimDrive::carry_out(const InFlight& done) {
  if (done.error != 0) return done.error;
  const IoOp& op = *done.op;
  if (op.kind == IoKind::kNop) return 0;
  SimFileData& content = sim_file(op, files_).content();
  if (op.kind == IoKind::kSync) {
    content.sync(done.sync_end);
    ++stats_.syncs;
    return 0;
  }
  const std::span<std::byte> data(op.data, op.length_bytes);
  DirectionStats& direction = op.kind == IoKind::kRead ? stats_.read : stats_.write;
  std::uint64_t moved = op.length_bytes;
  if (op.kind == IoKind::kRead) {
    const std::uint64_t size = content.present().size_bytes;
    moved = std::min(moved, size - std::min(size, op.offset_bytes));
    if (options_.keep_data) content.present().pages.read(op.offset_bytes, data.first(moved));
  } else if (moved > 0) {
    if (!files_.take_space(content, op.offset_bytes, op.offset_bytes + moved)) return -ENOSPC;
    last_write_ = files_.next_sequence();
    content.write(last_write_, {.offset_bytes = op.offset_bytes,
                                .length_bytes = moved,
                                .data = options_.keep_data ? data : std::span<std::byte>()});
  }
  ++direction.ops;
  direction.bytes += moved;
  return static_cast<std::int64_t>(moved);
}

// ---- power ------------------------------------------------------------------------------------

void SimDrive::power_loss(PowerLoss policy, std::uint64_t seed) {
  trigger_.reset();
  if (!files_.powered()) return;
  // Ops in flight may have reached the medium: each counts as one more unsynced write, in the order
  // of submission.
  for (auto& [ticket, entry] : in_flight_) {
    const IoOp& op = *entry.op;
    if (op.kind == IoKind::kWrite && op.length_bytes > 0 &&
        (entry.stage == Stage::kWaiting || entry.stage == Stage::kServed)) {
      SimFileData& content = sim_file(op, files_).content();
      if (files_.take_space(content, op.offset_bytes, op.offset_bytes + op.length_bytes)) {
        last_write_ = files_.next_sequence();
        content.write(last_write_, {.offset_bytes = op.offset_bytes,
                                    .length_bytes = op.length_bytes,
                                    .data = {op.data, options_.keep_data ? op.length_bytes : 0U}});
      }
    }
  }
  PowerLossModel::Scene scene{.metadata = {}, .last_write = last_write_};
  files_.list_pending_metadata(scene.metadata);
  files_.lose_power(PowerLossModel(policy, seed, std::move(scene)));

  waiting_.clear();
  pipes_ = {};
  if (in_service_ > 0) stats_.busy_ns += loop_.now_ns() - busy_since_ns_;
  in_service_ = 0;
  for (auto& [ticket, entry] : in_flight_) {
    if (entry.op->kind == IoKind::kNop || entry.stage == Stage::kFailing) continue;
    entry.stage = Stage::kFailing;
    entry.error = -EIO;
    after(0, &SimDrive::finish, ticket);
  }
}

void SimDrive::restore_power() { files_.restore_power(); }

void SimDrive::fail_after_ops(std::uint64_t n, PowerLoss policy, std::uint64_t seed) {
  SLUICE_CHECK(n > 0, "power cannot fail at operation 0");
  trigger_ = {.at_operation = operations_ + n, .policy = policy, .seed = seed};
}

// True if the power fails at this operation.
bool SimDrive::count_operation() {
  ++operations_;
  if (!trigger_ || trigger_->at_operation != operations_) return false;
  const Trigger now = *trigger_;
  power_loss(now.policy, now.seed);
  return true;
}

// ---- inspection -------------------------------------------------------------------------------

std::optional<std::vector<std::byte>> SimDrive::content(const std::string& path, View view) const {
  const bool durable = view == View::kDurable;
  const SimNames::Found found =
      files_.names().find(path, durable ? SimNames::View::kDurable : SimNames::View::kPresent);
  if (found.node == nullptr || found.node->file == nullptr) return std::nullopt;
  const SimFileData& file = *found.node->file;
  const SimFileData::State& state = durable ? file.durable() : file.present();
  std::vector<std::byte> bytes(state.size_bytes);
  state.pages.read(0, bytes);
  return bytes;
}

SimDrive::Stats SimDrive::stats() const {
  Stats stats = stats_;
  if (in_service_ > 0) stats.busy_ns += loop_.now_ns() - busy_since_ns_;
  return stats;
}

}  // namespace sluice::aio
