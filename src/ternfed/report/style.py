"""How every picture looks: fixed colours, thin lines, names at the lines instead of legends."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from typing import Any, Literal

from ternfed.report.extra import needed

WIDTH, NARROW = 11.0, 4.4
"""Inches: what a page is wide, and a phone. Type of 10 points then reads like the page's own."""

COLOURS = {
    "centralized": "#5f6368", "fedavg": "#0072b2", "cmfl": "#009e73", "stc": "#cc79a7", "tfedavg": "#d55e00",
    "fedpaq": "#2a9fd6", "eden": "#b58900", "signsgd_ef": "#7f3c8d", "topk": "#6b4e16", "fedbat": "#3d5a1e",
    "fedpm": "#8b1e3f",
}  # fmt: skip
"""The first are Okabe and Ito's: told apart by everybody. The rivals' are dark enough for names in them."""
OTHERS = ("#e69f00", "#56b4e9", "#8c6d31", "#7f3c8d")
"""For algorithms of a user's own."""
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""For several groups of one algorithm. CMFL begins with the second: where no client skips, it lies on FedAvg."""
SHADES = ("#f4a582", "#e5713c", "#b8410f", "#6b2406", "#2b0d02")
"""Of T-FedAvg's colour, for a setting that grows."""
INK, PALE = "#202124", "#9aa0a6"

STYLE: Any = {
    "font.size": 10, "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"],
    "axes.titlesize": 10.5, "axes.titlelocation": "left", "axes.titlepad": 8, "axes.labelsize": 10,
    "axes.edgecolor": PALE, "axes.linewidth": 0.8, "axes.labelcolor": INK, "text.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e8eaed", "grid.linewidth": 0.8, "xtick.color": PALE, "ytick.color": PALE,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "lines.linewidth": 1.7, "figure.facecolor": "white",
    "figure.constrained_layout.w_pad": 0.08, "figure.constrained_layout.h_pad": 0.08,
    "svg.fonttype": "none", "svg.hashsalt": "ternfed",
    "text.parse_math": False,
}  # fmt: skip
"""`parse_math`: a name from a folder is text, whatever signs it holds. `fonttype`: text stays text."""


@dataclass(frozen=True)
class Picture:
    """A figure of the report."""

    name: str
    """Of its files."""
    section: str
    """Under which heading of the page it stands."""
    title: str
    caption: str
    svg: str
    png: bytes
    curves: str = ""
    """JSON of the lines that have names, for whoever points at one: where each panel is, and its numbers."""


@contextmanager
def drawing(width: float = WIDTH) -> Iterator[None]:
    """Everything drawn inside looks alike and is so wide; ImportError names the extra where matplotlib is absent."""
    with needed("matplotlib").rc_context({**STYLE, "figure.figsize": (width, width)}):
        yield


def narrow() -> bool:
    """Whether what is drawn now is for a phone: panels below each other, names below their panel."""
    return bool(needed("matplotlib").rcParams["figure.figsize"][0] < WIDTH)


def panels(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """(figure, axes as a 2-d array) of the page's width; where that is narrow, each panel is as wide as the page."""
    import matplotlib
    from matplotlib.figure import Figure

    width = matplotlib.rcParams["figure.figsize"][0]
    if not narrow():
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options)
    figure = Figure(figsize=(width, height * columns), layout="constrained")
    axes = figure.subplots(rows * columns, 1, squeeze=False).reshape(rows, columns)
    for row in axes:
        for place, panel in enumerate(row):
            if options.get("sharey") and panel is not row[0]:
                panel.sharey(row[0])
            if options.get("sharex") and row is not axes[0]:
                panel.sharex(axes[0, place])
    return figure, axes


def _below_each_other(figure: Any) -> None:
    """Panels that stood beside each other shared the names of their axes; now each says its own, in short lines."""
    for panel in figure.axes:
        for shared, get, put in (
            (panel.get_shared_x_axes(), "get_xlabel", panel.set_xlabel),
            (panel.get_shared_y_axes(), "get_ylabel", panel.set_ylabel),
        ):
            known = [getattr(other, get)() for other in (panel, *shared.get_siblings(panel))]
            put(textwrap.fill(next(filter(None, known), ""), 44))
        panel.set_title(textwrap.fill(panel.get_title("left"), 46))


def finish(figure: Any, name: str, section: str, title: str, caption: str = "") -> Picture:
    """The figure as SVG and PNG, the same bytes for the same content; a narrow one is for the page alone, as SVG."""
    svg, png = BytesIO(), BytesIO()
    name = slug(name)
    if narrow():
        _below_each_other(figure)
    else:
        figure.savefig(png, format="png", dpi=150)
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(name, section, title, caption, svg.getvalue().decode(), png.getvalue(), _curves(figure))


MOST = 400
"""Points of a line that can be pointed at; of a longer one, every so many."""


