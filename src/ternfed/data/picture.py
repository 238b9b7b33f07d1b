"""A partition as a picture: classes by clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor


def partition_picture(histogram: Tensor, path: Path, title: str = "") -> list[Path]:
    """Draws clients × classes counts as PNG and SVG: one column a client, its size on top; gives the two paths.

    Empty cells stay white, so that which classes a client lacks is seen at once.
    """
    try:
        import matplotlib
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ImportError("drawing needs the extra [report]: pip install 'ternfed[report]'") from error
    clients, classes = histogram.shape
    counts = histogram.T.double().numpy()
    sizes = counts.sum(axis=0)
    written = clients <= 24 and classes <= 24
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "ternfed", "svg.fonttype": "none"}):
        figure = Figure(
            figsize=(min(max(4.2, 1.6 + 0.46 * clients), 12.0), 1.9 + 0.26 * min(classes, 24)), layout="constrained"
        )
        top, main = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
        top.bar(range(clients), sizes, width=0.86 if clients <= 24 else 1.0, color="#4c72a4")
        top.set_ylabel("samples")
        top.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        top.spines[["top", "right"]].set_visible(False)
        top.tick_params(axis="x", length=0, labelbottom=False)
        top.set_title(title, fontsize=10, loc="left")
        # From a blue that is seen beside white: one sample is not none.
        blues = matplotlib.colormaps["Blues"](np.linspace(0.14, 0.92, 256))
        colours = ListedColormap(blues).with_extremes(bad="white")
        shown = main.imshow(
            np.where(counts > 0, counts, np.nan),
            cmap=colours, vmin=0, vmax=max(counts.max(), 1), aspect="auto", interpolation="nearest", origin="lower",
        )  # fmt: skip
        main.set(xlabel="client", ylabel="class")
        main.xaxis.set_major_locator(MaxNLocator(nbins=25, integer=True))
        main.yaxis.set_major_locator(MaxNLocator(nbins=25, integer=True))
        if written:
            for row, column in zip(*counts.nonzero(), strict=True):
                value = counts[row, column]
                colour = "white" if value > 0.6 * counts.max() else "#1b2a3a"
                main.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
        else:
            figure.colorbar(shown, ax=main, label="samples", pad=0.01, aspect=14)
        figure.align_ylabels([top, main])
        path.parent.mkdir(parents=True, exist_ok=True)
        stem = path.stem if path.suffix in (".png", ".svg") else path.name  # "beta-0.1" has no suffix to replace
        files = [path.with_name(f"{stem}.png"), path.with_name(f"{stem}.svg")]
        figure.savefig(files[0], dpi=160)
        figure.savefig(files[1], metadata={"Date": None})
    return files
