#include "engine/probe/measurement.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

Measurement example() {
  return {.what = "drives",
          .of = {{"drives", "ext4 on /dev/x \"y\" (259:1)"}, {"block", "1M"}},
          .measured_unix_s = 1'772'366'400,
          .values = {{"in_bytes_per_s", 6.9e9 / 7}, {"out_bytes_per_s", 0}}};
}

TEST(Measurement, IsTheSameAfterItsText) {
  const auto parsed = parse_measurements(to_text({example(), {.what = "gpu"}}));
  ASSERT_OK(parsed);
  ASSERT_EQ(parsed->size(), 2U);
  const Measurement& first = parsed->front();
  EXPECT_EQ(first.what, "drives");
  EXPECT_EQ(first.of, example().of);
  EXPECT_EQ(first.measured_unix_s, example().measured_unix_s);
  EXPECT_EQ(first.values, example().values);  // every bit of the doubles
}

TEST(Measurement, IsWrittenForAReader) {
  const std::string text = to_text({example()});
  EXPECT_THAT(text, HasSubstr(R"("measured_at": "2026-03-01T12:00:00Z")"));
  EXPECT_THAT(text, HasSubstr(R"("block": "1M")"));
}

TEST(Measurement, RefusesEveryOtherText) {
  const std::string good = to_text({example()});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::string> bad = {
      "",
      "[]",
      "null",
      "{\"format\": 3}",
      "\x80\xff",
      with("sluice-speeds", "other"),
      with("\"version\": 1", "\"version\": 0"),
      with("2026-03-01T12:00:00Z", "yesterday"),
      with("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z "),
      with("\"1M\"", "1"),
      with("0.0", "-1.0"),
      with("0.0", "null"),
      with("\"values\"", "\"value\""),
  };
  for (const std::string& text : bad) {
    const auto parsed = parse_measurements(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt) << text;
  }
  EXPECT_EQ(parse_measurements(with("\"version\": 1", "\"version\": 2")).error().code(),
            ErrorCode::kNewerVersion);
  for (std::size_t length = 0; length + 2 < good.size(); length += 7)
    EXPECT_FALSE(parse_measurements(good.substr(0, length)).ok()) << length;
}

TEST(Measurement, ValuesAreTheSpeedsTheyCameFrom) {
  const GpuSpeeds speeds{.bus = {.in_bytes_per_s = 1,
                                 .out_bytes_per_s = 2,
                                 .in_both_bytes_per_s = 3,
                                 .out_both_bytes_per_s = 4},
                         .pin = {.tried_bytes = 9, .pinned_bytes = 8},
                         .copy_bytes_per_s = 5,
                         .adamw_elements_per_s = 6,
                         .matmul_flops_per_s = 7};
  SpeedValues values = values_of(speeds);
  EXPECT_EQ(values.size(), 9U);
  EXPECT_EQ(values.at("pinned_bytes"), 8);
  EXPECT_EQ(values.at("bus_out_both_bytes_per_s"), 4);
  const auto back = from_values<GpuSpeeds>(values);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(values_of(*back), values);
  values.erase("bus_in_bytes_per_s");
  EXPECT_FALSE(from_values<GpuSpeeds>(values).has_value());

  UnitTimes times;
  times.kinds = {{"embedding", {.forward_s = 1}}, {"block", {.recompute_s = 2}}};
  UnitTimes empty;
  empty.kinds = {{"embedding", {}}, {"block", {}}};
  EXPECT_EQ(values_of(times).size(), 6U);
  EXPECT_EQ(from_values(values_of(times), empty)->of("embedding").forward_s, 1);
  EXPECT_EQ(from_values(values_of(times), empty)->of("block").recompute_s, 2);
  // A model with one more kind of unit.
  empty.kinds.push_back({"head", {}});
  EXPECT_FALSE(from_values(values_of(times), empty).has_value());
}

}  // namespace
}  // namespace sluice::engine
