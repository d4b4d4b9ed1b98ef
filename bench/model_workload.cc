#include "bench/model_workload.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/result_header.h"
#include "engine/families/make_model.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace sluice::bench {
namespace {

// DeviceClock: measures the time and the activation memory of calls on the CPU or on the current
// CUDA device, with its events and its allocator's statistics. Without a GPU memory is not
// measured.
//
// Threads: one.
class DeviceClock {
 public:
  explicit DeviceClock(bool cuda);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  static bool has_cuda();

  // Waits for all work queued before, then starts the time and the peak.
  void start();
  // Waits for all work queued since start().
  double stop_ms();

  std::uint64_t allocated_bytes() const;
  std::uint64_t peak_bytes() const;  // since start()

 private:
  bool cuda_;
  std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<c10::Event> first_;
  std::unique_ptr<c10::Event> last_;
};

#ifdef SLUICE_HAS_CUDA

bool DeviceClock::has_cuda() { return c10::cuda::device_count() > 0; }

DeviceClock::DeviceClock(bool cuda) : cuda_(cuda) {
  if (!cuda) return;
  first_ = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  last_ = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
}

void DeviceClock::start() {
  if (cuda_) {
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device());
    first_->record(c10::cuda::getCurrentCUDAStream().unwrap());
  }
  begin_ = std::chrono::steady_clock::now();
}

double DeviceClock::stop_ms() {
  if (cuda_) {
    last_->record(c10::cuda::getCurrentCUDAStream().unwrap());
    last_->synchronize();
    return first_->elapsedTime(*last_);
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_)
      .count();
}

std::uint64_t DeviceClock::allocated_bytes() const {
  if (!cuda_) return 0;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.allocated_bytes[0].current);
}

std::uint64_t DeviceClock::peak_bytes() const {
  if (!cuda_) return 0;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.allocated_bytes[0].peak);
}

#else

bool DeviceClock::has_cuda() { return false; }

DeviceClock::DeviceClock(bool cuda) : cuda_(cuda) {}

void DeviceClock::start() { begin_ = std::chrono::steady_clock::now(); }

double DeviceClock::stop_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_)
      .count();
}

std::uint64_t DeviceClock::allocated_bytes() const { return 0; }
std::uint64_t DeviceClock::peak_bytes() const { return 0; }

#endif

DeviceClock::~DeviceClock() = default;

using engine::Model;
using engine::PassContext;
using engine::Saved;
using engine::UnitViews;

constexpr double kInitialDeviation = 0.02;
constexpr int kWarmUps = 3;

at::ScalarType dtype_of(ActivationType type) {
  switch (type) {
    case ActivationType::kFp32:
      return at::kFloat;
    case ActivationType::kBf16:
      return at::kBFloat16;
    case ActivationType::kFp16:
      return at::kHalf;
  }
  return at::kFloat;
}

class ModelWorkload {
 public:
  explicit ModelWorkload(const ModelBenchOptions& options)
      : options_(options),
        made_(engine::make_model({.shape = options.shape, .padded_vocab = options.padded_vocab})),
        model_(*made_),
        layout_(model_.layout()),
        clock_(options.cuda),
        device_(options.cuda ? at::kCUDA : at::kCPU),
        numbers_(at::TensorOptions().dtype(dtype_of(options.dtype)).device(device_)) {
    at::manual_seed(1);
    for (const int unit : layout_.first_of_kinds()) {
      add_unit(unit);
      for (const int lender : layout_.lenders(unit)) add_unit(lender);
    }
    const engine::PassShape& pass = options.pass;
    input_ = at::randn({pass.micro_batch, pass.tokens, options.shape.hidden}, numbers_);
    gradient_ = at::randn_like(input_).mul_(1e-3);
    const auto ids = at::TensorOptions().dtype(at::kLong).device(device_);
    tokens_ = at::randint(options.shape.vocab, {pass.micro_batch, pass.tokens}, ids);
    targets_ = at::randint(options.shape.vocab, {pass.micro_batch, pass.tokens}, ids);
  }

