#include "offload/step_graph.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"

namespace sluice::offload {
namespace {

// With drives, what one step leaves behind is another one's start.
constexpr int kStepsWithDrives = 3;

constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }
constexpr std::size_t at(Resource resource) { return static_cast<std::size_t>(resource); }

Stream stream_of(StepGraph::Kind kind) {
  using Kind = StepGraph::Kind;
  switch (kind) {
    case Kind::kForward:
    case Kind::kHead:
    case Kind::kBackward:
    case Kind::kGpuAdamw:
      return Stream::kCompute;
    case Kind::kCpuAdamw:
    case Kind::kUpdated:
      return Stream::kUpdates;
    case Kind::kParamsIn:
      return Stream::kParamsIn;
    case Kind::kBoundaryIn:
      return Stream::kBoundariesIn;
    case Kind::kGradientOut:
      return Stream::kGradientsOut;
    case Kind::kBoundaryOut:
      return Stream::kBoundariesOut;
    case Kind::kStateRead:
      return Stream::kStateReads;
    case Kind::kStateWrite:
      return Stream::kStateWrites;
    case Kind::kParamRead:
      return Stream::kParamReads;
    case Kind::kParamWrite:
      return Stream::kParamWrites;
    case Kind::kNorm:
      break;
  }
  return Stream::kHost;
}

const char* words(StepGraph::Kind kind) {
  using Kind = StepGraph::Kind;
  switch (kind) {
    case Kind::kForward:
      return "forward ";
    case Kind::kHead:
      return "loss ";
    case Kind::kBackward:
      return "backward ";
    case Kind::kGpuAdamw:
    case Kind::kCpuAdamw:
      return "adamw ";
    case Kind::kParamsIn:
      return "parameters ";
    case Kind::kBoundaryIn:
    case Kind::kBoundaryOut:
      return "boundary ";
    case Kind::kGradientOut:
      return "gradient ";
    case Kind::kStateRead:
      return "read state ";
    case Kind::kStateWrite:
      return "write state ";
    case Kind::kParamRead:
      return "read parameters ";
    case Kind::kParamWrite:
      return "write parameters ";
    case Kind::kUpdated:
    case Kind::kNorm:
      break;
  }
  return "";
}

bool uses_drives(const std::vector<UnitPlace>& places) {
  return std::any_of(places.begin(), places.end(), [](const UnitPlace& place) {
    return place.nvme_elements > 0 || place.params_on_nvme;
  });
}

}  // namespace

StepGraph::StepGraph(const std::vector<UnitCost>& units, const std::vector<UnitPlace>& places,
                     const MachineSpeeds& speeds, const StepModelOptions& options,
                     const StepGraphOptions& graph)
    : units_(units),
      places_(places),
      speeds_(speeds),
      options_(options),
      schedule_(12 * units.size() * (uses_drives(places) ? kStepsWithDrives : 1)),
      graph_(graph),
      slots_(at(std::max(options.slots(), 1))),
      boundaries_out_(units.size(), kNoTask),
      backwards_(units.size(), kNoTask) {
  plan_records();
  plan_ring();
  const int steady = uses_drives(places) ? kStepsWithDrives : 1;
  const int steps = graph.steps > 0 ? graph.steps : steady;
  for (int step = 0; step < steps; ++step) {
    counting_ = step == steps - 1;
    add_step();
  }
}

void StepGraph::plan_records() {
  const std::uint64_t most = std::max<std::uint64_t>(options_.record_elements, 1);
  for (int index = 0; index < count(); ++index) {
    first_record_.push_back(records_.size());
    for (std::uint64_t left = place(index).nvme_elements; left > 0;) {
      const std::uint64_t elements = std::min(left, most);
      records_.push_back({index, static_cast<double>(elements)});
      left -= elements;
    }
  }
  first_record_.push_back(records_.size());
  buffers_ = std::max<std::size_t>(2, options_.swap_buffer_elements / most);
}

// Each stream takes its tasks in the order of its own; between streams only what comes after what
// counts.
void StepGraph::add_step() {
  Marks marks{.first = last_};
  updated_.clear();
  gpu_begins_.clear();
  gradients_.clear();
  for (Slot& slot : slots_) slot.unit = -1;  // the parameters there are the old ones
  for (int index = 0; !options_.overlap_update && index < count(); ++index) add_update(index);
  for (int index = 0; index < count(); ++index) {
    if (options_.overlap_update) add_update(index);
    if (index + 1 < count())
      add_forward(index);
    else
      add_head();
  }
  read_ahead();
  for (int index = count() - 2; index >= 0; --index) add_backward(index);
  add_norm();
  marks.head = head_;
  marks.last = last_;
  if (counting_ || graph_.steps > 0) {
    for (int index = 0; index < count(); ++index) marks.gates.push_back(gate(index));
    marks.gpu_begins = gpu_begins_;
  }
  steps_.push_back(std::move(marks));
}

