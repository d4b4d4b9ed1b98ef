// PassRecorder: when the device that computes did what in a step, phase by phase and unit by unit,
// by the device's own time.
//
//   recorder.begin_step(PassRecorder::How::kMarks);
//   recorder.next({.phase = PassPhase::kForward, .unit = 3});  // what was before ends here
//   ... enqueued ...
//   recorder.end();
//   ... once the device is done with the step ...
//   const std::vector<PassSpan>& spans = recorder.finish();
//
// Marks cost next to nothing, on a GPU too, and give how long each part took; stamps give when it
// was as well, by the clock of traces, and cost some microseconds of a GPU's time each.
//
// Whoever hears it is told each phase as the host gets to it, which on a GPU is before the device.
//
// Threads: the one that trains.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "engine/device/phase_clock.h"
#include "engine/observe/pass_span.h"

namespace sluice::engine {

class PassRecorder {
 public:
  enum class How : std::uint8_t { kNot, kMarks, kStamps };

  // What begins; null: what comes is of no phase.
  using Hear = std::function<void(const PassSpan*)>;

  // The clock's marks from `first_mark` on are the recorder's.
  PassRecorder(PhaseClock& clock, int first_mark) : clock_(clock), first_mark_(first_mark) {}

  // From now on; an empty one ends that.
  void heard_by(Hear hear) { hear_ = std::move(hear); }

  void begin_step(How how) {
    how_ = how;
    count_ = 0;
    open_ = false;
    pieces_.clear();
    stamps_.clear();
    spans_.clear();
  }
  // From here on; its times are not read.
  void next(const PassSpan& what) {
    if (hear_) hear_(&what);
    if (how_ == How::kNot) return;
    pieces_.push_back({.span = what, .begin = boundary()});
    if (open_) pieces_[pieces_.size() - 2].end = pieces_.back().begin;
    open_ = true;
  }
  void end() {
    if (hear_) hear_(nullptr);
    if (how_ == How::kNot || !open_) return;
    pieces_.back().end = boundary();
    open_ = false;
  }
  // In their order, none inside another. Without stamps time begins with the first one.
  const std::vector<PassSpan>& finish() {
    end();
    std::int64_t at_ns = 0;
    int at = 0;
    const auto time_of = [&](int boundary) {
      if (how_ == How::kStamps) return stamps_[static_cast<std::size_t>(boundary)];
      if (boundary > at) {
        at_ns += clock_.elapsed_ns(first_mark_ + at, first_mark_ + boundary);
        at = boundary;
      }
      return at_ns;
    };
    for (Piece& piece : pieces_) {
      piece.span.begin_ns = time_of(piece.begin);
      piece.span.end_ns = time_of(piece.end);
      spans_.push_back(piece.span);
    }
    pieces_.clear();
    return spans_;
  }
  // As finish() left them.
  const std::vector<PassSpan>& spans() const { return spans_; }

 private:
  struct Piece {
    PassSpan span;
    int begin = 0;
    int end = 0;
  };

  int boundary() {
    if (how_ == How::kStamps)
      clock_.stamp(&stamps_.emplace_back(0));
    else
      clock_.mark(first_mark_ + count_);
    return count_++;
  }

  PhaseClock& clock_;
  const int first_mark_;
  Hear hear_;
  How how_ = How::kNot;
  bool open_ = false;
  int count_ = 0;  // boundaries
  std::vector<Piece> pieces_;
  std::deque<std::int64_t> stamps_;  // addresses stay
  std::vector<PassSpan> spans_;
};

}  // namespace sluice::engine
