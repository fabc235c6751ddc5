// The hub's side of a handshake, on a connection whose other end has proved nothing yet.
//
// Thread safety: none; each object belongs to one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/socket.h"
#include "bootstrap/wire.h"
#include "network/talk.h"

namespace kolo::bootstrap {

class Greeting {
 public:
  // The secret of the job that a tag names; null: no such job here, and `why` says more if there is more to say.
  using Find = std::function<const Secret*(const Tag&, Reply& why)>;

  Greeting(Socket socket, Find find) : talk_(std::move(socket)), find_(std::move(find)) {}

  enum class Stage {
    kSilent,   // has not said which job it belongs to
    kGreeted,  // has named a job that is here
    kProven,   // holds the job's secret
    kOver,     // to be closed
  };
  // Reads and answers as far as it goes without waiting.
  Stage advance();
  Stage stage() const { return stage_; }
  int fd() const { return talk_.fd(); }
  Socket takeSocket() { return talk_.takeSocket(); }
  // Of the job, once it has greeted.
  const Tag& tag() const { return hello_.tag; }
  // Has named a job that is here, and then has not proved that it holds the secret.
  bool hasFailed() const { return hasFailed_; }
  // Once it is proven.
  const Session& session() const { return *session_; }
  Session& session() { return *session_; }

 private:
  Stage answerHello(std::string_view hello);
  Stage answerProof(std::string_view proof);
  bool reply(std::string_view bytes);

  network::Talk talk_;
  Find find_;
  Stage stage_ = Stage::kSilent;
  ClientHello hello_;
  ServerHello answer_;
  std::optional<KeyExchange> exchange_;  // until the proof
  bool hasFailed_ = false;
  std::unique_ptr<Session> session_;
};

}  // namespace kolo::bootstrap
