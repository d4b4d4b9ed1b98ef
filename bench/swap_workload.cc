#include "bench/swap_workload.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "aio/make_backend.h"
#include "aio/units.h"
#include "offload/adamw/adamw.h"
#include "offload/adamw/half.h"
#include "offload/state/state_tiles.h"
#include "swap/record_work.h"
#include "swap/record_writer.h"

namespace sluice::bench {
namespace {

using offload::kTileElements;
using swap::RecordId;
using swap::SwapPipeline;

// Uniform in -1..1, and the same in every run.
float noise(std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) * 0x1p-23F - 1;
}

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

std::uint64_t elements_of_tile(std::uint64_t record_elements, int tile) {
  return std::min(kTileElements,
                  record_elements - static_cast<std::uint64_t>(tile) * kTileElements);
}

}  // namespace

Result<std::unique_ptr<SwapWorkload>> SwapWorkload::create(const SwapBenchOptions& options) {
  std::unique_ptr<SwapWorkload> workload(new SwapWorkload(options));
  SLUICE_ASSIGN_OR_RETURN(workload->executor_, aio::make_executor(options.threads));
  SLUICE_ASSIGN_OR_RETURN(workload->one_thread_, aio::make_executor(1));
  SLUICE_ASSIGN_OR_RETURN(
      workload->backend_,
      aio::make_backend({.kind = options.io.backend, .queue_depth = options.io.queue_depth}));
  const aio::IoQueue::Options queue{.block_bytes = options.io.block_bytes,
                                    .queue_depth = options.io.queue_depth / options.queues};
  SLUICE_ASSIGN_OR_RETURN(workload->reads_, aio::IoQueue::create(*workload->backend_, queue));
  if (options.queues == 2) {
    SLUICE_ASSIGN_OR_RETURN(workload->writes_, aio::IoQueue::create(*workload->backend_, queue));
  }
  SLUICE_ASSIGN_OR_RETURN(
      workload->scalars_,
      offload::make_adamw_scalars({.learning_rate = 1e-4, .weight_decay = 0.01, .step = 1000}));
  SLUICE_RETURN_IF_ERROR(workload->take_memory());
  SLUICE_RETURN_IF_ERROR(workload->make_store());
  return workload;
}

SwapWorkload::~SwapWorkload() {
  const Status removed = remove();
  if (!removed.ok()) log::error("the bench's state was not removed: " + removed.error().message());
}

Status SwapWorkload::remove() {
  if (store_ == nullptr) return {};
  const std::unique_ptr<swap::StateStore> store = std::move(store_);
  return store->remove();
}

Status SwapWorkload::take_memory() {
  const std::uint64_t elements = options_.record_elements_of(0);
  SLUICE_ASSIGN_OR_RETURN(gradient_, aio::PageMemory::map(2 * elements, /*huge_pages=*/true));
  const auto parameter_bytes =
      static_cast<std::uint64_t>(offload::param_bytes_per_element(options_.form.param));
  SLUICE_ASSIGN_OR_RETURN(parameters_,
                          aio::PageMemory::map(parameter_bytes * elements, /*huge_pages=*/true));
  auto* gradient = reinterpret_cast<std::uint16_t*>(gradient_.bytes().data());
  for (std::uint64_t i = 0; i < elements; ++i)
    gradient[i] = offload::bf16_from_float(1e-3F * noise(i));
  std::memset(parameters_.bytes().data(), 0, parameters_.bytes().size());
  aio::PinnedPool::Options pool;
  pool.buffer_bytes = options_.image_bytes();
  pool.capacity = options_.buffers;
  pool.backend = backend_.get();
  pool.executor = executor_.get();
  SLUICE_ASSIGN_OR_RETURN(pool_, aio::PinnedPool::create(pool));
  return {};
}

