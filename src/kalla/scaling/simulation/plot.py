"""Draws demand and workers over time as an SVG file of its own."""

from __future__ import annotations

from html import escape

from kalla.scaling.simulation.simulate import Result

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 320, 56, 40, 32
_POINTS = 900  # more would not be seen


def svg(result: Result, concurrency: int) -> str:
    """Workers, and the workers that the demand would fill, over the whole trace."""
    step = max(1, len(result.history) // _POINTS)
    rows = result.history[::step]
    last = max(rows[-1][0], 1.0) if rows else 1.0
    highest = max([1.0, *(max(demand / concurrency, workers) for _, demand, workers in rows)])
    plot_width, plot_height = _WIDTH - _LEFT - 16, _HEIGHT - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + at / last * plot_width

    def y(value: float) -> float:
        return _TOP + plot_height * (1 - value / highest)

    def line(values: list[tuple[float, float]], colour: str) -> str:
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in values)
        return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'

    demand = [(at, demand / concurrency) for at, demand, _ in rows]
    workers = [(at, float(workers)) for at, _, workers in rows]
    title = (
        f"{result.policy} on {result.trace}: p95 wait {result.wait_p95:.1f} s, "
        f"{result.worker_hours:.1f} worker-hours, {result.busy_hit} busy workers hit"
    )
    hours = range(0, int(last / 3600) + 1, 6)
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
                'font-family="sans-serif" font-size="12">'
            ),
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<text x="{_LEFT}" y="24">{escape(title)}</text>',
            *(
                f'<line x1="{_LEFT}" x2="{_LEFT + plot_width}" y1="{y(value):.1f}" '
                f'y2="{y(value):.1f}" stroke="#ddd"/>'
                f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>'
                for value in (0.0, highest / 2, highest)
            ),
            *(
                f'<text x="{x(hour * 3600):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">'
                f"{hour} h</text>"
                for hour in hours
            ),
            line(demand, "#c60"),
            line(workers, "#06c"),
            (
                f'<text x="{_WIDTH - 16}" y="24" text-anchor="end">'
                '<tspan fill="#06c">workers</tspan> '
                '<tspan fill="#c60">demand / concurrency</tspan></text>'
            ),
            "</svg>",
            "",
        ]
    )