  std::vector<PassMeasurement> measure();

 private:
  using Call = std::function<void()>;

  void add_unit(int unit) {
    if (parameters_.contains(unit)) return;
    const engine::UnitLayout& layout = layout_.layout(unit);
    const auto elements = static_cast<std::int64_t>(layout.slot_elements);
    const at::Tensor flat = at::randn({elements}, numbers_).mul_(kInitialDeviation);
    const UnitViews& parameters = parameters_.try_emplace(unit, layout, flat).first->second;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      if (layout.parameters[i].initial_value == 0) continue;
      at::Tensor parameter = parameters[static_cast<int>(i)];
      parameter.add_(layout.parameters[i].initial_value);
    }
    gradients_.try_emplace(unit, layout, at::zeros({elements}, numbers_.dtype(at::kFloat)));
  }

  // `before` is not timed, but memory that it saves counts.
  PassMeasurement time(const std::string& name, double flops, const Call& before, const Call& call);
  std::vector<PassMeasurement> measure_block(int unit);
  std::vector<PassMeasurement> measure_rest();
  // The unit's own views, followed by those that it borrows.
  UnitViews bound(const std::map<int, UnitViews>& units, int unit) const {
    std::vector<const UnitViews*> lent;
    for (const int lender : layout_.lenders(unit)) lent.push_back(&units.at(lender));
    return engine::with_borrowed(layout_, unit, units.at(unit), lent);
  }
  engine::PeakOptions peak_options() const {
    return {.cpu = !options_.cuda, .deterministic = options_.deterministic};
  }
  double flops(double per_token) const {
    return per_token * static_cast<double>(options_.pass.micro_batch * options_.pass.tokens);
  }

  const ModelBenchOptions& options_;
  const std::unique_ptr<Model> made_;
  const Model& model_;
  const engine::ModelLayout& layout_;
  DeviceClock clock_;
  at::Device device_;
  at::TensorOptions numbers_;
  std::map<int, UnitViews> parameters_;  // by unit: the first of each kind, and their lenders
  std::map<int, UnitViews> gradients_;
  at::Tensor input_;
  at::Tensor gradient_;
  at::Tensor tokens_;
  at::Tensor targets_;
  Saved saved_;
};

PassMeasurement ModelWorkload::time(const std::string& name, double flops, const Call& before,
                                    const Call& call) {
  PassMeasurement measured{.name = name, .ms = {}, .flops = flops, .peak_bytes = 0};
  for (int run = -kWarmUps; run < options_.runs; ++run) {
    saved_.clear();
    const std::uint64_t others = clock_.allocated_bytes();
    before();
    clock_.start();
    call();
    const double ms = clock_.stop_ms();
    if (run < 0) continue;
    measured.ms.push_back(ms);
    measured.peak_bytes = std::max(measured.peak_bytes, clock_.peak_bytes() - others);
  }
  saved_.clear();
  return measured;
}

std::vector<PassMeasurement> ModelWorkload::measure_block(int unit) {
  const engine::ModelUnit& block = model_.unit(unit);
  const engine::UnitKind& kind = layout_.kind(unit);
  const UnitViews w = bound(parameters_, unit);
  const UnitViews gradients = bound(gradients_, unit);
  const PassContext context = {
      .unit = unit, .deterministic = options_.deterministic, .overwrites = true};
  const engine::Flops cost = kind.flops(options_.pass.tokens);
  const Call nothing = [] {};
  const auto most = kind.peak_bytes(options_.pass, peak_options());
  std::vector<PassMeasurement> all;
  all.push_back(time(kind.name() + " forward", flops(cost.forward), nothing,
                     [&] { block.forward(context, w, input_, nullptr); }));
  all.push_back(time(kind.name() + " forward, saving", flops(cost.forward), nothing,
                     [&] { block.forward(context, w, input_, &saved_); }));
  all.push_back(time(kind.name() + " recompute", flops(cost.recompute), nothing,
                     [&] { block.recompute(context, w, input_, saved_); }));
  all.push_back(time(
      kind.name() + " backward", flops(cost.backward),
      [&] { block.recompute(context, w, input_, saved_); },
      [&] { block.backward(context, w, input_, saved_, gradient_, gradients); }));
  for (PassMeasurement& it : all) {
    if (it.peak_bytes == 0) continue;
    it.peak_bytes += input_.nbytes();
    it.bound_bytes = most;
  }
  if (all.back().peak_bytes != 0) all.back().peak_bytes += gradient_.nbytes();
  return all;
}

