#pragma once

namespace resolution::html {

/// The style sheet of every page. Two hues of the Okabe-Ito palette, which readers with any color
/// vision tell apart, mean "summed first" (blue) and "normalized first" (orange) throughout the
/// resolution report; a green beside them marks what a page is about. Every mark also has its name
/// beside it.
constexpr const char* style_sheet = R"(
:root { --paper: #ffffff; --panel: #f6f7f9; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --sum: #0072b2; --norm: #d55e00; --own: #008060; --idle: #8c959f; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --panel: #1d2126; --ink: #e8eaed; --soft: #a5adb6; --line: #3a4149;
    --sum: #56b4e9; --norm: #f0a030; --own: #3fc49a; --idle: #7d8690; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
  sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 56px; }
h1 { font-size: 32px; line-height: 1.2; margin: 4px 0 14px; letter-spacing: -0.01em;
  text-wrap: balance; }
h2 { font-size: 22px; margin: 48px 0 6px; text-wrap: balance; }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 6px 0 12px; max-width: 76ch; }
.eyebrow, .note, figcaption { color: var(--soft); }
.eyebrow { margin: 0; font-size: 14px; }
.lead { font-size: 18px; }
.note, figcaption { font-size: 14px; }
figcaption { margin-top: 8px; max-width: 80ch; }
.sum { color: var(--sum); } .norm { color: var(--norm); }
.own { color: var(--own); } .idle { color: var(--idle); }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 6px 0 0;
  background: currentColor; }
.keys span { margin-right: 20px; white-space: nowrap; }
.keys b { font-weight: 400; color: var(--ink); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(225px, 1fr)); gap: 14px;
  margin: 22px 0 4px; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 14px 16px; }
.tile dl { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0; }
.tile dl div { min-width: 0; }
.tile dt { font-size: 13px; }
.tile dd { margin: 0; font-size: 25px; font-weight: 650; line-height: 1.2;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile p { margin: 6px 0 0; font-size: 13px; color: var(--soft); }
.tile .name { margin: 0 0 6px; font-size: 15px; font-weight: 600; }
.charts { --least: 440px; display: grid; gap: 16px; margin: 14px 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--least)), 1fr)); }
.charts.three { --least: 310px; }
figure { margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 14px 16px; min-width: 0; break-inside: avoid; }
figure + figure { margin-top: 16px; }
.charts > figure { margin-top: 0; }
.pair { display: grid; gap: 12px 24px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 310px), 1fr)); }
a { color: var(--sum); }
figure.wide { grid-column: 1 / -1; }
.chart { container-type: inline-size; font-size: 13px; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.chart .small { font-size: 12px; } .chart .soft { color: var(--soft); }
.bars { display: grid; grid-template-columns: fit-content(46%) minmax(0, 1fr);
  align-items: center; }
.label { grid-column: 1; text-align: right; padding-right: 10px; overflow-wrap: anywhere; }
.track { grid-column: -2; align-self: stretch; position: relative; min-height: 27px; }
.track i, .value { position: absolute; }
.track .fill { top: calc(50% - 9.5px); height: 19px; background: currentColor; }
.track .zero { top: 0; bottom: 0; border-left: 1px solid var(--line); }
.track .dashed { top: 0; bottom: 0; border-left: 1px dashed var(--ink); }
.value { top: calc(50% - 0.65em); margin-left: 2px; padding-left: 5px; white-space: nowrap;
  background: var(--panel); }
.limit { display: block; font-size: 12px; color: var(--soft); padding: 4px 0; }
.names { display: flex; flex-wrap: wrap; gap: 2px 14px; margin-bottom: 6px; }
.names svg { margin-right: 5px; vertical-align: -1px; }
.either > .names { display: none; }
svg { overflow: visible; }
.plot { display: block; width: 100%; padding: 0 var(--right) 0 var(--left); }
svg text { fill: currentColor; }
svg .fill { fill: currentColor; }
svg .gap { fill: var(--panel); }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .dashed { stroke: var(--ink); stroke-dasharray: 4 3; }
svg .curve { fill: none; stroke: currentColor; stroke-width: 2; vector-effect: non-scaling-stroke; }
svg .broad { stroke-width: 7; opacity: 0.45; }
svg .band { fill: var(--line); opacity: 0.45; }
@container (max-width: 400px) {
  .bars { grid-template-columns: minmax(0, 1fr); }
  .label { text-align: left; padding: 6px 0 0; }
  .either > .names { display: flex; }
  .either .end { display: none; }
  .either .plot { padding-right: 14px; }
}
.findings { columns: 2; column-gap: 36px; margin-top: 12px; }
.findings h3 { font-size: 16px; margin-top: 10px; } .findings p { margin-bottom: 4px; }
.finding { break-inside: avoid; border-top: 1px solid var(--line); padding-bottom: 10px; }
.scroll { overflow-x: auto; margin: 10px 0 18px; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 0 0 6px; }
th, td { text-align: right; padding: 5px 12px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { vertical-align: bottom; white-space: normal; border-bottom: 2px solid var(--line); }
th:first-child { text-align: left; padding-left: 0; }
.spread { color: var(--soft); font-size: 13px; line-height: 1.2; }
tbody th { font-weight: 400; } .strong { font-weight: 650; }
.groups { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 318px), 1fr));
  gap: 16px; margin-top: 12px; align-items: start; }
