#include "engine/weights/safetensors_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "aio/log.h"
#include "tests/engine/weights/weights_under_test.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class SafetensorsReading : public aio::EveryBackend {
 protected:
  std::unique_ptr<SafetensorsReader> open(const std::string& name) {
    auto reader = SafetensorsReader::open(*queue_, folder_.file(name), {.staging_bytes = 1});
    EXPECT_TRUE(reader.ok()) << reader.error().message();
    return reader.ok() ? std::move(*reader) : nullptr;
  }
  std::string refusal(const std::string& name) {
    const auto reader = SafetensorsReader::open(*queue_, folder_.file(name));
    return reader.ok() ? "accepted" : reader.error().message();
  }
  void put(const std::string& name, const std::string& content) {
    put_file(folder_.file(name), content);
  }

  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ = backend();
  const std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(*backend_, {.block_bytes = 16384});
};

// Little-endian elements of every dtype, written by hand.
TEST_P(SafetensorsReading, ConvertsWhatIsStored) {
  put("m.safetensors", file_of(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                               R"("f":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                               R"("h":{"dtype":"F16","shape":[3],"data_offsets":[16,22]},)"
                               R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[22,26]},)"
                               R"("i":{"dtype":"I32","shape":[1],"data_offsets":[26,30]}})",
                               std::string("\x00\x00\x00\x00\x00\x00\xf8\x3f"  // 1.5
                                           "\x00\x00\x20\xc0\x00\x00\x80\x7f"  // -2.5, inf
                                           "\x00\x3c\x01\x00\x00\xc4"          // 1, 2^-24, -4
                                           "\x80\x3f\x40\xc0"                  // 1, -3
                                           "\x01\x00\x00\x00",
                                           30)));
  const auto reader = open("m.safetensors");
  ASSERT_NE(reader, nullptr);
  const auto values = [&](const char* name, std::size_t count) {
    std::vector<float> result(count);
    EXPECT_OK(reader->read(name, 0, result));
    return result;
  };
  EXPECT_EQ(values("d", 1), std::vector<float>{1.5F});
  EXPECT_EQ(values("f", 2), (std::vector<float>{-2.5F, INFINITY}));
  EXPECT_EQ(values("h", 3), (std::vector<float>{1, 0x1p-24F, -4}));
  EXPECT_EQ(values("b", 2), (std::vector<float>{1, -3}));
  float value = 0;
  EXPECT_OK(reader->read("h", 2, {&value, 1}));
  EXPECT_EQ(value, -4);
  EXPECT_OK(reader->read("h", 3, {}));
  const auto error = [&](const char* name, std::uint64_t first) {
    const Status status = reader->read(name, first, {&value, 1});
    return status.ok() ? "read" : status.error().message();
  };
  EXPECT_THAT(error("i", 0), ContainsRegex("m.safetensors:.*\"i\" is I32"));
  EXPECT_THAT(error("h", 3), ContainsRegex("3 elements.*1 from 3"));
  EXPECT_THAT(error("h", ~0ULL), HasSubstr("has 3 elements"));
  EXPECT_THAT(error("x", 0), HasSubstr("no tensor \"x\" in " + folder_.file("m.safetensors")));
}

TEST_P(SafetensorsReading, RefusesWhatIsNotFiniteWhereWeightsAreBegunWith) {
  // 1, then a value that is not finite, in several bit patterns.
  for (const char* const bad : {"\x80\x7F", "\x80\xFF", "\xC0\x7F", "\x81\x7F"}) {
    put("m.safetensors", file_of(R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})",
                                 std::string("\x80\x3F") + bad));
    const auto reader = open("m.safetensors");
    ASSERT_NE(reader, nullptr);
    std::array<float, 2> values{};
    EXPECT_OK(reader->read("w", 0, values));
    EXPECT_OK(reader->read_finite("w", 0, std::span(values).first(1)));
    const Status status = reader->read_finite("w", 0, values);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(), HasSubstr("m.safetensors: element 1 of w"));
    EXPECT_FALSE(reader->read_finite("w", 1, std::span(values).first(1)).ok());
  }
}

TEST_P(SafetensorsReading, SaysWhatIsThereInPlaceOfWeights) {
  put("m.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n");
  EXPECT_THAT(refusal("m.safetensors"), ContainsRegex("m.safetensors:.*git-lfs"));
  std::filesystem::remove(folder_.file("m.safetensors"));
  put("pytorch_model-00001-of-00002.bin", "x");
  EXPECT_THAT(refusal(""), HasSubstr("convert it with transformers"));
}

