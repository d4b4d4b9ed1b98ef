// PassRecorder: when the device that computes ran each phase of each unit in a step, in the
// device's own time.
//
//   recorder.begin_step(PassRecorder::How::kMarks);
//   recorder.next({.phase = PassPhase::kForward, .unit = 3});  // ends the previous phase
//   ... enqueued ...
//   recorder.end();
//   ... once the device is done with the step ...
//   const std::vector<PassSpan>& spans = recorder.finish();
//
// Marks give durations and cost next to nothing, on a GPU too. Stamps also give times on the
// traces' clock, and each costs some microseconds of GPU time.
//
// A listener gets each phase when the host reaches it, which on a GPU is before the device does.
//
// Threads: the training thread.
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

  // Gets the phase that begins; null: what follows belongs to no phase.
  using Hear = std::function<void(const PassSpan*)>;

  // The recorder owns the clock's marks from `first_mark` on.
  PassRecorder(PhaseClock& clock, int first_mark) : clock_(clock), first_mark_(first_mark) {}

  // Sets the listener; an empty one removes it.
  void heard_by(Hear hear) { hear_ = std::move(hear); }

  void begin_step(How how) {
    how_ = how;
    count_ = 0;
    open_ = false;
    pieces_.clear();
    stamps_.clear();
    spans_.clear();
  }
  // Begins a phase, which ends the previous one; `what`'s times are not read.
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
  // Returns the spans in order, without nesting. Without stamps, time begins with the first span.
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
  // The spans of the last finish().
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
  int count_ = 0;  // boundaries so far
  std::vector<Piece> pieces_;
  std::deque<std::int64_t> stamps_;  // addresses stay
  std::vector<PassSpan> spans_;
};

}  // namespace sluice::engine
