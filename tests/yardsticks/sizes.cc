// Bytes of what every operation touches, a line each: NAME BYTES.
#include <cstdio>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "comm/request.h"
#include "device/exchange.h"
#include "device/link.h"
#include "device/message.h"
#include "device/work.h"
#include "executor/host/host_team.h"

int main() {
  using namespace kolo;
#define KOLO_PRINT_SIZE(type) std::printf("%s %zu\n", #type, sizeof(type))
  KOLO_PRINT_SIZE(device::Work);
  KOLO_PRINT_SIZE(device::Link);
  KOLO_PRINT_SIZE(device::Header);
  KOLO_PRINT_SIZE(device::MessageLine);
  KOLO_PRINT_SIZE(device::Exchange<executor::HostTeam>);
  KOLO_PRINT_SIZE(comm::Operation);
  KOLO_PRINT_SIZE(comm::Request);
  KOLO_PRINT_SIZE(comm::Communicator);
#undef KOLO_PRINT_SIZE
}
