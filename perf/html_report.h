// The report as one self-contained HTML file: curves as inline SVG, tables, facts about the machine; no script, no
// network.
//
// Thread safety: a free function without state, from any thread.
#pragma once

#include <string>
#include <vector>

#include "perf/report.h"

namespace kolo::perf {

std::string htmlText(const Run& run, const std::vector<Result>& results);

}  // namespace kolo::perf