std::vector<PassMeasurement> ModelWorkload::measure_rest() {
  const PassContext context = {.deterministic = options_.deterministic};
  const engine::UnitKind& kind = layout_.kind(layout_.head());
  const engine::Flops cost = kind.flops(options_.pass.tokens);
  const Call nothing = [] {};
  const UnitViews w = bound(parameters_, layout_.head());
  const UnitViews gradients = bound(gradients_, layout_.head());
  std::vector<PassMeasurement> all;
  all.push_back(time("head loss", flops(cost.forward), nothing,
                     [&] { model_.head().loss_sum(w, input_, targets_); }));
  all.push_back(time("head loss and gradient", flops(cost.forward + cost.backward), nothing, [&] {
    model_.head().loss_and_gradient(w, input_, targets_, 1e-3, gradients);
  }));
  const auto most = kind.peak_bytes(options_.pass, peak_options());
  for (PassMeasurement& it : all) {
    if (it.peak_bytes == 0) continue;
    it.peak_bytes += input_.nbytes();
    it.bound_bytes = most;
  }
  all.push_back(time("embedding forward", 0, nothing, [&] {
    model_.unit(0).forward(context, parameters_.at(0), tokens_, nullptr);
  }));
  all.push_back(time("embedding backward", 0, nothing, [&] {
    model_.unit(0).backward(context, parameters_.at(0), tokens_, saved_, gradient_,
                            gradients_.at(0));
  }));
  return all;
}

std::vector<PassMeasurement> ModelWorkload::measure() {
  std::vector<PassMeasurement> all;
  for (const int unit : layout_.first_of_kinds()) {
    if (!layout_.is_block(unit)) continue;
    for (PassMeasurement& it : measure_block(unit)) all.push_back(std::move(it));
  }
  for (PassMeasurement& it : measure_rest()) all.push_back(std::move(it));
  return all;
}

}  // namespace

