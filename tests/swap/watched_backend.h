// Wraps a backend and watches the order of transfers: which directions are in flight together, and
// whether a byte is ever read while it is being written.
#pragma once

#include <list>
#include <mutex>
#include <span>
#include <string_view>

#include "aio/io_backend.h"

namespace sluice::swap {

class WatchedBackend final : public aio::IoBackend {
 public:
  explicit WatchedBackend(aio::IoBackend& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  aio::FileSystem& files() override { return inner_.files(); }
  const Clock& clock() const override { return inner_.clock(); }
  aio::PumpResult pump() override { return inner_.pump(); }
  void attach(aio::File& file) override { inner_.attach(file); }
  void detach(aio::File& file) override { inner_.detach(file); }

  void submit(std::span<aio::IoOp* const> ops) noexcept override {
    for (aio::IoOp* op : ops) {
      aio::IoOp* inner = nullptr;
      {
        const std::lock_guard lock(mutex_);
        Watched& watched = in_flight_.emplace_back();
        static_cast<aio::IoOp&>(watched) = *op;
        watched.owner = this;
        watched.outer = op;
        watched.on_done = &WatchedBackend::on_inner_done;
        look_locked(watched);
        inner = &watched;
      }
      inner_.submit({&inner, 1});
    }
  }

  bool both_directions_at_once() const {
    const std::lock_guard lock(mutex_);
    return both_directions_;
  }
  bool overlapping_write() const {
    const std::lock_guard lock(mutex_);
    return overlapping_write_;
  }
  std::size_t turns() const {
    const std::lock_guard lock(mutex_);
    return turns_;
  }

 private:
  struct Watched : aio::IoOp {
    WatchedBackend* owner = nullptr;
    aio::IoOp* outer = nullptr;
  };

  static bool moves(const aio::IoOp& op) {
    return op.kind == aio::IoKind::kRead || op.kind == aio::IoKind::kWrite;
  }
  void look_locked(const Watched& op) {
    if (!moves(op)) return;
    if (op.kind != last_kind_) ++turns_;
    last_kind_ = op.kind;
    for (const Watched& other : in_flight_) {
      if (&other == &op || !moves(other)) continue;
      both_directions_ |= other.kind != op.kind;
      const bool disjoint = other.offset_bytes + other.length_bytes <= op.offset_bytes ||
                            op.offset_bytes + op.length_bytes <= other.offset_bytes;
      const bool reads_only = op.kind == aio::IoKind::kRead && other.kind == aio::IoKind::kRead;
      overlapping_write_ |= other.file == op.file && !disjoint && !reads_only;
    }
  }
  static void on_inner_done(aio::IoOp& op, std::int64_t result) noexcept {
    auto& watched = static_cast<Watched&>(op);
    aio::IoOp* outer = watched.outer;
    WatchedBackend& self = *watched.owner;
    {
      const std::lock_guard lock(self.mutex_);
      self.in_flight_.remove_if([&](const Watched& it) { return &it == &watched; });
    }
    outer->on_done(*outer, result);
  }

  aio::IoBackend& inner_;
  mutable std::mutex mutex_;
  std::list<Watched> in_flight_;
  aio::IoKind last_kind_ = aio::IoKind::kNop;
  std::size_t turns_ = 0;
  bool both_directions_ = false;
  bool overlapping_write_ = false;
};

}  // namespace sluice::swap
