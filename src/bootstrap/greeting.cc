#include "bootstrap/greeting.h"

namespace kolo::bootstrap {

// A few dozen bytes into an empty socket buffer: what does not fit at once never will.
bool Greeting::reply(std::string_view bytes) {
  talk_.say(bytes.data(), bytes.size());
  return talk_.flush();
}

Greeting::Stage Greeting::advance() {
  while (stage_ < Stage::kProven) {
    // Never past the handshake: the bytes behind it belong to the session.
    const std::size_t expected = stage_ == Stage::kSilent ? sizeof(ClientHello) : Session::kProofBytes;
    if (!talk_.hear(expected)) return talk_.failed() == 0 ? stage_ : stage_ = Stage::kOver;
    stage_ = stage_ == Stage::kSilent ? answerHello(talk_.heardText()) : answerProof(talk_.heardText());
    talk_.forget();
  }
  return stage_;
}

Greeting::Stage Greeting::answerHello(std::string_view bytes) {
  ClientHello hello;
  if (!decode(bytes, hello)) return Stage::kOver;
  tag_ = hello.tag;
  const Secret* const secret = find_(hello.tag);
  ServerHello answer;
  // With another protocol nothing more can be said; the client finds both versions in the hellos.
  if (secret == nullptr || hello.protocol != kProtocol) {
    if (secret == nullptr) answer.reply = Reply::kUnknownJob;
    (void)reply(encode(answer));
    return Stage::kOver;
  }
  const KeyExchange exchange(*secret);
  answer.share = exchange.share();
  const std::string answered = encode(answer);
  if (!reply(answered)) return Stage::kOver;
  session_ = std::make_unique<Session>(Session::Side::kHub, exchange, hello.share, bytes, answered);
  return Stage::kGreeted;
}

Greeting::Stage Greeting::answerProof(std::string_view proof) {
  if (session_->check(proof) != Reply::kOk) {
    (void)reply(Session::refusal());
    return Stage::kOver;
  }
  return reply(session_->prove()) ? Stage::kProven : Stage::kOver;
}

}  // namespace kolo::bootstrap
