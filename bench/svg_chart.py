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
    values: list          # one for each x; what is not finite leaves a gap
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    label: str            # of its y axis
    height: int
    curves: list
    from_zero: bool = False


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


def path_of(curve, place_x, place_y):
    pieces, drawing = [], False
    for index, value in enumerate(curve.values):
        if not math.isfinite(value):
            drawing = False
            continue
        pieces.append(f"{'L' if drawing else 'M'}{place_x(index):.1f} {place_y(value):.1f}")
        drawing = True
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    return (f'<path d="{" ".join(pieces)}" fill="none" stroke="{curve.colour}" '
            f'stroke-width="1.6"{dash}/>')


def text(x, y, words, anchor="start", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {FONT}{more}>'
            f'{escape(words)}</text>')


def panel_lines(panel, top, xs, place_x):
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
    for mark in ticks(xs[0], xs[-1], 8):
        if xs[0] <= mark <= xs[-1]:
            x = place_x(mark - xs[0])
            lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" '
                         'stroke="#666"/>')
            lines.append(text(x, bottom + 18, f"{mark:g}", "middle"))
    lines.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" '
                 f'height="{panel.height}" fill="none" stroke="#666"/>')
    middle = top + panel.height / 2
    lines.append(text(16, middle, panel.label, "middle", f' transform="rotate(-90 16 {middle})"'))
    lines += [path_of(curve, place_x, place_y) for curve in panel.curves]
    return lines + legend(panel, top)


def legend(panel, top):
    x = WIDTH - RIGHT - 200
    lines = [f'<rect x="{x - 8}" y="{top + 5}" width="200" height="{18 * len(panel.curves) + 4}" '
             'fill="white" fill-opacity="0.8"/>']
    for number, curve in enumerate(panel.curves):
        y = top + 20 + 18 * number
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        lines.append(f'<line x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}" '
                     f'stroke="{curve.colour}" stroke-width="2"{dash}/>')
        lines.append(text(x + 32, y, curve.name))
    return lines


def chart(title, x_label, xs, panels):
    """xs: equally spaced by 1, at least two; as many values in each curve."""
    height = TOP + sum(panel.height for panel in panels) + GAP * (len(panels) - 1) + BOTTOM

    def place_x(steps):
        return LEFT + steps / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}">', '<rect width="100%" height="100%" fill="white"/>',
             text(WIDTH / 2, 28, title, "middle", ' font-weight="bold"')]
    top = TOP
    for panel in panels:
        lines += panel_lines(panel, top, xs, place_x)
        top += panel.height + GAP
    lines.append(text(WIDTH / 2, height - 8, x_label, "middle"))
    return "\n".join([*lines, "</svg>"]) + "\n"
