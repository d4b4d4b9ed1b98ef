// Prints what TokenFile reads from the given file, for the test of tools/prepare: type, vocabulary,
// note, then every token.
#include <cstdio>
#include <vector>

#include "engine/data/token_file.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const auto file = sluice::data::TokenFile::open(arguments[1], {});
  if (!file.ok()) {
    std::fprintf(stderr, "%s\n", file.error().message().c_str());
    return 1;
  }
  std::vector<std::int64_t> tokens(file->token_count());
  const sluice::Status read = file->copy(0, tokens);
  const sluice::Status fits = file->check_vocab(file->vocab_size());
  for (const sluice::Status& status : {read, fits}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.error().message().c_str());
    return 1;
  }
  std::printf("%s\n%llu\n%s\n", std::string(to_string(file->type())).c_str(),
              static_cast<unsigned long long>(file->vocab_size()), file->note().c_str());
  for (const std::int64_t token : tokens) std::printf("%lld\n", static_cast<long long>(token));
  return 0;
}
