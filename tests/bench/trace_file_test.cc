#include <gtest/gtest.h>

#include <fstream>

#include "bench/result_file.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::bench {
namespace {

TEST(TraceFile, IsOneThatIsNotThereYetInAFolderThatIs) {
  const aio::TemporaryFolder folder;
  EXPECT_TRUE(check_trace_file(folder.file("trace.json")).ok());
  EXPECT_TRUE(check_trace_file("a-trace-in-this-folder.json").ok());
}

TEST(TraceFile, IsNotWrittenOver) {
  const aio::TemporaryFolder folder;
  std::ofstream(folder.file("trace.json")) << "mine";
  const Status status = check_trace_file(folder.file("trace.json"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_NE(status.error().message().find("another file"), std::string::npos);
}

TEST(TraceFile, IsRefusedWhereItsFolderIsMissing) {
  const aio::TemporaryFolder folder;
  const Status status = check_trace_file(folder.file("no/trace.json"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(status.error().message().find("no folder"), std::string::npos);
}

}  // namespace
}  // namespace sluice::bench
