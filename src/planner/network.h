// What the network adds to the cost of an algorithm where ranks are on several hosts, how a hierarchical one is put
// together, and what one along the axes of a mesh takes.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "planner/planner.h"

namespace kolo::planner {

// What a rank says of its way to other hosts; 0 is what it does not know.
struct Uplink {
  struct Nic {
    std::string name;
    double gigabytes = 0;  // a second, one way
  };
  int host = 0;              // a number that its ranks have in common
  std::vector<Nic> nics;     // that its links use
  double mostGigabytes = 0;  // that it gets through, whatever the NICs are capable of
  double hopUs = 0, postUs = 0;
};

// What all ranks say, as all ranks are to plan by it: the narrowest host and rank, the slowest hop. NICs of one name on
// one host are one.
void useUplinks(const std::vector<Uplink>& ranks, Machine& machine);

// Predicted time on the network: the messages that follow each other, what a rank does for each, and the bytes that
// leave or enter the busiest host, or rank, whichever takes longer. 0 on one host.
double networkUs(device::Algorithm algorithm, const Query& query, const Machine& machine);

// The algorithms of its steps inside a host and between hosts, by their predicted times, and what all of it takes.
struct Steps {
  device::Algorithm within = device::Algorithm::kOneShot;
  device::Algorithm between = device::Algorithm::kOneShot;
  double us = 0;
};
Steps stepsOf(const Query& query, const Machine& machine);

// What an all-reduce by rings along the axes of the machine's mesh takes. REQUIRES: a mesh.
double meshRingUs(const Query& query, const Machine& machine);

}  // namespace kolo::planner