bool StepGraph::is_outside(Kind kind) const {
  return graph_.drives_outside && (kind == Kind::kStateRead || kind == Kind::kStateWrite ||
                                   kind == Kind::kParamRead || kind == Kind::kParamWrite);
}

double StepGraph::host_elements(int index) const {
  return static_cast<double>(place(index).cpu_elements + place(index).nvme_elements);
}

TaskId StepGraph::add(Kind kind, int unit, double work, const After& after) {
  const Stream stream = stream_of(kind);
  const TaskId id =
      schedule_.add({.stream = stream, .work = work, .after = after, .outside = is_outside(kind)});
  labels_.push_back({kind, unit});
  if (counting_) work_[static_cast<std::size_t>(resource_of(stream))] += work;
  if (stream == Stream::kCompute) last_compute_ = id;
  return id;
}

std::string StepGraph::name(TaskId id) const {
  const Label& label = labels_[static_cast<std::size_t>(id)];
  return words(label.kind) + unit(label.unit).name;
}

// Inputs that backward needs lie in a ring of as many places as units keep theirs on the GPU: those
// that go to the host share the places with them, in forward order.
void StepGraph::plan_ring() {
  ring_leaver_.assign(units_.size(), -1);
  ring_follower_.assign(units_.size(), -1);
  std::vector<int> members;
  std::size_t places = 0;
  for (int index = 0; index < count(); ++index) {
    const ActivationPlace activations = place(index).activations;
    if (unit(index).boundary_bytes == 0 || activations == ActivationPlace::kKeep) continue;
    members.push_back(index);
    if (activations == ActivationPlace::kRecompute) ++places;
  }
  places = std::max<std::size_t>(places, 1);
  for (std::size_t i = places; i < members.size(); ++i) {
    ring_leaver_[at(members[i])] = members[i - places];
    ring_follower_[at(members[i - places])] = members[i];
  }
}

// ---- the update, in forward order ---------------------------------------------------------------

void StepGraph::add_update(int index) {
  const UnitPlace& it = place(index);
  const bool params_on_nvme = it.params_on_nvme && host_elements(index) > 0;
  const TaskId params = params_on_nvme ? in_host_memory(index) : kNoTask;
  if (it.cpu_elements > 0) {
    add(Kind::kCpuAdamw, index, static_cast<double>(it.cpu_elements),
        {last_, params, kNoTask, kNoTask});
  }
  add_records(index, params);
  // Units are said to be updated in their order, with or without work.
  const TaskId done = add(Kind::kUpdated, index, 0, {last_, params, kNoTask, kNoTask});
  updated_.push_back(done);
  if (params_on_nvme) {
    last_use(index).written = add(Kind::kParamWrite, index,
                                  static_cast<double>(unit(index).elements) * options_.bytes.param,
                                  {done, kNoTask, kNoTask, kNoTask});
  }
}

void StepGraph::add_records(int unit, TaskId params) {
  for (std::size_t record = first_record_[at(unit)]; record < first_record_[at(unit) + 1];
       ++record) {
    if (reads_.size() == writes_.size()) add_state_read(record);
    const double elements = records_[record].elements;
    const TaskId computed =
        add(Kind::kCpuAdamw, unit, elements, {last_, reads_[writes_.size()], params, kNoTask});
    record_tasks_.push_back({record, reads_[writes_.size()], computed});
    const double bytes = elements * options_.bytes.nvme_write;
    if (graph_.drives_outside && counting_) work_[at(Resource::kDriveWrite)] += bytes;
    writes_.push_back(graph_.drives_outside ? computed
                                            : add(Kind::kStateWrite, unit, bytes,
                                                  {computed, kNoTask, kNoTask, kNoTask}));
  }
}

