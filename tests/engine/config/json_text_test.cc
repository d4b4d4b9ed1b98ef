// The syntax of configurations: JSON as people write it, with helpful errors.
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ConfigText, SyntaxErrorsGiveLineAndColumn) {
  EXPECT_THAT(refusal(resolve_run("{\n  \"train_batch_size\": 8,\n  \"fp16\" {}\n}")),
              StartsWith("run.json:3:10: "));
}

TEST(ConfigText, SaysWhatElsePeopleWriteIntoJson) {
  EXPECT_THAT(refusal(resolve_run(R"({"train_batch_size": 8,,})")), StartsWith("run.json:1:"));
  EXPECT_THAT(refusal(resolve_run(R"({'train_batch_size': 8})")), HasSubstr("double quotes"));
  EXPECT_THAT(refusal(resolve_run(R"({"fp16": {"enabled": TRUE}})")), HasSubstr("lower case"));
  EXPECT_THAT(refusal(resolve_run(R"({"steps_per_print": Infinity})")), HasSubstr("no Infinity"));
  EXPECT_THAT(refusal(resolve_run("{\n/* why\n\"train_batch_size\": 8}")),
              AllOf(StartsWith("run.json:2:"), HasSubstr("the comment")));
  EXPECT_THAT(refusal(resolve_run(" \n")), HasSubstr("the file is empty"));
}

TEST(ConfigText, EachSourceMayHaveCommentsTrailingCommasAndKeysWithoutQuotes) {
  const char* const text = R"({ // of the tutorial
  "train_batch_size": 8,   # 8 GPUs
  /* "fp16": {"enabled": true},
     once */
  bf16: {enabled: true,},
  "zero_optimization" : {
    "stage": 3, // "stage": 2,
    offload_param
      : {"device": "nvme", "nvme_path": "/a//b#c,}/*d*/\"", },
  },
  "optimizer": {"params": {"betas": [0.5, 0.75,]}},
  "wall_clock_breakdown": True,
  "scheduler": None,
} # the end)";
  const std::string marked = std::string("\xEF\xBB\xBF") + text;
  for (const Resolved& resolved : {accepted(resolve_deepspeed(text)), accepted(resolve_run(text)),
                                   accepted(resolve_deepspeed(marked))}) {
    const Config& config = resolved.config;
    EXPECT_EQ(config.batch.train, 8);
    EXPECT_TRUE(config.bf16.enabled);
    EXPECT_FALSE(config.fp16.enabled);
    EXPECT_TRUE(config.wall_clock_breakdown);
    EXPECT_EQ(config.zero.stage, 3);
    EXPECT_EQ(config.zero.offload_param.nvme_path, "/a//b#c,}/*d*/\"");
    EXPECT_EQ(config.optimizer.betas, (Betas{0.5, 0.75}));
  }
  EXPECT_THAT(refusal(resolve_run(std::string("\xFF\xFE{\0}\0", 6))), HasSubstr("UTF-16"));
}

