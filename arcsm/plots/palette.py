"""The colours of arcsm on a light ground, the same in plots and on the page of the demo."""

INK = "#1c2230"  # text, and the truth where it is known
MUTED = "#667084"  # ticks and notes
RULE = "#e5e2db"
MODEL = "#2f63d6"
SCORE = "#d4492f"  # scores, and what calls for attention
DATA = "#9aa0ad"

HEAT = "magma"

# Curves side by side. They differ in lightness as well as in hue, and half of them are dashed, for
# eyes that mix up hues.
SEVERAL = (MODEL, SCORE, "#e3a008", "#17307a", "#3fb8a5", "#8c4a8f")
SEVERAL_STYLES = ("solid", "solid", "solid", (0, (5, 1.5)), (0, (5, 1.5)), (0, (5, 1.5)))
