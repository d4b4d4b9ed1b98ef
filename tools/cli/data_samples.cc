#include "tools/cli/data_samples.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "aio/split_mix.h"
#include "engine/data/permutation.h"

namespace sluice::tools {
namespace {

Result<std::unique_ptr<bool[]>> targets_of(const data::TokenFile& file, std::uint64_t first,
                                           std::uint64_t count) {
  auto mask = std::make_unique<bool[]>(count);
  const std::span all(mask.get(), count);
  if (file.documents() != nullptr) {
    SLUICE_RETURN_IF_ERROR(file.documents()->copy_mask(first, all));
  } else {
    std::fill(all.begin(), all.end(), true);
  }
  all.front() = false;
  return mask;
}

Result<SamplePart> part_of(const data::TokenCorpus& corpus, const data::SamplePlace& place) {
  const data::TokenFile& file = corpus.files()[place.file];
  SamplePart part{.file = place.file, .first_token = place.first_token, .tokens = place.tokens};
  if (const data::TokenDocuments* const documents = file.documents()) {
    part.document = documents->holding(place.first_token);
    part.document_begin = documents->begin(*part.document);
    part.document_tokens = documents->end(*part.document) - part.document_begin;
  }
  SLUICE_ASSIGN_OR_RETURN(const auto targets, targets_of(file, place.first_token, place.tokens));
  part.targets =
      static_cast<std::uint64_t>(std::count(targets.get(), targets.get() + place.tokens, true));
  return part;
}

// Chooses samples among `all`, each at most once.
std::vector<std::uint64_t> chosen_of(std::uint64_t all, std::uint64_t first,
                                     const SampleChoice& choice) {
  std::vector<std::uint64_t> chosen;
  const std::uint64_t left = choice.at ? all - first : all;
  const data::Permutation order(all, choice.seed, 0);
  chosen.reserve(std::min(choice.count, left));
  for (std::uint64_t i = 0; i < std::min(choice.count, left); ++i)
    chosen.push_back(choice.at ? first + i : order.at(i));
  return chosen;
}

Result<std::uint64_t> row_that_holds(std::uint64_t token, const data::SampleSource& rows) {
  for (std::uint64_t row = 0; row < rows.count(); ++row)
    for (const data::SamplePlace& place : rows.places(row))
      if (place.file == 0 && token >= place.first_token && token < place.first_token + place.tokens)
        return row;
  return Error(ErrorCode::kInvalidArgument,
               "--at: token " + std::to_string(token) +
                   " is in no row of the first epoch: it is kept for validation, or left out "
                   "(windows leave out some tokens, different ones in each epoch; of documents, "
                   "parts that do not fit a row or have no token to train on are left out)");
}

Result<DataSample> row_of(const data::TokenCorpus& corpus, const data::SampleSource& rows,
                          std::uint64_t number, std::uint64_t row_tokens) {
  DataSample sample{.row = number, .parts = {}, .padding = row_tokens};
  for (const data::SamplePlace& place : rows.places(number)) {
    SLUICE_ASSIGN_OR_RETURN(sample.parts.emplace_back(), part_of(corpus, place));
    sample.padding -= place.tokens - 1;
  }
  return sample;
}

// Documents, or pieces of a text, of the first file.
Result<std::vector<DataSample>> without_rows(const data::TokenCorpus& corpus,
                                             const SampleChoice& choice) {
  const data::TokenFile& file = corpus.files().front();
  const data::TokenDocuments* const documents = file.documents();
  std::vector<data::SamplePlace> places;
  if (documents != nullptr) {
    const std::uint64_t first = choice.at ? documents->holding(*choice.at) : 0;
    for (const std::uint64_t number : chosen_of(documents->count(), first, choice))
      places.push_back({.file = 0,
                        .first_token = documents->begin(number),
                        .tokens = documents->end(number) - documents->begin(number)});
  } else {
    // Pieces do not overlap. They begin at the position, or at the file's beginning.
    const std::uint64_t begin = choice.at.value_or(0);
    const std::uint64_t length = std::min(choice.piece_tokens, file.token_count() - begin);
    const std::uint64_t pieces = (file.token_count() - begin) / length;
    for (const std::uint64_t number : chosen_of(pieces, 0, choice))
      places.push_back({.file = 0, .first_token = begin + number * length, .tokens = length});
  }
  std::vector<DataSample> samples;
  for (const data::SamplePlace& place : places) {
    SLUICE_ASSIGN_OR_RETURN(SamplePart part, part_of(corpus, place));
    samples.push_back({.row = std::nullopt, .parts = {std::move(part)}, .padding = 0});
  }
  return samples;
}

// Merges with the last segment if both are targets or neither is.
void append(const std::string& text, bool marked, std::vector<TextSegment>& segments) {
  if (text.empty()) return;
  if (segments.empty() || segments.back().marked != marked)
    segments.push_back({.text = {}, .marked = marked});
  segments.back().text += text;
}

Status add_text(const data::TokenFile& file, TextTokens* words, SamplePart& part) {
  std::vector<std::int64_t> tokens(part.shown);
  SLUICE_RETURN_IF_ERROR(file.copy(part.first_token, tokens));
  SLUICE_ASSIGN_OR_RETURN(const auto targets, targets_of(file, part.first_token, part.shown));
  if (words != nullptr) SLUICE_RETURN_IF_ERROR(words->restart());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string text = (i == 0 ? "" : " ") + std::to_string(tokens[i]);
    if (words != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(text, words->decode(tokens[i]));
    }
    append(text, targets[i], part.segments);
  }
  if (words == nullptr) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string rest, words->finish());
  append(rest, !tokens.empty() && targets[tokens.size() - 1], part.segments);
  return {};
}

}  // namespace

Result<std::vector<DataSample>> choose_samples(const data::TokenCorpus& corpus,
                                               const data::SampleSource* rows,
                                               const SampleChoice& choice) {
  const data::TokenFile& file = corpus.files().front();
  if (choice.at && *choice.at >= file.token_count())
    return Error(ErrorCode::kInvalidArgument, "--at: " + file.path() + " has tokens 0 to " +
                                                  std::to_string(file.token_count() - 1) +
                                                  ", not " + std::to_string(*choice.at));
  if (rows == nullptr) return without_rows(corpus, choice);
  std::uint64_t first = 0;
  if (choice.at) {
    SLUICE_ASSIGN_OR_RETURN(first, row_that_holds(*choice.at, *rows));
  }
  std::vector<DataSample> samples;
  for (const std::uint64_t number : chosen_of(rows->count(), first, choice)) {
    SLUICE_ASSIGN_OR_RETURN(samples.emplace_back(),
                            row_of(corpus, *rows, number, choice.piece_tokens));
  }
  return samples;
}

Status read_text(const data::TokenCorpus& corpus, TextTokens* words, std::uint64_t most,
                 DataSample& sample) {
  for (SamplePart& part : sample.parts) {
    part.shown = std::min(part.tokens, most);
    most -= part.shown;
    if (part.shown > 0) SLUICE_RETURN_IF_ERROR(add_text(corpus.files()[part.file], words, part));
  }
  return {};
}

}  // namespace sluice::tools