// A record's buffer is free for another one's read when it has been written.
void StepGraph::add_state_read(std::size_t record) {
  const bool is_full = !graph_.drives_outside && reads_.size() >= buffers_;
  const TaskId buffer = is_full ? writes_[reads_.size() - buffers_] : kNoTask;
  reads_.push_back(add(Kind::kStateRead, records_[record].unit,
                       records_[record].elements * options_.bytes.nvme_read,
                       {head_, buffer, kNoTask, kNoTask}));
}

// From backward on, as far as there are buffers; outside they are somebody else's.
void StepGraph::read_ahead() {
  const std::size_t most =
      graph_.drives_outside ? records_.size() : std::min(records_.size(), buffers_);
  for (std::size_t record = 0; record < most; ++record) add_state_read(record);
}

// What the GPU waits for before it begins with a unit.
TaskId StepGraph::gate(int unit) const {
  return options_.overlap_update ? updated_[at(unit)] : updated_.back();
}

// ---- parameters ---------------------------------------------------------------------------------

StepGraph::Slot& StepGraph::slot_for(const std::vector<int>& in_use) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    const bool taken = std::find(in_use.begin(), in_use.end(), slot.unit) != in_use.end();
    if (slot.unit >= 0 && taken) continue;
    if (best == nullptr || slot.last_use < best->last_use) best = &slot;
  }
  if (best != nullptr) return *best;
  slots_.emplace_back();  // the head works with two units
  return slots_.back();
}

// Of parameters on NVMe; the buffer is the one that was used longest ago. kNoTask: they are there.
TaskId StepGraph::in_host_memory(int index) {
  const auto buffers = at(std::max(options_.param_cache_units, 1));
  const std::size_t oldest = cache_.size() - std::min(cache_.size(), buffers);
  for (std::size_t use = oldest; use < cache_.size(); ++use)
    if (cache_[use].unit == index) return kNoTask;
  const CacheUse before = cache_.size() >= buffers ? cache_[oldest] : CacheUse{};
  const TaskId read =
      add(Kind::kParamRead, index, static_cast<double>(unit(index).elements) * options_.bytes.param,
          {before.to_gpu, before.written, kNoTask, kNoTask});
  cache_.push_back({.unit = index});
  return read;
}

StepGraph::CacheUse& StepGraph::last_use(int index) {
  const auto use = std::find_if(cache_.rbegin(), cache_.rend(),
                                [index](const CacheUse& it) { return it.unit == index; });
  SLUICE_CHECK(use != cache_.rend(), "a unit that was brought into host memory");
  return *use;
}

// Returns what has to be done before the unit's parameters are on the GPU; kNoTask: they are there.
TaskId StepGraph::bring(int unit, std::vector<int>& in_use) {
  in_use.push_back(unit);
  if (place(unit).resident) return kNoTask;
  const auto there = std::find_if(slots_.begin(), slots_.end(),
                                  [unit](const Slot& slot) { return slot.unit == unit; });
  if (there != slots_.end()) return kNoTask;
  const bool on_nvme = place(unit).params_on_nvme;
  const TaskId read = on_nvme ? in_host_memory(unit) : kNoTask;
  Slot& slot = slot_for(in_use);
  const double bytes =
      has_bus() ? static_cast<double>(this->unit(unit).elements) * options_.bytes.param : 0;
  const TaskId copied = add(Kind::kParamsIn, unit, bytes, {gate(unit), slot.used, read, kNoTask});
  slot.unit = unit;
  if (on_nvme) last_use(unit).to_gpu = copied;
  return copied;
}

void StepGraph::used(const std::vector<int>& in_use, TaskId by) {
  for (Slot& slot : slots_) {
    if (slot.unit < 0 || std::find(in_use.begin(), in_use.end(), slot.unit) == in_use.end())
      continue;
    slot.used = by;
    slot.last_use = ++uses_;
  }
}

// ---- forward and backward -----------------------------------------------------------------------

// A resident unit's parameters that the host has updated.
TaskId StepGraph::refresh(int index, TaskId copied) {
  if (!place(index).resident || host_elements(index) == 0 || !has_bus()) return copied;
  const TaskId read = place(index).params_on_nvme ? in_host_memory(index) : kNoTask;
  copied = add(Kind::kParamsIn, index, host_elements(index) * options_.bytes.param,
               {gate(index), read, kNoTask, kNoTask});
  if (place(index).params_on_nvme) last_use(index).to_gpu = copied;
  return copied;
}