Status SwapWorkload::make_store() {
  std::vector<swap::RecordSpec> records;
  for (std::uint64_t i = 0; i < options_.records(); ++i) {
    const std::uint64_t elements = options_.record_elements_of(i);
    records.push_back({.parameter = "state",
                       .first_element = i * options_.record_elements,
                       .elements = elements,
                       .payload_bytes = offload::state_bytes(options_.form, elements)});
  }
  swap::StateStore::Options store;
  store.paths = options_.io.paths;
  store.weights = options_.io.weights;
  store.run = "swap_bench";
  store.stripe_bytes = options_.io.stripe_bytes;
  store.chunk_bytes = offload::tile_bytes(options_.form);
  SLUICE_ASSIGN_OR_RETURN(
      store_, swap::StateStore::create({*reads_, writes_ != nullptr ? *writes_ : *reads_}, store,
                                       std::move(records)));
  return {};
}

Status SwapWorkload::fill(const tools::Interrupt& interrupt, const OnProgress& on_progress) {
  const std::uint64_t elements = options_.record_elements_of(0);
  std::vector<std::byte> state(offload::state_bytes(options_.form, elements));
  const int tiles = static_cast<int>((elements - 1) / kTileElements + 1);
  executor_->run(tiles, [&](int tile) {
    const std::uint64_t count = elements_of_tile(elements, tile);
    const std::uint64_t first = static_cast<std::uint64_t>(tile) * kTileElements;
    const auto offset = static_cast<std::uint64_t>(tile) * offload::tile_bytes(options_.form);
    const auto fields = offload::state_tile(options_.form, state.data() + offset, count);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (fields.lo != nullptr) fields.lo[i] = static_cast<std::uint16_t>((first + i) * 40503);
      if (fields.master != nullptr) fields.master[i] = 0.05F * noise(first + i);
      const float m = 1e-4F * noise(first + i + elements);
      const float v = 1e-6F * (1 + noise(first + i + 2 * elements));
      if (options_.form.moments == offload::ElementType::kFp32) {
        fields.m[i] = m;
        fields.v[i] = v;
      } else {
        fields.m16[i] = offload::bf16_from_float(m);
        fields.v16[i] = offload::bf16_from_float(v);
      }
    }
  });
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          swap::RecordWriter::create(*store_, *pool_, options_.buffers));
  const std::int64_t begin_ns = backend_->clock().now_ns();
  std::uint64_t written = 0;
  for (RecordId id = 0; id < store_->record_count(); ++id) {
    if (interrupt.requested()) return Error(ErrorCode::kCancelled, "interrupted");
    SLUICE_ASSIGN_OR_RETURN(const auto payload, writer->begin(id));
    std::memcpy(payload.data(), state.data(), std::min(payload.size(), state.size()));
    SLUICE_RETURN_IF_ERROR(writer->write(*executor_));
    written += payload.size();
    on_progress(static_cast<double>(id + 1) / static_cast<double>(store_->record_count()),
                gb_per_s(written, backend_->clock().now_ns() - begin_ns));
  }
  return writer->finish();
}

void SwapWorkload::work_on_tile(std::uint64_t record_elements, int tile,
                                std::span<std::byte> data) const {
  const std::uint64_t elements = elements_of_tile(record_elements, tile);
  const std::uint64_t first = static_cast<std::uint64_t>(tile) * kTileElements;
  const auto param_bytes =
      static_cast<std::uint64_t>(offload::param_bytes_per_element(options_.form.param));
  offload::AdamwArrays arrays =
      offload::tile_arrays(options_.form, offload::state_tile(options_.form, data.data(), elements),
                           parameters_.bytes().data() + first * param_bytes);
  arrays.grad_type = offload::GradType::kBf16;
  arrays.grad = gradient_.bytes().data() + first * 2;
  offload::adamw_step(*one_thread_, options_.isa, scalars_, arrays, elements);
}

Status SwapWorkload::work_on_loan(SwapPipeline::Loan& loan) {
  if (!options_.adamw) return loan.work(*executor_, {});
  const std::uint64_t elements = loan.image().shape().elements;
  return loan.work(*executor_, [this, elements](int tile, std::span<std::byte> data) {
    work_on_tile(elements, tile, data);
  });
}

