#include "bench/aio_session.h"

#include <utility>

#include "aio/direct_file.h"
#include "aio/striped_file.h"

namespace sluice::bench {

Error with_shown_paths(const Error& error, const BenchTarget& target) {
  std::string text = error.message();
  for (std::size_t i = 0; i < target.open_paths.size(); ++i) {
    const std::string& hidden = target.open_paths[i];
    for (std::size_t at = text.find(hidden); at != std::string::npos; at = text.find(hidden, at)) {
      const std::size_t end = at + hidden.size();
      const bool whole = end == text.size() || text[end] < '0' || text[end] > '9';
      if (whole) text.replace(at, hidden.size(), target.shown_paths[i]);
      at += whole ? target.shown_paths[i].size() : 1;
    }
  }
  return Error(error.code(), text);
}

std::string AioSession::shown_path() const {
  std::string text;
  for (const std::string& path : described_.shown_paths) text += (text.empty() ? "" : " + ") + path;
  return text;
}

Result<std::unique_ptr<AioSession>> AioSession::open(const BenchTarget& target,
                                                     const Options& options) {
  std::unique_ptr<AioSession> session(new AioSession(target, options));
  SLUICE_ASSIGN_OR_RETURN(session->backend_,
                          aio::make_backend({.kind = options.backend,
                                             .threads = options.threads,
                                             .queue_depth = options.queue_depth,
                                             .single_submit = options.single_submit}));
  SLUICE_ASSIGN_OR_RETURN(
      session->queue_,
      aio::IoQueue::create(*session->backend_, {.block_bytes = options.block_bytes,
                                                .queue_depth = options.blocks_in_flight()}));
  aio::PinnedPool::Options pool{.buffer_bytes = options.block_bytes,
                                .capacity = options.blocks_in_flight(),
                                .backend = session->backend_.get(),
                                .hook = {}};
  SLUICE_ASSIGN_OR_RETURN(session->pool_, aio::PinnedPool::create(pool));
  session->buffers_.resize(static_cast<std::size_t>(options.blocks_in_flight()));
  session->pool_->acquire_all(session->buffers_);

  const aio::OpenOptions open{.access = options.writable ? aio::OpenOptions::Access::kReadWrite
                                                         : aio::OpenOptions::Access::kRead,
                              .create = aio::OpenOptions::Create::kMustExist};
  if (target.open_paths.size() == 1) {
    auto file = aio::DirectFile::open(*session->queue_, target.open_paths[0], {.open = open});
    if (!file.ok()) return session->shown(file.error());
    session->direct_ = (*file)->direct();
    session->target_ = std::move(file).value();
  } else {
    auto file = aio::StripedFile::open(*session->queue_, target.open_paths,
                                       {.stripe_bytes = target.stripe_bytes,
                                        .weights = target.weights,
                                        .file = {.open = open, .size_bytes = target.size_bytes}});
    if (!file.ok()) return session->shown(file.error());
    session->direct_ = (*file)->direct();
    session->target_ = std::move(file).value();
  }
  return session;
}

}  // namespace sluice::bench
