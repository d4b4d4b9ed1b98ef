#include "engine/probe/speeds_cache.h"

#include <gmock/gmock.h>

#include "aio/log.h"
#include "aio/small_file.h"
#include "tests/aio/sim_test_util.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kNow = 1'772'366'400;
constexpr std::int64_t kDay = 24 * 60 * 60;
constexpr const char* kPath = "/home/.cache/sluice/speeds.json";

const MeasuredOf kMachine = {{"cpu", "some"}, {"threads", "8"}};

class SpeedsCacheTest : public testing::Test {
 protected:
  SpeedsCacheTest() {
    log::set_sink([this](log::Level, std::string_view line) { said_.emplace_back(line); });
  }
  ~SpeedsCacheTest() override { log::set_sink({}); }

  SpeedsCache cache(SpeedsCache::Options options) { return {*queue_, std::move(options)}; }
  SpeedsCache cache_at(std::int64_t unix_s, bool refresh = false) {
    return cache({.path = kPath, .refresh = refresh, .unix_s = unix_s});
  }
  // Each measurement returns the next number.
  double get(SpeedsCache cache, const MeasuredOf& of = kMachine, const std::string& what = "host") {
    const auto found = cache.get<HostSpeeds>(what, of, [&]() -> Result<HostSpeeds> {
      return HostSpeeds{.copy_bytes_per_s = ++measured_, .adamw_elements_per_s = 1};
    });
    EXPECT_TRUE(found.ok());
    cached_ = found->cached;
    measured_at_ = found->measured_unix_s;
    return found->speeds.copy_bytes_per_s;
  }
  void write_file(const std::string& text) {
    ASSERT_OK(drive_.files().make_directories("/home/.cache/sluice"));
    ASSERT_OK(aio::write_small_file(*queue_, kPath, text));
  }
  std::string file() {
    const auto text = aio::read_small_file(*queue_, kPath, 1 << 20);
    return text.ok() ? *text : text.error().message();
  }

  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(drive_, {.block_bytes = 65536, .queue_depth = 4});
  std::vector<std::string> said_;
  double measured_ = 0;  // number of measurements
  bool cached_ = false;
  std::int64_t measured_at_ = 0;
};

TEST_F(SpeedsCacheTest, KeepsWhatWasMeasured) {
  EXPECT_EQ(get(cache_at(kNow)), 1);
  EXPECT_FALSE(cached_);
  EXPECT_EQ(get(cache_at(kNow + 5)), 1);
  EXPECT_TRUE(cached_);
  EXPECT_EQ(measured_at_, kNow);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SpeedsCacheTest, MeasuresAgainWhatIsAnotherThing) {
  get(cache_at(kNow));
  MeasuredOf other = kMachine;
  other["threads"] = "9";
  EXPECT_EQ(get(cache_at(kNow), other), 2);
  other["more"] = "";
  EXPECT_EQ(get(cache_at(kNow), other), 3);
  EXPECT_EQ(get(cache_at(kNow), kMachine, "units"), 4);
  EXPECT_EQ(get(cache_at(kNow)), 1);  // and keeps each entry
}

TEST_F(SpeedsCacheTest, MeasuresAgainAfterThirtyDaysAndWhatIsOfTheFuture) {
  get(cache_at(kNow));
  EXPECT_EQ(get(cache_at(kNow + 30 * kDay)), 1);
  EXPECT_EQ(get(cache_at(kNow + 30 * kDay + 1)), 2);
  EXPECT_EQ(get(cache_at(kNow)), 3);  // the clock was wrong then, or is wrong now
}

// A wrong clock loses its own new measurements, but not those of others.
TEST_F(SpeedsCacheTest, DropsWhatIsTooOldAndNothingElse) {
  get(cache_at(kNow));
  get(cache_at(kNow + 40 * kDay), kMachine, "units");
  EXPECT_EQ(parse_measurements(file())->size(), 1U);
  get(cache_at(0), {{"cpu", "other"}});
  EXPECT_EQ(get(cache_at(kNow + 40 * kDay), kMachine, "units"), 2);
  EXPECT_TRUE(cached_);
}

TEST_F(SpeedsCacheTest, MeasuresAgainWhenAskedTo) {
  get(cache_at(kNow));
  EXPECT_EQ(get(cache_at(kNow + 1, true)), 2);
  EXPECT_EQ(get(cache_at(kNow + 2)), 2);
  EXPECT_EQ(measured_at_, kNow + 1);
}

TEST_F(SpeedsCacheTest, LeavesADamagedOrForeignFileOutOfAccountAndSaysSo) {
  get(cache_at(kNow));
  const std::string good = file();
  double times = 1;
  for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2),
                                 std::string("hello"), std::string((1 << 20) + 1, ' ')}) {
    write_file(bad);
    log::set_sink([this](log::Level, std::string_view line) { said_.emplace_back(line); });
    said_.clear();
    EXPECT_EQ(get(cache_at(kNow)), ++times);
    const std::string aside = std::string(kPath) + ".unreadable" +
                              (times == 2 ? "" : "-" + std::to_string(int(times) - 1));
    EXPECT_THAT(said_, ElementsAre(HasSubstr(kPath), HasSubstr("is now " + aside)));
    EXPECT_EQ(get(cache_at(kNow)), times);  // a valid file replaces it
    EXPECT_TRUE(cached_);
    EXPECT_TRUE(*drive_.files().exists(aside));
  }
}

