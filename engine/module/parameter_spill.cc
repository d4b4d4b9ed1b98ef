#include "engine/module/parameter_spill.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "aio/real_file_system.h"
#include "aio/units.h"
#include "engine/budget/memory_ledger.h"
#include "engine/device/gpu.h"
#include "engine/model/slot_storage.h"
#include "engine/preflight/machine_facts.h"
#include "engine/preflight/nvme_folders.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kLeastCacheBytes = 16 * kMiB;
constexpr std::uint64_t kTrimBytes = 16 * kMiB;
constexpr std::uint64_t kPageBytes = 4096;

// A storage's data pointer with `value` as its context, whether its memory is resident or not.
at::DataPtr pointer_of(void* memory, void* value, c10::DeleterFnPtr end) {
  return {memory, value, end, at::kCPU};
}

// Compares bits, not numbers: any value that is not all zero bits is written.
bool all_zero(const std::byte* bytes, std::uint64_t count) {
  return count == 0 || (bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, count - 1) == 0);
}

// Pages read from a mapped file stay in memory until the kernel reclaims them, unless the process
// gives them up. Pages that were written stay.
void leave_mapping(const at::DataPtr& memory, std::uint64_t bytes) {
#ifdef MADV_PAGEOUT
  const auto first = reinterpret_cast<std::uintptr_t>(memory.get());
  const std::uint64_t begin = align_up(first, kPageBytes);
  const std::uint64_t end = align_down(first + bytes, kPageBytes);
  if (begin >= end) return;
  auto* const pages = static_cast<std::byte*>(memory.get()) + (begin - first);
  static_cast<void>(::madvise(pages, end - begin, MADV_PAGEOUT));
#endif
}

// The C library keeps freed memory between allocations that are in use, which may add up to the
// whole module.
void trim_heap() {
#ifdef __GLIBC__
  static_cast<void>(::malloc_trim(0));
#endif
}

// For one of the ranks that share the host.
std::uint64_t cache_of(const config::Config& config, int local_ranks) {
  const auto ranks = static_cast<std::uint64_t>(local_ranks);
  if (!config.budget.cpu_gib)
    return std::max(host_free(machine_facts(config)).value_or(4 * kGiB) / 4 / ranks,
                    kLeastCacheBytes);
  const auto budget = static_cast<std::uint64_t>(*config.budget.cpu_gib * kGiB) / ranks;
  const std::uint64_t program = program_bytes(uses_cuda(config), /*has_python=*/true);
  return std::max(budget - std::min(budget, program), 2 * kLeastCacheBytes) / 2;
}

}  // namespace

Result<std::shared_ptr<ParameterSpill>> ParameterSpill::create(
    const config::Config& config, std::optional<std::uint64_t> cache_bytes, int local_ranks) {
  std::vector<std::string> folders = nvme_folders(config);
  if (folders.empty()) return std::shared_ptr<ParameterSpill>();
  aio::RealFileSystem files;
  SLUICE_RETURN_IF_ERROR(require_nvme_folders(config, files));
  SLUICE_ASSIGN_OR_RETURN(auto spill, SpillFiles::create(config, std::move(folders)));
  return std::shared_ptr<ParameterSpill>(new ParameterSpill(
      std::move(spill), cache_bytes ? *cache_bytes : cache_of(config, local_ranks)));
}

ParameterSpill::~ParameterSpill() {
  if (getpid() != maker_) static_cast<void>(files_.release());
}

ParameterSpill::Value* ParameterSpill::find(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.cast_context<Value>(&ParameterSpill::end_value);
}

std::string ParameterSpill::name_of(const Value& value) {
  std::string text = "a parameter of shape [";
  for (std::size_t i = 0; i < value.shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(value.shape[i]);
  return text + "]";
}

// ---- values
// --------------------------------------------------------------------------------------

Result<bool> ParameterSpill::adopt(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) return false;
  if (find(tensor) != nullptr) return false;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  // Memory without a context belongs to other code, such as tensors that an engine lends.
  if (storage.nbytes() == 0 || storage._mutable_data_ptr_no_checks().get_context() == nullptr)
    return false;
  if (storage.mutable_data() == nullptr) return false;
  auto value = std::make_unique<Value>();
  value->spill = shared_from_this();
  value->storage = &storage;
  value->shape = tensor.sizes().vec();
  value->bytes = storage.nbytes();
  value->is_mapped = !storage.resizable();
  Lock lock(mutex_);
  void* const memory = storage.mutable_data();
  value->memory = storage.set_data_ptr(pointer_of(memory, value.get(), &end_value));
  Value& adopted = *value.release();  // the storage's
  ++stats_.values;
  stats_.value_bytes += adopted.bytes;
  add_resident_locked(adopted);
  ++adopted.users;  // the caller may fill it next
  Status room = make_room(lock, 0);
  --adopted.users;
  SLUICE_RETURN_IF_ERROR(room);
  return true;
}

