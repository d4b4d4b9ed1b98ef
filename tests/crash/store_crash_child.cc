// A run that can be killed at any moment. It reports each action on standard output before it
// continues; the reader of this output is the oracle.
//
//   store_crash_child FOLDER SEED
//
// It starts like any run: looks for leftovers and creates its store anew. Then it continues
// forever: steps that read each record, check it, change it and write it. After a few steps it
// removes the store and creates it again.
//
//   found leftover | found nothing    what the start found
//   made                              all records are of step 0
//   step N                            all records are of step N
//   removing
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include "aio/make_backend.h"
#include "aio/pinned_pool.h"
#include "aio/split_mix.h"
#include "aio/units.h"
#include "swap/record_writer.h"
#include "swap/state_store.h"
#include "swap/store_inventory.h"
#include "swap/swap_pipeline.h"

namespace sluice::swap {
namespace {

constexpr std::uint64_t kPayloadBytes = 700'000;
constexpr std::uint64_t kChunkBytes = 65'536;
constexpr RecordId kRecords = 12;

// Unbuffered, so that output before the kill is not lost.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(3);
}

[[noreturn]] void die(const Error& error) {
  say("error " + error.message());
  std::_Exit(1);
}
void die_if_error(const Status& status) {
  if (!status.ok()) die(status.error());
}
template <typename T>
T value_or_die(Result<T> result) {
  if (!result.ok()) die(result.error());
  return std::move(result).value();
}

std::uint64_t value_at(std::uint64_t step, RecordId record, std::uint64_t offset_bytes) {
  return aio::SplitMix(step * 1000 + record, offset_bytes).next();
}

// Checks that a chunk belongs to one step and changes it to the next.
class Chunk {
 public:
  Chunk(RecordId record, int index, std::span<std::byte> data)
      : record_(record), begin_(static_cast<std::uint64_t>(index) * kChunkBytes), data_(data) {}

  bool is_of(std::uint64_t step) const {
    for (std::size_t i = 0; i + 8 <= data_.size(); i += 8) {
      std::uint64_t value = 0;
      std::memcpy(&value, data_.data() + i, 8);
      if (value != value_at(step, record_, begin_ + i)) return false;
    }
    return true;
  }
  void fill(std::uint64_t step) {
    for (std::size_t i = 0; i + 8 <= data_.size(); i += 8) {
      const std::uint64_t value = value_at(step, record_, begin_ + i);
      std::memcpy(data_.data() + i, &value, 8);
    }
  }

 private:
  RecordId record_;
  std::uint64_t begin_;
  std::span<std::byte> data_;
};

std::vector<RecordSpec> records() {
  std::vector<RecordSpec> specs;
  for (RecordId id = 0; id < kRecords; ++id)
    specs.push_back({"unit." + std::to_string(id), 0, kPayloadBytes / 8, kPayloadBytes});
  return specs;
}

class Run {
 public:
  Run(std::string folder, std::uint64_t seed)
      : paths_({folder + "/a", folder + "/b"}), random_(seed) {
    backend_ =
        value_or_die(aio::make_backend({.kind = aio::BackendKind::kAuto, .queue_depth = 16}));
    queue_ = value_or_die(
        aio::IoQueue::create(*backend_, {.block_bytes = 128 * kKiB, .queue_depth = 16}));
    executor_ = value_or_die(aio::make_executor(1));
    pool_ = value_or_die(
        aio::PinnedPool::create({.buffer_bytes = kMiB, .capacity = 4, .huge_pages = false}));
  }

  [[noreturn]] void live() {
    look();
    for (;;) {
      make();
      const auto steps = 1 + random_.below(4);
      for (std::uint64_t i = 0; i < steps; ++i) one_step();
      say("removing");
      die_if_error(store_->remove());
      store_.reset();
    }
  }

 private:
  // Everything that a killed run left on either path is recognised.
  void look() {
    bool leftover = false;
    for (const std::string& path : paths_) {
      for (const FoundRun& found : value_or_die(find_runs(*queue_, path))) {
        if (found.condition == StoreCondition::kLeftover)
          leftover = true;
        else if (found.condition != StoreCondition::kUnclaimed)
          die(Error(ErrorCode::kInternal, describe(found)));
      }
    }
    say(leftover ? "found leftover" : "found nothing");
  }

  void make() {
    StateStore::Options options;
    options.paths = paths_;
    options.run = "crash";
    options.stripe_bytes = 256 * kKiB;
    options.chunk_bytes = kChunkBytes;
    store_ = value_or_die(StateStore::create({*queue_, *queue_}, options, records()));
    const auto writer = value_or_die(RecordWriter::create(*store_, *pool_, 2));
    for (RecordId id = 0; id < kRecords; ++id) {
      std::span<std::byte> payload = value_or_die(writer->begin(id));
      for (int chunk = 0; !payload.empty(); ++chunk) {
        const auto data = payload.first(std::min<std::size_t>(payload.size(), kChunkBytes));
        Chunk(id, chunk, data).fill(0);
        payload = payload.subspan(data.size());
      }
      die_if_error(writer->write(*executor_));
    }
    die_if_error(writer->finish());
    step_ = 0;
    say("made");
  }

  void one_step() {
    const auto pipeline = value_or_die(SwapPipeline::create(*store_, *pool_, {.buffers = 3}));
    std::array<RecordId, kRecords> all{};
    std::iota(all.begin(), all.end(), 0);
    pipeline->expect(all);
    for (RecordId id = 0; id < kRecords; ++id) {
      auto loan = value_or_die(pipeline->next());
      die_if_error(loan.work(*executor_, [&](int index, std::span<std::byte> data) {
        Chunk chunk(id, index, data);
        if (!chunk.is_of(step_)) {
          say("error record " + store_->name(id) + " is not of step " + std::to_string(step_));
          std::_Exit(1);
        }
        chunk.fill(step_ + 1);
      }));
      pipeline->write(std::move(loan));
    }
    ++step_;
    say("step " + std::to_string(step_));
    die_if_error(pipeline->drain());
  }

  const std::vector<std::string> paths_;
  aio::SplitMix random_;
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::Executor> executor_;
  std::unique_ptr<aio::PinnedPool> pool_;
  std::unique_ptr<StateStore> store_;
  std::uint64_t step_ = 0;
};

}  // namespace
}  // namespace sluice::swap

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: store_crash_child FOLDER SEED\n");
    return 2;
  }
  sluice::swap::Run(argv[1], std::strtoull(argv[2], nullptr, 10)).live();
}
