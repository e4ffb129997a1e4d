"""The style that all pages share: inline, for light and dark screens, telephones and paper."""

from arcsm.plots.palette import DATA, INK, MODEL, MUTED, RULE, SCORE

_LIGHT = f"""
:root {{
  color-scheme: light dark;
  --page: #fcfbf9; --card: #ffffff; --ink: {INK}; --muted: {MUTED}; --rule: {RULE};
  --model: {MODEL}; --wash: {MODEL}22; --score: {SCORE}; --truth: {INK}; --data: {DATA};"""

_REST = """
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "Book Antiqua", Georgia, serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12141a; --card: #191c24; --ink: #e9e7e2; --muted: #9aa1b1; --rule: #2c303b;
    --model: #84aaff; --wash: #84aaff2b; --score: #ff8466; --truth: #e9e7e2; --data: #7b8292;
  }
}
* { box-sizing: border-box; }
sub { line-height: 0; font-size: 0.72em; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 1040px; margin: 0 auto; padding: 56px 28px 40px; }
h1 { font: 600 42px/1.12 var(--serif); letter-spacing: -0.01em; margin: 0 0 18px; }
h2 { font: 600 27px/1.2 var(--serif); margin: 0 0 6px; }
h3 { font-size: 15px; font-weight: 600; margin: 0 0 8px; }
p { margin: 0 0 12px; }
.lead { font-size: 19px; line-height: 1.55; max-width: 46em; }
.note { color: var(--muted); max-width: 46em; }
section { margin-top: 64px; }
section > .note { margin-bottom: 22px; }
.kicker {
  color: var(--model); font-size: 13px; font-weight: 600; letter-spacing: 0.08em;
  text-transform: uppercase; margin: 0 0 6px;
}
figure { margin: 0; min-width: 0; }
figcaption { color: var(--muted); font-size: 14px; line-height: 1.45; margin-top: 10px; }
figcaption b, .note b { color: var(--ink); font-weight: 600; }
.block { margin-top: 34px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 20px; }
.triple { display: grid; grid-template-columns: repeat(3, 1fr); gap: 20px; }
.tile {
  background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 14px;
}
.tile h3 { color: var(--muted); font-weight: 500; font-size: 14px; }
.tile h3 b { color: var(--ink); font-weight: 600; }
img, svg { display: block; width: 100%; height: auto; }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin: 34px 0 0; }
.facts div { border-top: 2px solid var(--model); padding-top: 10px; }
.facts strong { display: block; font: 600 26px/1.2 var(--serif); white-space: nowrap; }
.facts strong small, .facts .se { font-size: 15px; font-weight: 500; }
.facts div > span { color: var(--muted); font-size: 13.5px; line-height: 1.4; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 9px 10px; border-bottom: 1px solid var(--rule); text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--muted); font-size: 13px; font-weight: 500; white-space: nowrap; }
th:first-child { color: var(--ink); font-size: 15px; font-weight: 600; }
td small { display: block; color: var(--muted); font-size: 12.5px; }
td:not(:first-child) { white-space: nowrap; }
td .se { color: var(--muted); font-size: 0.88em; }
tr.ours td { font-weight: 600; }
tr.ours small, tr.ours .se { font-weight: 400; }
tr.ours td:first-child { color: var(--model); }
footer {
  margin-top: 72px; padding-top: 20px; border-top: 1px solid var(--rule);
  color: var(--muted); font-size: 13.5px;
}
footer .pair { gap: 36px; }
footer dl, dl.about { display: grid; grid-template-columns: auto 1fr; gap: 2px 16px; margin: 0; }
footer dt, .about dt { white-space: nowrap; }
footer dd, .about dd { margin: 0; color: var(--ink); overflow-wrap: anywhere; }
footer dd.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
@media (max-width: 720px) {
  main { padding: 32px 18px 28px; }
  h1 { font-size: 32px; }
  .lead { font-size: 17px; }
  section { margin-top: 48px; }
  .triple, .pair.stack, footer .pair { grid-template-columns: 1fr; }
  .pair { gap: 12px; }
  .facts { grid-template-columns: 1fr 1fr; }
  .tile { padding: 10px; }
}
@media print {
  :root { --page: #fff; --card: #fff; }
  body { font-size: 11pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  section { margin-top: 28px; }
  figure, .tile, .facts, table { break-inside: avoid; }
  h2, h3, .kicker, section > .note { break-after: avoid; }
}
"""

CSS = _LIGHT + _REST
