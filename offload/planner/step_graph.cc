#include "offload/planner/step_graph.h"

#include <algorithm>
#include <utility>

namespace sluice::offload {
namespace {

// With drives, each step starts from the state that the previous one left.
constexpr int kStepsWithDrives = 3;

constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

int steps_to_steady_state(const StepInputs& inputs) {
  return inputs.uses_drives() ? kStepsWithDrives : 1;
}

}  // namespace

Waves StepGraph::modelled(const Waves& waves, const StepGraphOptions& graph) {
  const int count = waves.count();
  if (graph.all_waves || count <= kModelledWaves) return waves;
  return {.micro_batches = (kModelledWaves - 1) * waves.of_a_wave + waves.size(count - 1),
          .of_a_wave = waves.of_a_wave};
}

StepGraph::StepGraph(const std::vector<UnitCost>& units, const std::vector<UnitPlacement>& places,
                     const MachineSpeeds& speeds, const StepModelOptions& options,
                     const StepGraphOptions& graph)
    : inputs_{units, places, speeds, options},
      waves_(modelled(options.waves, graph)),
      not_modelled_(options.waves.count() - waves_.count()),
      program_(training_step({.count = static_cast<int>(units.size()),
                              .lenders = [&units](int unit) -> const std::vector<int>& {
                                return units[at(unit)].lenders;
                              }},
                             options.overlap_update, waves_.count())),
      tasks_(12 * units.size() * at(steps_to_steady_state(inputs_) * waves_.count()),
             graph.drives_outside),
      link_(inputs_, tasks_),
      records_(inputs_, tasks_),
      params_(inputs_, tasks_, link_),
      gradients_on_drives_(inputs_, tasks_),
      inputs_out_(units.size(), kNoTask),
      inputs_written_(units.size(), kNoTask),
      backwards_(units.size(), kNoTask),
      sums_out_(units.size(), kNoTask),
      sums_in_(units.size(), kNoTask) {
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

// Inputs that backward needs are in a ring with one place for each unit that keeps its input on the
// GPU. Inputs that go to the host share these places with them, in forward order.
void StepGraph::plan_ring() {
  ring_leaver_.assign(inputs_.units.size(), -1);
  ring_follower_.assign(inputs_.units.size(), -1);
  if (!inputs_.has_bus()) return;
  std::vector<int> members;
  std::size_t places = 0;
  for (int index = 0; index < inputs_.count(); ++index) {
    const ActivationPlace activations = inputs_.place(index).activations;
    if (inputs_.unit(index).unit_input_bytes == 0 || activations == ActivationPlace::kKeep)
      continue;
    members.push_back(index);
    if (activations == ActivationPlace::kRecompute) ++places;
  }
  places = std::max<std::size_t>(places, 1);
  for (std::size_t i = places; i < members.size(); ++i) {
    ring_leaver_[at(members[i])] = members[i - places];
    ring_follower_[at(members[i - places])] = members[i];
  }
}

// Each stream runs its tasks in its own order; between streams only dependencies count. The program
// covers a period from one norm to the next, so its update belongs to the previous period.
void StepGraph::add_step(bool mark_units) {
  Marks marks{.first = last_};
  updated_.clear();
  gpu_begins_.clear();
  gradients_.clear();
  closed_.clear();
  heads_.clear();
  ends_.clear();
  params_.begin_step();
  for (std::size_t position = 0; position < program_.size(); ++position) {
    const StepOperation& it = program_[position];
    const bool is_middle = not_modelled_ > 0 && it.wave == kMiddleWave;
    tasks_.count_times(is_middle ? 1 + not_modelled_ : 1);
    const bool sends = it.op == StepOp::kKeepSum || it.op == StepOp::kSendGradient;
    if (sends) prefetch_behind(position);
    add(it);
    if (!sends) prefetch_behind(position);
  }
  marks.head = heads_.front();
  marks.heads = heads_;
  marks.backwards = ends_;
  marks.last = last_;
  if (mark_units) {
    for (int index = 0; index < inputs_.count(); ++index) marks.gates.push_back(gate(index));
    marks.gpu_begins = gpu_begins_;
  }
  steps_.push_back(std::move(marks));
}

void StepGraph::add(const StepOperation& it) {
  switch (it.op) {
    case StepOp::kAwaitUpdates:
      for (int index = 0; index < inputs_.count(); ++index) add_update(index);
      return;
    case StepOp::kAwaitUpdate:
      if (inputs_.options.overlap_update) add_update(it.unit);
      return;
    case StepOp::kFetch:
      return fetch(it.unit);
    case StepOp::kFetchAgain: {
      const TaskId brought = params_.bring(it.unit, gate(it.unit), fetched_.units);
      if (brought != kNoTask)
        (fetched_.units.size() == 1 ? fetched_.own : fetched_.lender) = brought;
      return;
    }
    case StepOp::kForward:
      return add_forward(it.unit, it.wave);
    case StepOp::kHead:
      add_head(it.unit, it.wave);
      if (it.unit == 0) ends_.push_back(computed_);
      return;
    case StepOp::kReadState:
      return records_.read_ahead(head_);
    case StepOp::kFetchSum:
      return add_fetched_sum(it.unit, it.wave);
    case StepOp::kBackward:
      add_backward(it.unit, it.wave);
      if (it.unit == 0) ends_.push_back(computed_);
      return;
    case StepOp::kKeepSum:
      return add_kept_sum(it.unit, it.wave);
    case StepOp::kSendGradient:
      return add_gradient(it.unit);
    case StepOp::kNorm:
      return add_norm();
    case StepOp::kUpdate:
      return;  // belongs to the next period
  }
}

void StepGraph::fetch(int unit) {
  if (link_.overlaps_compute()) link_.update(unit, gate(unit));
  link_.change(unit);
  const TaskId brought = params_.bring(unit, gate(unit), fetched_.units);
  fetched_.own = params_.refresh(unit, gate(unit), brought);
}

// Parameters for the next operations are gathered before this operation's sum is reduced. In the
// first wave's forward, each unit is gathered in program order: as soon as its update is done, but
// not before the next unit is needed.
void StepGraph::prefetch_behind(std::size_t position) {
  const StepOperation& done = program_[position];
  const bool closes = done.op == StepOp::kKeepSum || done.op == StepOp::kSendGradient;
  const bool passes_again = done.op == StepOp::kForward && done.wave > 0;
  if (!link_.overlaps_compute() || !(closes || passes_again)) return;
  int left = units_ahead();
  for (std::size_t next = position + 1; next < program_.size() && left > 0; ++next) {
    const StepOperation& it = program_[next];
    if (it.op == StepOp::kReadState) return;
    if (it.op != StepOp::kFetchAgain) continue;
    params_.prefetch(it.unit, gate(it.unit));
    --left;
  }
}

int StepGraph::units_ahead() const { return inputs_.options.prefetch_units; }

// ---- the update, in forward order ---------------------------------------------------------------

void StepGraph::add_update(int index) {
  const UnitPlacement& it = inputs_.place(index);
  const bool params_on_nvme =
      it.params_on_nvme && inputs_.host_elements(index) > 0 && !inputs_.unit(index).is_frozen();
  const bool fetches_gradient = gradients_on_drives_.has(index) && last_ != kNoTask;
  const TaskId begin = fetches_gradient ? gradients_on_drives_.bring(index, last_) : last_;
  const TaskId params = params_on_nvme ? params_.read(index) : kNoTask;
  if (it.cpu_elements > 0) {
    tasks_.add(Kind::kCpuAdamw, index, static_cast<double>(it.cpu_elements),
               {begin, params, kNoTask, kNoTask});
  }
  records_.add_update(index, begin, params);
  // Units count as updated in their order, with or without work.
  const TaskId done = tasks_.add(Kind::kUpdated, index, 0, {begin, params, kNoTask, kNoTask});
  if (fetches_gradient) gradients_on_drives_.used(index, done);
  updated_.push_back(done);
  if (params_on_nvme) params_.write(index, done);
}

// The task for which the GPU waits before it begins with a unit.
TaskId StepGraph::gate(int unit) const {
  return inputs_.options.overlap_update ? updated_[at(unit)] : updated_.back();
}

// ---- forward and backward -----------------------------------------------------------------------

// With several ranks the update ran before the unit was gathered.
TaskId StepGraph::add_gpu_adamw(int index) {
  const std::uint64_t elements = inputs_.place(index).gpu_elements;
  if (elements == 0 || link_.is_used()) return kNoTask;
  return tasks_.add(Kind::kGpuAdamw, index,
                    static_cast<double>(elements) / inputs_.speeds.gpu_adamw_elements_per_s,
                    {gate(index), kNoTask, kNoTask, kNoTask});
}

// After this task the fetched parameters' slots are free for others.
void StepGraph::used_by(TaskId task) {
  params_.used(fetched_.units, task);
  fetched_.units.clear();
  fetched_.own = fetched_.lender = kNoTask;
}

// When the next unit's parameters are available. If nothing is fetched for it but exchanges block
// the computing thread, this is when the last exchange is done.
TaskId StepGraph::own_ready() const {
  return fetched_.own == kNoTask && link_.blocks() ? link_.last() : fetched_.own;
}

// The time to unpack the parameters fetched for the next task, before it runs.
double StepGraph::unpack_s() const {
  double seconds = 0;
  for (const int unit : fetched_.units)
    if (!inputs_.place(unit).resident) seconds += inputs_.unit(unit).unpack_s;
  return seconds;
}

// The bytes of a wave's micro-batches.
double StepGraph::input_bytes(int unit, int wave) const {
  return static_cast<double>(inputs_.unit(unit).unit_input_bytes) *
         static_cast<double>(waves_.size(wave)) / static_cast<double>(waves_.of_a_wave);
}

double StepGraph::share(int wave) const {
  return static_cast<double>(waves_.size(wave)) /
         static_cast<double>(inputs_.options.waves.micro_batches);
}

void StepGraph::add_forward(int index, int wave) {
  const TaskId before = tasks_.last_compute();
  const TaskId adamw = wave == 0 ? add_gpu_adamw(index) : kNoTask;
  const int leaver = ring_leaver_[at(index)];
  const TaskId place_free = leaver >= 0 ? inputs_out_[at(leaver)] : kNoTask;
  const TaskId forward =
      tasks_.add(Kind::kForward, index, share(wave) * inputs_.unit(index).forward_s + unpack_s(),
                 {gate(index), own_ready(), place_free, fetched_.lender});
  if (wave == 0) gpu_begins_.push_back(adamw == kNoTask ? forward : adamw);
  used_by(forward);
  if (input_leaves(inputs_.place(index).activations)) send_input(index, wave, before);
}

bool StepGraph::is_spilled(int unit) const {
  return inputs_.place(unit).activations == ActivationPlace::kSpill;
}

// Inputs on their way to the drives and back use buffers with room for a few units.
TaskId StepGraph::spill_buffer_free() const {
  const std::size_t units = at(std::max(inputs_.options.spill_units, 1));
  return spills_.size() >= units ? spills_[spills_.size() - units] : kNoTask;
}

void StepGraph::send_input(int unit, int wave, TaskId before) {
  const TaskId buffer = is_spilled(unit) ? spill_buffer_free() : kNoTask;
  TaskId sent = before;
  if (inputs_.has_bus()) {
    sent = tasks_.add(Kind::kInputOut, unit, input_bytes(unit, wave),
                      {before, gate(unit), buffer, kNoTask});
    inputs_out_[at(unit)] = sent;
  }
  if (!is_spilled(unit)) return;
  inputs_written_[at(unit)] = tasks_.add(Kind::kInputWrite, unit, input_bytes(unit, wave),
                                         {sent, gate(unit), buffer, kNoTask});
  spills_.push_back(inputs_written_[at(unit)]);
}

// When backward may begin to use the input.
TaskId StepGraph::bring_input(int unit, int wave) {
  TaskId there = inputs_out_[at(unit)];
  if (is_spilled(unit)) {
    there = tasks_.add(Kind::kInputRead, unit, input_bytes(unit, wave),
                       {inputs_written_[at(unit)], spill_buffer_free(), kNoTask, kNoTask});
  }
  if (inputs_.has_bus()) {
    const int follower = ring_follower_[at(unit)];
    const TaskId place_free = follower >= 0 ? backwards_[at(follower)] : head_;
    there = tasks_.add(Kind::kInputIn, unit, input_bytes(unit, wave),
                       {place_free, there, kNoTask, kNoTask});
  }
  if (is_spilled(unit)) spills_.push_back(there);
  return there;
}

// Forward and backward in one task.
void StepGraph::add_head(int index, int wave) {
  const UnitCost& unit = inputs_.unit(index);
  const TaskId adamw = wave == 0 ? add_gpu_adamw(index) : kNoTask;
  head_ =
      tasks_.add(Kind::kHead, index, share(wave) * (unit.forward_s + unit.backward_s) + unpack_s(),
                 {gate(index), own_ready(), fetched_.lender, sum_ready(index, wave)});
  heads_.push_back(head_);
  if (wave == 0) gpu_begins_.push_back(adamw == kNoTask ? head_ : adamw);
  used_by(head_);
  computed_ = head_;
}

// The cast of a gradient gets a place on the GPU only after an older gradient has left it.
TaskId StepGraph::stage_free() const {
  const std::size_t stages = at(std::max(inputs_.options.grad_stages, 1));
  return gradients_.size() > stages ? gradients_[gradients_.size() - 1 - stages] : kNoTask;
}

// There are slots for two units' sums: with several ranks the previous unit's is reduced meanwhile.
TaskId StepGraph::sum_slot_free() const {
  return closed_.size() > 1 ? closed_[closed_.size() - 2] : kNoTask;
}

// If all of a unit's state is on the GPU, its sum is there, too; without a bus, no sum moves.
bool StepGraph::sum_moves(int unit) const {
  return inputs_.has_bus() && waves_.count() > 1 && inputs_.host_elements(unit) > 0;
}

// The bytes of all sums of a unit that a wave leaves.
double StepGraph::sum_bytes(int unit, int wave) const {
  const StepModelOptions& options = inputs_.options;
  const int sums = options.sums.open_sums(waves_.first(wave + 1));
  return sums * inputs_.whole_elements(unit) * options.bytes.sum;
}

void StepGraph::add_kept_sum(int unit, int wave) {
  if (adds_up_in_buffers()) return gradients_on_drives_.close(unit, computed_);
  if (!sum_moves(unit)) return;
  sums_out_[at(unit)] = tasks_.add(Kind::kSumOut, unit, sum_bytes(unit, wave),
                                   {computed_, gradient_buffer(unit), kNoTask, kNoTask});
  if (gradients_on_drives_.has(unit)) gradients_on_drives_.close(unit, sums_out_[at(unit)]);
  closed_.push_back(sums_out_[at(unit)]);
}

// Without a GPU the buffers of gradients on the drives are what backward adds to.
bool StepGraph::adds_up_in_buffers() const {
  return gradients_on_drives_.are_on_drives() && !inputs_.has_bus();
}

// When a unit's sums or gradient may leave the GPU for the drives.
TaskId StepGraph::gradient_buffer(int unit) {
  const bool needs_one = inputs_.has_bus() && gradients_on_drives_.has(unit);
  return needs_one ? gradients_on_drives_.open(unit, /*is_first=*/true) : kNoTask;
}

// Into the slot that an earlier unit has freed.
void StepGraph::add_fetched_sum(int unit, int wave) {
  if (!sum_moves(unit)) return;
  const double bytes = sum_bytes(unit, wave - 1);
  const bool on_drives = gradients_on_drives_.has(unit);
  const TaskId there = on_drives ? gradients_on_drives_.bring(unit, kNoTask) : kNoTask;
  sums_in_[at(unit)] = tasks_.add(Kind::kSumIn, unit, bytes,
                                  {sums_out_[at(unit)], sum_slot_free(), stage_free(), there});
  if (on_drives) gradients_on_drives_.used(unit, sums_in_[at(unit)]);
}

// When backward may begin to add to the unit's sum.
TaskId StepGraph::sum_ready(int unit, int wave) {
  if (adds_up_in_buffers()) return gradients_on_drives_.open(unit, wave == 0);
  if (!sum_moves(unit)) {
    if (!link_.overlaps_compute()) return stage_free();
    return waves_.count() > 1 ? kNoTask : sum_slot_free();
  }
  return wave > 0 ? sums_in_[at(unit)] : sum_slot_free();
}

void StepGraph::add_backward(int index, int wave) {
  const UnitCost& unit = inputs_.unit(index);
  const ActivationPlace activations = inputs_.place(index).activations;
  const TaskId unit_input = input_leaves(activations) ? bring_input(index, wave) : kNoTask;
  const double again_s = activations == ActivationPlace::kKeep ? 0 : unit.recompute_s;
  const TaskId backward =
      tasks_.add(Kind::kBackward, index, share(wave) * (unit.backward_s + again_s) + unpack_s(),
                 {own_ready(), unit_input, sum_ready(index, wave), fetched_.lender});
  backwards_[at(index)] = backward;
  used_by(backward);
  computed_ = backward;
}

void StepGraph::add_gradient(int index) {
  if (adds_up_in_buffers()) gradients_on_drives_.close(index, computed_);
  const double bytes =
      inputs_.has_bus() ? inputs_.host_elements(index) * inputs_.options.bytes.grad : 0;
  const TaskId reduced = link_.is_used() ? link_.reduce(index, computed_, stage_free()) : computed_;
  gradients_.push_back(tasks_.add(Kind::kGradientOut, index, bytes,
                                  {reduced, gradient_buffer(index), kNoTask, kNoTask}));
  if (inputs_.has_bus() && gradients_on_drives_.has(index))
    gradients_on_drives_.close(index, gradients_.back());
  const bool takes_turns = link_.overlaps_compute() && waves_.count() == 1;
  if (takes_turns || sum_moves(index)) closed_.push_back(reduced);
}

void StepGraph::add_norm() {
  last_ = tasks_.add(Kind::kNorm, 0, 0,
                     {gradients_.back(), tasks_.last_compute(), link_.last(), kNoTask});
}

}  // namespace sluice::offload
