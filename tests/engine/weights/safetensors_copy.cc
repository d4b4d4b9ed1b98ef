// safetensors_copy IN OUT DTYPE MAX_SHARD_BYTES RANGE. Reads every tensor of IN (a file, an index
// or a folder) and writes it to OUT as DTYPE, RANGE elements at a time. A test in another language
// compares both.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "aio/make_backend.h"
#include "engine/weights/safetensors_reader.h"
#include "engine/weights/safetensors_writer.h"

namespace sluice::engine {
namespace {

Status copy(const std::vector<std::string>& words) {
  const auto dtype = parse_dtype(words[2]);
  if (!dtype) return Error(ErrorCode::kInvalidArgument, "no dtype: " + words[2]);
  SLUICE_ASSIGN_OR_RETURN(const auto backend, aio::make_backend({}));
  SLUICE_ASSIGN_OR_RETURN(const auto queue, aio::IoQueue::create(*backend, {}));
  SLUICE_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::open(*queue, words[0]));
  std::vector<TensorSpec> tensors;
  for (const TensorInfo& tensor : reader->tensors())
    tensors.push_back({tensor.name, *dtype, tensor.shape});
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::create(*queue,
                                                    {.path = words[1],
                                                     .max_shard_bytes = std::stoull(words[3]),
                                                     .metadata = reader->metadata()},
                                                    tensors));
  const std::uint64_t range = std::stoull(words[4]);
  std::vector<float> values;
  for (const TensorInfo& tensor : reader->tensors()) {
    for (std::uint64_t first = 0; first < tensor.elements; first += range) {
      values.resize(std::min(range, tensor.elements - first));
      SLUICE_RETURN_IF_ERROR(reader->read(tensor.name, first, values));
      SLUICE_RETURN_IF_ERROR(writer->append(tensor.name, values));
    }
  }
  return writer->finish();
}

}  // namespace
}  // namespace sluice::engine

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 5) {
    std::fputs("usage: safetensors_copy IN OUT DTYPE MAX_SHARD_BYTES RANGE\n", stderr);
    return 2;
  }
  const sluice::Status status = sluice::engine::copy(words);
  if (status.ok()) return 0;
  std::fprintf(stderr, "safetensors_copy: %s\n", status.error().message().c_str());
  return 1;
}
