// The hub's port is open to anybody; only those who hold the job's secret matter.
#include <cerrno>

#include "bootstrap_fixture.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

// A socket to the hub's port, of somebody who does not follow the protocol.
Socket knock(const IdContents& contents) {
  int errnum = 0;
  Socket socket = connectTo(Address::loopback(), contents.port, Clock::now() + 5s, errnum);
  REQUIRE(errnum == 0);
  return socket;
}

// Reads until the other end closes (true) or the limit passes.
bool closedWithin(const Socket& socket, std::chrono::milliseconds limit, std::string* received = nullptr) {
  for (const auto deadline = Clock::now() + limit; Clock::now() < deadline;) {
    char buffer[4096];
    const ssize_t got = ::recv(socket.fd(), buffer, sizeof buffer, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got > 0 && received != nullptr) received->append(buffer, static_cast<std::size_t>(got));
    if (got < 0) std::this_thread::sleep_for(2ms);
  }
  return false;
}

}  // namespace

TEST_CASE("strangers do not disturb a job", "[bootstrap]") {
  const koloUniqueId id = newId();
  const IdContents contents = contentsOf(id);
  Result<ControlPtr> zero = error(koloInternalError, "unset");
  std::thread first([&] { zero = join(id, 0, 2, kPatienceMs); });

  SECTION("garbage") {
    const Socket socket = knock(contents);
    push(socket, std::string(5000, 'G'));
    CHECK(closedWithin(socket, 2000ms));
  }
  SECTION("a port scan") {
    for (int i = 0; i < 200; ++i) (void)knock(contents);
  }
  SECTION("silence is ended after five seconds") {
    const Socket silent = knock(contents);
    const Socket half = knock(contents);
    push(half, ClientHello().encode().substr(0, 20));
    CHECK_FALSE(closedWithin(silent, 4000ms));
    CHECK(closedWithin(silent, 3000ms));
    CHECK(closedWithin(half, 2000ms));
  }
  SECTION("a wrong secret is refused") {
    IdContents wrong = contents;
    wrong.secret[0] ^= 1;
    CHECK(join(encodeId(wrong), 1, 2, 1000).status().code() == koloUnreachable);
    // With the right tag, which travels in the clear, it takes the proof to tell.
    ClientHello hello;
    hello.tag = tagOf(contents.secret);
    const Socket socket = knock(contents);
    push(socket, hello.encode());
    push(socket, std::string(Session::kProofBytes, '\0'));
    std::string answer;
    CHECK(closedWithin(socket, 2000ms, &answer));
    CHECK(answer.substr(ServerHello::kBytes) == Session::refusal());
  }
  SECTION("a replayed handshake is refused") {
    const auto shake = [&contents](const std::string& hello, std::string proof, std::string& answer) {
      const Socket socket = knock(contents);
      push(socket, hello);
      while (answer.size() < ServerHello::kBytes) {
        char byte = 0;
        if (::recv(socket.fd(), &byte, 1, 0) == 1) answer.push_back(byte);
      }
      Session session(Session::Side::kClient, contents.secret, hello, answer);
      if (proof.empty()) proof = session.prove();
      push(socket, proof);
      std::string reply;
      while (reply.size() < Session::kProofBytes) {
        char byte = 0;
        if (::recv(socket.fd(), &byte, 1, 0) == 1) reply.push_back(byte);
      }
      return std::pair(proof, session.check(reply));
    };
    ClientHello hello;
    hello.tag = tagOf(contents.secret);
    std::string serverHello;
    const auto [proof, verdict] = shake(hello.encode(), "", serverHello);
    CHECK(verdict == Reply::kOk);
    std::string another;
    CHECK(shake(hello.encode(), proof, another).second == Reply::kWrongSecret);
  }
  SECTION("half a frame, and a frame of four gigabytes, from one who knows the secret") {
    Result<Dialled> half = dial(contents, Clock::now() + 5s);
    Result<Dialled> huge = dial(contents, Clock::now() + 5s);
    REQUIRE(half.ok());
    REQUIRE(huge.ok());
    push(half.value().socket, std::string("\x40\0\0\0abc", 7));
    push(huge.value().socket, std::string("\xff\xff\xff\xff", 4));
    CHECK(closedWithin(huge.value().socket, 2000ms));
    half.value().socket.close();
  }
  SECTION("an authentic frame that makes no sense") {
    Result<Dialled> raw = dial(contents, Clock::now() + 5s);
    REQUIRE(raw.ok());
    std::string bytes;
    raw.value().session.seal(rawJoin(7, 2, KOLO_VERSION_CODE), bytes);
    push(raw.value().socket, bytes);
    CHECK(closedWithin(raw.value().socket, 2000ms));
  }

  Result<ControlPtr> one = join(id, 1, 2, kPatienceMs);
  first.join();
  REQUIRE(zero.ok());
  REQUIRE(one.ok());
  leaveAll({zero.value(), one.value()});
}