// The storage is gone, or has other memory now. The caller may hold the GIL; no thread waits for
// the GIL while it holds the mutex.
void ParameterSpill::end_value(void* context) noexcept {
  std::unique_ptr<Value> value(static_cast<Value*>(context));
  if (getpid() != value->spill->maker_) {
    static_cast<void>(value.release());
    return;
  }
  const std::shared_ptr<ParameterSpill> spill = value->spill;
  const Lock lock(spill->mutex_);
  if (value->memory) spill->remove_resident_locked(*value);
  if (value->is_held) spill->held_bytes_ -= value->bytes;
  if (value->place) spill->files_->give_back(std::move(value->place));
  --spill->stats_.values;
  spill->stats_.value_bytes -= value->bytes;
}

void ParameterSpill::add_resident_locked(Value& value) {
  value.position = resident_.insert(resident_.end(), &value);
  resident_bytes_ += value.bytes;
  stats_.most_resident_bytes = std::max(stats_.most_resident_bytes, resident_bytes_);
}

void ParameterSpill::remove_resident_locked(Value& value) {
  resident_.erase(value.position);
  resident_bytes_ -= value.bytes;
}

ParameterSpill::Stats ParameterSpill::stats() const {
  const Lock lock(mutex_);
  Stats stats = stats_;
  stats.resident_bytes = resident_bytes_;
  stats.written_bytes = files_->written_bytes();
  stats.read_bytes = files_->read_bytes();
  return stats;
}

// ---- sending away and bringing back
// --------------------------------------------------------------

Status ParameterSpill::send_away(Lock& lock, Value& value) {
  if (value.is_changed) {
    const auto* const bytes = static_cast<const std::byte*>(value.memory.get());
    value.is_zero = all_zero(bytes, value.bytes);
    if (!value.is_zero) {
      Status written = [&]() -> Status {
        if (!value.place) {
          SLUICE_ASSIGN_OR_RETURN(value.place, files_->take(value.bytes));
        }
        return files_->write(*value.place, {bytes, value.bytes});
      }();
      if (!written.ok())
        return std::move(written).error().with_context(
            "putting " + name_of(value) + ", " + format_bytes(value.bytes) + ", on the drive");
    }
    value.is_changed = false;
  }
  at::DataPtr old = value.storage->set_data_ptr(pointer_of(nullptr, &value, &end_value));
  static_cast<void>(old.release_context());  // the value, which stays
  take_memory_away(*value.storage,
                   name_of(value) +
                       " is on a drive: it was created within sluice.init(), so its values can be "
                       "used there, or when the module has an engine");
  remove_resident_locked(value);
  // Freeing the memory may need the GIL, and a thread with the GIL may wait for the mutex.
  at::DataPtr memory = std::move(value.memory);
  value.memory.clear();  // a moved one still points there
  if (value.is_mapped) leave_mapping(memory, value.bytes);
  value.is_mapped = false;
  freed_bytes_ += value.bytes;
  const bool trims = freed_bytes_ >= kTrimBytes;
  if (trims) freed_bytes_ = 0;
  lock.unlock();
  memory.clear();
  if (trims) trim_heap();
  lock.lock();
  return {};
}

// Makes room for `bytes` more. Values in use by touch(), and held ones, stay.
Status ParameterSpill::make_room(Lock& lock, std::uint64_t bytes) {
  while (resident_bytes_ + bytes > cache_bytes_) {
    const auto idle = std::find_if(resident_.begin(), resident_.end(),
                                   [](const Value* it) { return it->users == 0 && !it->is_held; });
    if (idle == resident_.end()) return {};
    SLUICE_RETURN_IF_ERROR(send_away(lock, **idle));
  }
  return {};
}

Status ParameterSpill::flush() {
  Lock lock(mutex_);
  for (;;) {
    const auto idle = std::find_if(resident_.begin(), resident_.end(),
                                   [](const Value* it) { return it->users == 0 && !it->is_held; });
    if (idle == resident_.end()) return {};
    SLUICE_RETURN_IF_ERROR(send_away(lock, **idle));
  }
}

