// The style sheet of the HTML report. Colours of the curves follow Okabe and Ito (2008), which colour-blind readers can
// tell apart, darkened or lightened to stand out from either background.
#pragma once

namespace kolo::perf {

constexpr const char* kHtmlStyle = R"css(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5d6878; --line: #e1e5eb; --grid: #e9ecf1; --bad: #c62828;
  --good: #1b7f4d; --c0: #0067a5; --c1: #d1590a; --c2: #0a8f67; --c3: #b8447f; --c4: #8a6d00; --c5: #3f8fc9;
  --c6: #7a4bb3; --c7: #4a5563; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2029; --ink: #e6eaf0; --soft: #98a4b5; --line: #2b3440; --grid: #262e39; --bad: #ff7b72;
  --good: #5fd39b; --c0: #5fb4ee; --c1: #ff9e57; --c2: #45d0a2; --c3: #f08cc0; --c4: #e3c84a; --c5: #9ad0f5;
  --c6: #bfa0f0; --c7: #b4bfcc; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 0; }
p { margin: 4px 0 0; color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 2px 8px; margin: 20px 0;
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 8px 6px; }
.facts div { padding: 6px 14px; }
.facts dt { color: var(--soft); font-size: 12px; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px;
  margin: 0 0 20px; }
.head { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; margin-bottom: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); font-size: 13px; }
.legend i { display: inline-block; width: 18px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(430px, 1fr)); gap: 12px 20px; }
@media (max-width: 520px) { .charts { grid-template-columns: 1fr; } }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); }
svg .title { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--line); stroke-width: 1.5; }
svg .band { stroke: none; opacity: 0.13; }
svg polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
svg .hit { fill: transparent; }
svg .dot { stroke: var(--card); stroke-width: 1.5; pointer-events: none; }
svg g.point:hover .dot { stroke: var(--ink); stroke-width: 2; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; font-size: 12px; }
th.text, td.text { text-align: left; }
tbody tr:hover { background: var(--page); }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.bad { color: var(--bad); font-weight: 700; } .good { color: var(--good); }
a { color: inherit; text-decoration-color: var(--line); text-underline-offset: 3px; }
footer { color: var(--soft); font-size: 13px; }
)css";

}  // namespace kolo::perf
