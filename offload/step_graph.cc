#include "offload/step_graph.h"

#include <algorithm>
#include <utility>

namespace sluice::offload {
namespace {

// With drives, what one step leaves behind is another one's start.
constexpr int kStepsWithDrives = 3;

constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

int steps_to_steady_state(const StepInputs& inputs) {
  return inputs.uses_drives() ? kStepsWithDrives : 1;
}

}  // namespace

StepGraph::StepGraph(const std::vector<UnitCost>& units, const std::vector<UnitPlace>& places,
                     const MachineSpeeds& speeds, const StepModelOptions& options,
                     const StepGraphOptions& graph)
    : inputs_{units, places, speeds, options},
      tasks_(12 * units.size() * at(steps_to_steady_state(inputs_)), graph.drives_outside),
      records_(inputs_, tasks_),
      params_(inputs_, tasks_),
      boundaries_out_(units.size(), kNoTask),
      backwards_(units.size(), kNoTask) {
  plan_ring();
  const int steps = graph.steps > 0 ? graph.steps : steps_to_steady_state(inputs_);
  for (int step = 0; step < steps; ++step) {
    const bool is_reported = step == steps - 1;
    if (is_reported) tasks_.begin_to_count();
    add_step(is_reported || graph.steps > 0);
  }
}

std::string StepGraph::name(TaskId id) const {
  return words(kind(id)) + inputs_.unit(unit_of(id)).name;
}

// Inputs that backward needs lie in a ring of as many places as units keep theirs on the GPU: those
// that go to the host share the places with them, in forward order.
void StepGraph::plan_ring() {
  ring_leaver_.assign(inputs_.units.size(), -1);
  ring_follower_.assign(inputs_.units.size(), -1);
  std::vector<int> members;
  std::size_t places = 0;
  for (int index = 0; index < inputs_.count(); ++index) {
    const ActivationPlace activations = inputs_.place(index).activations;
    if (inputs_.unit(index).boundary_bytes == 0 || activations == ActivationPlace::kKeep) continue;
    members.push_back(index);
    if (activations == ActivationPlace::kRecompute) ++places;
  }
  places = std::max<std::size_t>(places, 1);
  for (std::size_t i = places; i < members.size(); ++i) {
    ring_leaver_[at(members[i])] = members[i - places];
    ring_follower_[at(members[i - places])] = members[i];
  }
}

// Each stream takes its tasks in the order of its own; between streams only what comes after what
// counts.
void StepGraph::add_step(bool mark_units) {
  const int count = inputs_.count();
  const bool overlap = inputs_.options.overlap_update;
  Marks marks{.first = last_};
  updated_.clear();
  gpu_begins_.clear();
  gradients_.clear();
  params_.begin_step();
  for (int index = 0; !overlap && index < count; ++index) add_update(index);
  for (int index = 0; index < count; ++index) {
    if (overlap) add_update(index);
    if (index + 1 < count)
      add_forward(index);
    else
      add_head();
  }
  records_.read_ahead(head_);
  for (int index = count - 2; index >= 0; --index) add_backward(index);
  add_norm();
  marks.head = head_;
  marks.last = last_;
  if (mark_units) {
    for (int index = 0; index < count; ++index) marks.gates.push_back(gate(index));
    marks.gpu_begins = gpu_begins_;
  }
  steps_.push_back(std::move(marks));
}

// ---- the update, in forward order ---------------------------------------------------------------

void StepGraph::add_update(int index) {
  const UnitPlace& it = inputs_.place(index);
  const bool params_on_nvme = it.params_on_nvme && inputs_.host_elements(index) > 0;
  const TaskId params = params_on_nvme ? params_.read(index) : kNoTask;
  if (it.cpu_elements > 0) {
    tasks_.add(Kind::kCpuAdamw, index, static_cast<double>(it.cpu_elements),
               {last_, params, kNoTask, kNoTask});
  }
  records_.add_update(index, last_, params);
  // Units are said to be updated in their order, with or without work.
  const TaskId done = tasks_.add(Kind::kUpdated, index, 0, {last_, params, kNoTask, kNoTask});
  updated_.push_back(done);
  if (params_on_nvme) params_.write(index, done);
}

// What the GPU waits for before it begins with a unit.
TaskId StepGraph::gate(int unit) const {
  return inputs_.options.overlap_update ? updated_[at(unit)] : updated_.back();
}

// ---- forward and backward -----------------------------------------------------------------------

TaskId StepGraph::add_gpu_adamw(int index) {
  const std::uint64_t elements = inputs_.place(index).gpu_elements;
  if (elements == 0) return kNoTask;
  return tasks_.add(Kind::kGpuAdamw, index,
                    static_cast<double>(elements) / inputs_.speeds.gpu_adamw_elements_per_s,
                    {gate(index), kNoTask, kNoTask, kNoTask});
}

void StepGraph::add_forward(int index) {
  const TaskId before = tasks_.last_compute();
  std::vector<int> in_use;
  const TaskId brought = params_.bring(index, gate(index), in_use);
  const TaskId copied = params_.refresh(index, gate(index), brought);
  const TaskId adamw = add_gpu_adamw(index);
  const int leaver = ring_leaver_[at(index)];
  const TaskId place_free = leaver >= 0 ? boundaries_out_[at(leaver)] : kNoTask;
  const TaskId forward = tasks_.add(Kind::kForward, index, inputs_.unit(index).forward_s,
                                    {gate(index), copied, place_free, kNoTask});
  gpu_begins_.push_back(adamw == kNoTask ? forward : adamw);
  params_.used(in_use, forward);
  if (inputs_.place(index).activations == ActivationPlace::kOffload && inputs_.has_bus()) {
    boundaries_out_[at(index)] = tasks_.add(Kind::kBoundaryOut, index,
                                            static_cast<double>(inputs_.unit(index).boundary_bytes),
                                            {before, gate(index), kNoTask, kNoTask});
  }
}

// Forward and backward in one. The embedding's parameters are used once more.
void StepGraph::add_head() {
  const int index = inputs_.count() - 1;
  const UnitCost& unit = inputs_.unit(index);
  std::vector<int> in_use;
  const TaskId brought = params_.bring(index, gate(index), in_use);
  const TaskId copied = params_.refresh(index, gate(index), brought);
  const TaskId embedding = index > 0 ? params_.bring(0, gate(0), in_use) : kNoTask;
  const TaskId adamw = add_gpu_adamw(index);
  head_ = tasks_.add(Kind::kHead, index, unit.forward_s + unit.backward_s,
                     {gate(index), copied, embedding, kNoTask});
  gpu_begins_.push_back(adamw == kNoTask ? head_ : adamw);
  params_.used(in_use, head_);
  add_gradient(index, head_);
}

// The cast of the gradient before last has its place on the GPU only when an older one has left.
TaskId StepGraph::stage_free() const {
  const std::size_t stages = at(std::max(inputs_.options.grad_stages, 1));
  return gradients_.size() > stages ? gradients_[gradients_.size() - 1 - stages] : kNoTask;
}

void StepGraph::add_backward(int index) {
  const UnitCost& unit = inputs_.unit(index);
  const ActivationPlace activations = inputs_.place(index).activations;
  std::vector<int> in_use;
  const TaskId copied = params_.bring(index, gate(index), in_use);
  TaskId boundary = kNoTask;
  if (activations == ActivationPlace::kOffload && inputs_.has_bus()) {
    const int follower = ring_follower_[at(index)];
    const TaskId place_free = follower >= 0 ? backwards_[at(follower)] : head_;
    boundary = tasks_.add(Kind::kBoundaryIn, index, static_cast<double>(unit.boundary_bytes),
                          {place_free, boundaries_out_[at(index)], kNoTask, kNoTask});
  }
  const double again_s = activations == ActivationPlace::kKeep ? 0 : unit.recompute_s;
  const TaskId backward = tasks_.add(Kind::kBackward, index, unit.backward_s + again_s,
                                     {copied, boundary, stage_free(), kNoTask});
  backwards_[at(index)] = backward;
  params_.used(in_use, backward);
  add_gradient(index, backward);
}

void StepGraph::add_gradient(int index, TaskId after) {
  const double bytes =
      inputs_.has_bus() ? inputs_.host_elements(index) * inputs_.options.bytes.grad : 0;
  gradients_.push_back(
      tasks_.add(Kind::kGradientOut, index, bytes, {after, kNoTask, kNoTask, kNoTask}));
}

void StepGraph::add_norm() {
  last_ =
      tasks_.add(Kind::kNorm, 0, 0, {gradients_.back(), tasks_.last_compute(), kNoTask, kNoTask});
}

// ---- what has run -------------------------------------------------------------------------------

double StepGraph::begin_s(const Marks& step) const {
  return step.first == kNoTask ? 0 : tasks_.schedule().times(step.first).end_s;
}

double StepGraph::exposed_s(const Marks& step) const {
  const FluidSchedule& schedule = tasks_.schedule();
  double exposed = 0;
  double free_s = begin_s(step);  // of the GPU, before the unit
  for (std::size_t unit = 0; unit < step.gates.size(); ++unit) {
    exposed += std::max(0.0, schedule.times(step.gates[unit]).end_s - free_s);
    const bool is_last = unit + 1 == step.gates.size();
    const TaskId next = is_last ? step.head + 1 : step.gpu_begins[unit + 1];
    for (TaskId id = step.gpu_begins[unit]; id < next; ++id) {
      if (schedule.task(id).stream == Stream::kCompute) free_s = schedule.times(id).end_s;
    }
  }
  return exposed;
}

}  // namespace sluice::offload
