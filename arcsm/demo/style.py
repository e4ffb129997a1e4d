"""What the page of the demonstration adds to the style of all pages: drawings and digits."""

from arcsm.pages.style import CSS as SHARED

_OWN = """
img.pixels { image-rendering: pixelated; }
img.round { border-radius: 6px; }
.over { position: relative; }
.over i {
  position: absolute; top: 0; bottom: 0; border-left: 1.5px dashed #ffffffb0; margin-left: -0.75px;
}
.scale { display: flex; align-items: center; gap: 10px; max-width: 440px; margin-top: 12px; }
.scale img { height: 10px; min-width: 60px; flex: 1; border-radius: 3px; }
.scale span { color: var(--muted); font-size: 13px; white-space: nowrap; }
.diagram { overflow-x: auto; margin-top: 30px; }
.diagram svg { min-width: 460px; max-width: 780px; }
svg text { fill: var(--ink); font-size: 14px; }
svg text.small { font-size: 12px; }
svg text.muted, svg text.tick { fill: var(--muted); }
svg text.tick { font-size: 12px; font-variant-numeric: tabular-nums; }
svg text.strong { font-weight: 600; }
svg .sub { font-size: 0.75em; }
.scalar, .room { fill: var(--card); stroke: var(--data); stroke-width: 1.2; }
.scalar.now { stroke: var(--score); }
.room { stroke: var(--model); }
.room.out { stroke: var(--rule); }
.arrow { fill: none; stroke: var(--muted); stroke-width: 1.3; }
.tip { fill: var(--muted); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.model { stroke: var(--model); }
.line.data { stroke: var(--data); stroke-width: 1.5; }
.line.truth { stroke: var(--truth); stroke-width: 1.3; stroke-dasharray: 4 3; }
.line.score { stroke: var(--score); stroke-width: 1.8; }
.line.faint { opacity: 0.28; stroke-width: 1.2; }
.area.model { fill: var(--wash); }
.dot.model { fill: var(--model); }
.grid { stroke: var(--rule); }
.axis { stroke: var(--data); stroke-width: 1; }
.key { display: inline-block; width: 18px; height: 0; vertical-align: 4px; margin-right: 5px; }
.key.model { border-top: 3px solid var(--model); }
.key.data { border-top: 2px solid var(--data); }
.key.truth { border-top: 2px dashed var(--truth); }
.key.score { border-top: 3px solid var(--score); }
tr.truth td { color: var(--muted); }
.pair.apart { gap: 44px; }
.rows { display: grid; grid-template-columns: 82px 1fr; gap: 12px 14px; align-items: center; }
.rows span { color: var(--muted); font-size: 14px; line-height: 1.3; }
.rows b { color: var(--ink); font-weight: 600; }
.under { display: grid; margin-top: 6px; color: var(--muted); font-size: 12.5px; }
.under span { text-align: center; min-width: 0; }
.under b { color: var(--ink); font-weight: 600; display: block; }
@media (max-width: 720px) {
  .rows { grid-template-columns: 1fr; gap: 4px; }
  .rows img { margin-bottom: 10px; }
}
"""

CSS = SHARED + _OWN
