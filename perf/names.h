// Names of collectives, datatypes and reductions on the command line: the library's own (koloDataTypeName, ...) and
// those of nccl-tests.
//
// Thread safety: free functions without state, from any thread. All throw Failure with the legal words when a name is
// unknown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kolo/kolo.h"

namespace kolo::perf {

// "all_reduce", also "allreduce" and "all-reduce".
koloCollective_t parseCollective(std::string_view name);
// "float32" and the library's other names; "float", "half", "double", "char", "f8e4m3", ... as nccl-tests has them.
koloDataType_t parseDatatype(std::string_view name);
koloRedOp_t parseOp(std::string_view name);

// Comma-separated lists, where "all" stands for everything: all collectives in the order in which they are reported,
// all datatypes, and the operations sum prod max min avg. Duplicates are dropped; the order given is kept.
std::vector<koloCollective_t> parseCollectives(const std::vector<std::string>& texts);
std::vector<koloDataType_t> parseDatatypes(std::string_view text);
std::vector<koloRedOp_t> parseOps(std::string_view text);

// Splits at commas. Throws Failure when a part is empty, or the whole text: a forgotten word must not pass unseen.
std::vector<std::string> splitList(std::string_view text);

}  // namespace kolo::perf
