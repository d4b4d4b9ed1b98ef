#include "offload/planner/step_tasks.h"

namespace sluice::offload {
namespace {

Stream stream_of(StepTask kind) {
  using Kind = StepTask;
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
    case Kind::kInputIn:
      return Stream::kInputsIn;
    case Kind::kGradientOut:
    case Kind::kSumOut:
      return Stream::kGradientsOut;
    case Kind::kSumIn:
      return Stream::kSumsIn;
    case Kind::kInputOut:
      return Stream::kInputsOut;
    case Kind::kStateRead:
      return Stream::kStateReads;
    case Kind::kStateWrite:
      return Stream::kStateWrites;
    case Kind::kParamRead:
      return Stream::kParamReads;
    case Kind::kParamWrite:
      return Stream::kParamWrites;
    case Kind::kInputRead:
      return Stream::kInputReads;
    case Kind::kInputWrite:
      return Stream::kInputWrites;
    case Kind::kGradientRead:
      return Stream::kGradientReads;
    case Kind::kGradientWrite:
      return Stream::kGradientWrites;
    case Kind::kShardAdamw:
    case Kind::kAddSums:
      return Stream::kLinkCompute;
    case Kind::kGather:
    case Kind::kReduce:
      return Stream::kLink;
    case Kind::kNorm:
      break;
  }
  return Stream::kHost;
}

bool is_on_drives(StepTask kind) {
  return kind == StepTask::kStateRead || kind == StepTask::kStateWrite ||
         kind == StepTask::kParamRead || kind == StepTask::kParamWrite ||
         kind == StepTask::kInputRead || kind == StepTask::kInputWrite ||
         kind == StepTask::kGradientRead || kind == StepTask::kGradientWrite;
}

}  // namespace

const char* words(StepTask kind) {
  using Kind = StepTask;
  switch (kind) {
    case Kind::kForward:
      return "forward ";
    case Kind::kHead:
      return "loss ";
    case Kind::kBackward:
      return "backward ";
    case Kind::kGpuAdamw:
    case Kind::kCpuAdamw:
    case Kind::kShardAdamw:
      return "adamw ";
    case Kind::kParamsIn:
      return "parameters ";
    case Kind::kInputIn:
    case Kind::kInputOut:
      return "unit input ";
    case Kind::kGradientOut:
      return "gradient ";
    case Kind::kSumOut:
    case Kind::kSumIn:
      return "sum of gradients ";
    case Kind::kStateRead:
      return "read state ";
    case Kind::kStateWrite:
      return "write state ";
    case Kind::kParamRead:
      return "read parameters ";
    case Kind::kParamWrite:
      return "write parameters ";
    case Kind::kInputRead:
      return "read unit input ";
    case Kind::kInputWrite:
      return "write unit input ";
    case Kind::kGradientRead:
      return "read gradient ";
    case Kind::kGradientWrite:
      return "write gradient ";
    case Kind::kGather:
      return "gather ";
    case Kind::kReduce:
      return "reduce ";
    case Kind::kAddSums:
      return "add sums ";
    case Kind::kUpdated:
    case Kind::kNorm:
      break;
  }
  return "";
}

TaskId StepTasks::add(StepTask kind, int unit, double work, const After& after) {
  const Stream stream = stream_of(kind);
  const TaskId id = schedule_.add({.stream = stream,
                                   .work = work,
                                   .after = after,
                                   .outside = drives_outside_ && is_on_drives(kind)});
  labels_.push_back({kind, unit});
  count(resource_of(stream), work);
  if (stream == Stream::kCompute) last_compute_ = id;
  return id;
}

void StepTasks::count(Resource resource, double work) {
  if (counting_) work_[static_cast<std::size_t>(resource)] += times_ * work;
}

}  // namespace sluice::offload
