#include "offload/planner/link_speeds.h"

#include <algorithm>
#include <limits>

namespace sluice::offload {
namespace {

double share_of_others(int all) { return static_cast<double>(all - 1) / all; }

double seconds(double bytes, double bytes_per_s) {
  if (bytes <= 0) return 0;
  return bytes_per_s > 0 ? bytes / bytes_per_s : std::numeric_limits<double>::infinity();
}

double call_s(const LinkSpeeds& link, const Topology& ranks) {
  if (ranks.world == 1) return 0;  // nothing is sent
  return link.latency_s + (ranks.hosts() > 1 ? link.network_latency_s : 0);
}

double network_s(const LinkSpeeds& link, const Topology& ranks, double bytes) {
  if (link.network_bytes_per_s <= 0) return 0;
  return bytes * share_of_others(ranks.hosts()) / link.network_bytes_per_s;
}

}  // namespace

double received_bytes(const Topology& ranks, double bytes) {
  return bytes * share_of_others(ranks.world);
}

double gather_s(const LinkSpeeds& link, const Topology& ranks, double bytes) {
  const double in_host_s = seconds(received_bytes(ranks, bytes), link.gather_bytes_per_s);
  return std::max(in_host_s, network_s(link, ranks, bytes)) + call_s(link, ranks);
}

double exchange_s(const LinkSpeeds& link, const Topology& ranks, double bytes, double calls) {
  const double in_host_s = seconds(received_bytes(ranks, bytes), link.exchange_bytes_per_s);
  return std::max(in_host_s, network_s(link, ranks, bytes * ranks.local_world)) +
         calls * call_s(link, ranks);
}

}  // namespace sluice::offload
