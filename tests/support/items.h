// Items of lists, for tests.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>

namespace kolo::test {

// Ints that are sent as they are.
inline koloItem_t intItem(const int* send, int* recv, std::size_t count) {
  koloItem_t item{};
  item.sendbuf = send;
  item.recvbuf = recv;
  item.count = count;
  item.sendtype = item.transfertype = item.recvtype = koloInt32;
  return item;
}

}  // namespace kolo::test
