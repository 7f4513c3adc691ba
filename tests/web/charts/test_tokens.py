"""Colours can be read, and told apart, in both themes and by those who see fewer colours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sojourn.web.charts.tokens import DARK, LIGHT, SERIES, THEMES, Theme, colours, swaps

TEXT, MARK = 4.5, 3.0  # WCAG 2.1 AA
# Machado, Oliveira and Fernandes (2009), complete loss of one kind of cone, in linear RGB.
SEEN_BY = {
    "everyone": np.eye(3),
    "protanopes": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopes": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def linear(colour: str) -> np.ndarray:
    """sRGB as linear light."""
    share = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    white = to_xyz @ np.ones(3)
    share = np.clip(to_xyz @ light, 0, None) / white
    root = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_texts_and_marks_stand_out_from_what_they_stand_on(theme: Theme) -> None:
    for ground in (theme.surface, theme.page, theme.raised):
        for name in ("text", "muted"):
            assert contrast(getattr(theme, name), ground) >= TEXT, (name, ground)
    for name in ("blue", "vermillion", "green", "purple", "orange", "sky", "grey", "axis"):
        assert contrast(getattr(theme, name), theme.surface) >= MARK, name


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_series_are_told_apart_by_everyone(theme: Theme, eyes: str) -> None:
    swap = swaps(theme)
    seen = {each: lab(np.clip(SEEN_BY[eyes] @ linear(swap[each]), 0, 1)) for each in SERIES}
    for one, other in itertools.combinations(seen, 2):
        # 2.3 is a difference just noticed (Mahy and others, 1994); lines are thin, so several of it.
        assert np.linalg.norm(seen[one] - seen[other]) > 10, (one, other)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_more_packets_are_further_from_the_surface(theme: Theme) -> None:
    steps = [contrast(each, theme.surface) for each in theme.heat]
    assert steps == sorted(steps)


def test_every_colour_of_a_theme_is_its_own() -> None:
    for theme in (LIGHT, DARK):
        named = colours(theme)
        assert len(set(named.values())) == len(named)
    assert swaps(LIGHT) == {colour: colour for colour in colours(LIGHT).values()}
