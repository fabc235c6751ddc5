// The names of the folders below that a communicator is made of.
#pragma once

#include "failure/call_terms.h"
#include "failure/cause.h"
#include "failure/conclusions.h"
#include "failure/failure_state.h"
#include "failure/reasons.h"
#include "links/arena.h"
#include "links/blob.h"
#include "links/boards.h"
#include "links/bulletin.h"
#include "links/hosts.h"
#include "links/membership.h"
#include "links/peers.h"
#include "links/pool.h"
#include "links/surroundings.h"
#include "links/windows.h"
#include "traffic/traffic.h"
#include "waiting/waiter.h"

namespace kolo::comm {

using failure::CallTerms;
using failure::CauseFinder;
using failure::Conclusions;
using failure::FailureState;
using failure::Reasons;
using links::ArenaLayout;
using links::BlockLayout;
using links::Boards;
using links::Bulletin;
using links::Given;
using links::Grid;
using links::hearSurroundings;
using links::Hosts;
using links::Membership;
using links::nearNics;
using links::Peers;
using links::Pool;
using links::Share;
using links::Surroundings;
using links::tellSurroundings;
using links::Window;
using links::Windows;
using traffic::Traffic;
using waiting::Waiter;

}  // namespace kolo::comm