TEST_P(SafetensorsReading, FindsEveryTensorOfASetByItsIndexOrItsFolder) {
  const auto shard = [](const std::string& name, char value) {
    return file_of("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"twice":)" +
                       R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                   std::string(3, '\0') + value + '@');
  };
  put("a.safetensors", shard("in a", '\x80'));
  put("b.safetensors", shard("in b", '\0'));
  put("model.safetensors.index.json",
      R"({"weight_map":{"in a":"a.safetensors","in b":"b.safetensors","twice":"b.safetensors"}})");
  for (const char* name : {"model.safetensors.index.json", ""}) {
    const auto reader = open(name);
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(reader->tensors().size(), 3U);
    ASSERT_NE(reader->find("in a"), nullptr);
    EXPECT_EQ(reader->find("in c"), nullptr);
    float value = 0;
    EXPECT_OK(reader->read("twice", 0, {&value, 1}));
    EXPECT_EQ(value, 2);  // b's value, as in the index
  }
  put("bad.json", R"({"weight_map":{"in a":"b.safetensors"}})");
  EXPECT_THAT(refusal("bad.json"), ContainsRegex("bad.json:.*\"in a\".*b.safetensors"));
  // A list may name more tensors than exist, such as buffers that were not saved.
  put("more.json",
      R"({"weight_map":{"in a":"a.safetensors","rope":"a.safetensors","mask":"b.safetensors"}})");
  std::vector<std::string> warnings;
  log::set_sink([&](log::Level, std::string_view text) { warnings.emplace_back(text); });
  ASSERT_NE(open("more.json"), nullptr);
  EXPECT_NE(open("more.json")->find("in a"), nullptr);
  log::set_sink({});
  ASSERT_EQ(warnings.size(), 1U);  // only from the first open
  EXPECT_THAT(warnings[0], ContainsRegex("missing.*1 more"));
  EXPECT_NE(open("more.json")->find("in a"), nullptr);
  EXPECT_EQ(open("more.json")->find("rope"), nullptr);
  put("lost.json", R"({"weight_map":{"in a":"c.safetensors"}})");
  EXPECT_THAT(refusal("lost.json"), ContainsRegex("lost.json:.*c.safetensors.*1 files"));
  put("broken.json", R"({"weight_map")");
  EXPECT_THAT(refusal("broken.json"), ContainsRegex("broken.json:.*JSON"));
  // Like transformers, after a merged model was saved over shards.
  put("model.safetensors", shard("in the one", '\0'));
  ASSERT_NE(open(""), nullptr);
  EXPECT_NE(open("")->find("in the one"), nullptr);
  EXPECT_EQ(open("")->find("in a"), nullptr);
  std::filesystem::remove(folder_.file("model.safetensors"));
  std::filesystem::remove(folder_.file("model.safetensors.index.json"));
  EXPECT_THAT(refusal(""), HasSubstr("neither model.safetensors nor"));
  put("model.safetensors", shard("alone", '\0'));
  ASSERT_NE(open(""), nullptr);
  EXPECT_NE(open("")->find("alone"), nullptr);
}

TEST_P(SafetensorsReading, NamesTheFileThatIsNone) {
  EXPECT_THAT(refusal("missing.safetensors"), HasSubstr("missing.safetensors"));
  put("short.safetensors", "1234567");
  EXPECT_THAT(refusal("short.safetensors"), ContainsRegex("short.safetensors:.*7 bytes"));
  put("empty.safetensors", "");
  EXPECT_THAT(refusal("empty.safetensors"), HasSubstr("it has 0 bytes"));
  put("text.safetensors", "This is a text and no safetensors file.");
  EXPECT_THAT(refusal("text.safetensors"), HasSubstr("a safetensors file"));
  const std::string whole =
      file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  put("cut.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(refusal("cut.safetensors"), ContainsRegex("cut.safetensors:.*\"a\" ends 1 bytes"));
  put("cut.safetensors", whole.substr(0, 20));
  EXPECT_THAT(refusal("cut.safetensors"), HasSubstr("(is it truncated?)"));
}

TEST_P(SafetensorsReading, NoticesThatAFileChangedSinceItWasOpened) {
  put("m.safetensors",
      file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678"));
  const auto reader = open("m.safetensors");
  ASSERT_NE(reader, nullptr);
  put("m.safetensors", "something else");
  float value = 0;
  const Status status = reader->read("a", 0, {&value, 1});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("m.safetensors changed"));
}

SLUICE_TEST_EVERY_BACKEND(SafetensorsReading);

}  // namespace
}  // namespace sluice::engine
