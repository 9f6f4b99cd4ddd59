"""The image of counts: the place and colour of each pixel, and colours that colour-blind readers distinguish."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from xpulab.explorer.picture import DARK, INKS, LIGHT, PALETTE, DensityPicture, Ground, Picture, colour, hues, ink_on
from xpulab.report.rendering import style

# How readers without receptors for red, green or blue see colours, for a full deficiency: Machado, Oliveira and
# Fernandes, "A physiologically-based model for simulation of color vision deficiency", IEEE TVCG 15 (2009).
BLINDNESS = {
    "none": np.eye(3),
    "red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Convert to Ottosson's uniform space, in which a distance of 0.02 is just noticeable."""
    to_lms = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
              [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    to_lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
              [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    return np.array(to_lab) @ np.cbrt(np.array(to_lms) @ np.clip(rgb, 0, 1))


def contrast(one: str, two: str) -> float:
    dark, light = sorted(float(linear(colour) @ (0.2126, 0.7152, 0.0722)) + 0.05 for colour in (one, two))
    return light / dark


@pytest.mark.parametrize("kind", BLINDNESS)
def test_twelve_colours_can_be_distinguished(kind: str) -> None:
    assert len(set(PALETTE)) == 12
    seen = [oklab(BLINDNESS[kind] @ linear(colour)) for colour in PALETTE]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.08
    first_six = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen[:6], 2))
    assert first_six > 0.12


@pytest.mark.parametrize("colour", PALETTE)
def test_a_colour_is_visible_on_light_and_dark_and_its_number_on_the_colour(colour: str) -> None:
    assert min(contrast(colour, "#ffffff"), contrast(colour, "#111111")) > 2.2
    assert contrast(colour, ink_on(colour)) > 4.5


@pytest.mark.parametrize(("ground", "behind"), [(LIGHT, "#ffffff"), (DARK, "#111111")], ids=["light", "dark"])
def test_the_faintest_rows_have_a_contrast_of_three_on_their_ground(ground: Ground, behind: str) -> None:
    """By WCAG's formula (2.2, relative luminance and contrast ratio), for every ink of both kinds of pictures."""
    back = np.array([*bytes.fromhex(behind[1:])])
    seen = ground.shown(INKS[1:]).astype(float)
    opacity = seen[:, 3:] / 255
    found = np.round(opacity * seen[:, :3] + (1 - opacity) * back).astype(int)
    contrasts = [contrast("#{:02x}{:02x}{:02x}".format(*ink), behind) for ink in found.tolist()]
    assert min(contrasts) >= 3
    assert min(contrasts[:-1:21]) < 4.5  # of some, that of the faintest: there is room for more rows to be denser
    counts = np.zeros((25, 60, 60), np.int32)
    counts[np.arange(3600) % 25, np.arange(3600) // 60, np.arange(3600) % 60] = 1
    density = DensityPicture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    assert len(np.unique(density.pixels)) == 25
    # Keys and the discs of centres have the same colours, and numbers on the discs can be read.
    share, number = f"{100 * ground.slope:.0f}%", "#ffffff" if ground is LIGHT else "#000000"
    assert f"var(--xpu-hue) {share},#{'000' if ground is LIGHT else 'fff'})" in style("explorer")
    full = ["#{:02x}{:02x}{:02x}".format(*ink) for ink in ground.shown(INKS[21:-1:21])[:, :3].tolist()]
    assert min(contrast(each, number) for each in full) >= 4.5


@pytest.mark.parametrize("kind", BLINDNESS)
def test_twelve_colours_can_be_distinguished_on_a_light_ground(kind: str) -> None:
    full = ["#{:02x}{:02x}{:02x}".format(*ink) for ink in LIGHT.shown(INKS[21:-1:21])[:, :3].tolist()]
    seen = [oklab(BLINDNESS[kind] @ linear(colour)) for colour in full]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.06
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen[:6], 2)) > 0.09