TEST(ConfigText, WhatADeepSpeedFileMayNotHaveIsNamedWithItsPlace) {
  const auto of = [](const std::string& text) { return refusal(resolve_deepspeed(text)); };
  EXPECT_THAT(of("{ # one\n\"train_batch_size\" 8}"), StartsWith("ds.json:2:20: "));
  EXPECT_THAT(of("{\n/* no end\n\"train_batch_size\": 8}"), StartsWith("ds.json:2:"));
  EXPECT_THAT(of("{\"train_batch_size\": 8,,}"), StartsWith("ds.json:1:"));
  EXPECT_THAT(of("{,}"), StartsWith("ds.json:1:"));
  EXPECT_THAT(of("{\"optimizer\": {\"params\": {\"betas\": [,]}}}"), StartsWith("ds.json:1:"));
  EXPECT_THAT(of("{\"steps_per_print\": \"4, // no end"), StartsWith("ds.json:1:"));
  EXPECT_THAT(of("# nothing else"), HasSubstr("the file is empty"));
  // Accepted by DeepSpeed's parser, but not by this one.
  EXPECT_THAT(of("{\"optimizer\": {\n\"type\": AdamW, \"params\": {}}}"),
              AllOf(StartsWith("ds.json:2:"), HasSubstr("need double quotes: \"AdamW\"")));
  EXPECT_THAT(of("{zero_optimization: {offload_param: {device: nvme}}}"),
              HasSubstr("need double quotes: \"nvme\""));
  EXPECT_THAT(of("{\"optimizer\": {\"type\": TorchAdam}}"), HasSubstr("quotes: \"TorchAdam\""));
  EXPECT_THAT(of("{train_batch_size: 8\n  steps_per_print: 4}"),
              AllOf(StartsWith("ds.json:2:"), HasSubstr("a comma between them")));
  EXPECT_THAT(of("{\"train_batch_size\": 8\n\"steps_per_print\": 4}"),
              AllOf(StartsWith("ds.json:2:"), HasSubstr("a comma between them")));
  EXPECT_THAT(of("{\"optimizer\": {\"params\": {\"betas\": [0.5 0.75]}}}"),
              HasSubstr("a comma between them"));
  EXPECT_THAT(of("{\"train_batch_size\": 8"), testing::Not(HasSubstr("comma")));
  for (const std::string number : {"0x4", "4_000", "08", "+1", ".5"})
    EXPECT_THAT(of("{\"train_batch_size\": " + number + "}"),
                AllOf(HasSubstr(number + " is not a JSON number"), HasSubstr("decimal digits")));
  // DeepSpeed raises an error, too.
  EXPECT_THAT(of("{train_batch_size: 8, /* again */ \"train_batch_size\": 8}"), HasSubstr("twice"));
}

TEST(ConfigText, KeysThatStandTwiceAreNamed) {
  EXPECT_THAT(refusal(resolve_run(R"({"fp16": {"enabled": true, "enabled": false}})")),
              AllOf(HasSubstr("fp16.enabled"), HasSubstr("twice")));
  EXPECT_THAT(refusal(resolve_run(R"({"amp": [{"x": {"y": 1, "y": 2}}]})")),
              HasSubstr("amp.[].x.y"));
}

TEST(ConfigText, NumbersTooLargeAreErrorsWithAPlace) {
  EXPECT_THAT(refusal(resolve_run(R"({"gradient_clipping": 1e999})")),
              AllOf(StartsWith("run.json:1:"), HasSubstr("1e999")));
}

TEST(ConfigText, IsBoundedInSizeDepthAndKeys) {
  EXPECT_THAT(refusal(resolve_run(std::string(2 << 20, ' '))), HasSubstr("1 MiB"));
  EXPECT_THAT(refusal(resolve_run(R"({"amp": )" + std::string(100000, '['))), HasSubstr("nested"));
  std::string wide = "{\"amp\": {\"a\": 0";
  for (int i = 0; i < 2000; ++i) wide += ",\"k" + std::to_string(i) + "\": 0";
  EXPECT_THAT(refusal(resolve_run(wide + "}}")), HasSubstr("1024 keys"));
}

TEST(ConfigText, IsOneObject) {
  EXPECT_THAT(refusal(resolve_run("[1, 2]")), HasSubstr("not [1,2]"));
}

TEST(ConfigText, OfAFileIsReadWholeAndAMissingFileNamed) {
  const auto source = read_source(data_file("stage3_nvme_full.json"));
  ASSERT_TRUE(source.ok());
  EXPECT_THAT(source->text, AllOf(StartsWith("{"), HasSubstr("compression_training")));
  const auto missing = read_source("/nowhere/run.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("/nowhere/run.json"));
  EXPECT_FALSE(read_source(data_file("")).ok()) << "a folder is no file";
}

}  // namespace
}  // namespace sluice::config