def _curves(figure: Any) -> str:
    """Every panel with named lines: its box as shares of the figure from its upper left corner, limits, and lines."""
    panels = []
    for axes in figure.axes:
        lines = [line for line in axes.lines if not str(line.get_label()).startswith("_") and len(line.get_xdata()) > 1]
        if not lines:
            continue
        box = axes.get_position()
        shown = []
        for line in lines:
            every = -(-len(line.get_xdata()) // MOST)
            pairs = zip(line.get_xdata()[::every], line.get_ydata()[::every], strict=True)
            finite = [(float(f"{x:.6g}"), float(f"{y:.6g}")) for x, y in pairs if isfinite(x) and isfinite(y)]
            shown.append({"name": str(line.get_label()), "colour": str(line.get_color()), "points": finite})
        panels.append(
            {
                "box": [round(share, 5) for share in (box.x0, 1 - box.y1, box.x1, 1 - box.y0)],
                "x": [float(limit) for limit in axes.get_xlim()],
                "log": axes.get_xscale() == "log",
                "of": axes.get_xlabel(),
                "lines": shown,
            }
        )
    return json.dumps(panels, ensure_ascii=False) if panels else ""


def slug(text: str) -> str:
    """A name for a file: `MNIST, MLP, N_c = 2` is `mnist-mlp-nc2`."""
    plain = text.lower()
    for sign, word in (("n_c = ", "nc"), ("cifar-10", "cifar10"), ("*", ""), ("β", "beta"), ("λ", "lambda"), ("α", "")):
        plain = plain.replace(sign, word)
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.") or "figure"


def colour_of(algorithm: str) -> str:
    if algorithm in COLOURS:
        return COLOURS[algorithm]
    return OTHERS[sum(algorithm.encode()) % len(OTHERS)]


def shade(place: int, count: int) -> str:
    """The colour of one of several values, from light to dark."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    return str(to_hex(LinearSegmentedColormap.from_list("shades", SHADES)(place / max(1, count - 1))))


def dash_of(algorithm: str, place: int) -> Any:
    """The line of the first, second, … group of an algorithm."""
    return DASHES[(place + (algorithm == "cmfl")) % len(DASHES)]


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], height: float) -> None:
    """Names at the right of an axes, (y, text, colour) each, moved apart where they would overlap; or all below it.

    `height` is that of the axes in inches, roughly.
    """
    if narrow():
        name_below(axes, [(short(text, 50), ink) for y, text, ink in sorted(ends, reverse=True) if isfinite(y)])
        return
    scale = axes.yaxis.get_transform()  # of a logarithmic axis: places apart on the paper, not in the numbers
    low, high = (float(scale.transform(limit)) for limit in axes.get_ylim())
    chosen = sorted((min(max(float(scale.transform(y)), low), high), text, ink) for y, text, ink in ends if isfinite(y))
    places = spread([place for place, _, _ in chosen], (high - low) * 0.19 / height, high)
    for place, (_, text, ink) in zip(places, chosen, strict=True):
        y = float(scale.inverted().transform(place))
        axes.text(1.015, y, short(text, 40), color=ink, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)


def name_below(axes: Any, names: Sequence[tuple[str, str]], lines: bool = True, columns: int = 1) -> None:
    """A list of (text, colour) below a panel, each behind its line; the figure grows by it."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import ScaledTranslation

    if not names:
        return
    drawn = {(str(line.get_label()), str(line.get_color())): line for line in axes.lines if lines}
    style: Literal["-", "none"] = "-" if lines else "none"
    handles = [drawn.get(each, Line2D([], [], color=each[1], linestyle=style)) for each in names]
    below = ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)  # inches: past the numbers and the axis' name
    axes.legend(
        handles, [text for text, _ in names], loc="upper left", bbox_to_anchor=(0, 0), frameon=False, fontsize=9.5,
        bbox_transform=axes.transAxes + below, labelcolor=[colour for _, colour in names], borderaxespad=0,
        labelspacing=0.3, handlelength=1.8 if lines else 0, handletextpad=0.6 if lines else 0,
        ncols=columns, columnspacing=3,
    )  # fmt: skip
    axes.figure.set_figheight(axes.figure.get_figheight() + 0.2 * -(-len(names) // columns))


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """A name at each row of a panel; where there is little room, in several short lines and higher rows."""
    if narrow():
        axes.figure.set_figheight(axes.figure.get_figheight() + 0.13 * len(names))
    whole = [short(name).replace(" = ", "\u00a0=\u00a0") for name in names]  # N_c = 5 stays on one line
    shown = ["\n".join(textwrap.wrap(name, 24)) for name in whole] if narrow() else [short(name) for name in names]
    axes.set_yticks(range(len(names)), shown, fontsize=8.5 if narrow() else 9)


def short(text: str, most: int = 56) -> str:
    """What a figure has room for beside its panel."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def spread(places: Sequence[float], gap: float, top: float) -> list[float]:
    """Rising places, moved so that neighbours are a gap apart and none is above the top."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    limit = top
    for number in range(len(moved) - 1, -1, -1):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - gap
    return moved


def by_round(panel: Any, rounds: int) -> None:
    """The x axis of a panel that shows so many rounds; there is no half of one."""
    from matplotlib.ticker import MaxNLocator

    panel.set(xlabel="round", xlim=(0, rounds))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def by_share(panel: Any, label: str) -> None:
    """The y axis of a panel that shows shares in percent: logarithmic, down to none at all."""
    panel.set(ylabel=f"{label}, log scale")
    panel.set_yscale("symlog", linthresh=1e-3, linscale=0.4)
    panel.set_ylim(-2e-4, None)
    plain_log(panel.yaxis)


def plain_log(axis: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers: 0.1, 1, 10, 1,000; over a short range 2 and 5 as well."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high < 150 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
