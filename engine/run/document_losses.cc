#include "engine/run/document_losses.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "aio/check.h"
#include "engine/data/sample_source.h"

namespace sluice::engine {

void DocumentLosses::add(const Piece& piece) {
  SLUICE_CHECK(piece.losses.size() == piece.targets.size(), "a loss for each target");
  PieceSum made{.file = piece.file, .first_token = piece.first_token, .targets = 0, .sum = 0};
  for (std::size_t i = 0; i < piece.targets.size(); ++i) {
    if (piece.targets[i] == data::kIgnoredSample) continue;
    made.sum += double{piece.losses[i]};
    ++made.targets;
  }
  if (made.targets > 0) pieces_.push_back(made);
}

std::vector<DocumentLoss> DocumentLosses::of_documents(const data::TokenCorpus& corpus) const {
  std::vector<PieceSum> pieces = pieces_;
  std::sort(pieces.begin(), pieces.end(), [](const PieceSum& a, const PieceSum& b) {
    return std::tie(a.file, a.first_token) < std::tie(b.file, b.first_token);
  });
  std::vector<DocumentLoss> documents;
  for (const PieceSum& piece : pieces) {
    const std::uint64_t number = corpus.files()[piece.file].documents()->holding(piece.first_token);
    if (documents.empty() || documents.back().file != piece.file ||
        documents.back().document != number)
      documents.push_back({.file = piece.file, .document = number});
    documents.back().targets += piece.targets;
    documents.back().sum += piece.sum;
  }
  return documents;
}

DocumentSummary summary_of(std::span<const DocumentLoss> documents) {
  SLUICE_CHECK(!documents.empty(), "documents to summarise");
  DocumentSummary summary;
  double sum = 0;
  double sum_of_means = 0;
  const auto comparable = [&](std::size_t i) {
    const double mean = documents[i].mean();
    return std::isfinite(mean) ? mean : std::numeric_limits<double>::infinity();
  };
  for (std::size_t i = 0; i < documents.size(); ++i) {
    sum += documents[i].sum;
    sum_of_means += documents[i].mean();
    summary.targets += documents[i].targets;
    if (comparable(i) < comparable(summary.best)) summary.best = i;
    if (comparable(i) > comparable(summary.worst)) summary.worst = i;
  }
  summary.mean = sum / static_cast<double>(summary.targets);
  summary.mean_of_documents = sum_of_means / static_cast<double>(documents.size());
  return summary;
}

}  // namespace sluice::engine
