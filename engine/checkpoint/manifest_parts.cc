#include "engine/checkpoint/manifest_parts.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/weights/quoting.h"
#include "swap/sealed_json.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using offload::ElementType;
using offload::ParamForm;

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }

// ---- to JSON ------------------------------------------------------------------------------------

json to_json(const TensorSpec& tensor) { return {{"name", tensor.name}, {"shape", tensor.shape}}; }

json to_json(const StatePieces& pieces) {
  json text = json::array();
  for (const StatePiece& piece : pieces)
    text.push_back({piece.parameter, piece.first_element, piece.elements});
  return text;
}

json to_json(const swap::FrozenRecord& record) {
  return json::array({record.generation, record.place});
}

json to_json(const StoredRecords::Piece& one) {
  return json::array(
      {one.piece.parameter, one.piece.first_element, one.piece.elements, one.record_element});
}

json to_json(const StoredRecords::Part& part);

template <typename Values>
json list_json(const Values& values) {
  json text = json::array();
  for (const auto& value : values) text.push_back(to_json(value));
  return text;
}

json to_json(const StoredRecords::Part& part) {
  json text = {
      {"state", part.state}, {"elements", part.elements}, {"pieces", list_json(part.pieces)}};
  if (part.parameters) text["parameters"] = *part.parameters;
  return text;
}

// The type that a pass computes with, which tells how the state has the master.
DType dtype_of(ParamForm form) {
  switch (form) {
    case ParamForm::kSplit:
      return DType::kBF16;
    case ParamForm::kFp32AndFp16:
      return DType::kF16;
    case ParamForm::kFp32:
      break;
  }
  return DType::kF32;
}

json to_json(const StoredRecords& records) {
  const DType moments = records.form.moments == ElementType::kBf16 ? DType::kBF16 : DType::kF32;
  return {
      {"run", records.store.run},
      {"paths", records.store.paths},
      {"store_id", swap::to_hex(records.store.store_id)},
      {"form",
       {{"parameters", to_string(dtype_of(records.form.param))}, {"moments", to_string(moments)}}},
      {"placement", records.placement},
      {"records", list_json(records.store.records)},
      {"parts", list_json(records.parts)}};
}

// ---- from JSON ----------------------------------------------------------------------------------

Result<StatePiece> piece_from_json(const json& content, std::size_t numbers) {
  if (content.size() != numbers)
    return corrupt(std::string("a piece in it is not ") + (numbers == 3 ? "three" : "four") +
                   " numbers");
  return StatePiece{.parameter = content.at(0).get<std::uint64_t>(),
                    .first_element = content.at(1).get<std::uint64_t>(),
                    .elements = content.at(2).get<std::uint64_t>()};
}

Result<StatePieces> pieces_from_json(const json& content) {
  StatePieces pieces;
  for (const json& one : content) {
    SLUICE_ASSIGN_OR_RETURN(pieces.emplace_back(), piece_from_json(one, 3));
  }
  return pieces;
}

Result<offload::StateForm> form_from_json(const json& content) {
  const auto parameters = content.at("parameters").get<std::string>();
  const auto moments = content.at("moments").get<std::string>();
  for (const ParamForm param : {ParamForm::kSplit, ParamForm::kFp32AndFp16, ParamForm::kFp32}) {
    if (to_string(dtype_of(param)) != parameters) continue;
    if (moments == to_string(DType::kF32))
      return offload::StateForm{.param = param, .moments = ElementType::kFp32};
    if (moments == to_string(DType::kBF16))
      return offload::StateForm{.param = param, .moments = ElementType::kBf16};
  }
  return corrupt("it says that its store has parameters in " + in_quotes(parameters) +
                 " and moments in " + in_quotes(moments));
}

Result<StoredRecords::Part> part_from_json(const json& content) {
  StoredRecords::Part part{.state = content.at("state").get<swap::RecordId>(),
                           .elements = content.at("elements").get<std::uint64_t>()};
  if (content.contains("parameters"))
    part.parameters = content.at("parameters").get<swap::RecordId>();
  for (const json& one : content.at("pieces")) {
    SLUICE_ASSIGN_OR_RETURN(const StatePiece piece, piece_from_json(one, 4));
    part.pieces.push_back({.piece = piece, .record_element = one.at(3).get<std::uint64_t>()});
  }
  return part;
}

Result<StoredRecords> records_from_json(const json& content) {
  StoredRecords records;
  records.store.run = content.at("run").get<std::string>();
  records.store.paths = content.at("paths").get<std::vector<std::string>>();
  SLUICE_ASSIGN_OR_RETURN(records.store.store_id,
                          swap::parse_hex(content.at("store_id").get<std::string>()));
  SLUICE_ASSIGN_OR_RETURN(records.form, form_from_json(content.at("form")));
  records.placement = content.at("placement").get<std::string>();
  for (const json& record : content.at("records")) {
    if (record.size() != 2) return corrupt("a record in it is not a generation and a place");
    records.store.records.push_back(
        {.generation = record.at(0).get<std::uint64_t>(), .place = record.at(1).get<int>()});
  }
  for (const json& from : content.at("parts")) {
    SLUICE_ASSIGN_OR_RETURN(records.parts.emplace_back(), part_from_json(from));
  }
  return records;
}

}  // namespace

void parts_to_json(const CheckpointManifest& manifest, json& content) {
  content["tensors"] = list_json(manifest.tensors);
  content["pieces"] = list_json(manifest.pieces);
  if (manifest.records) content["store"] = to_json(*manifest.records);
}

Status parts_from_json(const json& content, CheckpointManifest& manifest) {
  if (!content.contains("tensors")) return {};
  for (const json& tensor : content.at("tensors"))
    manifest.tensors.push_back({.name = tensor.at("name").get<std::string>(),
                                .dtype = DType::kF32,
                                .shape = tensor.at("shape").get<std::vector<std::uint64_t>>()});
  for (const json& of_shard : content.at("pieces")) {
    SLUICE_ASSIGN_OR_RETURN(StatePieces pieces, pieces_from_json(of_shard));
    manifest.pieces.push_back(std::move(pieces));
  }
  if (!content.contains("store")) return {};
  SLUICE_ASSIGN_OR_RETURN(manifest.records, records_from_json(content.at("store")));
  return {};
}

Status check_parts(const CheckpointManifest& manifest) {
  if (manifest.pieces.size() != manifest.shards())
    return corrupt("it lists the contents of " + std::to_string(manifest.pieces.size()) +
                   " shards, but the files of " + std::to_string(manifest.shards()));
  const auto parameters = lay_out(manifest.tensors);
  if (!parameters.ok()) return corrupt(parameters.error().message());
  std::uint64_t elements = 0;
  for (const TensorInfo& parameter : *parameters) elements += parameter.elements;
  if (parameters->size() != manifest.parameters || elements != manifest.elements)
    return corrupt("it announces " + std::to_string(manifest.parameters) + " parameters with " +
                   std::to_string(manifest.elements) + " elements, but lists " +
                   std::to_string(parameters->size()) + " with " + std::to_string(elements));
  std::vector<StatePieces> all = manifest.pieces;
  if (manifest.records) {
    if (const Status possible = check_records(*manifest.records, manifest.moments); !possible.ok())
      return corrupt(possible.error().message());
    for (const StoredRecords::Part& part : manifest.records->parts) all.push_back(pieces_of(part));
  }
  if (const Status whole = check_pieces(*parameters, all); !whole.ok())
    return corrupt(whole.error().message());
  return {};
}

}  // namespace sluice::engine
