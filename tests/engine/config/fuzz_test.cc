// Mutated configurations: every input ends with a configuration whose canonical form resolves to
// itself, or with a sentence.
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "engine/config/key_table.h"
#include "engine/config/report.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {
    for (const char* name : {"stage2_fp16_auto.json", "stage3_foreign_sections.json",
                             "stage3_cpu_auto.json", "stage3_nvme_full.json"}) {
      std::string text = read_source(data_file(name))->text;
      // Apex AMP is refused, so mutations around it would rarely get far.
      constexpr std::string_view kAmp = R"("amp": { "enabled": true)";
      if (const auto at = text.find(kAmp); at != std::string::npos)
        text.replace(at, kAmp.size(), R"("amp": { "enabled": false)");
      seeds_.push_back(std::move(text));
    }
    seeds_.push_back(to_json(accepted(resolve_run(
        R"({"train_batch_size": 8, "run": {"epochs": 2}, "bf16": {"enabled": "auto"},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto"}}})"))));
    seeds_.push_back(to_json(accepted(resolve_run(
        R"({"train_batch_size": 8, "run": {"epochs": 2}, "optimizer": {"groups": [
            {"match": ["*.bias", "*.ln_?.*"], "weight_decay": 0}, {"match": "wte*", "lr": 0.1}]},
            "scheduler": {"type": "warmup_stable_decay", "params": {"warmup_ratio": 0.1}}})"))));
    seeds_.push_back(to_json(accepted(resolve_run(R"({"train_batch_size": 8})")).config));
  }

  std::string text() {
    std::string text = seeds_[below(seeds_.size())];
    // Mostly one edit: two mistakes seldom find what one does not.
    for (std::size_t edits = below(3) == 0 ? 1 + below(5) : 1; edits > 0; --edits) edit(text);
    return text;
  }

  std::string override_text() {
    const std::string path(all_keys()[below(all_keys().size())].path);
    std::string text = path + "=" + std::string(kWords[below(std::size(kWords))]);
    if (below(4) == 0) edit(text);
    return text;
  }

  std::size_t below(std::size_t limit) { return random_() % limit; }

 private:
  // Values and pieces of syntax that get further than random bytes.
  static constexpr std::string_view kWords[] = {"true",
                                                "\"auto\"",
                                                "null",
                                                "-1",
                                                "0",
                                                "1.5",
                                                "1e300",
                                                "9223372036854775808",
                                                "\"5e8\"",
                                                "{}",
                                                "[]",
                                                "\"\"",
                                                ",",
                                                ":",
                                                "{",
                                                "}",
                                                "[[[[",
                                                "\"nvme\"",
                                                "\"OneCycle\"",
                                                "\"cosine\"",
                                                "\"\\ud800\"",
                                                "\xff",
                                                "// x",
                                                "1e-320",
                                                "\"x\": 1,",
                                                "1073741824",
                                                "[\"a\"]",
                                                "{\"gpu\":1}",
                                                "\"gpt2-xl\"",
                                                "3",
                                                "\"custom\"",
                                                "-0.0",
                                                "1e400"};

  void edit(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    switch (below(12)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        return static_cast<void>(text.erase(at, 1 + below(20)));
      case 2:
        return static_cast<void>(text.insert(at, kWords[below(std::size(kWords))]));
      case 3:
        return static_cast<void>(text.insert(at, text.substr(below(text.size() + 1), below(60))));
      case 4:
      case 5:
      case 6:
        return delete_a_line(text, at);
      default:
        return replace_a_value(text, at);
    }
  }

  // Deletes a key, in files with one key per line.
  static void delete_a_line(std::string& text, std::size_t from) {
    const std::size_t start = text.find('\n', from);
    const std::size_t end = text.find('\n', std::min(start, text.size() - 1) + 1);
    if (end != std::string::npos) text.erase(start, end - start);
  }

  // Replaces what follows a colon, so that the text often stays JSON.
  void replace_a_value(std::string& text, std::size_t from) {
    const std::size_t colon = text.find(": ", from);
    if (colon == std::string::npos) return;
    const std::size_t end = text.find_first_of(",}\n", colon + 2);
    if (end == std::string::npos) return;
    text.replace(colon + 2, end - colon - 2, kWords[below(std::size(kWords))]);
  }

  std::mt19937_64 random_;
  std::vector<std::string> seeds_;
};

void expect_a_sentence(const std::string& message) {
  EXPECT_GT(message.size(), 15U) << message;
  EXPECT_LT(message.size(), 20000U);
  EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  for (const char c : message) {
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << message;
  }
}

// The form that keeps "auto" resolves to the same text and the same numbers.
void expect_the_same_when_kept(const Resolved& resolved) {
  const std::string kept = to_json(resolved);
  const auto again = resolve_run(kept, {}, resolved.config.world_size);
  ASSERT_TRUE(again.ok()) << again.error().message() << "\n" << kept;
  EXPECT_EQ(to_json(*again), kept);
  EXPECT_EQ(to_json(again->config), to_json(resolved.config));
}

void expect_idempotence(const Resolved& resolved) {
  EXPECT_FALSE(format_report(resolved, {.verbose = true}).empty());
  const std::string once = to_json(resolved.config);
  const auto again = resolve_run(once, {}, resolved.config.world_size);
  ASSERT_TRUE(again.ok()) << again.error().message() << "\n" << once;
  EXPECT_EQ(to_json(again->config), once);
  expect_the_same_when_kept(resolved);
  for (const std::int64_t step : {0, 1, 100, 1000000}) {
    static_cast<void>(learning_rate(again->config.schedule, step));
    static_cast<void>(betas(again->config.schedule, step));
  }
}

void resolve_mutated(int inputs, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Mutator mutate(seed);
  int accepted_count = 0;
  for (int i = 0; i < inputs; ++i) {
    Sources sources;
    if (mutate.below(2) == 0) sources.run_file = Source{"run.json", mutate.text()};
    if (!sources.run_file || mutate.below(6) == 0) {
      sources.deepspeed = Source{"ds.json", mutate.text()};
    }
    for (std::size_t n = mutate.below(6) / 4; n > 0; --n) {
      sources.overrides.push_back(mutate.override_text());
    }
    // Mostly one, since files with all batch sizes have them for one rank.
    sources.world_size = static_cast<std::int64_t>(mutate.below(2) == 0 ? 1 : 1 + mutate.below(3));
    const auto result = resolve(sources);
    SCOPED_TRACE("input " + std::to_string(i));
    if (result.ok()) {
      ++accepted_count;
      expect_idempotence(*result);
    } else {
      expect_a_sentence(result.error().message());
    }
    if (testing::Test::HasFailure()) return;
  }
  // Both outcomes must be frequent, or the mutations are too wild or too tame to find anything.
  EXPECT_GT(accepted_count, inputs / 10);
  EXPECT_LT(accepted_count, inputs * 9 / 10);
}

TEST(ConfigFuzz, MutatedInputsEndWithAConfigurationOrASentence) { resolve_mutated(500, 20240607); }

TEST(LongConfigFuzz, TenThousandMutatedInputsEndWithAConfigurationOrASentence) {
  resolve_mutated(10000, std::random_device{}());
}

}  // namespace
}  // namespace sluice::config
