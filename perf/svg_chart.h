// Curves over sizes as inline SVG.
//
// Thread safety: free functions without state, from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kolo::perf {

struct ChartPoint {
  double bytes;
  double value;
  double low, high;     // of the band around the curve; both equal to value: no band
  std::string tooltip;  // plain text, shown when the pointer is on the point
};

struct Curve {
  size_t color;  // which of the style sheet's --c0...--c7, taken modulo 8
  std::vector<ChartPoint> points;
};

enum class Scale { kLogarithmic, kLinear };  // of the vertical axis; sizes are always logarithmic

// The number of colours that curves have.
constexpr size_t kChartColors = 8;

// An <svg> element. With Scale::kLogarithmic values must be positive. REQUIRES: at least one point
std::string svgChart(const std::string& title, Scale scale, const std::vector<Curve>& curves);

// For text inside HTML and SVG elements and attributes.
std::string escapeHtml(const std::string& text);

// "0.25", "12", "3 k": at most three significant digits, as an axis shows them.
std::string tickText(double value);

}  // namespace kolo::perf