TEST_F(SpeedsCacheTest, LeavesAFileOfANewerVersionAlone) {
  get(cache_at(kNow));
  std::string newer = file();
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 7");
  write_file(newer);
  log::set_sink([this](log::Level, std::string_view line) { said_.emplace_back(line); });
  said_.clear();
  EXPECT_EQ(get(cache_at(kNow)), 2);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("newer version"), HasSubstr("could not be saved")));
  EXPECT_EQ(file(), newer);
}

TEST_F(SpeedsCacheTest, MeasuresAgainWhatLacksAValue) {
  get(cache_at(kNow));
  std::string text = file();
  text.replace(text.find("adamw_elements"), 14, "other_elements");
  write_file(text);
  EXPECT_EQ(get(cache_at(kNow)), 2);
  EXPECT_EQ(get(cache_at(kNow)), 2);
}

TEST_F(SpeedsCacheTest, KeepsWhatAnotherProcessAddedMeanwhile) {
  SpeedsCache first = cache_at(kNow);
  get(cache_at(kNow), {{"cpu", "other"}});
  const auto found = first.get<HostSpeeds>("host", kMachine, [] {
    return Result<HostSpeeds>(HostSpeeds{7, 7});
  });
  ASSERT_OK(found);
  EXPECT_EQ(get(cache_at(kNow), {{"cpu", "other"}}), 1);
  EXPECT_EQ(get(cache_at(kNow)), 7);
}

TEST_F(SpeedsCacheTest, GoesOnWhereItCannotBeWritten) {
  ASSERT_OK(drive_.files().make_directories("/home/.cache/sluice"));
  const auto held = drive_.files().lock(std::string(kPath) + ".lock");
  ASSERT_OK(held);
  EXPECT_EQ(get(cache_at(kNow)), 1);
  EXPECT_THAT(said_, ElementsAre(HasSubstr(kPath)));
  EXPECT_EQ(get(cache_at(kNow)), 2);
}

TEST_F(SpeedsCacheTest, KeepsNothingWithoutAPath) {
  EXPECT_EQ(get(cache({.unix_s = kNow})), 1);
  EXPECT_EQ(get(cache({.unix_s = kNow})), 2);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SpeedsCacheTest, DoesNotKeepAnError) {
  SpeedsCache failing = cache_at(kNow);
  const auto failed = failing.get<HostSpeeds>(
      "host", kMachine, []() -> Result<HostSpeeds> { return Error(ErrorCode::kNoSpace, "full"); });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(get(cache_at(kNow)), 1);
}

TEST_F(SpeedsCacheTest, DoesNotKeepWhatWasDisturbed) {
  SpeedsCache disturbed = cache_at(kNow);
  const auto found = disturbed.get<HostSpeeds>(
      "host", kMachine,
      [] {
        return Result<HostSpeeds>(HostSpeeds{90, 90});
      },
      [] { return std::string("others ran"); });
  ASSERT_OK(found);
  EXPECT_EQ(found->speeds.copy_bytes_per_s, 90);
  EXPECT_EQ(found->disturbance, "others ran");
  EXPECT_EQ(get(cache_at(kNow)), 1);
  EXPECT_FALSE(cached_);
}

// Available to a search of many processes, and to no other use.
TEST_F(SpeedsCacheTest, KeepsWhatWasDisturbedForASeriesAlone) {
  const auto disturbed = [&](std::int64_t unix_s) {
    const auto found = cache({.path = kPath, .unix_s = unix_s, .disturbed_max_age_s = 60})
                           .get<HostSpeeds>(
                               "host", kMachine,
                               [&] {
                                 return Result<HostSpeeds>(HostSpeeds{++measured_, 1});
                               },
                               [] { return std::string("others ran"); });
    EXPECT_TRUE(found.ok());
    EXPECT_NE(found->disturbance, "");
    return found->speeds.copy_bytes_per_s;
  };
  EXPECT_EQ(disturbed(kNow), 1);
  EXPECT_EQ(disturbed(kNow + 60), 1);
  EXPECT_EQ(disturbed(kNow + 61), 2);
  EXPECT_EQ(get(cache_at(kNow + 61)), 3);
  EXPECT_FALSE(cached_);
}

TEST_F(SpeedsCacheTest, ForgetsWhatItIsToldAndNothingElse) {
  get(cache_at(kNow));
  get(cache_at(kNow), kMachine, "units");
  get(cache_at(kNow), {{"cpu", "other"}});
  ASSERT_OK(cache_at(kNow).forget({{.what = "host", .of = kMachine}, {.what = "none", .of = {}}}));
  EXPECT_EQ(get(cache_at(kNow), kMachine, "units"), 2);
  EXPECT_EQ(get(cache_at(kNow), {{"cpu", "other"}}), 3);
  EXPECT_EQ(get(cache_at(kNow)), 4);
}

TEST_F(SpeedsCacheTest, StaysSmall) {
  for (int i = 0; i <= static_cast<int>(SpeedsCache::kMaxMeasurements); ++i)
    get(cache_at(kNow + i), {{"number", std::to_string(i)}});
  const auto kept = parse_measurements(file());
  ASSERT_OK(kept);
  EXPECT_EQ(kept->size(), SpeedsCache::kMaxMeasurements);
  EXPECT_EQ(kept->front().of.at("number"), "1");  // the oldest was removed
}

}  // namespace
}  // namespace sluice::engine
