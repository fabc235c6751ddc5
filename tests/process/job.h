// A job: n processes in one role, and what they left.
#pragma once

#include <kolo/kolo.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "support/processes.h"
#include "support/watchdog.h"

namespace kolo::test {

using namespace std::chrono_literals;

inline constexpr std::chrono::milliseconds kPatience = 25s * kSlowness;

// A name that no other job has.
inline std::string newJobName() {
  static int number = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

// An id as an argument of a process, in hexadecimal.
inline std::string inHex(const koloUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}
inline koloUniqueId idOfHex(const std::string& text) {
  koloUniqueId id{};
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

class Job {
 public:
  // KOLO_RANK, KOLO_SIZE and KOLO_JOB besides `more`.
  Job(int ranks, const std::string& role, const std::vector<std::string>& arguments = {},
      const Environment& more = {}) {
    const std::string name = newJobName();
    for (int rank = 0; rank < ranks; ++rank) {
      Environment environment = more;
      environment["KOLO_RANK"] = std::to_string(rank);
      environment["KOLO_SIZE"] = std::to_string(ranks);
      environment.emplace("KOLO_JOB", name);
      start(role, arguments, environment);
    }
  }
  // Each with an environment of its own.
  Job(const std::string& role, const std::vector<Environment>& environments) {
    for (const Environment& environment : environments) start(role, {}, environment);
  }

  Process& operator[](int rank) { return *processes_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(processes_.size()); }

  void waitForLine(const std::string& text) {
    for (auto& process : processes_) {
      place(KOLO_HERE ": waiting for a line");
      if (!process->waitForLine(text, kPatience)) FAIL("no line \"" << text << "\": " << process->wait(0ms).output);
    }
  }
  Ended wait(int rank) {
    place(KOLO_HERE ": waiting for the end", rank);
    return (*this)[rank].wait(kPatience);
  }
  // All end with 0.
  void expectSuccess() {
    for (int rank = 0; rank < size(); ++rank) {
      const Ended ended = wait(rank);
      INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
      CHECK(ended.exitedWith(0));
    }
  }

 private:
  void start(const std::string& role, const std::vector<std::string>& arguments, const Environment& environment) {
    processes_.push_back(std::make_unique<Process>(role, arguments, environment));
  }

  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace kolo::test
