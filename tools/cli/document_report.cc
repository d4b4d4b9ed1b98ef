#include "tools/cli/document_report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "aio/text.h"
#include "engine/observe/text_table.h"

namespace sluice::tools {
namespace {

using engine::DocumentLoss;
using Documents = engine::EvaluationRun::Documents;
using Json = nlohmann::ordered_json;

constexpr int kDigits = 9;  // as in eval's own line

std::string loss_and_perplexity(double loss) {
  return "loss " + significant(loss, kDigits) + " (perplexity " +
         significant(std::exp(loss), kDigits) + ")";
}

std::string name_of(const Documents& evaluated, const DocumentLoss& one) {
  const std::string number = "document " + std::to_string(one.document);
  return evaluated.files.size() == 1 ? number : number + " of " + evaluated.files[one.file];
}

Json json_of(const Documents& evaluated, const DocumentLoss& one) {
  return {{"file", evaluated.files[one.file]},
          {"document", one.document},
          {"targets", one.targets},
          {"loss", one.mean()},
          {"perplexity", std::exp(one.mean())}};
}

// A CSV field: in quotes, with quotes in it doubled.
std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char letter : text) made += letter == '"' ? "\"\"" : std::string(1, letter);
  return made + "\"";
}

}  // namespace

std::string document_table(const Documents& evaluated) {
  const bool names_files = evaluated.files.size() > 1;
  std::vector<engine::TextRow> rows = {{"document", "targets", "loss", "perplexity"}};
  if (names_files) rows.front().emplace_back("file");
  for (const DocumentLoss& one : evaluated.losses) {
    rows.push_back({std::to_string(one.document), std::to_string(one.targets),
                    significant(one.mean()), significant(std::exp(one.mean()))});
    if (names_files) rows.back().push_back(evaluated.files[one.file]);
  }
  const engine::DocumentSummary sum = engine::summary_of(evaluated.losses);
  const auto line_of = [&](const char* which, std::size_t at) {
    const DocumentLoss& one = evaluated.losses[at];
    return std::string(which) + ": " + name_of(evaluated, one) + ", " +
           loss_and_perplexity(one.mean()) + "\n";
  };
  std::string text = engine::aligned(rows);
  text += loss_and_perplexity(sum.mean) + " over " + counted(sum.targets, "token") + " of " +
          counted(evaluated.losses.size(), "document") + "\n";
  text += "mean over documents: " + loss_and_perplexity(sum.mean_of_documents) + "\n";
  text += line_of("best", sum.best) + line_of("worst", sum.worst);
  const std::uint64_t without = evaluated.documents - evaluated.losses.size();
  if (without > 0) text += counted(without, "document") + " without a token to predict\n";
  return text;
}

std::string document_json(const std::string& weights, const Documents& evaluated) {
  const engine::DocumentSummary sum = engine::summary_of(evaluated.losses);
  Json documents = Json::array();
  for (const DocumentLoss& one : evaluated.losses) documents.push_back(json_of(evaluated, one));
  const Json all = {
      {"weights", weights},
      {"loss", sum.mean},
      {"perplexity", std::exp(sum.mean)},
      {"tokens", sum.targets},
      {"mean_of_documents",
       {{"loss", sum.mean_of_documents}, {"perplexity", std::exp(sum.mean_of_documents)}}},
      {"best", json_of(evaluated, evaluated.losses[sum.best])},
      {"worst", json_of(evaluated, evaluated.losses[sum.worst])},
      {"documents_without_targets", evaluated.documents - evaluated.losses.size()},
      {"documents", std::move(documents)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string document_csv(const Documents& evaluated) {
  std::string text = "file,document,targets,loss,perplexity\n";
  for (const DocumentLoss& one : evaluated.losses)
    text += quoted(evaluated.files[one.file]) + "," + std::to_string(one.document) + "," +
            std::to_string(one.targets) + "," + significant(one.mean(), kAllDigits) + "," +
            significant(std::exp(one.mean()), kAllDigits) + "\n";
  return text;
}

}  // namespace sluice::tools