TaskId StepGraph::add_gpu_adamw(int index) {
  if (place(index).gpu_elements == 0) return kNoTask;
  return add(Kind::kGpuAdamw, index,
             static_cast<double>(place(index).gpu_elements) / speeds_.gpu_adamw_elements_per_s,
             {gate(index), kNoTask, kNoTask, kNoTask});
}

void StepGraph::add_forward(int index) {
  const TaskId before = last_compute_;
  std::vector<int> in_use;
  const TaskId copied = refresh(index, bring(index, in_use));
  const TaskId adamw = add_gpu_adamw(index);
  const int leaver = ring_leaver_[at(index)];
  const TaskId place_free = leaver >= 0 ? boundaries_out_[at(leaver)] : kNoTask;
  const TaskId forward =
      add(Kind::kForward, index, unit(index).forward_s, {gate(index), copied, place_free, kNoTask});
  gpu_begins_.push_back(adamw == kNoTask ? forward : adamw);
  used(in_use, forward);
  if (place(index).activations == ActivationPlace::kOffload && has_bus()) {
    boundaries_out_[at(index)] =
        add(Kind::kBoundaryOut, index, static_cast<double>(unit(index).boundary_bytes),
            {before, gate(index), kNoTask, kNoTask});
  }
}

// Forward and backward in one. The embedding's parameters are used once more.
void StepGraph::add_head() {
  const int index = count() - 1;
  std::vector<int> in_use;
  const TaskId copied = refresh(index, bring(index, in_use));
  const TaskId embedding = index > 0 ? bring(0, in_use) : kNoTask;
  const TaskId adamw = add_gpu_adamw(index);
  head_ = add(Kind::kHead, index, unit(index).forward_s + unit(index).backward_s,
              {gate(index), copied, embedding, kNoTask});
  gpu_begins_.push_back(adamw == kNoTask ? head_ : adamw);
  used(in_use, head_);
  add_gradient(index, head_);
}

// The cast of the gradient before last has its place on the GPU only when an older one has left.
TaskId StepGraph::stage_free() const {
  const std::size_t stages = at(std::max(options_.grad_stages, 1));
  return gradients_.size() > stages ? gradients_[gradients_.size() - 1 - stages] : kNoTask;
}

void StepGraph::add_backward(int index) {
  const UnitPlace& it = place(index);
  std::vector<int> in_use;
  const TaskId copied = bring(index, in_use);
  TaskId boundary = kNoTask;
  if (it.activations == ActivationPlace::kOffload && has_bus()) {
    const int follower = ring_follower_[at(index)];
    const TaskId place_free = follower >= 0 ? backwards_[at(follower)] : head_;
    boundary = add(Kind::kBoundaryIn, index, static_cast<double>(unit(index).boundary_bytes),
                   {place_free, boundaries_out_[at(index)], kNoTask, kNoTask});
  }
  const double again_s = it.activations == ActivationPlace::kKeep ? 0 : unit(index).recompute_s;
  const TaskId backward = add(Kind::kBackward, index, unit(index).backward_s + again_s,
                              {copied, boundary, stage_free(), kNoTask});
  backwards_[at(index)] = backward;
  used(in_use, backward);
  add_gradient(index, backward);
}

void StepGraph::add_gradient(int index, TaskId after) {
  const double bytes = has_bus() ? host_elements(index) * options_.bytes.grad : 0;
  gradients_.push_back(add(Kind::kGradientOut, index, bytes, {after, kNoTask, kNoTask, kNoTask}));
}

void StepGraph::add_norm() {
  last_ = add(Kind::kNorm, 0, 0, {gradients_.back(), last_compute_, kNoTask, kNoTask});
}

// ---- what has run -------------------------------------------------------------------------------

double StepGraph::begin_s(const Marks& step) const {
  return step.first == kNoTask ? 0 : schedule_.times(step.first).end_s;
}

double StepGraph::exposed_s(const Marks& step) const {
  double exposed = 0;
  double free_s = begin_s(step);  // of the GPU, before the unit
  for (std::size_t unit = 0; unit < step.gates.size(); ++unit) {
    exposed += std::max(0.0, schedule_.times(step.gates[unit]).end_s - free_s);
    const bool is_last = unit + 1 == step.gates.size();
    const TaskId next = is_last ? step.head + 1 : step.gpu_begins[unit + 1];
    for (TaskId id = step.gpu_begins[unit]; id < next; ++id) {
      if (schedule_.task(id).stream == Stream::kCompute) free_s = schedule_.times(id).end_s;
    }
  }
  return exposed;
}

}  // namespace sluice::offload