Status ParameterSpill::hold_locked(Value& value) {
  if (value.is_held) return {};
  if (held_bytes_ + value.bytes > cache_bytes_)
    return Error(ErrorCode::kUnsupported,
                 "the address of " + name_of(value) +
                     " is needed (by numpy(), data_ptr() or untyped_storage(), for example), so "
                     "its values must stay in memory: that would be " +
                     format_bytes(held_bytes_ + value.bytes) +
                     ", but sluice.init() keeps at most " + format_bytes(cache_bytes_) +
                     " there. Do this when the module has an engine, or raise cache_gib");
  value.is_held = true;
  held_bytes_ += value.bytes;
  return {};
}

Status ParameterSpill::bring(Value& value, Use use) {
  Lock lock(mutex_);
  if (use == Use::kAddress) SLUICE_RETURN_IF_ERROR(hold_locked(value));
  if (value.memory) {
    resident_.splice(resident_.end(), resident_, value.position);
    SLUICE_RETURN_IF_ERROR(make_room(lock, 0));
  } else {
    SLUICE_RETURN_IF_ERROR(make_room(lock, value.bytes));
    const std::uint64_t padded = align_up(value.bytes, SpillFiles::kAlignment);
    void* const memory = std::aligned_alloc(SpillFiles::kAlignment, padded);
    if (memory == nullptr)
      return Error(ErrorCode::kOutOfMemory, "could not get " + format_bytes(value.bytes) +
                                                " of memory for " + name_of(value));
    at::DataPtr owned(memory, memory, &std::free, at::kCPU);
    if (value.is_zero) {
      std::memset(memory, 0, padded);
    } else {
      Status read = files_->read(*value.place, static_cast<std::byte*>(memory));
      if (!read.ok()) return std::move(read).error().with_context("reading " + name_of(value));
    }
    at::DataPtr& pointer = value.storage->_mutable_data_ptr_no_checks();
    static_cast<void>(pointer.release_context());
    value.memory = std::move(owned);
    give_memory_back(*value.storage, pointer_of(memory, &value, &end_value));
    add_resident_locked(value);
  }
  if (use != Use::kRead) value.is_changed = true;
  return {};
}

// ---- functions over all spills
// -------------------------------------------------------------------

ParameterSpill::Spills ParameterSpill::spills_of(const std::vector<at::Tensor>& tensors) {
  Spills spills;
  for (const at::Tensor& tensor : tensors) {
    const Value* const value = find(tensor);
    if (value != nullptr && std::count(spills.begin(), spills.end(), value->spill) == 0)
      spills.push_back(value->spill);
  }
  return spills;
}

Result<ParameterSpill::Spills> ParameterSpill::touch(const std::vector<at::Tensor>& tensors,
                                                     Use use) {
  std::vector<Value*> values;
  for (const at::Tensor& tensor : tensors) {
    Value* const value = find(tensor);
    if (value == nullptr || std::count(values.begin(), values.end(), value) > 0) continue;
    values.push_back(value);
  }
  const auto count_user = [&](int more) {
    for (Value* const value : values) {
      const Lock lock(value->spill->mutex_);
      value->users += more;
    }
  };
  count_user(1);
  Status done;
  for (Value* const value : values) {
    done = value->spill->bring(*value, use);
    if (!done.ok()) break;
  }
  count_user(-1);
  SLUICE_RETURN_IF_ERROR(done);
  return spills_of(tensors);
}

Result<at::Tensor> ParameterSpill::values_of(const at::Tensor& tensor) {
  Value* const value = find(tensor);
  if (value == nullptr) return tensor;
  TORCH_CHECK(tensor.is_contiguous(), "a contiguous tensor of a spill");
  const Lock lock(value->spill->mutex_);
  if (value->memory) return tensor;
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
  const std::span<std::byte> to(static_cast<std::byte*>(copy.mutable_data_ptr()), copy.nbytes());
  if (value->is_zero) {
    std::fill(to.begin(), to.end(), std::byte{0});
    return copy;
  }
  const auto first = static_cast<std::uint64_t>(tensor.storage_offset()) * tensor.itemsize();
  SLUICE_RETURN_IF_ERROR(value->spill->files_->read_part(*value->place, first, to));
  return copy;
}

}  // namespace sluice::engine
