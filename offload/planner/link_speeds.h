// LinkSpeeds: the rates at which the ranks of a run exchange data, and the time that a collective
// takes at those rates.
//
// For a gathered unit, a rank receives the other ranks' shards. For an exchanged sum, it receives
// what the others added up for its own shard. Either way that is (world - 1) / world of the bytes.
// Within a host this runs at the rate of a rank. Data from other hosts goes through the network of
// the whole host, which all its ranks share. A gathered unit crosses the network once, as in a
// ring; the slower of the two determines the time. A sum is exchanged within each host first, and
// what a host has added up then crosses the network once (SumOrder::hops()). Where the hosts are
// not regular, it crosses the network once per rank of the host. Each call adds its latency.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "offload/topology.h"
#include "swap/stripe_weights.h"

namespace sluice::offload {

using swap::DuplexRates;

// Rates in bytes; 0: unknown, and nothing can be sent.
struct LinkSpeeds {
  double gather_bytes_per_s = 0;    // all-gather: bytes that a rank receives
  double exchange_bytes_per_s = 0;  // all-to-all: bytes that a rank receives
  double latency_s = 0;             // per call
  // Between hosts: the rate of a whole host, in each direction. 0: there is one host, or the rates
  // above were measured over several hosts, with both hops in an exchange.
  double network_bytes_per_s = 0;
  double network_latency_s = 0;  // additional, per call
  // The rates of each GPU while all GPUs of the host copy at once; 0: the same as for one GPU.
  DuplexRates bus_together;
};

// Seconds for a gathered unit of `bytes` bytes. Infinite: nothing can be sent.
double gather_s(const LinkSpeeds& link, const Topology& ranks, double bytes);
// Seconds for one exchange of a sum of `bytes` bytes on each rank, in `calls` calls. The first is
// among the ranks of a host if it adds_by_host(), else among all; the second is among hosts.
double exchange_s(const LinkSpeeds& link, const Topology& ranks, double bytes, double calls);
double host_exchange_s(const LinkSpeeds& link, const Topology& ranks, double bytes, double calls);
// The bytes that a rank receives of a gathered unit, and in these exchanges.
double received_bytes(const Topology& ranks, double bytes);
double exchanged_bytes(const Topology& ranks, double bytes);
double host_exchanged_bytes(const Topology& ranks, double bytes);

}  // namespace sluice::offload
