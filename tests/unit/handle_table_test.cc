#include "base/handle_table.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <set>
#include <vector>

namespace kolo::test {

using Table = HandleTable<int, 0x4b54>;

TEST_CASE("a table of handles grows with the objects, and tells them from what has gone and what never was") {
  constexpr int kObjects = 40'000;
  static auto* const table = new Table;  // tables live as long as the process
  std::vector<int> objects(kObjects);
  std::vector<std::uintptr_t> handles;
  for (int& object : objects) handles.push_back(table->add(&object));
  CHECK(std::set<std::uintptr_t>(handles.begin(), handles.end()).size() == objects.size());
  int wrong = 0;
  for (int i = 0; i < kObjects; ++i) {
    const auto at = static_cast<std::size_t>(i);
    wrong += table->find(handles[at]).get() == &objects[at] ? 0 : 1;
    if (i % 3 != 0) continue;
    wrong += table->retire(handles[at]) == &objects[at] ? 0 : 1;
    table->release(handles[at]);
  }
  for (int i = 0; i < kObjects; i += 3) wrong += table->find(handles[static_cast<std::size_t>(i)]) ? 1 : 0;
  CHECK(wrong == 0);
  CHECK(table->findAll([](int) { return true; }).size() == kObjects - (kObjects + 2) / 3);
  // The slot is used again, and the handle is another one.
  int again = 0;
  const std::uintptr_t handle = table->add(&again);
  CHECK(handle != handles[0]);
  CHECK(table->find(handle).get() == &again);
  // A handle of a slot that the table has never had, and one of another kind.
  CHECK(!table->find(handles.back() | 0xffffff));
  CHECK(table->retire(handles.back() | 0xffffff) == nullptr);
  CHECK(!table->find(handles.back() ^ std::uintptr_t{1} << 50));
}

}  // namespace kolo::test