def test_a_pixel_has_the_colour_of_the_cluster_with_most_rows_and_the_first_line_is_the_highest() -> None:
    counts = np.zeros((14, 3, 2), int)
    counts[:, 0, 0] = range(14)  # the lowest line, 91 rows
    counts[2, 2, 1] = 1
    counts[5, 2, 1] = 1  # of clusters with equally many rows, the first counts
    image = INKS[colour(counts, hues(counts))]
    assert image.shape == (3, 2, 4)
    assert tuple(image[2, 0, :3]) == tuple(bytes.fromhex(PALETTE[hues(counts)[13]][1:]))
    assert tuple(image[0, 1, :3]) == tuple(bytes.fromhex(PALETTE[hues(counts)[2]][1:]))
    assert (image[..., 3] > 0).sum() == 2
    assert image[2, 0, 3] > image[0, 1, 3] >= 100  # more rows are denser, and one row is visible


def test_more_clusters_than_colours_differ_from_their_neighbours() -> None:
    """Of twenty clusters in a row, in any order, neither neighbours nor next neighbours share a colour."""
    order = np.random.default_rng(0).permutation(20)
    counts = np.zeros((20, 8, 200), int)
    for place, j in enumerate(order):
        counts[j, :, 10 * place : 10 * place + 10] = 3
    found = hues(counts)
    along = [found[j] for j in order]
    assert all(a not in after for a, *after in zip(along, along[1:], along[2:], strict=False))
    picture = Picture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    assert picture.colours == [PALETTE[hue] for hue in found]
    middle = INKS[picture.pixels][4, 5::10, :3]
    assert ["#" + bytes(pixel).hex() for pixel in middle] == [picture.colours[j] for j in order]


def hue_of(colour: str) -> tuple[float, float]:
    """Return hue in degrees, and chroma."""
    _, a, b = oklab(linear(colour))
    return float(np.degrees(np.arctan2(b, a)) % 360), float(np.hypot(a, b))


@pytest.mark.parametrize("k", [13, 15, 20, 40])
def test_neighbours_never_have_neighbouring_hues(k: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        places = rng.choice(90 * 120, k, replace=False)
        counts = np.zeros((k, 90, 120), np.int32)
        counts[np.arange(k), places // 120, places % 120] = 1
        found = hues(counts)
        middles = np.stack([places // 120, places % 120], axis=1)
        for i, j in itertools.combinations(range(k), 2):
            middle, radius = (middles[i] + middles[j]) / 2, np.linalg.norm(middles[i] - middles[j]) / 2
            inside = np.linalg.norm(middles - middle, axis=1) < radius - 1e-9
            if inside.sum() == 0:
                (one, chroma), (other, of_other) = hue_of(PALETTE[found[i]]), hue_of(PALETTE[found[j]])
                grey = min(chroma, of_other) < 0.05
                assert found[i] != found[j]
                assert grey or min((one - other) % 360, (other - one) % 360) > 20, (seed, i, j)
                assert not grey or max(chroma, of_other) >= 0.05


def test_a_cluster_that_moves_a_little_keeps_its_colour() -> None:
    rng = np.random.default_rng(3)
    counts = np.zeros((20, 200, 200), np.int32)
    places = rng.integers(10, 190, (20, 2))
    counts[np.arange(20), places[:, 0], places[:, 1]] = 1
    first = Picture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    moved = np.roll(counts, 3, axis=1)
    assert Picture(moved, ("a", "b"), (0.0, 0.0), (1.0, 1.0), first.hues).hues == first.hues


def test_few_rows_are_drawn_larger_and_stay_inside() -> None:
    counts = np.zeros((2, 100, 100), int)
    counts[0, 0, 0] = counts[1, 50, 50] = counts[0, 50, 51] = 1
    counts[1, 50, 51] = 5
    filled = colour(counts, (0, 1)) > 0
    assert filled[-3:, :3].sum() == 8  # a quarter of a disc in the corner
    assert 21 < filled[40:60, 40:60].sum() < 42
    assert (colour(np.ones((1, 100, 100), int), (0,)) == 1).all()


def test_pixels_without_rows_are_transparent() -> None:
    assert not colour(np.zeros((3, 4, 5), np.int32), (0, 1, 2)).any()


def test_a_picture_is_a_png_of_its_size_with_the_rows_of_each_cluster() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (3, 40, 60), np.int32)
    picture = Picture(counts, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    image = Image.open(io.BytesIO(picture.png))
    assert (image.format, image.size, image.mode) == ("PNG", (60, 40), "P")
    np.testing.assert_array_equal(np.asarray(image.convert("RGBA")), INKS[colour(counts, hues(counts))])
    np.testing.assert_array_equal(picture.sizes, counts.sum(axis=(1, 2)))
    assert picture._repr_png_() is picture.png