.groups .roomy { grid-column: span 2; }
.groups .scroll { margin: 0; }
.groups table { width: 100%; font-size: 13px; }
.groups th, .groups td { padding: 3px 6px; } .groups th:first-child { padding-left: 0; }
dl.terms dt { font-weight: 650; margin-top: 10px; } dl.terms dd { margin: 0; max-width: 84ch; }
code { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
footer { margin-top: 48px; border-top: 1px solid var(--line); padding-top: 12px;
  color: var(--soft); font-size: 14px; }
@media (max-width: 820px) {
  .findings { columns: 1; }
  .groups .roomy { grid-column: auto; }
}
@media (max-width: 480px) {
  main { padding: 24px 16px 40px; }
  figure { padding: 12px; }
  tbody th { white-space: normal; min-width: 130px; }
  .groups tbody th { min-width: 0; }
}
@media print {
  :root { --paper: #fff; --panel: #fff; --ink: #000; --soft: #444; --line: #bbb; --sum: #0072b2;
    --norm: #d55e00; --own: #008060; --idle: #8c959f; }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  .tiles { grid-template-columns: repeat(4, minmax(0, 1fr)); }
  .tile dd { font-size: 18px; }
  .tile dl { gap: 12px; }
  .charts, .charts.three { --least: 280px; }
  .findings { columns: 2; }
  .scroll { overflow: visible; }
  .chart, .key { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)";

/// The style sheet of a picture in a file of its own, with the same colors.
constexpr const char* picture_style = R"(
svg { color-scheme: light dark; overflow: visible; --paper: #fff; --ink: #1b1f24; --soft: #57606a;
  --line: #d0d7de; --sum: #0072b2; --norm: #d55e00 }
@media (prefers-color-scheme: dark) { svg { --paper: #14171b; --ink: #e8eaed; --soft: #a5adb6;
  --line: #3a4149; --sum: #56b4e9; --norm: #f0a030 } }
text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif;
  fill: currentColor }
.title { font-size: 15px; font-weight: 600; fill: var(--ink) }
.soft { color: var(--soft); fill: var(--soft) }
.sum { color: var(--sum) } .norm { color: var(--norm) }
.paper { fill: var(--paper) } .axis { stroke: var(--line) }
.band { fill: var(--line); opacity: 0.45 }
.curve { fill: none; stroke: currentColor; stroke-width: 2; vector-effect: non-scaling-stroke }
.broad { stroke-width: 7; opacity: 0.45 }
)";

}  // namespace resolution::html
