#include "engine/probe/probe_subjects.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

// All of these differ from each other.
template <typename Setting>
void expect_all_different(const std::set<Setting>& subjects, std::size_t count) {
  EXPECT_EQ(subjects.size(), count);
}

TEST(ProbeSubjects, OfTheHostDifferByEverySetting) {
  const aio::MachineInfo machine{.cpu = "A", .cores = 8};
  const aio::MachineInfo other_cpu{.cpu = "B", .cores = 8};
  const aio::MachineInfo other_cores{.cpu = "A", .cores = 9};
  const HostProbeOptions options;
  expect_all_different<MeasuredOf>(
      {host_subject(machine, 8, options), host_subject(other_cpu, 8, options),
       host_subject(other_cores, 8, options), host_subject(machine, 7, options),
       host_subject(machine, 8, {.form = {offload::ParamForm::kFp32}}),
       host_subject(machine, 8,
                    {.form = {offload::ParamForm::kSplit, offload::ElementType::kBf16}}),
       host_subject(machine, 8, {.grad_type = offload::GradType::kFp16}),
       host_subject(machine, 8, {.isa = offload::Isa::kAvx2})},
      8);
  // The cache has entries without the moments.
  EXPECT_EQ(host_subject(machine, 8, options).count("moments"), 0U);
}

TEST(ProbeSubjects, OfDrivesDifferByEverySetting) {
  const aio::MachineInfo machine{.cpu = "A", .cores = 8};
  const DriveAccess access{.backend = "uring"};
  const aio::TemporaryFolder folder;
  const std::vector<std::string> one = {folder.path()};
  const std::vector<std::string> proc = {"/proc"};  // another mount
  expect_all_different<MeasuredOf>(
      {drive_subject(machine, {.folders = one}, access),
       drive_subject(machine, {.folders = proc}, access),
       drive_subject(machine, {.folders = {one[0], one[0]}}, access),
       drive_subject(machine, {.folders = {one[0], one[0]}, .weights = {2, 1}}, access),
       drive_subject(machine, {.folders = one, .block_bytes = 4096}, access),
       drive_subject(machine, {.folders = one, .queue_depth = 33}, access),
       drive_subject(machine, {.folders = one, .seconds = 0.1}, access),
       drive_subject(machine, {.folders = one, .seconds = 0.15}, access),
       drive_subject(machine, {.folders = one, .fill_seconds = 0.1}, access),
       drive_subject(machine, {.folders = one}, {.backend = "posix"}),
       drive_subject(machine, {.folders = one}, {.backend = "uring", .threads = 2}),
       drive_subject(machine, {.folders = one}, {.backend = "uring", .single_submit = true})},
      12);
  EXPECT_EQ(drive_subject(machine, {.folders = {one[0], one[0]}}, access),
            drive_subject(machine, {.folders = {one[0], one[0]}, .weights = {1, 1}}, access));
  // The cache has entries without the time.
  EXPECT_EQ(drive_subject(machine, {.folders = one}, access).count("seconds"), 0U);
  // Two folders on one drive are the same drive.
  std::filesystem::create_directory(folder.file("below"));
  EXPECT_EQ(drive_subject(machine, {.folders = one}, access),
            drive_subject(machine, {.folders = {folder.file("below")}}, access));
}

TEST(ProbeSubjects, OfAGpuDifferByEverySetting) {
  const aio::MachineInfo machine{.cpu = "A", .cores = 8};
  using offload::GradType;
  using offload::ParamForm;
  expect_all_different<MeasuredOf>(
      {gpu_subject(machine, {"G", "1"}, "2.11", {ParamForm::kSplit}, GradType::kBf16),
       gpu_subject(machine, {"H", "1"}, "2.11", {ParamForm::kSplit}, GradType::kBf16),
       gpu_subject(machine, {"G", "2"}, "2.11", {ParamForm::kSplit}, GradType::kBf16),
       gpu_subject(machine, {"G", "1"}, "2.12", {ParamForm::kSplit}, GradType::kBf16),
       gpu_subject(machine, {"G", "1"}, "2.11", {ParamForm::kFp32}, GradType::kBf16),
       gpu_subject(machine, {"G", "1"}, "2.11", {ParamForm::kSplit}, GradType::kFp32),
       gpu_subject(machine, {"G", "1"}, "2.11", {ParamForm::kSplit, offload::ElementType::kBf16},
                   GradType::kBf16)},
      7);
}

TEST(ProbeSubjects, OfUnitsDifferByEverySettingButTheNumberOfLayers) {
  const UnitSubject base{
      .shape = {.layers = 2, .hidden = 64, .heads = 2, .context_tokens = 32, .vocab = 100},
      .pass = {.micro_batch = 2, .tokens = 16},
      .dtype = "bf16",
      .device = "G",
      .torch_version = "2.11"};
  std::vector<UnitSubject> all(13, base);
  all[1].shape.hidden = 128;
  all[2].shape.heads = 4;
  all[3].shape.context_tokens = 64;
  all[4].shape.vocab = 101;
  all[5].shape.dropout = 0.1;
  all[6].shape.ffn_hidden = 128;
  all[7].padded_vocab = 128;
  all[8].pass.micro_batch = 3;
  all[9].pass.tokens = 32;
  all[10].dtype = "fp16";
  all[11].device = "H";
  all[12].torch_version = "2.12";
  std::set<MeasuredOf> subjects;
  for (const UnitSubject& subject : all) subjects.insert(unit_subject(subject));
  EXPECT_EQ(subjects.size(), all.size());
  // A family's numbers count, whatever their names and however small.
  std::vector<UnitSubject> numbers(4, base);
  numbers[0].shape.numbers = {{"epsilon", 1e-12}};
  numbers[1].shape.numbers = {{"epsilon", 2e-12}};
  numbers[2].shape.numbers = {{"hidden", 128}};
  numbers[3].shape.numbers = {{"hidden", 128}};
  numbers[3].shape.hidden = 128;
  for (const UnitSubject& subject : numbers) subjects.insert(unit_subject(subject));
  EXPECT_EQ(subjects.size(), all.size() + numbers.size());
  UnitSubject deeper = base;
  deeper.shape.layers = 50;
  EXPECT_EQ(unit_subject(deeper), unit_subject(base));
  // Values measured with other kernels belong to another subject.
  MeasuredOf before = unit_subject(base);
  EXPECT_EQ(before.erase("passes"), 1U);
  EXPECT_NE(before, unit_subject(base));
}

}  // namespace
}  // namespace sluice::engine
