#include "engine/weights/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/engine/weights/weights_under_test.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class SafetensorsWriting : public aio::EveryBackend {
 protected:
  std::unique_ptr<SafetensorsWriter> create(const std::string& name,
                                            const std::vector<TensorSpec>& tensors,
                                            std::uint64_t max_shard_bytes = 0) {
    auto writer = SafetensorsWriter::create(
        *queue_,
        {.path = folder_.file(name), .max_shard_bytes = max_shard_bytes, .staging_bytes = 1},
        tensors);
    EXPECT_TRUE(writer.ok()) << writer.error().message();
    return writer.ok() ? std::move(*writer) : nullptr;
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      found.push_back(entry.path().filename());
    return found;
  }

  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ = backend();
  const std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(*backend_, {.block_bytes = 16384});
};

TEST_P(SafetensorsWriting, IsReadBackInRangesOfAnyLength) {
  const auto tensors = test_tensors();
  for (const std::uint64_t written : {1'000'000, 1000, 333}) {
    const auto writer = create("m.safetensors", tensors);
    ASSERT_NE(writer, nullptr);
    ASSERT_OK(write_tensors(*writer, tensors, written));
    EXPECT_EQ(std::filesystem::file_size(folder_.file("m.safetensors")), writer->total_bytes());
    for (const std::uint64_t read : {1'000'000, 4096, 777}) {
      const auto reader =
          SafetensorsReader::open(*queue_, folder_.file("m.safetensors"), {.staging_bytes = 1});
      ASSERT_OK(reader);
      EXPECT_EQ((*reader)->metadata().at("format"), "pt");
      EXPECT_OK(check_tensors(**reader, tensors, read));
    }
  }
  EXPECT_THAT(names(), ElementsAre("m.safetensors"));
}

// The oracle assembles the file in memory.
TEST_P(SafetensorsWriting, WritesTheBytesOfTheFormatAndNoOthers) {
  const std::vector<TensorSpec> tensors = {{"w", DType::kF32, {2}}, {"b", DType::kBF16, {1, 3}}};
  const std::string expected =
      file_of(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],)"
              R"("data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}})"
              "  ",
              std::string("\x00\x00\xc0\x3f\x00\x00\x00\xc0"  // 1.5, -2
                          "\x80\x3f\x82\x3f\x00\x80",         // 1, 1 + 2^-6, -0
                          14));
  ASSERT_EQ((expected.size() - 8 - 14) % 8, 0U) << "the padding above";
  for (int run = 0; run < 2; ++run) {
    const auto writer = create("m.safetensors", tensors);
    ASSERT_NE(writer, nullptr);
    ASSERT_OK(writer->append("w", std::vector<float>{1.5F, -2}));
    ASSERT_OK(writer->append("b", std::vector<float>{1.00390625F, 1.01171875F}));
    ASSERT_OK(writer->append("b", std::vector<float>{-0.0F}));
    ASSERT_OK(writer->finish());
    EXPECT_EQ(get_file(folder_.file("m.safetensors")), expected);
  }
}

