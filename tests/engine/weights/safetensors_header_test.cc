#include "engine/weights/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/weights/safetensors_index.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& json, std::uint64_t data_bytes) {
  const auto header = parse_safetensors_json(json, data_bytes);
  if (header.ok()) return "accepted";
  EXPECT_EQ(header.error().code(), ErrorCode::kCorrupt);
  return header.error().message();
}

// The refusal of one tensor "a" with these members.
std::string refusal_of(const std::string& members, std::uint64_t data_bytes = 8) {
  return refusal("{\"a\":{" + members + "}}", data_bytes);
}

TEST(SafetensorsHeader, IsReadWhateverItsOrderAndSpace) {
  const auto header = parse_safetensors_json(
      R"({ "b" : {"data_offsets":[8,12], "shape":[2,1], "dtype":"F16"},
           "__metadata__":{"format":"pt","é":"\u00fc"},
           "empty":{"dtype":"F32","shape":[0,9],"data_offsets":[8,8]},
           "a":{"dtype":"F64","shape":[],"data_offsets":[0,8]} }   )",
      12);
  ASSERT_TRUE(header.ok()) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 3U);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].elements, 1U);
  EXPECT_EQ(header->tensors[1].name, "empty");
  EXPECT_EQ(header->tensors[2].name, "b");
  EXPECT_EQ(header->tensors[2].dtype, DType::kF16);
  EXPECT_THAT(header->tensors[2].shape, ElementsAre(2, 1));
  EXPECT_EQ(header->tensors[2].begin_bytes, 8U);
  EXPECT_EQ(header->tensors[2].size_bytes, 4U);
  EXPECT_EQ(header->metadata.at("é"), "ü");
  EXPECT_TRUE(parse_safetensors_json("{}", 0).ok());
}

