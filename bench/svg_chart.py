"""Line charts as SVG: panels stacked over one x axis. No packages are needed."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM, GAP = 860, 74, 18, 46, 46, 34
FONT = 'font-family="sans-serif" font-size="13" fill="#333"'


@dataclass(frozen=True)
class Curve:
    name: str
    colour: str
    values: list          # one for each x; a value that is not finite leaves a gap
    dashed: bool = False
    marked: bool = False  # each value has a dot


@dataclass(frozen=True)
class Panel:
    label: str            # the name of the y axis
    height: int
    curves: list
    from_zero: bool = False
    legend: str = "top"   # or "bottom", or "" for none
    legend_width: int = 200


@dataclass(frozen=True)
class Axis:
    """The x axis: ascending numbers, spaced by value."""
    label: str
    xs: list
    logarithmic: bool = False  # spaced by logarithm, with a mark at each number

    def place(self, x):
        def scaled(number):
            return math.log(number) if self.logarithmic else number
        first, last = scaled(self.xs[0]), scaled(self.xs[-1])
        share = (scaled(x) - first) / (last - first) if last > first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT - 2 * self.margin) + self.margin

    @property
    def margin(self):
        """Space for the numbers of the first and last marks."""
        return 30 if self.logarithmic else 0

    def marks(self):
        if self.logarithmic:
            return [(x, f"{x:,}") for x in self.xs]
        return [(x, f"{x:g}") for x in ticks(self.xs[0], self.xs[-1], 8)
                if self.xs[0] <= x <= self.xs[-1]]


def ticks(low, high, most=6):
    """Round numbers that cover [low, high] at equal distances, at most about `most`."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def finite(panel):
    values = [v for curve in panel.curves for v in curve.values if math.isfinite(v)]
    return values or [0.0]


def curve_lines(curve, axis, place_y):
    pieces, dots, drawing = [], [], False
    for x, value in zip(axis.xs, curve.values):
        if not math.isfinite(value):
            drawing = False
            continue
        at_x, at_y = f"{axis.place(x):.1f}", f"{place_y(value):.1f}"
        pieces.append(f"{'L' if drawing else 'M'}{at_x} {at_y}")
        dots.append(f'<circle cx="{at_x}" cy="{at_y}" r="3.2" fill="{curve.colour}"/>')
        drawing = True
    if not pieces:
        return []
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    return [f'<path d="{" ".join(pieces)}" fill="none" stroke="{curve.colour}" '
            f'stroke-width="1.6"{dash}/>', *(dots if curve.marked else [])]


def text(x, y, words, anchor="start", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {FONT}{more}>'
            f'{escape(words)}</text>')


def panel_lines(panel, top, axis):
    values = finite(panel)
    marks = ticks(0.0 if panel.from_zero else min(values), max(values))
    low, high = marks[0], marks[-1]
    bottom = top + panel.height

    def place_y(value):
        return bottom - (value - low) / (high - low) * panel.height

    lines = []
    for mark in marks:
        y = place_y(mark)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                     'stroke="#ddd"/>')
        lines.append(text(LEFT - 8, y + 4, f"{mark:g}", "end"))
    for mark, words in axis.marks():
        x = axis.place(mark)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" '
                     'stroke="#666"/>')
        lines.append(text(x, bottom + 18, words, "middle"))
    lines.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" '
                 f'height="{panel.height}" fill="none" stroke="#666"/>')
    middle = top + panel.height / 2
    lines.append(text(16, middle, panel.label, "middle", f' transform="rotate(-90 16 {middle})"'))
    for curve in panel.curves:
        lines += curve_lines(curve, axis, place_y)
    return lines + (legend(panel, top) if panel.legend else [])


def legend(panel, top):
    x = WIDTH - RIGHT - panel.legend_width
    height = 18 * len(panel.curves) + 4
    y_first = top + 5 if panel.legend == "top" else top + panel.height - height - 5
    lines = [f'<rect x="{x - 8}" y="{y_first}" width="{panel.legend_width}" height="{height}" '
             'fill="white" fill-opacity="0.8"/>']
    for number, curve in enumerate(panel.curves):
        y = y_first + 15 + 18 * number
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        lines.append(f'<line x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}" '
                     f'stroke="{curve.colour}" stroke-width="2"{dash}/>')
        lines.append(text(x + 32, y, curve.name))
    return lines


def chart(title, axis, panels):
    """Each curve has as many values as the axis has xs."""
    height = TOP + sum(panel.height for panel in panels) + GAP * (len(panels) - 1) + BOTTOM
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}">', '<rect width="100%" height="100%" fill="white"/>',
             text(WIDTH / 2, 28, title, "middle", ' font-weight="bold"')]
    top = TOP
    for panel in panels:
        lines += panel_lines(panel, top, axis)
        top += panel.height + GAP
    lines.append(text(WIDTH / 2, height - 8, axis.label, "middle"))
    return "\n".join([*lines, "</svg>"]) + "\n"
