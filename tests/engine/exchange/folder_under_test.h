// Shared by tests of models and tokenizers in folders.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/aio/backends_under_test.h"

namespace sluice::engine {

class FolderUnderTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }
  std::string put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::string put(const std::string& name, const nlohmann::json& json) const {
    return put(name, json.dump(2));
  }
  nlohmann::json get(const std::string& name) const {
    std::ifstream file(path(name));
    return nlohmann::json::parse(file, nullptr, false);
  }
  bool there(const std::string& name) const { return std::filesystem::exists(path(name)); }
  aio::IoQueue& queue() const { return *queue_; }

 private:
  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ =
      aio::make_backend_or_die(aio::BackendKind::kPosix);
  const std::unique_ptr<aio::IoQueue> queue_ = aio::make_queue_or_die(*backend_, {});
};

}  // namespace sluice::engine
