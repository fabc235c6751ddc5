#include "answer.h"

namespace kolo::connect {
namespace {

// Never what this end would not have chosen.
bool isFit(Cipher cipher, unsigned char flags) {
  switch (cipher) {
    case Cipher::kNone: return (flags & Address::kEncrypts) == 0;
    case Cipher::kChaCha20Poly1305: return (flags & Address::kEncrypts) != 0;
    case Cipher::kAes256Gcm: return (flags & Address::kEncrypts) != 0 && (flags & Address::kHasAes) != 0;
  }
  return false;
}

}  // namespace

// Each stage returns whether the next one may begin.
network::Stranger::Outcome Answer::advance() {
  for (bool goesOn = true; goesOn && !isOver_;) {
    if (!talk_.flush()) break;
    switch (stage_) {
      case Stage::kVersion: goesOn = hearVersion(); break;
      case Stage::kHello: goesOn = hearHello(); break;
      case Stage::kClaim: goesOn = hearClaim(); break;
      case Stage::kFilling: goesOn = hearFilling(); break;
      case Stage::kCommit: goesOn = hearCommit(); break;
      case Stage::kLastWords: return decision_ == Decision::kTaken ? Outcome::kProven : Outcome::kOver;
    }
  }
  return isOver_ || talk_.failed() != 0 ? Outcome::kOver : Outcome::kGoesOn;
}

bool Answer::hearVersion() {
  if (!talk_.hear(kVersionedHead)) return false;
  std::memcpy(&hello_, talk_.heard(), kVersionedHead);
  if (!hasMagic(hello_)) {
    isOver_ = true;
    return false;
  }
  if (hello_.version != kVersion) return refuse(Status::kGoOn);  // the version in the answer says why
  stage_ = Stage::kHello;
  return true;
}

bool Answer::hearHello() {
  if (!talk_.hear(sizeof hello_)) return false;
  talk_.copyHeard(&hello_);
  talk_.forget();
  const Directory::Entry* const wanted = directory_.find(hello_.to);
  const bool isSensible = hello_.rails >= 1 && hello_.rails <= kMostRails && hello_.rail < hello_.rails;
  if (wanted == nullptr || wanted->rank != hello_.toRank || !isSensible || !isFit(hello_.cipher, wanted->flags))
    return refuse(Status::kUnknown);
  setMagic(challenge_);
  challenge_.version = kVersion;
  exchange_.emplace(wanted->key.bytes);
  challenge_.share = exchange_->share();
  talk_.say(challenge_);
  stage_ = Stage::kClaim;
  return true;
}

bool Answer::refuse(Status status) {
  setMagic(challenge_);
  challenge_.version = kVersion;
  challenge_.status = status;
  talk_.say(challenge_);
  stage_ = Stage::kLastWords;
  return true;
}

bool Answer::hearClaim() {
  if (!talk_.hear(sizeof claim_)) return false;
  talk_.copyHeard(&claim_);
  talk_.forget();
  key_ = connectionKey(*exchange_, hello_.share, hello_, challenge_);  // not before: it costs more than the rest
  exchange_.reset();
  isOver_ = !isProven(claim_, key_) || claim_.filling > kMostFilling;
  stage_ = Stage::kFilling;
  return true;
}

bool Answer::hearFilling() {
  if (!talk_.hear(claim_.filling)) return false;
  std::vector<unsigned char> expected(claim_.filling);
  makeFilling(key_, true, &expected);
  isOver_ = !expected.empty() && std::memcmp(expected.data(), talk_.heard(), expected.size()) != 0;
  talk_.forget();
  sayReply();
  stage_ = Stage::kCommit;
  return true;
}

void Answer::sayReply() {
  std::vector<unsigned char> filling(hello_.rail == 0 ? fillingBytes(talk_.fd()) : 0);
  makeFilling(key_, false, &filling);
  Reply reply{};
  reply.filling = filling.size();
  prove(reply, key_);
  talk_.say(reply);
  talk_.say(filling.data(), filling.size());
}

bool Answer::hearCommit() {
  Commit commit;
  if (!talk_.hear(sizeof commit)) return false;
  talk_.copyHeard(&commit);
  if (!isProven(commit, key_)) {
    isOver_ = true;
    return false;
  }
  decision_ = directory_.decide(hello_, key_);
  Verdict verdict{};
  verdict.decision = decision_;
  prove(verdict, key_);
  talk_.say(verdict);
  stage_ = Stage::kLastWords;
  return true;
}

}  // namespace kolo::connect
