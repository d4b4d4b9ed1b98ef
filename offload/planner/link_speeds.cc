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

Topology host_of(const Topology& ranks) {
  return {.world = ranks.local_world, .local_world = ranks.local_world};
}

// Whether the hops of an exchange take their own times, and not one that was measured for both.
bool has_two_hops(const LinkSpeeds& link, const Topology& ranks) {
  return ranks.adds_by_host() && link.network_bytes_per_s > 0;
}

}  // namespace

double received_bytes(const Topology& ranks, double bytes) {
  return bytes * share_of_others(ranks.world);
}

double gather_s(const LinkSpeeds& link, const Topology& ranks, double bytes) {
  const double in_host_s = seconds(received_bytes(ranks, bytes), link.gather_bytes_per_s);
  return std::max(in_host_s, network_s(link, ranks, bytes)) + call_s(link, ranks);
}

double exchanged_bytes(const Topology& ranks, double bytes) {
  return received_bytes(ranks.adds_by_host() ? host_of(ranks) : ranks, bytes);
}

// A rank exchanges its share of the host's sum.
double host_exchanged_bytes(const Topology& ranks, double bytes) {
  return ranks.adds_by_host() ? bytes / ranks.local_world * share_of_others(ranks.hosts()) : 0;
}

double exchange_s(const LinkSpeeds& link, const Topology& ranks, double bytes, double calls) {
  if (has_two_hops(link, ranks)) return exchange_s(link, host_of(ranks), bytes, calls);
  const double in_host_s = seconds(received_bytes(ranks, bytes), link.exchange_bytes_per_s);
  return std::max(in_host_s, network_s(link, ranks, bytes * ranks.local_world)) +
         calls * call_s(link, ranks);
}

double host_exchange_s(const LinkSpeeds& link, const Topology& ranks, double bytes, double calls) {
  if (!has_two_hops(link, ranks)) return 0;
  return network_s(link, ranks, bytes) + calls * call_s(link, ranks);
}

}  // namespace sluice::offload
