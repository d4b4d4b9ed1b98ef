// What `sluice eval --by-document` prints: a table, JSON or CSV.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include "engine/run/evaluation_run.h"

namespace sluice::tools {

// One row per document that has a target, and a summary. Needs at least one document.
std::string document_table(const engine::EvaluationRun::Documents& evaluated);
// One object: "loss", "perplexity" and "tokens" as without --by-document, the means over documents,
// the best and worst document, and "documents". A number that is not finite is null.
std::string document_json(const std::string& weights,
                          const engine::EvaluationRun::Documents& evaluated);
// Columns: file,document,targets,loss,perplexity
std::string document_csv(const engine::EvaluationRun::Documents& evaluated);

}  // namespace sluice::tools
