#include "perf/html_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/collectives.h"
#include "perf/html_style.h"
#include "perf/names.h"
#include "perf/sizes.h"
#include "perf/svg_chart.h"

namespace kolo::perf {
namespace {

using Group = std::vector<const Result*>;

struct Series {
  std::string label;
  Group results;
};

// Results of one collective, in the order in which they were measured.
struct Section {
  koloCollective_t collective;
  std::vector<Series> series;
};

std::string seriesLabel(const Result& result) {
  const std::string_view kind = bufferKindName(result.buffers);
  if (!rowOf(result.operation.collective).folds) return fmt::format("{}, {}", result.datatype(), kind);
  return fmt::format("{} {}, {}", result.datatype(), result.op(), kind);
}

std::vector<Section> sectionsOf(const std::vector<Result>& results) {
  std::vector<Section> sections;
  for (const Result& result : results) {
    const koloCollective_t collective = result.operation.collective;
    if (sections.empty() || sections.back().collective != collective) sections.push_back({collective, {}});
    std::vector<Series>& series = sections.back().series;
    const std::string label = seriesLabel(result);
    if (series.empty() || series.back().label != label) series.push_back({label, {}});
    series.back().results.push_back(&result);
  }
  return sections;
}

std::string timeText(double us) {
  if (us >= 1e6) return fmt::format("{:.3g} s", us / 1e6);
  if (us >= 1e3) return fmt::format("{:.3g} ms", us / 1e3);
  return us >= 1 ? fmt::format("{:.3g} µs", us) : fmt::format("{:.0f} ns", us * 1e3);
}

std::string rateText(double rate) { return fmt::format("{:.3g} GB/s", rate); }

std::string tooltip(const Result& r, const std::string& label) {
  return fmt::format("{} — {}\nmedian {}, from {} to {} (p99)\nalgorithm {}, bus {}\n{} over {}, {} calls",
                     formatBytes(r.bytes), label, timeText(r.timeUs.median), timeText(r.timeUs.min),
                     timeText(r.timeUs.p99), rateText(r.algorithmBandwidth()), rateText(r.busBandwidth()),
                     r.plan.algorithm, r.plan.transport, r.iterations);
}

std::string charts(const Section& section) {
  const bool banded = section.series.size() <= 2;  // more bands than that hide each other
  std::vector<Curve> times, rates;
  for (size_t i = 0; i < section.series.size(); ++i) {
    const Series& series = section.series[i];
    Curve time{.color = i, .points = {}}, rate{.color = i, .points = {}};
    for (const Result* result : series.results) {
      const double bytes = static_cast<double>(result->bytes), bus = result->busBandwidth();
      const Summary& us = result->timeUs;
      time.points.push_back(
          {bytes, us.median, banded ? us.min : us.median, banded ? us.p99 : us.median, tooltip(*result, series.label)});
      rate.points.push_back({bytes, bus, bus, bus, tooltip(*result, series.label)});
    }
    times.push_back(std::move(time));
    rates.push_back(std::move(rate));
  }
  return "<div class=\"charts\">" +
         svgChart(banded ? "Time of a call, µs (band: fastest to p99)" : "Time of a call, µs", Scale::kLogarithmic,
                  times) +
         svgChart("Bus bandwidth, GB/s", Scale::kLinear, rates) + "</div>";
}

std::string legend(const Section& section) {
  std::string html = "<div class=\"legend\">";
  for (size_t i = 0; i < section.series.size(); ++i) {
    html += fmt::format("<span><i style=\"background:var(--c{})\"></i>{}</span>", i % kChartColors,
                        escapeHtml(section.series[i].label));
  }
  return html + "</div>";
}

std::string wrongCell(const Result& result) {
  if (!result.verified) return "<td>not checked</td>";
  return fmt::format("<td class=\"{}\">{}</td>", result.wrong == 0 ? "good" : "bad", result.wrong);
}

std::string table(const Section& section) {
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>size</th><th>elements</th><th class=\"text\">what</th>"
      "<th>fastest</th><th>median</th><th>p99</th><th>slowest</th><th>algorithm GB/s</th><th>bus GB/s</th>"
      "<th class=\"text\">algorithm</th><th>calls</th><th>wrong</th></tr></thead><tbody>";
  for (const Series& series : section.series) {
    for (const Result* r : series.results) {
      html += fmt::format(
          "<tr><td>{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
          "<td>{:.3f}</td><td>{:.3f}</td><td class=\"text\">{}</td><td>{}</td>{}</tr>",
          formatBytes(r->bytes), r->elements, escapeHtml(series.label), timeText(r->timeUs.min),
          timeText(r->timeUs.median), timeText(r->timeUs.p99), timeText(r->timeUs.max), r->algorithmBandwidth(),
          r->busBandwidth(), escapeHtml(r->plan.algorithm), r->iterations, wrongCell(*r));
    }
  }
  return html + "</tbody></table></div>";
}

std::string sectionHtml(const Section& section) {
  const std::string name = koloCollectiveName(section.collective);
  std::string html = fmt::format("<section id=\"{}\"><div class=\"head\"><h2>{}</h2>", name, name);
  if (section.collective == koloCollectiveBarrier) {
    const Result& result = *section.series.front().results.front();
    return html + fmt::format("</div><p>median {}, fastest {}, p99 {}, slowest {}; {} calls, {}</p></section>\n",
                              timeText(result.timeUs.median), timeText(result.timeUs.min), timeText(result.timeUs.p99),
                              timeText(result.timeUs.max), result.iterations, escapeHtml(result.plan.algorithm));
  }
  return html + legend(section) + "</div>" + charts(section) + "<details><summary>All figures</summary>" +
         table(section) + "</details></section>\n";
}

std::string fact(const char* name, const std::string& value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, escapeHtml(value));
}

std::string facts(const Run& run) {
  const Machine& machine = run.machine;
  return "<dl class=\"facts\">" + fact("processor", machine.cpu) + fact("cores", std::to_string(machine.cores)) +
         fact("memory", formatBytes(machine.memoryBytes)) +
         fact("last-level cache", machine.lastCacheBytes > 0 ? formatBytes(machine.lastCacheBytes) : "unknown") +
         fact("kernel", machine.kernel) +
         fact("ranks", fmt::format("{} {}{}", run.ranks, run.threads ? "threads" : "processes",
                                   run.bound ? ", a core each" : "")) +
         (run.gpus.empty() ? "" : fact("GPUs and their ranks", run.gpus + (run.resident ? "; resident kernels" : ""))) +
         fact("buffers", run.buffers + (run.inPlace ? ", in place" : "")) + fact("transport", run.transport) +
         fact("timer", fmt::format("{:.0f} ns a reading", machine.timerCostNs)) + "</dl>\n";
}

// One line for each collective and kind: how fast the smallest call is and how much bandwidth the best size reaches.
std::string overview(const std::vector<Section>& sections) {
  std::string html =
      "<section><div class=\"head\"><h2>At a glance</h2></div><div class=\"scroll\"><table><thead><tr>"
      "<th class=\"text\">collective</th><th class=\"text\">what</th><th>smallest size</th><th>its time</th>"
      "<th>best bus bandwidth</th><th>at size</th><th>wrong values</th></tr></thead><tbody>";
  for (const Section& section : sections) {
    const std::string name = koloCollectiveName(section.collective);
    for (const Series& series : section.series) {
      const Group& group = series.results;
      const Result& smallest = *group.front();
      const Result& best = **std::max_element(group.begin(), group.end(), [](const Result* a, const Result* b) {
        return a->busBandwidth() < b->busBandwidth();
      });
      size_t wrong = 0;
      bool verified = true;
      for (const Result* result : group) {
        wrong += result->wrong;
        verified = verified && result->verified;
      }
      const bool moves = best.bytes > 0;  // a barrier does not
      html += fmt::format(
          "<tr><td class=\"text\"><a href=\"#{}\">{}</a></td><td class=\"text\">{}</td><td>{}</td><td>{}</td>"
          "<td>{}</td><td>{}</td><td class=\"{}\">{}</td></tr>",
          name, name, moves ? escapeHtml(series.label) : "", moves ? formatBytes(smallest.bytes) : "",
          timeText(smallest.timeUs.median), moves ? rateText(best.busBandwidth()) : "",
          moves ? formatBytes(best.bytes) : "", wrong > 0 ? "bad" : "good",
          !moves     ? ""
          : verified ? std::to_string(wrong)
                     : "not checked");
    }
  }
  return html + "</tbody></table></div></section>\n";
}

}  // namespace

std::string htmlText(const Run& run, const std::vector<Result>& results) {
  const std::vector<Section> sections = sectionsOf(results);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>kolo-perf: {} ranks</title><style>{}</style></head><body><main>\n",
      run.ranks, kHtmlStyle);
  html += fmt::format(
      "<h1>Kolo {} collectives, {} ranks</h1><p>Time of one call by the slowest rank, and bandwidth from "
      "its median. Point at a dot for its figures.</p>\n",
      escapeHtml(run.version), run.ranks);
  html += facts(run) + overview(sections);
  for (const Section& section : sections) html += sectionHtml(section);
  return html +
         "<footer>Written by kolo-perf. Times are of batches of calls back to back; bus bandwidth is counted as in "
         "nccl-tests, so that it compares with a link's speed whatever the number of ranks.</footer>\n"
         "</main></body></html>\n";
}

}  // namespace kolo::perf
