// What a rank 0 has left to say that cannot run the job's hub: the ranks that look for the hub are told why there is
// none, instead of waiting until their time is over. It takes a listening socket and poll(2), on the calling thread:
// what could not be had may be threads, or epoll.
//
// Thread safety: one thread at a time.
#pragma once

#include "bootstrap/unique_id.h"

namespace kolo::bootstrap {

class LastWords {
 public:
  // Listens where a hub would. Port 0: any; else an explicit root.
  static Result<LastWords> listen(const Secret& secret, std::uint16_t port, const std::optional<Address>& only);

  // Where others find it.
  const IdContents& id() const { return id_; }
  // Refuses the ranks that come, until so many have or the deadline comes first.
  void tell(const Status& why, int ranks, Clock::time_point deadline);

 private:
  LastWords(Socket socket, IdContents id) : socket_(std::move(socket)), id_(std::move(id)) {}

  Socket socket_;
  IdContents id_;
};

}  // namespace kolo::bootstrap