TEST_P(SafetensorsWriting, SpreadsTensorsOverShardsWithAnIndex) {
  const auto tensors = test_tensors();
  const auto writer = create("model.safetensors", tensors, 10'000);
  ASSERT_NE(writer, nullptr);
  ASSERT_OK(write_tensors(*writer, tensors, 500));
  // 296 bytes; 308400 alone; 4 + 0 + 8190 + 462; 16386 and nothing.
  EXPECT_THAT(names(), UnorderedElementsAre(
                           "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                           "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                           "model.safetensors.index.json"));
  const auto index = nlohmann::json::parse(get_file(folder_.file("model.safetensors.index.json")));
  EXPECT_EQ(index["metadata"]["total_size"], 296 + 308'400 + 4 + 8190 + 462 + 16'386);
  EXPECT_EQ(index["weight_map"]["wide"], "model-00001-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["large"], "model-00002-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["none"], "model-00003-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["nothing at the end"], "model-00004-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"].size(), tensors.size());
  const auto reader = SafetensorsReader::open(*queue_, folder_.path(), {.staging_bytes = 1});
  ASSERT_OK(reader);
  EXPECT_OK(check_tensors(**reader, tensors, 600));
}

TEST_P(SafetensorsWriting, HoldsNoTensorAtAll) {
  const auto writer = create("m.safetensors", {});
  ASSERT_NE(writer, nullptr);
  ASSERT_OK(writer->finish());
  const auto reader = SafetensorsReader::open(*queue_, folder_.file("m.safetensors"));
  ASSERT_OK(reader);
  EXPECT_TRUE((*reader)->tensors().empty());
}

TEST_P(SafetensorsWriting, LeavesTheOldFileUntilItIsFinishedAndNothingIfItNeverIs) {
  put_file(folder_.file("m.safetensors"), "old");
  put_file(folder_.file("m.safetensors.new"), std::string(100'000, 'x'));  // a killed run's
  const std::vector<TensorSpec> tensors = {{"w", DType::kF32, {50'000}}};
  {
    const auto writer = create("m.safetensors", tensors);
    ASSERT_NE(writer, nullptr);
    ASSERT_OK(writer->append("w", values_of(0, 49'999)));
    const Status status = writer->finish();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), ContainsRegex("\"w\" has 49999.*50000"));
    EXPECT_EQ(get_file(folder_.file("m.safetensors")), "old");
  }
  EXPECT_THAT(names(), ElementsAre("m.safetensors"));
  const auto writer = create("m.safetensors", tensors);
  ASSERT_NE(writer, nullptr);
  ASSERT_OK(write_tensors(*writer, tensors, 50'000));
  EXPECT_NE(get_file(folder_.file("m.safetensors")), "old");
  EXPECT_THAT(names(), ElementsAre("m.safetensors"));
}

TEST_P(SafetensorsWriting, SaysWhichValuesComeNext) {
  const std::vector<TensorSpec> tensors = {{"a", DType::kF32, {3}}, {"b", DType::kF32, {2}}};
  const auto message =
      [&](const std::vector<std::pair<std::string, std::size_t>>& appends) -> std::string {
    const auto writer = create("m.safetensors", tensors);
    Status status;
    for (const auto& [name, count] : appends) {
      EXPECT_TRUE(status.ok());
      status = writer->append(name, std::vector<float>(count));
    }
    EXPECT_EQ(writer->finish().ok(), status.ok()) << "the error stays";
    if (status.ok()) return "written";
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    return status.error().message();
  };
  EXPECT_EQ(message({{"a", 2}, {"a", 1}, {"b", 2}}), "written");
  EXPECT_THAT(message({{"a", 2}, {"b", 2}}), ContainsRegex("\"b\".*element 2 of \"a\""));
  EXPECT_THAT(message({{"a", 4}}), ContainsRegex("\"a\" has 3.*4 came"));
  EXPECT_THAT(message({{"a", 3}, {"a", 1}}), HasSubstr("element 0 of \"b\""));
  EXPECT_THAT(message({{"a", 3}, {"b", 2}, {"c", 1}}), HasSubstr("the last tensor"));
}

TEST_P(SafetensorsWriting, RefusesWhatItCannotWriteBeforeItWritesAnything) {
  const auto message = [&](ErrorCode code, const std::string& name, std::vector<TensorSpec> tensors,
                           std::uint64_t shard = 0) -> std::string {
    const auto writer = SafetensorsWriter::create(
        *queue_, {.path = folder_.file(name), .max_shard_bytes = shard}, tensors);
    if (writer.ok()) return "accepted";
    EXPECT_EQ(writer.error().code(), code);
    return writer.error().message();
  };
  EXPECT_THAT(message(ErrorCode::kInvalidArgument, "m.bin", {}),
              HasSubstr("must end in .safetensors"));
  EXPECT_THAT(message(ErrorCode::kInvalidArgument, ".safetensors", {}),
              HasSubstr("must end in .safetensors"));
  EXPECT_THAT(message(ErrorCode::kInvalidArgument, "m.safetensors", {{"a", DType::kI8, {1}}}),
              ContainsRegex("I8.*F16"));
  EXPECT_THAT(message(ErrorCode::kNotFound, "no/m.safetensors", {{"a", DType::kF32, {1}}}),
              HasSubstr("no"));
  EXPECT_THAT(message(ErrorCode::kNoSpace, "m.safetensors", {{"a", DType::kF32, {1ULL << 50}}}),
              HasSubstr("4096.00T"));
  std::vector<TensorSpec> many(10'001, {"", DType::kF32, {1}});
  for (std::size_t i = 0; i < many.size(); ++i) many[i].name = std::to_string(i);
  EXPECT_THAT(message(ErrorCode::kInvalidArgument, "m.safetensors", many, 4),
              HasSubstr("would be 10001 files"));
  EXPECT_THAT(names(), ElementsAre());
}

SLUICE_TEST_EVERY_BACKEND(SafetensorsWriting);

}  // namespace
}  // namespace sluice::engine