Result<SwapStep> SwapWorkload::step(SwapPipeline::Order order, const tools::Interrupt& interrupt,
                                    const OnProgress& on_progress) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto pipeline,
      SwapPipeline::create(
          *store_, *pool_,
          {.buffers = options_.buffers, .order = order, .burst_records = options_.burst_records}));
  std::vector<RecordId> records(store_->record_count());
  std::iota(records.begin(), records.end(), RecordId{0});
  const Clock& clock = backend_->clock();
  const std::int64_t begin_ns = clock.now_ns();
  pipeline->expect(records);
  for (const RecordId id : records) {
    if (interrupt.requested()) return Error(ErrorCode::kCancelled, "interrupted");
    SLUICE_ASSIGN_OR_RETURN(SwapPipeline::Loan loan, pipeline->next());
    SLUICE_RETURN_IF_ERROR(work_on_loan(loan));
    pipeline->write(std::move(loan));
    const swap::SwapStats so_far = pipeline->stats();
    on_progress(static_cast<double>(id) / static_cast<double>(records.size()),
                gb_per_s(so_far.bytes_read + so_far.bytes_written, clock.now_ns() - begin_ns));
  }
  SLUICE_RETURN_IF_ERROR(pipeline->drain());
  return SwapStep{.order = order,
                  .seconds = seconds_between(begin_ns, clock.now_ns()),
                  .stats = pipeline->stats()};
}

// The median of several passes over one record in memory.
Result<double> SwapWorkload::seconds_of(swap::RecordImage& image, bool check, bool work) {
  constexpr double kLongEnough = 0.3;
  constexpr std::size_t kPasses = 5;
  const Clock& clock = backend_->clock();
  const std::uint64_t elements = image.shape().elements;
  swap::RecordWork job;
  if (work) {
    job.work = [this, elements](int tile, std::span<std::byte> data) {
      work_on_tile(elements, tile, data);
    };
  }
  std::vector<double> seconds;
  const std::int64_t begin_ns = clock.now_ns();
  for (std::uint64_t generation = 1;
       seconds.size() < kPasses || seconds_between(begin_ns, clock.now_ns()) < kLongEnough;
       ++generation) {
    if (check) {
      job.check = generation;
      job.seal = generation + 1;
    }
    if (check && generation == 1)
      SLUICE_RETURN_IF_ERROR(work_on_record(*executor_, image, {.seal = generation}));
    const std::int64_t pass_ns = clock.now_ns();
    SLUICE_RETURN_IF_ERROR(work_on_record(*executor_, image, job));
    seconds.push_back(seconds_between(pass_ns, clock.now_ns()));
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

Result<ChecksumCost> SwapWorkload::measure_checksums() {
  const aio::PinnedPool::Lease lease = pool_->acquire();
  const swap::RecordShape& shape = store_->shape(0);
  swap::RecordImage image(shape, lease.bytes().first(shape.image_bytes()));
  SLUICE_RETURN_IF_ERROR(store_->read_checked(*executor_, 0, image.bytes()));
  ChecksumCost cost;
  SLUICE_ASSIGN_OR_RETURN(const double alone, seconds_of(image, /*check=*/true, /*work=*/false));
  cost.alone_gb_per_s = static_cast<double>(shape.payload_bytes) / alone / 1e9;
  cost.seconds_a_record = alone;
  if (!options_.adamw) return cost;
  SLUICE_ASSIGN_OR_RETURN(const double both, seconds_of(image, /*check=*/true, /*work=*/true));
  SLUICE_ASSIGN_OR_RETURN(cost.work_seconds_a_record,
                          seconds_of(image, /*check=*/false, /*work=*/true));
  cost.seconds_a_record = std::max(0.0, both - cost.work_seconds_a_record);
  return cost;
}

}  // namespace sluice::bench
