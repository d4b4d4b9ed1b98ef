#include "engine/config/report.h"

#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const char* const kDeepSpeed = R"({"train_batch_size": 8, "amp": {"enabled": false},
                                   "zero_optimization": {"overlap_comm": true}})";

TEST(ConfigReport, GroupsKeysAndAlignsTheirColumns) {
  const std::string text = format_report(accepted(resolve_deepspeed(kDeepSpeed)));
  EXPECT_THAT(text, StartsWith("honoured\n  train_batch_size  8  [ds.json]\n"));
  EXPECT_THAT(text, HasSubstr("\nfollows from other keys\n"));
  EXPECT_THAT(text, HasSubstr("\nignored, without effect\n"));
  EXPECT_THAT(text,
              HasSubstr("\n  amp                             {\"enabled\":false}  [ds.json] "));
  EXPECT_THAT(text, HasSubstr("\n  zero_optimization.overlap_comm  true               [ds.json] "));
}

TEST(ConfigReport, ShowsDefaultsWhenVerbose) {
  const auto resolved = accepted(resolve_deepspeed(kDeepSpeed));
  EXPECT_THAT(format_report(resolved), Not(HasSubstr("aio.queue_depth")));
  EXPECT_THAT(format_report(resolved, {.verbose = true}), HasSubstr("aio.queue_depth"));
}

TEST(ConfigReport, ShortensLongValuesAndFolders) {
  const std::string text = format_report(accepted(
      resolve({.run_file = Source{"/a/b/run.json", R"({"train_batch_size": 8, "run": {"dir": ")" +
                                                       std::string(50, 'x') + "\"}}"}})));
  EXPECT_THAT(text, HasSubstr("  \"" + std::string(24, 'x') + "...  [run.json]\n"));
}

TEST(ConfigReport, EndsWithWhatEachAutoBecameAndHowToChooseIt) {
  const std::string text = format_report(
      accepted(resolve_both(R"({"train_batch_size": 4})",
                            R"({"train_batch_size": "auto", "gradient_clipping": "auto",
          "optimizer": {"params": {"lr": "auto", "weight_decay": 0.5}}})")));
  const std::size_t list = text.find("chosen for \"auto\"\n");
  ASSERT_NE(list, std::string::npos) << text;
  EXPECT_EQ(text.substr(list),
            "chosen for \"auto\"\n"
            "  train_batch_size     4      [run.json] ds.json says \"auto\", so this file decides\n"
            "  optimizer.params.lr  5e-05  [ds.json] Hugging Face's learning_rate\n"
            "  gradient_clipping    1.0    [ds.json] Hugging Face's max_grad_norm\n"
            "  to set one yourself: --set KEY=VALUE, or the key in a run file\n");
}

TEST(ConfigReport, LeavesOutAGroupWithoutKeys) {
  EXPECT_THAT(format_report(accepted(resolve_run(R"({"train_batch_size": 8})"))),
              Not(HasSubstr("ignored")));
}

}  // namespace
}  // namespace sluice::config
