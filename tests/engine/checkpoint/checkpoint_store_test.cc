// Checkpoints whose state stays in the records of a frozen store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "engine/checkpoint/copy_checkpoint.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "swap/sealed_json.h"
#include "tests/engine/checkpoint/frozen_store_under_test.h"

namespace sluice::engine {
namespace {

using offload::ElementType;
using offload::ParamForm;
using offload::StateForm;
using testing::HasSubstr;

constexpr StateForm kSplit{.param = ParamForm::kSplit};

class CheckpointInStore : public testing::Test {
 protected:
  static constexpr const char* kPath = "/run/checkpoints/step-000000012";
  static constexpr const char* kCopy = "/run/copy";

  void SetUp() override {
    ASSERT_OK(drive_.files().make_directories("/run"));
    make(kSplit);
  }
  // The store and a checkpoint of version 1.
  void make(StateForm form, std::uint64_t first_in_store = 40'000) {
    store_ = std::make_unique<FrozenStoreUnderTest>(*queue_, form, first_in_store);
    store_->create(1);
    ASSERT_OK(store_->save(kPath, 1));
  }
  CheckpointManifest manifest() { return read_checkpoint_manifest(*queue_, kPath).value(); }
  Error load_error() {
    const Status loaded = store_->load(kPath, 1, 50'000);
    return loaded.ok() ? Error(ErrorCode::kInternal, "it was read") : loaded.error();
  }
  VerifyReport verified() { return verify_checkpoint(*queue_, kPath, {}).value(); }
  std::string folder_on(std::size_t path) {
    return swap::folder_of(store_->records().store.paths[path], "test");
  }

  aio::VirtualLoop loop_;
  aio::SimDrive drive_{loop_, {}};
  std::unique_ptr<aio::IoQueue> queue_ =
      aio::make_queue_or_die(drive_, {.block_bytes = 65536, .queue_depth = 16});
  std::unique_ptr<FrozenStoreUnderTest> store_;
};

TEST_F(CheckpointInStore, ReadsEveryBitInEveryForm) {
  for (const ParamForm param : {ParamForm::kSplit, ParamForm::kFp32AndFp16, ParamForm::kFp32}) {
    for (const ElementType moments : {ElementType::kFp32, ElementType::kBf16}) {
      make({.param = param, .moments = moments});
      for (const std::uint64_t range : {1'000'000, 70'000, 9'973})
        ASSERT_OK(store_->load(kPath, 1, range));
      const VerifyReport report = verified();
      EXPECT_TRUE(report.damaged.empty()) << report.damaged.front().problem;
      EXPECT_EQ(report.bytes, manifest().total_bytes());
      EXPECT_EQ(report.records, store_->records().store.records.size());
    }
  }
}

TEST_F(CheckpointInStore, IsReadInAnyOrder) {
  const auto reader = CheckpointReader::open(*queue_, kPath, {.moments = false});
  ASSERT_OK(reader);
  std::mt19937_64 random(20261128);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t p = random() % store_->parameters().size();
    const std::uint64_t elements = elements_of(store_->parameters()[p]);
    const std::uint64_t first = elements == 0 ? 0 : random() % elements;
    const std::uint64_t count =
        elements == 0 ? 0 : random() % std::min<std::uint64_t>(elements - first, 5000) + 1;
    std::vector<float> values(count);
    ASSERT_OK((*reader)->read_master(store_->parameters()[p].name, first, values));
    ASSERT_TRUE(same_bits(values, store_->values(1, p, first, count)[0]));
  }
  std::vector<float> values(34);
  EXPECT_EQ((*reader)->read_master("ln.bias", 0, values).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(CheckpointInStore, NeedsNoFiles) {
  make(kSplit, 0);
  EXPECT_EQ(drive_.files().list(kPath).value(),
            std::vector<std::string>{std::string(kManifestName)});
  ASSERT_OK(store_->load(kPath, 1, 100'000));
  EXPECT_TRUE(verified().damaged.empty());
}

TEST_F(CheckpointInStore, IsListedWithItsStoreAndItsBytes) {
  const auto entry = look_at_checkpoint(*queue_, kPath);
  ASSERT_TRUE(entry);
  EXPECT_TRUE(entry->complete());
  EXPECT_EQ(entry->store_paths, store_->records().store.paths);
  std::uint64_t files = 0;
  for (const StoredFile& file : manifest().files) files += file.bytes;
  EXPECT_EQ(entry->bytes, files + store_->layout().total_bytes() / 2) << "one place of each record";
}

TEST_F(CheckpointInStore, StaysWhileTheRunWritesToTheOtherPlaces) {
  for (swap::RecordId id = 0; id < store_->records().store.records.size(); ++id) {
    const swap::FrozenRecord frozen = store_->records().store.records[id];
    store_->write(id, {.generation = frozen.generation + 1, .place = 1 - frozen.place}, 2);
  }
  ASSERT_OK(store_->load(kPath, 1, 50'000));
}

TEST_F(CheckpointInStore, IsRefusedOnceTheRunHasOverwrittenARecord) {
  const swap::FrozenRecord frozen = store_->records().store.records[1];
  store_->write(1, {.generation = frozen.generation + 2, .place = frozen.place}, 3);
  const Error error = load_error();
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.message(), HasSubstr("saved a newer checkpoint meanwhile"));
  EXPECT_THAT(error.message(), HasSubstr("record h.0["));
  VerifyReport report = verified();
  ASSERT_EQ(report.damaged.size(), 1U);
  EXPECT_FALSE(report.removed);
  EXPECT_THAT(copy_checkpoint(*queue_, {.from = kPath, .to = kCopy}).error().message(),
              HasSubstr("record h.0["));
  EXPECT_FALSE(*drive_.files().exists(kCopy));
}

// Its run removes the manifest before it writes to the records.
TEST_F(CheckpointInStore, IsNoDamageWhereItsRunRemovedItMeanwhile) {
  const auto overwrite = [&] {
    ASSERT_OK(remove_checkpoint(*queue_, kPath));
    for (swap::RecordId id = 0; id < store_->records().store.records.size(); ++id)
      store_->write(id, {.generation = 99, .place = store_->records().store.records[id].place}, 4);
  };
  bool begun = false;
  const auto report = verify_checkpoint(*queue_, kPath, {.on_progress = [&](auto, auto) {
    if (!std::exchange(begun, true)) overwrite();
    return true;
  }});
  ASSERT_OK(report);
  EXPECT_TRUE(report->removed);
  make(kSplit, 0);
  begun = false;
  const auto copied =
      copy_checkpoint(*queue_, {.from = kPath, .to = kCopy, .progress = [&](auto, auto) {
                                  if (!std::exchange(begun, true)) overwrite();
                                }});
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(copied.error().message(), HasSubstr("saved a newer checkpoint"));
  EXPECT_EQ(drive_.files().list("/run").value(), std::vector<std::string>{"checkpoints"});
}

TEST_F(CheckpointInStore, IsFoundDamagedWhereABitFlips) {
  std::mt19937_64 random(5);
  for (swap::RecordId id = 0; id < store_->records().store.records.size(); ++id) {
    const swap::RecordShape shape = store_->layout().shape(id);
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t offset =
          i == 0 ? random() % 64 : swap::kRecordHeaderBytes + random() % shape.payload_bytes;
      store_->flip_bit(id, offset, i);
      const VerifyReport report = verified();
      ASSERT_EQ(report.damaged.size(), 1U) << id << " at " << offset;
      EXPECT_THAT(report.damaged.front().problem, HasSubstr("record h.0"));
      store_->flip_bit(id, offset, i);
    }
  }
  EXPECT_TRUE(verified().damaged.empty());
  store_->flip_bit(0, swap::kRecordHeaderBytes + 100, 3);
  EXPECT_EQ(load_error().code(), ErrorCode::kCorrupt);
}

TEST_F(CheckpointInStore, CannotBeReadWithoutItsStore) {
  ASSERT_OK(drive_.files().rename(folder_on(1), "/nvme1/elsewhere"));
  const auto entry = look_at_checkpoint(*queue_, kPath);
  ASSERT_TRUE(entry);
  EXPECT_FALSE(entry->known()) << "its drive may come back";
  EXPECT_THAT(entry->status.error().message(), HasSubstr("the store sluice-test on /nvme0 and "
                                                         "/nvme1, which is not there"));
  EXPECT_THAT(entry->status.error().message(), HasSubstr("mount its drive"));
  EXPECT_EQ(load_error().code(), ErrorCode::kIo);
  EXPECT_FALSE(remove_checkpoint(*queue_, kPath).ok());
  EXPECT_EQ(verified().damaged.size(), 1U);
  ASSERT_OK(drive_.files().rename("/nvme1/elsewhere", folder_on(1)));
  ASSERT_OK(store_->load(kPath, 1, 100'000));
}

TEST_F(CheckpointInStore, IsNotReadFromAnotherStore) {
  store_->records().store.store_id = 77;  // a later run of the same name
  store_->create(1);
  EXPECT_EQ(load_error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(load_error().message(), HasSubstr("it was made anew"));
  EXPECT_EQ(look_at_checkpoint(*queue_, kPath)->status.error().code(), ErrorCode::kCorrupt);
}

TEST_F(CheckpointInStore, IsRemovedWithoutItsStore) {
  const auto before = drive_.files().list(folder_on(0)).value();
  ASSERT_OK(remove_checkpoint(*queue_, kPath));
  EXPECT_FALSE(*drive_.files().exists(kPath));
  EXPECT_EQ(drive_.files().list(folder_on(0)).value(), before);
}

TEST_F(CheckpointInStore, IsNotBegunWherePiecesAreMissingOrTwice) {
  const auto begin = [&](const StatePieces& written, const StoredRecords& records) {
    return CheckpointWriter::begin_beside_store(*queue_, "/run/other", store_->parameters(),
                                                written, records, store_->options())
        .status();
  };
  const StoredRecords whole = store_->records();
  EXPECT_THAT(begin({}, whole).error().message(), HasSubstr("\"wte.weight\""));
  StoredRecords wrong = whole;
  wrong.parts[0].pieces.pop_back();
  EXPECT_FALSE(begin(store_->written(), wrong).ok());
  wrong = whole;
  wrong.parts[0].pieces.back().record_element = kRecordElements;
  EXPECT_FALSE(begin(store_->written(), wrong).ok());
  wrong = whole;
  wrong.parts[0].parameters.reset();
  EXPECT_THAT(begin(store_->written(), wrong).error().message(), HasSubstr("has no record of"));
  wrong = whole;
  wrong.form.moments = ElementType::kBf16;
  EXPECT_THAT(begin(store_->written(), wrong).error().message(), HasSubstr("moments"));
  EXPECT_FALSE(*drive_.files().exists("/run/other.new"));
}

TEST_F(CheckpointInStore, IsNotWrittenWithAManifestThatCannotBeRead) {
  const Status room = check_manifest_room(test_state(1, 12), store_->parameters(), 1 << 20);
  ASSERT_FALSE(room.ok());
  EXPECT_OK(check_manifest_room(test_state(1, 12), store_->parameters(), 1000));
}

// What many records take in the text is not more than check_manifest_room() counts.
TEST_F(CheckpointInStore, CountsTheRoomOfItsRecords) {
  const CheckpointManifest all = manifest();
  CheckpointManifest none = all;
  none.records.reset();
  none.world = 2;  // still with tensors and pieces
  const std::size_t bytes = to_text(all).size() - to_text(none).size();
  EXPECT_LT(bytes, all.records->store.records.size() * 512);
}

TEST_F(CheckpointInStore, IsCopiedToFilesAlone) {
  for (const ElementType moments : {ElementType::kFp32, ElementType::kBf16}) {
    make({.param = ParamForm::kSplit, .moments = moments});
    ASSERT_OK(drive_.files().make_directories(kCopy));  // may be there, if it is empty
    std::uint64_t shown = 0;
    const auto copied = copy_checkpoint(
        *queue_,
        {.from = kPath, .to = kCopy, .progress = [&](std::uint64_t done, auto) { shown = done; }});
    ASSERT_OK(copied);
    EXPECT_EQ(copied->step, 12);
    EXPECT_EQ(shown, manifest().elements);
    ASSERT_OK(drive_.files().rename(folder_on(0), "/nvme0/elsewhere"));
    ASSERT_OK(store_->load(kCopy, 1, 60'000));
    const CheckpointManifest copy = read_checkpoint_manifest(*queue_, kCopy).value();
    EXPECT_FALSE(copy.in_parts());
    EXPECT_EQ(copy.state, manifest().state);
    EXPECT_EQ(copy.moments, manifest().moments);
    EXPECT_TRUE(*drive_.files().exists(std::string(kCopy) + "/" + std::string(kWeightIndexName)));
    EXPECT_TRUE(verify_checkpoint(*queue_, kCopy, {})->damaged.empty());
    ASSERT_OK(drive_.files().rename("/nvme0/elsewhere", folder_on(0)));
    EXPECT_EQ(copy_checkpoint(*queue_, {.from = kPath, .to = kCopy}).error().code(),
              ErrorCode::kAlreadyExists);
    ASSERT_OK(remove_checkpoint(*queue_, kCopy));
  }
}

TEST_F(CheckpointInStore, IsNotCopiedToTheNameOfAnotherStep) {
  for (const char* const name : {"/run/step-000000013", "/run/step-000000012.new"}) {
    const auto copied = copy_checkpoint(*queue_, {.from = kPath, .to = name});
    ASSERT_FALSE(copied.ok()) << name;
    EXPECT_THAT(copied.error().message(), HasSubstr("this one is step-000000012"));
  }
  ASSERT_OK(copy_checkpoint(*queue_, {.from = kPath, .to = "/run/step-000000012"}));
}

TEST_F(CheckpointInStore, IsCopiedOverNothingElse) {
  for (const char* const name : {".", "..", "/run/.", "/"})
    EXPECT_EQ(copy_checkpoint(*queue_, {.from = kPath, .to = name}).error().code(),
              ErrorCode::kInvalidArgument)
        << name;
  const std::string begun = std::string(kCopy) + ".new";
  ASSERT_OK(drive_.files().make_directories(begun));
  ASSERT_OK(aio::write_small_file(*queue_, begun + "/thesis.tex", "mine"));
  const auto copied = copy_checkpoint(*queue_, {.from = kPath, .to = kCopy});
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(copied.error().message(), HasSubstr(begun + ", which contains thesis.tex"));
  EXPECT_EQ(aio::read_small_file(*queue_, begun + "/thesis.tex", 100).value(), "mine");
  ASSERT_OK(drive_.files().remove(begun + "/thesis.tex"));
  ASSERT_OK(copy_checkpoint(*queue_, {.from = kPath, .to = kCopy}));  // a killed copy leaves this
}

// Copies of other kinds.
TEST_F(CheckpointInStore, CopiesAnyCheckpoint) {
  for (const int writers : {1, 3}) {
    const std::string from = "/run/from" + std::to_string(writers);
    ASSERT_OK(save_checkpoint(*queue_, from, {.version = 5, .writers = writers}));
    const std::string to = from + "-copy";
    ASSERT_OK(copy_checkpoint(*queue_, {.from = from, .to = to}));
    EXPECT_EQ(*load_checkpoint(*queue_, to), 5U);
    EXPECT_FALSE(read_checkpoint_manifest(*queue_, to)->in_parts());
  }
}

// ---- manifests that cannot be -------------------------------------------------------------------

TEST_F(CheckpointInStore, ManifestIsReadAsItWasWritten) {
  const CheckpointManifest stored = manifest();
  ASSERT_TRUE(stored.records);
  EXPECT_EQ(*stored.records, store_->records());
  EXPECT_EQ(*parse_checkpoint_manifest(to_text(stored)), stored);
  const auto content = nlohmann::json::parse(to_text(stored))["content"];
  EXPECT_EQ(content["features"], nlohmann::json({"parts", "store"}));
  EXPECT_EQ(content["store"]["form"]["parameters"], "BF16");
}

TEST_F(CheckpointInStore, ManifestIsRefusedIfItCannotBe) {
  using nlohmann::json;
  const json whole = json::parse(to_text(manifest()))["content"];
  const auto refusal = [&](const std::function<void(json&)>& change) {
    json content = whole;
    change(content);
    const auto read = parse_checkpoint_manifest(swap::to_sealed_text(content));
    EXPECT_FALSE(read.ok());
    if (read.ok()) return std::string();
    EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(read.error().message().find('\n'), std::string::npos);
    return read.error().message();
  };
  const auto in_store = [&](const std::function<void(json&)>& change) {
    return refusal([&](json& content) { change(content["store"]); });
  };
  EXPECT_THAT(in_store([](json& s) { s["records"][0][1] = 2; }), HasSubstr("place 2"));
  EXPECT_THAT(in_store([](json& s) { s["records"][0][1] = -1; }), HasSubstr("place -1"));
  EXPECT_THAT(in_store([](json& s) { s["records"][0].push_back(0); }), HasSubstr("a generation"));
  EXPECT_THAT(in_store([](json& s) { s["records"].push_back({1, 0}); }), HasSubstr("every record"));
  EXPECT_THAT(in_store([](json& s) { s["records"] = json::array(); }), HasSubstr("that has 0"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["state"] = 99; }), HasSubstr("record 99"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["state"] = 1; }), HasSubstr("twice"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["parameters"] = 0; }), HasSubstr("twice"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0].erase("parameters"); }), HasSubstr("no record"));
  EXPECT_THAT(in_store([](json& s) { s["form"]["parameters"] = "F16"; }),
              HasSubstr("has a record"));
  EXPECT_THAT(in_store([](json& s) { s["form"]["moments"] = "BF16"; }), HasSubstr("not F32"));
  EXPECT_THAT(in_store([](json& s) { s["form"]["moments"] = "F64"; }), HasSubstr("\"F64\""));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["elements"] = 1ULL << 62; }),
              HasSubstr("elements"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["elements"] = 1; }), HasSubstr("a piece in"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["pieces"][0][3] = ~0ULL; }),
              HasSubstr("a piece in"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["pieces"][1][3] = 0; }),
              HasSubstr("a piece in"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["pieces"][0][1] = 39'999; }),
              HasSubstr("comes next"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["pieces"][0][0] = 99; }), HasSubstr("piece"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][0]["pieces"][0].erase(3); }),
              HasSubstr("four numbers"));
  EXPECT_THAT(in_store([](json& s) { s["parts"][1]["pieces"] = json::array(); }),
              HasSubstr("comes next"));
  EXPECT_THAT(in_store([](json& s) { s["store_id"] = "00ABCDEF00ABCDEF"; }), HasSubstr("form"));
  EXPECT_THAT(in_store([](json& s) { s["paths"] = json::array(); }), HasSubstr("no path"));
  for (const char* const key :
       {"run", "paths", "store_id", "form", "placement", "records", "parts"})
    in_store([&](json& s) { s.erase(key); });
  EXPECT_THAT(refusal([](json& c) { c["world_size"] = 2; }), HasSubstr("2 ranks"));
  EXPECT_THAT(refusal([](json& c) { c.erase("pieces"); }), HasSubstr("does not say"));
  EXPECT_THAT(refusal([](json& c) { c["features"] = {"parts"}; }), HasSubstr("not in the form"));
  EXPECT_THAT(refusal([](json& c) { c.erase("store"); }), HasSubstr("1 rank"));
}

}  // namespace
}  // namespace sluice::engine
