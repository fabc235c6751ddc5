#include "perf/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "perf/sizes.h"

namespace kolo::perf {
namespace {

constexpr double kWidth = 560, kHeight = 320;
constexpr double kLeft = 58, kRight = 28, kTop = 34, kBottom = 34;

struct Range {
  double low, high;
};

// From values to pixels. The vertical axis carries ticks at `ticks`.
struct Frame {
  Scale scale;
  Range bytes;   // log2
  Range values;  // log10 when logarithmic
  std::vector<double> ticks;

  double x(double size) const {
    const double part = (std::log2(size) - bytes.low) / (bytes.high - bytes.low);
    return kLeft + part * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double at = scale == Scale::kLogarithmic ? std::log10(value) : value;
    return kHeight - kBottom - (at - values.low) / (values.high - values.low) * (kHeight - kTop - kBottom);
  }
};

// 1, 2 or 5 times a power of ten, so that about five steps cover the span.
double niceStep(double span) {
  const double rough = span / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

void setLinear(Frame& frame, double high) {
  const double step = niceStep(high > 0 ? high : 1);
  const double top = std::max(1.0, std::ceil(high / step * 1.02));
  frame.values = {0, top * step};
  for (int i = 0; i <= top; ++i) frame.ticks.push_back(i * step);
}

// Whole decades while they are few; a span of less than two decades gets ticks at 1, 2 and 5.
void setLogarithmic(Frame& frame, double low, double high) {
  const double margin = 0.06;
  frame.values = {std::log10(low) - margin, std::log10(high) + margin};
  const bool fine = frame.values.high - frame.values.low < 2.2;
  for (int decade = static_cast<int>(std::floor(frame.values.low)); decade <= frame.values.high; ++decade) {
    for (const double part : {1.0, 2.0, 5.0}) {
      const double value = part * std::pow(10, decade);
      const double at = std::log10(value);
      if ((fine || part == 1.0) && at >= frame.values.low && at <= frame.values.high) frame.ticks.push_back(value);
    }
  }
}

Frame frameFor(Scale scale, const std::vector<Curve>& curves) {
  Frame frame{.scale = scale, .bytes = {64, 0}, .values = {}, .ticks = {}};
  double low = HUGE_VAL, high = 0;
  for (const Curve& curve : curves) {
    for (const ChartPoint& point : curve.points) {
      frame.bytes.low = std::min(frame.bytes.low, std::log2(point.bytes));
      frame.bytes.high = std::max(frame.bytes.high, std::log2(point.bytes));
      low = std::min(low, point.low);
      high = std::max(high, point.high);
    }
  }
  if (frame.bytes.high - frame.bytes.low < 1) {  // a single size stands in the middle
    frame.bytes.low -= 1;
    frame.bytes.high += 1;
  }
  scale == Scale::kLinear ? setLinear(frame, high) : setLogarithmic(frame, low, high);
  return frame;
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", style, x1, y1, x2,
                     y2);
}

std::string text(double x, double y, const char* attributes, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>", x, y, attributes, escapeHtml(words));
}

std::string axes(const Frame& frame) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string svg;
  for (const double tick : frame.ticks) {
    const double y = frame.y(tick);
    svg += line(kLeft, y, right, y, "grid") + text(kLeft - 8, y + 4, "text-anchor=\"end\"", tickText(tick));
  }
  // At most eight sizes are named.
  const int first = static_cast<int>(std::ceil(frame.bytes.low)), last = static_cast<int>(frame.bytes.high);
  const int step = std::max(1, (last - first + 7) / 8);
  for (int power = first; power <= last; power += step) {
    const double size = std::ldexp(1, power), x = frame.x(size);
    svg += line(x, kTop, x, bottom, "grid") +
           text(x, bottom + 19, "text-anchor=\"middle\"", formatBytes(static_cast<size_t>(size)));
  }
  return svg + line(kLeft, bottom, right, bottom, "axis") + line(kLeft, kTop, kLeft, bottom, "axis");
}

std::string band(const Frame& frame, const Curve& curve) {
  const auto& points = curve.points;
  if (std::all_of(points.begin(), points.end(), [](const ChartPoint& p) { return p.low == p.high; })) return {};
  std::string corners;
  for (const ChartPoint& point : points) {
    corners += fmt::format("{:.1f},{:.1f} ", frame.x(point.bytes), frame.y(point.high));
  }
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    corners += fmt::format("{:.1f},{:.1f} ", frame.x(point->bytes), frame.y(point->low));
  }
  return fmt::format("<polygon class=\"band\" style=\"fill:var(--c{})\" points=\"{}\"/>", curve.color % kChartColors,
                     corners);
}

std::string draw(const Frame& frame, const Curve& curve) {
  const size_t color = curve.color % kChartColors;
  std::string corners, dots;
  for (const ChartPoint& point : curve.points) {
    const double x = frame.x(point.bytes), y = frame.y(point.value);
    corners += fmt::format("{:.1f},{:.1f} ", x, y);
    dots += fmt::format(
        "<g class=\"point\"><title>{}</title><circle class=\"hit\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"10\"/>"
        "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" style=\"fill:var(--c{})\"/></g>",
        escapeHtml(point.tooltip), x, y, x, y, color);
  }
  return fmt::format("<polyline style=\"stroke:var(--c{})\" points=\"{}\"/>{}", color, corners, dots);
}

}  // namespace

std::string svgChart(const std::string& title, Scale scale, const std::vector<Curve>& curves) {
  const Frame frame = frameFor(scale, curves);
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight, escapeHtml(title));
  svg += text(kLeft, 18, "class=\"title\"", title) + axes(frame);
  for (const Curve& curve : curves) svg += band(frame, curve);
  for (const Curve& curve : curves) svg += draw(frame, curve);
  return svg + "</svg>\n";
}

std::string escapeHtml(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += letter;
    }
  }
  return result;
}

std::string tickText(double value) {
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.3g} k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

}  // namespace kolo::perf
