"""The colours of both themes, by what they are for; an option is made in the light one and put into another.

Guarantees, by the tests: texts have a contrast of 4.5 : 1 or more on both surfaces, lines and marks of 3 : 1 (WCAG AA),
and series are told apart by those who see no red or no green. The series' hues are those of Okabe and Ito (2008); on
white they are darker, as the originals are too pale for a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

Option: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Theme:
    """Colours as CSS reads them. All of one theme differ, so that one can be put in the place of another."""

    surface: str  # what charts and cards stand on
    page: str  # what cards stand on
    raised: str  # tooltips, heads of tables
    text: str
    muted: str  # axes' names, notes
    axis: str
    grid: str
    blue: str  # means, and what there is one of
    vermillion: str  # losses, high percentiles, what is wrong
    green: str
    purple: str
    orange: str
    sky: str
    grey: str  # what is compared with
    heat: tuple[str, ...]  # from few to many, each step further from the surface


LIGHT = Theme(
    surface="#ffffff",
    page="#f5f6f8",
    raised="#fdfdfe",
    text="#1b1f24",
    muted="#57606a",
    axis="#7d8590",
    grid="#e6e8ec",
    blue="#0069a8",
    vermillion="#a83800",
    green="#007a58",
    purple="#c065a0",
    orange="#bd8900",
    sky="#4a9bd3",
    grey="#59626b",
    heat=("#cfe0f0", "#a9c9e4", "#7fb1d8", "#468dc2", "#1f66a3", "#0b3c6f"),
)
DARK = Theme(
    surface="#171b21",
    page="#0e1116",
    raised="#20262e",
    text="#e8ebef",
    muted="#a4adb8",
    axis="#7c8794",
    grid="#2b323b",
    blue="#5cb0e8",
    vermillion="#ff8a4c",
    green="#2fc99a",
    purple="#e29bc4",
    orange="#f0b13c",
    sky="#9fd8f7",
    grey="#84909c",
    heat=("#1e2f42", "#27496b", "#2f6797", "#468bc4", "#7fb5e3", "#c9e4fb"),
)
THEMES = {"light": LIGHT, "dark": DARK}
# Series in the order in which they are given colours.
SERIES = (LIGHT.blue, LIGHT.vermillion, LIGHT.green, LIGHT.purple, LIGHT.orange, LIGHT.sky, LIGHT.grey)


def colours(theme: Theme) -> dict[str, str]:
    """A theme's colours by name; those of ``heat`` are numbered.

    >>> colours(LIGHT)["blue"], colours(DARK)["heat0"]
    ('#0069a8', '#1e2f42')
    """
    named: dict[str, str] = {}
    for field in fields(theme):
        value = getattr(theme, field.name)
        if isinstance(value, str):
            named[field.name] = value
        else:
            named |= {f"{field.name}{place}": one for place, one in enumerate(value)}
    return named


def swaps(theme: Theme) -> dict[str, str]:
    """What stands for each colour of the light theme in another: what a browser needs to change a chart's theme."""
    return dict(zip(colours(LIGHT).values(), colours(theme).values(), strict=True))


def in_theme(option: Mapping[str, Any], theme: Theme) -> Option:
    """A copy of an option, with the light theme's colours exchanged for those of `theme`.

    Only what stands under a key of a colour is looked at: a flow may be called as it likes.

    >>> in_theme({"color": "#0069a8", "name": "#0069a8"}, DARK)
    {'color': '#5cb0e8', 'name': '#0069a8'}
    """
    exchanged: Option = _exchanged(option, swaps(theme), is_colour=False)
    return exchanged


def _exchanged(value: Any, swap: Mapping[str, str], *, is_colour: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _exchanged(each, swap, is_colour=str(key).lower().endswith("color")) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_exchanged(each, swap, is_colour=is_colour) for each in value]
    return swap.get(value, value) if is_colour and isinstance(value, str) else value
