// What the network adds to the cost of an algorithm where ranks are on several hosts, and what an algorithm of several
// steps takes.
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

// The algorithms of the steps along the first axis of the grid and along the others, by their predicted times, and what
// all steps take.
struct Steps {
  device::Algorithm alongFirst = device::Algorithm::kCount;
  device::Algorithm alongOthers = device::Algorithm::kCount;
  double us = 0;
};
// REQUIRES: an algorithm of several steps, and its grid.
Steps planSteps(device::Algorithm algorithm, const Query& query, const Machine& machine);

}  // namespace kolo::planner
