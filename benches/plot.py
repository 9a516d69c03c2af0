"""Charts as SVG, as small as they can be. They take the colours of a light or a dark page."""

import math
from html import escape

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 48, 52, 44
COLOURS = ("#3b7dd8", "#d9822b", "#3a9d5d", "#a854a8")

# The points of a line, and its name.
Lines = dict[str, list[tuple[float, float]]]


def chart(title: str, x_title: str, y_title: str, lines: Lines, logarithmic: bool) -> str:
    """A chart whose y begins at 0, so that no small change looks like a cliff."""
    xs = sorted({x for points in lines.values() for x, _ in points})
    top = nice(max((y for points in lines.values() for _, y in points), default=1))

    def place(x: float) -> float:
        scaled, low, high = ((math.log10(v) if logarithmic else v) for v in (x, xs[0], xs[-1]))
        return LEFT + (WIDTH - LEFT - RIGHT) * ((scaled - low) / (high - low) if high > low else 0.5)

    def height(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top

    parts = [text(LEFT, 20, title, "start", "font-weight:600"),
             text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_title, "middle"), text(8, TOP - 10, y_title, "start")]
    for i in range(6):
        y = top * i / 5
        parts.append(f'<path d="M{LEFT} {height(y):.1f}H{WIDTH - RIGHT}" stroke="#8884"/>')
        parts.append(text(LEFT - 6, height(y) + 4, f"{y:g}", "end"))
    parts += [text(place(x), HEIGHT - BOTTOM + 18, f"{x:,}", "middle") for x in xs]
    for i, (name, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{place(x):.1f},{height(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{place(x):.1f}" cy="{height(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(text(WIDTH - RIGHT, 20 + 15 * i, name, "end", f"fill:{colour}"))
    return svg(title, HEIGHT, parts)


# The groups that are compared, and of each of their bars the parts.
Bars = dict[str, dict[str, tuple[float, ...]]]


def bars(title: str, parts: tuple[str, ...], groups: Bars) -> str:
    """Bars from left to right, each of parts one after the other, with the sum behind it."""
    left, step, gap = 150, 18, 14
    height = TOP + sum(len(group) * step + gap for group in groups.values())
    longest = max(sum(bar) for group in groups.values() for bar in group.values())
    scale = (WIDTH - left - RIGHT) / longest if longest > 0 else 0
    drawn = [text(8, 20, title, "start", "font-weight:600")]
    drawn += [text(WIDTH - RIGHT, 20 + 15 * i, name, "end", f"fill:{COLOURS[i]}") for i, name in enumerate(parts)]
    y = TOP
    for name, group in groups.items():
        drawn.append(text(8, y + 12, name, "start"))
        for bar_name, bar in group.items():
            drawn.append(text(left - 6, y + 12, bar_name, "end"))
            x = float(left)
            for i, value in enumerate(bar):
                drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="{step - 4}" '
                             f'fill="{COLOURS[i]}"/>')
                x += value * scale
            drawn.append(text(x + 4, y + 12, f"{sum(bar):.1f}", "start"))
            y += step
        y += gap
    return svg(title, height, drawn)


def svg(title: str, height: int, parts: list[str]) -> str:
    style = "text{font:12px sans-serif;fill:#333}@media(prefers-color-scheme:dark){text{fill:#ccc}}"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><title>{escape(title)}</title>'
            f"<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n")


def text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{style}">{escape(words)}</text>'


def nice(most: float) -> float:
    """The next number above that divides well by five."""
    power = 10 ** math.floor(math.log10(most)) if most > 0 else 1
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= most)
