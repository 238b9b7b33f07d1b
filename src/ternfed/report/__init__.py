"""Tables, pictures and one page, made from run folders (docs/report.md).

    collect ─▶ groups (the same settings, several seeds) ─▶ sheets and pictures ─▶ page

Nothing here trains or needs a data set.
"""

from ternfed.report.comparison import comparison_picture

__all__ = ["comparison_picture"]
