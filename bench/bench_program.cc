#include "bench/bench_program.h"

#include "bench/result_header.h"

namespace sluice::bench {

BenchProgram::BenchProgram(BenchCommand command, const std::string& json)
    : command_(std::move(command)),
      wants_json_(!json.empty()),
      json_("--json", json, ResultFile::Kind::kMeasurement),
      out_(json == "-" ? stderr : stdout) {}

OnProgress BenchProgram::showing(std::string what) {
  return [this, what = std::move(what)](double fraction, double speed) {
    progress_.update(what, {.fraction = fraction, .gb_per_s = speed});
  };
}

void BenchProgram::show(std::string_view text) {
  progress_.clear();
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

void BenchProgram::show_machine(const std::vector<std::string>& paths) {
  std::string text = machine_line(command_.program, machine_);
  for (const std::string& path : paths) {
    const aio::MountInfo mount = aio::mount_info(path);
    text += path + ": " + mount.file_system + " on " + mount.device + "\n";
  }
  show(text);
}

Status BenchProgram::check_json() const {
  if (!wants_json_) return {};
  SLUICE_RETURN_IF_ERROR(json_.check());
  if (const std::string note = json_.note(); !note.empty()) complain(command_.program, note, 0);
  return {};
}

int BenchProgram::fail(const Error& error, int code) {
  progress_.clear();
  return complain(command_.program, error.message(), code);
}

int BenchProgram::fail_interrupted() {
  return fail(Error(ErrorCode::kCancelled, "interrupted before anything was measured"),
              tools::kInterruptedExitCode);
}

int BenchProgram::results_incomplete() {
  show("interrupted: the results above are not complete\n");
  return tools::kInterruptedExitCode;
}

int BenchProgram::finish(const std::function<std::string()>& json, bool interrupted) {
  if (wants_json_) {
    if (const Status written = json_.write(json()); !written.ok())
      return fail(written.error(), kOurError);
  }
  return interrupted ? results_incomplete() : 0;
}

int complain(std::string_view program, std::string_view text, int code) {
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(), std::string(text).c_str());
  return code;
}

}  // namespace sluice::bench
