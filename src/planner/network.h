// What the network adds to the cost of an algorithm where ranks are on several hosts, and how a hierarchical one is put together.
//
// Thread safety: pure functions.
#pragma once

#include "planner/planner.h"

namespace kolo::planner {

// Predicted time on the network: the messages that follow each other, what a rank does for each, and the bytes that leave or
// enter the busiest host. 0 on one host.
double networkUs(device::Algorithm algorithm, const Query& query, const Machine& machine);

// Whether the ranks and the query allow a hierarchical algorithm.
bool fitsHosts(const Query& query, const Machine& machine);

// The algorithms of its steps inside a host and between hosts, by their predicted times, and what all of it takes.
struct Steps {
  device::Algorithm within = device::Algorithm::kOneShot;
  device::Algorithm between = device::Algorithm::kOneShot;
  double us = 0;
};
Steps stepsOf(const Query& query, const Machine& machine);

}  // namespace kolo::planner
