"""Tables, pictures and one page, made from run folders (docs/report.md).

    groups of runs (paper/groups.py) ─▶ sheets and pictures ─▶ page (templates/)

Nothing here trains or needs a data set.
"""

from ternfed.report.comparison import comparison_picture

__all__ = ["comparison_picture"]