TEST(SafetensorsHeader, RefusesATensorThatIsNotWhatItSays) {
  EXPECT_EQ(refusal_of(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "accepted");
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
              ContainsRegex("\"a\" has 8.*F32.*\\[3\\].*12"));
  EXPECT_THAT(refusal_of(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"),
              HasSubstr("unknown dtype \"F31\""));
  EXPECT_THAT(refusal_of(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"),
              HasSubstr("has a dtype"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"),
              HasSubstr("has a shape"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"),
              HasSubstr("has a shape"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
              HasSubstr("negative"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"),
              HasSubstr("not whole"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
              HasSubstr("not a start"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2],"data_offsets":[0])"),
              HasSubstr("not a start"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"),
              HasSubstr("numbers in its data_offsets"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2])"), HasSubstr("lacks its dtype"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"),
              HasSubstr("unknown key \"x\""));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"),
              HasSubstr("two of dtype"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"),
              HasSubstr("two of shape"));
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_THAT(refusal_of(R"("dtype":"U8","data_offsets":[0,1],"shape":[)" + ones + "]"),
              HasSubstr("numbers in its shape"));
}

TEST(SafetensorsHeader, RefusesNumbersThatOverflow) {
  const std::string huge = "18446744073709551615";
  EXPECT_THAT(
      refusal_of(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
      HasSubstr("more than a file"));
  EXPECT_THAT(refusal_of(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0),
              HasSubstr("more than a file"));
  EXPECT_EQ(refusal_of(R"("dtype":"F32","shape":[)" + huge + R"(,0],"data_offsets":[0,0])", 0),
            "accepted");
  EXPECT_THAT(refusal_of(R"("dtype":"U8","shape":[4],"data_offsets":[)" + huge + ",3]", 4),
              HasSubstr("not a start"));
  EXPECT_THAT(
      refusal_of(R"("dtype":"U8","shape":[0],"data_offsets":[)" + huge + "," + huge + "]", 0),
      HasSubstr("gap"));
  EXPECT_THAT(refusal_of(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0])"),
              HasSubstr("too large"));
}

TEST(SafetensorsHeader, RefusesTensorsThatDoNotFillTheFile) {
  const auto two = [](const char* first, const char* second, std::uint64_t data_bytes) {
    const auto tensor = [](const char* offsets) {
      return R"({"dtype":"U8","shape":[4],"data_offsets":)" + std::string(offsets) + "}";
    };
    return refusal("{\"a\":" + tensor(first) + ",\"b\":" + tensor(second) + "}", data_bytes);
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "accepted");
  EXPECT_THAT(two("[0,4]", "[3,7]", 7), HasSubstr("\"b\" overlaps"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), ContainsRegex("gap of 1.*\"b\""));
  EXPECT_THAT(two("[0,4]", "[4,8]", 7), HasSubstr("\"b\" ends 1 bytes"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 10), HasSubstr("2 trailing bytes"));
}

TEST(SafetensorsHeader, RefusesWhatIsNoObjectOfTensors) {
  EXPECT_THAT(refusal("", 0), HasSubstr("with an object"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("with an object"));
  EXPECT_THAT(refusal("{", 0), HasSubstr("not JSON after byte"));
  EXPECT_THAT(refusal("{} {}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{\"a\xff\":1}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(R"({"a":1})", 0), HasSubstr("something other"));
  EXPECT_THAT(refusal(R"({"a":null})", 0), HasSubstr("null"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("something other"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":"1","a":"2"}})", 0), HasSubstr("\"a\" twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("two sections of metadata"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":{}}})", 0), HasSubstr("an object where"));
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(refusal("{" + a + "," + a + "}", 0), HasSubstr("\"a\" is there twice"));
  const std::string long_name =
      "\"\\n" + std::string(5000, '[') + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const std::string shortened = refusal("{" + long_name + "," + long_name + "}", 0);
  EXPECT_THAT(shortened, HasSubstr("\"\\n[[["));
  EXPECT_THAT(shortened, HasSubstr("[...\" is there twice"));
  EXPECT_LT(shortened.size(), 200U);
  EXPECT_THAT(refusal("{\"a\":" + std::string(100'000, '['), 0), HasSubstr("something other"));
  EXPECT_THAT(refusal(std::string(100'000, '{'), 0), HasSubstr("not JSON"));
}

TEST(SafetensorsHeader, RefusesALengthThatCannotBe) {
  const auto refusal_of_prefix = [](std::uint64_t length, std::uint64_t file_bytes) {
    std::array<std::byte, 8> prefix{};
    for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<std::byte>(length >> (8 * i));
    const auto result = safetensors_json_bytes(prefix, file_bytes);
    return result.ok() ? std::to_string(*result) : result.error().message();
  };
  EXPECT_EQ(refusal_of_prefix(2, 10), "2");
  EXPECT_EQ(refusal_of_prefix(0x1234, 1 << 20), "4660");
  EXPECT_THAT(refusal_of_prefix(1, 10), HasSubstr("does not fit"));
  EXPECT_THAT(refusal_of_prefix(3, 10), ContainsRegex("10 bytes.*header of 3"));
  EXPECT_THAT(refusal_of_prefix(2, 7), HasSubstr("does not fit"));
  EXPECT_THAT(refusal_of_prefix(100'000'001, 1ULL << 40), HasSubstr("not a safetensors file"));
  EXPECT_THAT(refusal_of_prefix(~0ULL, 1ULL << 40), HasSubstr("not a safetensors file"));
}

TEST(SafetensorsHeader, IsWrittenToTheByte) {
  const std::vector<TensorSpec> tensors = {{"b", DType::kF32, {2, 3}},
                                           {"a \"x\"", DType::kBF16, {}}};
  const auto places = lay_out(tensors);
  ASSERT_TRUE(places.ok());
  const std::string header = make_safetensors_header(*places, {{"format", "pt"}, {"by", "us"}});
  const std::string json = R"({"__metadata__":{"by":"us","format":"pt"},)"
                           R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("a \"x\"":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(header.substr(8), padded);
  EXPECT_EQ(header.substr(0, 8),
            std::string{static_cast<char>(padded.size())} + std::string(7, '\0'));
  EXPECT_EQ(make_safetensors_header({}, {}).substr(8), "{}      ");
}

TEST(SafetensorsHeader, RefusesADeclarationThatCouldNotBeReadBack) {
  const auto message = [](std::vector<TensorSpec> tensors) {
    const auto places = lay_out(tensors);
    return places.ok() ? "accepted" : places.error().message();
  };
  EXPECT_THAT(message({{"a", DType::kF32, {2}}, {"a", DType::kF32, {2}}}),
              ContainsRegex("\"a\".*already used"));
  EXPECT_THAT(message({{"__metadata__", DType::kF32, {2}}}), HasSubstr("reserves that name"));
  EXPECT_THAT(message({{"\xff", DType::kF32, {2}}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({{"a", DType::kF32, {1ULL << 62}}}), HasSubstr("too large"));
  EXPECT_THAT(message({{"a", DType::kF32, std::vector<std::uint64_t>(65, 1)}}),
              HasSubstr("too many dimensions"));
  EXPECT_THAT(message({{"a", DType::kBF16, {3}}, {"b", DType::kF32, {2}}}),
              HasSubstr("wider dtypes"));
  EXPECT_EQ(message({{"a", DType::kBF16, {2}}, {"b", DType::kF32, {2}}}), "accepted");
}

TEST(SafetensorsIndex, NamesFilesOfItsOwnFolderOnly) {
  const auto message = [](const std::string& json) {
    const auto index = parse_safetensors_index(json);
    return index.ok() ? "accepted" : index.error().message();
  };
  const auto in_file = [&](const std::string& name) {
    return message(R"({"weight_map":{"a":)" + nlohmann::json(name).dump() + "}}");
  };
  EXPECT_EQ(message(R"({"metadata":{"total_size":12.0,"x":[{"y":null}]},"weight_map":{"a":)"
                    R"("m.safetensors","b":"m.safetensors"}})"),
            "accepted");
  EXPECT_THAT(in_file("../m.safetensors"), HasSubstr("\"../m.safetensors\""));
  EXPECT_THAT(in_file("/m.safetensors"), HasSubstr("not the name"));
  EXPECT_THAT(in_file("m.bin"), HasSubstr("not the name"));
  EXPECT_THAT(in_file(".safetensors"), HasSubstr("not the name"));
  EXPECT_THAT(in_file(std::string("m\0.safetensors", 14)), HasSubstr("not the name"));
  EXPECT_THAT(in_file(std::string(300, 'm') + ".safetensors"), HasSubstr("not the name"));
  EXPECT_THAT(message("{}"), HasSubstr("no weight_map"));
  EXPECT_THAT(message("[]"), HasSubstr("is a list"));
  EXPECT_THAT(message("7"), HasSubstr("not an object"));
  EXPECT_THAT(message("{"), HasSubstr("not JSON"));
  EXPECT_THAT(message(R"({"weight_map":{"a":1}})"), HasSubstr("\"a\" has something other"));
  EXPECT_THAT(message(R"({"weight_map":{"a":["m.safetensors"]}})"), HasSubstr("something other"));
  EXPECT_THAT(message(R"({"weight_map":{"a":{}}})"), HasSubstr("something other"));
  EXPECT_THAT(message(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("two weight_map"));
  EXPECT_THAT(message(R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})"),
              HasSubstr("\"a\" twice"));
  EXPECT_THAT(message(R"({"x":)" + std::string(50, '[')), HasSubstr("too deep"));
}

TEST(SafetensorsIndex, IsWrittenAsHuggingFaceDoes) {
  EXPECT_EQ(make_safetensors_index({{"b", "m-2.safetensors"}, {"a", "m-1.safetensors"}}, 12),
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"m-1.safetensors\",\n    \"b\": \"m-2.safetensors\"\n  }\n}\n");
  EXPECT_EQ(shard_path("x/model.safetensors", 0, 3), "x/model-00001-of-00003.safetensors");
  EXPECT_EQ(shard_path("x/model.safetensors", 0, 1), "x/model.safetensors");
}

}  // namespace
}  // namespace sluice::engine
