#include "tools/cli/data_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "aio/text.h"
#include "engine/observe/text_table.h"

namespace sluice::tools {
namespace {

constexpr std::uint64_t kBarColumns = 40;

std::string text_of(std::uint64_t number) { return std::to_string(number); }

double share_of(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

double mean_of(const std::vector<std::uint64_t>& lengths) {
  const auto sum = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  return static_cast<double>(sum) / static_cast<double>(lengths.size());
}

std::string bars(const std::vector<data::LengthRange>& ranges) {
  std::uint64_t most = 1;
  for (const data::LengthRange& range : ranges) most = std::max(most, range.count);
  std::vector<engine::TextRow> rows;
  rows.reserve(ranges.size());
  for (const data::LengthRange& range : ranges)
    rows.push_back({"  " + text_of(range.from), "- " + text_of(range.to), text_of(range.count)});
  std::string text;
  std::size_t row = 0;
  std::string lines = engine::aligned(rows);
  for (std::size_t begin = 0; begin < lines.size(); ++row) {
    const std::size_t end = lines.find('\n', begin);
    const std::uint64_t count = ranges[row].count;
    const std::uint64_t columns = (count * kBarColumns + most - 1) / most;
    text += lines.substr(begin, end - begin);
    if (columns > 0) text += " " + std::string(columns, '#');
    text += '\n';
    begin = end + 1;
  }
  return text;
}

std::string lengths_text(const data::TokenCensus& census) {
  const std::vector<std::uint64_t>& lengths = census.lengths;
  if (lengths.empty()) return {};
  return "tokens per document, with the number of documents (shortest " + text_of(lengths.front()) +
         ", median " + text_of(lengths[lengths.size() / 2]) + ", mean " +
         engine::decimals(mean_of(lengths), 1) + ", longest " + text_of(lengths.back()) + "):\n" +
         bars(data::histogram_of(lengths));
}

std::string left_out_text(const data::TokenRecord::Preparation& made) {
  std::uint64_t all = 0;
  for (const auto& [reason, count] : made.left_out) all += count;
  std::string text = "left out by tools/prepare: " + text_of(all);
  if (made.conversations) text += " of " + counted(*made.conversations, "conversation");
  text += '\n';
  for (const auto& [reason, count] : made.left_out)
    text += "  " + text_of(count) + " " + printable(reason) + "\n";
  if (made.cut > 0) text += "cut by tools/prepare: " + counted(made.cut, "conversation") + "\n";
  if (made.replaced > 0)
    text += "with invalid UTF-8, replaced by U+FFFD: " +
            counted(made.replaced, made.conversations ? "conversation" : "source") + "\n";
  return text;
}

std::string tokenizer_text(const engine::TokenizerFiles& tokenizer) {
  if (tokenizer.kind == engine::TokenizerFiles::Kind::kUnknown)
    return "unknown, so tokens are shown as numbers (" + tokenizer.note +
           "; --tokenizer FILE names one)";
  return tokenizer.description();
}

std::string file_text(const FileReport& file) {
  const data::TokenCensus& census = file.census;
  std::string text =
      printable(file.path) + ": " + counted(census.tokens, "token") + " (" + file.type + ")";
  if (!census.lengths.empty()) text += " in " + counted(census.lengths.size(), "document");
  if (file.vocab_size > 0) text += ", vocabulary of " + text_of(file.vocab_size);
  text += "\n  tokenizer: " + printable(tokenizer_text(file.tokenizer)) + "\n";
  text += "  trained on: ";
  text += file.has_documents ? counted(census.targets, "token") + ", " +
                                   percent(share_of(census.targets, census.tokens))
                             : "all of it";
  if (!file.record.train_on.empty()) text += " (" + printable(file.record.train_on) + ")";
  if (census.documents_without_target > 0)
    text += "; " + counted(census.documents_without_target, "document") + " without such a token";
  text += '\n';
  if (file.record.sources) {
    text += "  made from: " + counted(*file.record.sources, "source");
    if (file.record.source_bytes) text += ", " + counted(*file.record.source_bytes, "byte");
    text += '\n';
  }
  text += lengths_text(census);
  if (file.record.preparation) text += left_out_text(*file.record.preparation);
  return text;
}

std::string rows_text(const RowsReport& rows, std::uint64_t all_targets) {
  std::string text = "rows of " + counted(rows.row_tokens, "token") + ": ";
  if (rows.documents > 0) {
    text += rows.outcome + "\n  padding: " + counted(rows.padding(), "place") + " of " +
            text_of(rows.rows * rows.row_tokens) + ", " +
            percent(share_of(rows.padding(), rows.rows * rows.row_tokens)) + "\n";
  } else {
    text += counted(rows.rows, "window") + " of the text per epoch\n";
  }
  text += "  an epoch predicts " + text_of(rows.targets) + " of " + text_of(all_targets) +
          " targets, " + percent(share_of(rows.targets, all_targets)) + "\n";
  if (rows.validation_rows > 0)
    text += "  kept for validation: " + counted(rows.validation_rows, "row") + "\n";
  return text;
}

std::string part_heading(const DataReport& report, const SamplePart& part) {
  const auto places = [](std::uint64_t first, std::uint64_t count) {
    return text_of(first) + " to " + text_of(first + count - 1);
  };
  std::string text;
  if (part.document) {
    const std::uint64_t offset = part.first_token - part.document_begin;
    text = "document " + text_of(*part.document);
    if (part.tokens < part.document_tokens)
      text +=
          ", its tokens " + places(offset, part.tokens) + " of " + text_of(part.document_tokens);
    text += ": ";
  }
  text += "tokens " + places(part.first_token, part.tokens);
  if (report.files.size() > 1) text += " of " + printable(report.files[part.file].path);
  if (part.document) text += ", " + counted(part.targets, "target");
  return "[" + text + "]\n";
}

std::string sample_text(const DataReport& report, std::size_t number, Marks marks) {
  const DataSample& sample = report.samples[number];
  std::string text = "--- sample " + text_of(number + 1) + " of " + text_of(report.samples.size());
  if (sample.row)
    text += ": row " + text_of(*sample.row) + " of 0 to " + text_of(report.rows->rows - 1) +
            ", in the order of training";
  text += '\n';
  std::uint64_t hidden = 0;
  for (const SamplePart& part : sample.parts) {
    hidden += part.tokens - part.shown;
    text += part_heading(report, part);
    if (part.shown == 0) continue;
    std::vector<TextSegment> segments = part.segments;
    for (TextSegment& segment : segments) segment.marked = segment.marked && part.document;
    text += marked_lines(segments, marks);
    if (part.shown < part.tokens) text += "  ...\n";
  }
  if (hidden > 0) text += "[" + counted(hidden, "token") + " not shown (--tokens)]\n";
  if (sample.padding > 0) text += "[" + counted(sample.padding, "place") + " of padding]\n";
  return text;
}

using Json = nlohmann::ordered_json;

Json lengths_json(const std::vector<std::uint64_t>& lengths) {
  if (lengths.empty()) return {};
  Json ranges = Json::array();
  for (const data::LengthRange& range : data::histogram_of(lengths))
    ranges.push_back({{"from", range.from}, {"to", range.to}, {"documents", range.count}});
  return {{"shortest", lengths.front()},
          {"median", lengths[lengths.size() / 2]},
          {"mean", mean_of(lengths)},
          {"longest", lengths.back()},
          {"histogram", std::move(ranges)}};
}

Json preparation_json(const std::optional<data::TokenRecord::Preparation>& made) {
  if (!made) return {};
  Json left_out = Json::object();
  for (const auto& [reason, count] : made->left_out) left_out[reason] = count;
  return {{"conversations", made->conversations ? Json(*made->conversations) : Json()},
          {"cut", made->cut},
          {"replaced", made->replaced},
          {"left_out", std::move(left_out)}};
}

Json file_json(const FileReport& file) {
  using Kind = engine::TokenizerFiles::Kind;
  const data::TokenCensus& census = file.census;
  const Kind kind = file.tokenizer.kind;
  return {{"path", file.path},
          {"dtype", file.type},
          {"vocab_size", file.vocab_size > 0 ? Json(file.vocab_size) : Json()},
          {"tokenizer",
           {{"kind", kind == Kind::kBytes  ? "bytes"
                     : kind == Kind::kFile ? "file"
                                           : "unknown"},
            {"path", file.tokenizer.path.empty() ? Json() : Json(file.tokenizer.path)},
            {"tokens", file.tokenizer.tokens}}},
          {"tokens", census.tokens},
          {"largest_token", census.largest},
          {"targets", census.targets},
          {"targets_share", share_of(census.targets, census.tokens)},
          {"documents", census.lengths.empty() ? Json() : Json(census.lengths.size())},
          {"documents_without_target", census.documents_without_target},
          {"lengths", lengths_json(census.lengths)},
          {"preparation", preparation_json(file.record.preparation)}};
}

Json rows_json(const std::optional<RowsReport>& rows) {
  if (!rows) return {};
  return {{"sequence_length", rows->row_tokens},
          {"rows", rows->rows},
          {"documents", rows->documents},
          {"padding", rows->padding()},
          {"targets", rows->targets},
          {"outcome", rows->outcome},
          {"validation_rows", rows->validation_rows}};
}

Json part_json(const DataReport& report, const SamplePart& part) {
  Json segments = Json::array();
  for (const TextSegment& segment : part.segments)
    segments.push_back({{"text", segment.text}, {"trained", segment.marked}});
  return {{"file", report.files[part.file].path},
          {"document", part.document ? Json(*part.document) : Json()},
          {"document_tokens", part.document ? Json(part.document_tokens) : Json()},
          {"first_token", part.first_token},
          {"tokens", part.tokens},
          {"targets", part.targets},
          {"shown", part.shown},
          {"segments", std::move(segments)}};
}

}  // namespace

std::string data_text(const DataReport& report, Marks marks) {
  std::string text;
  std::uint64_t targets = 0;
  bool is_marked = false;
  for (const FileReport& file : report.files) {
    text += file_text(file);
    targets += file.census.targets;
    is_marked = is_marked || file.has_documents;
  }
  if (report.rows) text += rows_text(*report.rows, targets);
  if (is_marked && !report.samples.empty()) {
    const TextSegment example{.text = "so", .marked = true};
    text += "the trained parts are marked like this:\n" + marked_lines({&example, 1}, marks);
  }
  for (std::size_t i = 0; i < report.samples.size(); ++i) text += sample_text(report, i, marks);
  return text;
}

std::string data_json(const DataReport& report) {
  Json files = Json::array();
  for (const FileReport& file : report.files) files.push_back(file_json(file));
  Json samples = Json::array();
  for (const DataSample& sample : report.samples) {
    Json parts = Json::array();
    for (const SamplePart& part : sample.parts) parts.push_back(part_json(report, part));
    samples.push_back({{"row", sample.row ? Json(*sample.row) : Json()},
                       {"parts", std::move(parts)},
                       {"padding", sample.padding}});
  }
  const Json all = {{"files", std::move(files)},
                    {"rows", rows_json(report.rows)},
                    {"samples", std::move(samples)}};
  return all.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::tools
