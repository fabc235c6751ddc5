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
  if (!decode(bytes, hello_)) return Stage::kOver;
  Reply why = Reply::kUnknownJob;
  const Secret* const secret = find_(hello_.tag, why);
  // With another protocol nothing more can be said; the client finds both versions in the hellos.
  if (secret == nullptr || hello_.protocol != kProtocol) {
    if (secret == nullptr) answer_.reply = why;
    (void)reply(encode(answer_));
    return Stage::kOver;
  }
  exchange_.emplace(*secret);
  answer_.share = exchange_->share();
  return reply(encode(answer_)) ? Stage::kGreeted : Stage::kOver;
}

// The key is made only now: who does not even send a proof costs no more than a share.
Greeting::Stage Greeting::answerProof(std::string_view proof) {
  session_ = std::make_unique<Session>(Session::Side::kHub, *exchange_, hello_.share, encode(hello_), encode(answer_));
  exchange_.reset();
  if (session_->check(proof) != Reply::kOk) {
    (void)reply(Session::refusal());
    hasFailed_ = true;
    return Stage::kOver;
  }
  return reply(session_->prove()) ? Stage::kProven : Stage::kOver;
}

}  // namespace kolo::bootstrap
