"""The looks of the page: Gradio's theme in our colours, with fonts of the reader's own machine."""

from typing import Any

from arcsm.plots.palette import DATA, INK, MODEL, MUTED, RULE, SCORE

# Pictures keep their white ground when the page is dark: their lines are drawn for it.
CSS = f"""
.gradio-container {{ max-width: 1180px !important; margin: 0 auto !important; }}
.arcsm-head h1 {{
  font: 600 30px/1.2 "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif;
  margin: 8px 0 4px;
}}
.arcsm-head p, .arcsm-note {{ color: var(--body-text-color-subdued); margin: 0 0 6px; }}
.arcsm-note {{ font-size: 14px; line-height: 1.45; }}
.arcsm-status {{ font-size: 15px; line-height: 1.45; margin: 0; }}
.arcsm-status.bad {{ border-left: 3px solid {SCORE}; padding-left: 10px; }}
.arcsm-bar {{ height: 6px; border-radius: 3px; background: {RULE}; margin-top: 6px; }}
.arcsm-bar i {{ display: block; height: 6px; border-radius: 3px; background: {MODEL}; }}
.arcsm-empty {{
  border: 1px dashed {DATA}; border-radius: 10px; padding: 26px 18px; text-align: center;
  color: var(--body-text-color-subdued); font-size: 15px; line-height: 1.45;
}}
.arcsm-pad {{
  display: block; width: 100%; max-width: 420px; aspect-ratio: 1; background: #fff;
  border: 1px solid {DATA}; border-radius: 10px; cursor: crosshair; touch-action: none;
}}
.arcsm-picker {{ display: grid; grid-template-columns: repeat(5, 1fr); gap: 8px; }}
.arcsm-picker button {{
  padding: 3px; border: 2px solid transparent; border-radius: 9px; background: none;
  cursor: pointer;
}}
.arcsm-picker button.chosen {{ border-color: {MODEL}; }}
.arcsm-picker img {{ display: block; width: 100%; image-rendering: pixelated; border-radius: 5px; }}
.arcsm-buttons {{ display: flex; gap: 8px; margin-top: 8px; }}
.arcsm-button {{
  font: inherit; font-size: 14px; padding: 4px 12px; border: 1px solid {DATA}; cursor: pointer;
  border-radius: 6px; background: none; color: var(--body-text-color);
}}
.arcsm-tiles {{ display: grid; grid-template-columns: 1fr 1fr; gap: 14px; }}
.arcsm-tiles.three {{ grid-template-columns: repeat(3, 1fr); }}
.arcsm-tiles .whole {{ grid-column: 1 / -1; }}
.arcsm-tile {{
  background: #fff; color: {INK}; border: 1px solid {RULE}; border-radius: 10px; padding: 12px;
  min-width: 0;
}}
.arcsm-tile h3 {{ font-size: 15px; font-weight: 600; margin: 0 0 8px; color: {INK}; }}
.arcsm-tile p {{ font-size: 14px; color: {MUTED}; margin: 6px 0 0; line-height: 1.4; }}
.arcsm-tile b {{ color: {INK}; font-weight: 600; }}
.arcsm-tile img {{ display: block; width: 100%; height: auto; }}
.arcsm-tile img.pixels {{ image-rendering: pixelated; border-radius: 6px; }}
.arcsm-wide {{ overflow-x: auto; }}
.arcsm-tile table {{
  border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums;
}}
.arcsm-tile table, .arcsm-tile thead, .arcsm-tile tbody, .arcsm-tile tr {{
  border: 0 !important; background: none !important;
}}
.arcsm-tile th, .arcsm-tile td {{
  border: 0; border-bottom: 1px solid {RULE}; padding: 5px 10px 5px 0; text-align: left;
  vertical-align: top; color: {INK}; background: none;
}}
.arcsm-tile td.narrow {{ white-space: nowrap; }}
.arcsm-tile th {{ color: {MUTED}; font-weight: 500; font-size: 13px; }}
.arcsm-tile td.filled {{ color: {MODEL}; font-weight: 600; }}
.arcsm-tile td.out {{ color: {SCORE}; }}
@media (max-width: 720px) {{
  .arcsm-tiles {{ grid-template-columns: 1fr; }}
  .arcsm-tiles.three {{ gap: 8px; }}
  .arcsm-tiles.three .arcsm-tile {{ padding: 8px; }}
  .gradio-container {{ padding: 8px !important; }}
  .arcsm-wide {{ max-width: calc(100vw - 116px); }}
}}
"""


def theme() -> Any:
    """Return Gradio's theme: nothing in it is fetched from elsewhere."""
    import gradio as gr

    return gr.themes.Default(
        primary_hue=gr.themes.Color(
            "#eef3fd", "#dce6fb", "#bccff7", "#93b1f0", "#638de7", MODEL, "#2955bb", "#22479c",
            "#1c3a80", "#17307a", "#101f4d",
        ),
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"],
        font_mono=["ui-monospace", "SF Mono", "Menlo", "Consolas", "monospace"],
    ).set(
        body_text_color_subdued=MUTED,
        body_text_color_subdued_dark="#9aa1b1",
    )  # fmt: skip
