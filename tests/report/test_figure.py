"""Figures can be read on a light and on a dark ground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from reports import report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@pytest.fixture
def figure() -> Figure:
    import matplotlib

    matplotlib.use("agg")
    return report(runs=2, converged=False).plot()


def contrast(one: float, other: float) -> float:
    """Return WCAG's contrast of two greys in [0, 1]."""
    light, dark = sorted((((each + 0.055) / 1.055) ** 2.4 for each in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_ground_is_that_of_the_page_and_text_has_contrast_on_both(figure: Figure) -> None:
    from matplotlib.colors import to_rgba

    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
    assert (pixels[:3, :, 3] == 0).all()
    for axes in figure.axes:
        assert axes.patch.get_alpha() == 0
        labels = [axes.title, axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
        for label in labels:
            grey = to_rgba(label.get_color())[0]
            assert contrast(grey, 1) > 3.5
            assert contrast(grey, 0x11 / 255) > 3.5


@pytest.mark.slow
def test_a_notebook_puts_no_slab_behind_it(figure: Figure) -> None:
    """JupyterLab draws a white or black ground if matplotlib-inline asks for one."""
    from matplotlib_inline.backend_inline import _fetch_figure_metadata

    figure.canvas.draw()
    assert not _fetch_figure_metadata(figure)


def test_its_title_has_the_word_of_the_report(figure: Figure) -> None:
    assert figure.axes[0].get_title() == "KMeans.fit, not converged"


def test_axes_of_the_user_stay_as_they_are() -> None:
    from matplotlib.figure import Figure

    own = Figure()
    report().plot(own.subplots(1, 2))
    assert own.patch.get_alpha() is None
