"""The style sheet of the HTML report: light or dark as the browser is set, and plain on paper."""

from typing import Final

CSS: Final = """
:root {
  color-scheme: light dark;
  --paper: #fbfbf9; --card: #ffffff; --ink: #1c2128; --soft: #5b6470; --line: #dfe2e6; --grid: #e9ebee;
  --captured: #b8c4d3; --predicted: #0f766e; --good: #0f766e; --bad: #b42318;
  --warn: #fdf3d7; --warn-line: #d9a514;
  --record: #0f766e; --entry: #5aa9a0; --other: #9aa5b1; --listing: #d9822b; --empty: #f0c48a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171c; --card: #1b1f26; --ink: #e6e9ed; --soft: #9aa4b0; --line: #303640; --grid: #272c34;
    --captured: #465264; --predicted: #2dd4bf; --good: #2dd4bf; --bad: #ff8a7a;
    --warn: #332a10; --warn-line: #b98c17;
    --record: #2dd4bf; --entry: #1d8a7e; --other: #5d6875; --listing: #e8973f; --empty: #8f6330;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0 0 8px; max-width: 78ch; }
p.decided { font-size: 20px; font-weight: 600; line-height: 1.3; margin-top: 10px; }
p.unsure { color: var(--bad); }
td.name small { display: block; font-size: 12px; }
.soft, caption, footer { color: var(--soft); }
section, .banner, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
section, .banner { padding: 18px 20px; margin-top: 18px; }
.banner { background: var(--warn); border-color: var(--warn-line); }
.banner ul { margin: 4px 0 0; padding-left: 20px; }
p, .banner li, td.name { overflow-wrap: anywhere; unicode-bidi: isolate; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; }
.cards { margin-top: 20px; }
.card { padding: 14px 18px; }
.card b { display: block; font-size: 28px; line-height: 1.2; letter-spacing: -0.02em; }
.card.lead b { color: var(--good); }
.card.lead.dearer b { color: var(--bad); }
.card span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--grid); vertical-align: baseline; }
tr:last-child td { border-bottom: 0; }
th.n, td.n { text-align: right; white-space: nowrap; }
td.name { min-width: 7ch; }
td.name:nth-child(2) { min-width: 13ch; }
td.name:first-child { min-width: 18ch; }
.legend { margin-top: 6px; }
td.bar { width: 18%; min-width: 110px; padding-right: 0; vertical-align: middle; }
tr.total td { font-weight: 600; }
td.good { color: var(--good); font-weight: 600; }
td.bad { color: var(--bad); font-weight: 600; }
.pair { position: relative; height: 12px; }
.pair i { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 2px; }
.pair i.captured { background: var(--captured); }
.pair i.predicted { background: var(--predicted); top: 3px; bottom: 3px; }
.pair.whole { background: var(--captured); border-radius: 2px; margin: 10px 0; }
.pair.whole i.predicted { top: 0; bottom: 0; }
.stacked { display: flex; align-items: center; gap: 12px; margin-top: 10px; }
.stacked .label { width: 74px; color: var(--soft); font-size: 13px; }
.stack { flex: 1; display: flex; height: 26px; }
.key.record_bytes { background: var(--record); }
.key.entry_bytes { background: var(--entry); }
.key.other_bytes { background: var(--other); }
.key.listing_bytes { background: var(--listing); }
.key.empty_entry_bytes { background: var(--empty); }
i.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 8px; }
i.swatch.captured { background: var(--captured); }
i.swatch.predicted { background: var(--predicted); }
.legend span { margin-right: 20px; white-space: nowrap; color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; min-width: 560px; height: auto; margin-top: 8px; }
svg text { fill: var(--soft); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .area.captured { fill: var(--captured); }
svg .area.predicted { fill: var(--predicted); }
svg .gap { fill: var(--card); stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }
svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 6 4; }
svg.narrow { display: none; }
svg .spot { fill: transparent; }
svg .spot:hover { fill: var(--ink); fill-opacity: 0.1; }
footer { margin-top: 24px; font-size: 13px; }
@media screen and (max-width: 640px) {
  main { padding: 20px 12px 40px; }
  section, .banner { padding: 14px 14px; }
  svg.broad { display: none; }
  svg.narrow { display: block; min-width: 0; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody { display: block; }
  tr { display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 8px 0; border-bottom: 1px solid var(--grid); }
  td, td.name, td.name:first-child, td.name:nth-child(2) { min-width: 0; max-width: 100%; }
  td, td.name { padding: 0; border: 0; }
  td.name:first-child { flex: 1 0 100%; font-weight: 600; }
  td.name:empty { display: none; }
  td.n { text-align: left; }
  td.n::before { content: attr(data-label); display: block; color: var(--soft); }
  td.n::before { font-size: 11px; font-weight: 400; }
  td.bar { flex: 1 0 100%; margin-top: 4px; }
  .stacked .label { width: 64px; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --card: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb; --grid: #dddddd;
    --captured: #c3ccd6; --predicted: #0f766e; --good: #0f766e; --bad: #b42318; --warn: #ffffff;
    --record: #0f766e; --entry: #5aa9a0; --other: #9aa5b1; --listing: #d9822b; --empty: #f0c48a;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  p.decided { font-size: 14px; }
  td.name small { font-size: 9.5px; }
  body { font-size: 10.5px; line-height: 1.4; }
  main { max-width: none; padding: 0; }
  section, .banner { padding: 10px 14px; margin-top: 10px; }
  .cards { grid-template-columns: repeat(5, 1fr); gap: 8px; margin-top: 10px; }
  .card { padding: 8px 12px; }
  .card b { font-size: 18px; }
  .card span, th, .legend span, .stacked .label, footer { font-size: 10px; }
  th, td { padding: 3px 10px 3px 0; }
  td.name, td.name:first-child, td.name:nth-child(2) { min-width: 6ch; }
  td.bar { width: 18%; min-width: 60px; }
  .wide { overflow: visible; }
  svg { min-width: 0; }
  p { max-width: none; }
  svg, tr, section, .card, .banner { break-inside: avoid; }
  section.long { break-inside: auto; }
  h2, h2 + p, thead, .legend { break-after: avoid; }
  thead { display: table-header-group; }
}
@page { margin: 14mm; }
"""
