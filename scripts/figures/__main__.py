"""Make the documentation's pictures: all of them, or those that are named."""

from __future__ import annotations

import sys

from scripts.figures.charts import make_charts

FIGURES = {"charts": make_charts}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(FIGURES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    for name in names or FIGURES:
        print(name)
        FIGURES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
