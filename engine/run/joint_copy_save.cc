#include "engine/run/joint_copy_save.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "engine/run/stored_state.h"

namespace sluice::engine {

JointCopySave::JointCopySave(SavedRun& run, const RankLink& ranks, aio::IoQueue& queue)
    : run_(run), ranks_(ranks), queue_(queue) {}

Result<std::unique_ptr<JointCopySave>> JointCopySave::create(SavedRun& run, const RankLink& ranks,
                                                             aio::IoQueue& queue) {
  std::unique_ptr<JointCopySave> made(new JointCopySave(run, ranks, queue));
  auto image = StateImage::create(run);
  SLUICE_RETURN_IF_ERROR(agree_of_ranks(ranks, image.status()));
  made->image_ = *std::move(image);
  return made;
}

JointCopySave::~JointCopySave() {
  is_cancelled_ = true;
  if (writing_.valid()) writing_.wait();
}

Status JointCopySave::copy() { return agree_of_ranks(ranks_, image_->copy(run_)); }

Status JointCopySave::begin(const std::string& folder) {
  save_ =
      std::make_unique<JointSave>(run_.model(), ranks_, queue_, stored_moments(run_.plan().types));
  if (Status begun = save_->begin(folder); !begun.ok()) {
    save_.reset();
    return begun;
  }
  const JointSave::Source source = [this](const JointSave::Append& append) {
    return image_->replay(
        [&](const ParameterSpec& parameter, const offload::ConstStateSlice& state) -> Status {
          if (is_cancelled_) return Error(ErrorCode::kCancelled, "the run ended during the save");
          return append(parameter.name, state);
        });
  };
  writing_ = std::async(std::launch::async, [this, source] { return save_->write(source); });
  return {};
}

bool JointCopySave::is_written() const {
  return !writing_.valid() ||
         writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Result<std::uint64_t> JointCopySave::end(const CheckpointState* state) {
  auto bytes = save_->commit(writing_.get(), state);
  save_.reset();
  return bytes;
}

}  // namespace sluice::engine
