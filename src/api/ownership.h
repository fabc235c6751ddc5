// How handles of communicators come about and end.
#pragma once

#include <kolo/kolo.h>

#include "comm/factory.h"

namespace kolo::api {

// Gives a communicator a handle, with one owner. An error is told to the communicator's other ranks.
Status deliver(koloComm_t* place, comm::Owned communicator);
// One owner of the handle less; the last one finalises and frees the communicator, and gets its failure.
Status dropOwner(koloComm_t comm);

}  // namespace kolo::api