double PassMeasurement::median_ms() const {
  std::vector<double> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

Status check_device(const ModelBenchOptions& options) {
  if (!options.cuda || DeviceClock::has_cuda()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--device cuda: this build or this machine has no CUDA; use --device cpu");
}

std::vector<PassMeasurement> measure_passes(const ModelBenchOptions& options) {
  at::set_num_threads(options.threads);
  return ModelWorkload(options).measure();
}

namespace {

using Json = nlohmann::ordered_json;

double tflop_per_s(double flops, double ms) { return flops / ms * 1e-9; }

std::string row(const std::string& name, double ms, double flops, const std::string& memory) {
  char text[160];
  std::snprintf(text, sizeof text, "%-26s %10.3f", name.c_str(), ms);
  std::string line = text;
  if (flops > 0) {
    std::snprintf(text, sizeof text, " %10.1f", tflop_per_s(flops, ms));
    line += text;
  } else {
    line += std::string(11, ' ');
  }
  return line + memory + "\n";
}

std::string memory_of(const PassMeasurement& pass, double unit_input) {
  if (pass.peak_bytes == 0) return "";
  char text[96];
  std::snprintf(text, sizeof text, " %10.1f %10.2f", 1e-6 * static_cast<double>(pass.peak_bytes),
                static_cast<double>(pass.peak_bytes) / unit_input);
  std::string line = text;
  if (pass.bound_bytes == 0) return line;
  std::snprintf(text, sizeof text, " %10.2f", static_cast<double>(pass.bound_bytes) / unit_input);
  return line + text;
}

}  // namespace

const PassMeasurement& ModelReport::pass(const std::string& name) const {
  const auto found = std::find_if(passes.begin(), passes.end(),
                                  [&](const PassMeasurement& it) { return it.name == name; });
  if (found == passes.end()) throw std::logic_error("no pass is called " + name);
  return *found;
}

std::vector<ModelReport::Whole> ModelReport::wholes() const {
  const engine::ModelLayout layout = layout_of(options);
  const auto sum = [&](const std::string& name, const std::vector<std::string>& of_block) {
    Whole whole{name};
    const auto add = [&](const std::string& one, double times) {
      whole.ms += times * pass(one).median_ms();
      whole.flops += times * pass(one).flops;
    };
    for (int unit = 0; unit < layout.units(); ++unit) {
      if (!layout.is_block(unit)) continue;
      for (const std::string& one : of_block) add(layout.kind(unit).name() + one, 1);
    }
    add("head loss and gradient", 1);
    add("embedding forward", 1);
    add("embedding backward", 1);
    return whole;
  };
  return {sum("model, activations saved", {" forward, saving", " backward"}),
          sum("model, recomputed", {" forward", " recompute", " backward"})};
}

std::string ModelReport::table() const {
  char text[256];
  std::snprintf(text, sizeof text,
                "%lld layers x %lld, %lld heads, dropout %g; %lld x %lld tokens, %s%s, on %s\n\n",
                static_cast<long long>(options.shape.layers),
                static_cast<long long>(options.shape.hidden),
                static_cast<long long>(options.shape.heads), options.shape.dropout,
                static_cast<long long>(options.pass.micro_batch),
                static_cast<long long>(options.pass.tokens), options.dtype_name.c_str(),
                options.deterministic ? ", deterministic" : "", options.cuda ? "cuda" : "cpu");
  std::string table = text;
  table += std::string(26, ' ') + "         ms    TFLOP/s";
  table += options.cuda ? "    peak MB     inputs    planned\n" : "\n";
  const auto unit_input = static_cast<double>(layout_of(options).unit_input_bytes(options.pass));
  for (const PassMeasurement& it : passes) {
    table += row(it.name, it.median_ms(), it.flops, memory_of(it, unit_input));
  }
  for (const Whole& it : wholes()) table += row(it.name, it.ms, it.flops, "");
  return table;
}

std::string ModelReport::json(const aio::MachineInfo& machine, const std::string& command) const {
  Json json = result_header(machine, command);
  json["layers"] = options.shape.layers;
  json["hidden"] = options.shape.hidden;
  json["heads"] = options.shape.heads;
  json["dropout"] = options.shape.dropout;
  json["micro_batch"] = options.pass.micro_batch;
  json["tokens"] = options.pass.tokens;
  json["dtype"] = options.dtype_name;
  json["device"] = options.cuda ? "cuda" : "cpu";
  json["deterministic"] = options.deterministic;
  json["unit_input_bytes"] = layout_of(options).unit_input_bytes(options.pass);
  json["passes"] = Json::array();
  for (const PassMeasurement& it : passes) {
    Json one = {{"name", it.name}, {"median_ms", it.median_ms()}, {"ms", it.ms}};
    if (it.flops > 0) one["tflop_per_s"] = tflop_per_s(it.flops, it.median_ms());
    if (it.peak_bytes > 0) one["peak_bytes"] = it.peak_bytes;
    if (it.bound_bytes > 0) one["planned_bytes"] = it.bound_bytes;
    json["passes"].push_back(std::move(one));
  }
  json["models"] = Json::array();
  for (const Whole& it : wholes()) {
    json["models"].push_back(
        {{"name", it.name}, {"ms", it.ms}, {"tflop_per_s", tflop_per_s(it.flops, it.ms)}});
  }
  return text_of(json);
}

}  // namespace sluice::bench
