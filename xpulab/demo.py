"""``xpulab demo``: paint a photograph in a few colours on all engines, and compare with scikit-learn."""

from __future__ import annotations

import base64
import io
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xpulab.exceptions import XpulabError
from xpulab.report import progress
from xpulab.report.fit import FitReport
from xpulab.report.html import css, document
from xpulab.report.rendering import (
    Displayed,
    Html,
    escape,
    format_count,
    format_number,
    format_seconds,
    table_html,
    table_text,
    written,
)

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from xpulab.deploy.plan.plan import Plan

__all__ = ["WHERE_TO_GO_ON", "Demo", "engines_of_demo", "photograph", "quantise"]

#: Largest relative difference from scikit-learn's inertia. In float32, which devices without float64 use, a pixel
#: halfway between two colours may get either. After about fifty iterations, scikit-learn's own inertia in float32
#: differs by up to 1.5e-4 from its inertia in float64.
TOLERANCES = {"float64": 1e-5, "float32": 1e-3}
#: What a reader may type next.
WHERE_TO_GO_ON = (
    "To go on: open notebooks/01_quickstart.ipynb of a clone in JupyterLab (pip install 'xpulab[notebook]'), or type "
    "in IPython: import xpulab; %xpu_cluster start"
)
_SEED = 0


def photograph() -> np.ndarray:
    """Return scikit-learn's bundled china.jpg: (427, 640, 3) float64 in [0, 1].

    Raises
    ------
    XpulabError
        If Pillow, which reads the file, is not installed.
    """
    from sklearn.datasets import load_sample_image

    try:
        return load_sample_image("china.jpg") / 255
    except ImportError:
        raise XpulabError(
            f"the photograph cannot be read without Pillow; type: {sys.executable} -m pip install pillow"
        ) from None


def engines_of_demo(plan: Plan) -> int:
    """Return how many engines show something: those of a plan, or, if it has one on a CPU, up to four on its cores."""
    only = plan.ranks[0]
    return min(4, len(only.cores)) if len(plan.ranks) == 1 and only.device.kind == "cpu" else len(plan.ranks)


@dataclass(frozen=True, repr=False)
class Demo(Displayed):
    """The result of the demo.

    Attributes
    ----------
    report : FitReport
        Report of the fit on the engines.
    before, after : numpy.ndarray of shape (height, width, 3)
        The photograph, as it is and in `n_clusters` colours.
    inertia, n_iter : tuple
        Values of xpulab and of scikit-learn, in this order.
    seconds : tuple of three floats
        Seconds of xpulab's first fit, in which the device's driver may have to finish compiling kernels, of xpulab's
        second fit, and of scikit-learn's fit.
    same_labels : float
        Fraction of the pixels that have the same colour in both results.
    """

    report: FitReport
    before: np.ndarray
    after: np.ndarray
    n_clusters: int
    inertia: tuple[float, float]
    seconds: tuple[float, float, float]
    n_iter: tuple[int, int]
    same_labels: float

    @property
    def difference(self) -> float:
        """Relative difference of the inertias."""
        return abs(self.inertia[0] / self.inertia[1] - 1)

    @property
    def tolerance(self) -> float:
        """Largest `difference` allowed for the dtype of the fit."""
        return TOLERANCES[self.report.dtype]

    @property
    def agrees(self) -> bool:
        """Whether both results have the same inertia, within the tolerance."""
        return self.difference <= self.tolerance

    @property
    def verdict(self) -> str:
        """The comparison in one sentence."""
        word = "agree" if self.agrees else "DISAGREE"
        return (
            f"The results {word}: the relative difference of the inertias is {self.difference:.1e} (at most "
            f"{self.tolerance:.0e} is allowed), and {self.same_labels:.3%} of the pixels have the same colour."
        )

    _header = ("", "seconds", "iterations", "inertia")

    def _rows(self) -> list[tuple[object, ...]]:
        ours, theirs = zip(self.n_iter, self.inertia, strict=True)
        names = (
            (f"xpulab, {len(self.report.engines)} engines, transfer included", ours),
            ("xpulab, the same fit again with all kernels ready", ours),
            ("scikit-learn, in this process", theirs),
        )
        return [
            (name, format_seconds(seconds), format_count(n_iter), format_number(inertia, 8))
            for (name, (n_iter, inertia)), seconds in zip(names, self.seconds, strict=True)
        ]

    @property
    def line(self) -> str:
        """The seconds in one sentence."""
        first, again, theirs = map(format_seconds, self.seconds)
        what = f"k-means of {self.report.n_samples:,} pixels in {self.n_clusters} colours"
        return f"{what}: xpulab took {first}, and {again} for the same fit again; scikit-learn took {theirs}."

    def __str__(self) -> str:
        return f"{self.report}\n\n{table_text(self._header, self._rows(), 'lrrr')}\n{self.verdict}"

    def _repr_html_(self) -> Html:
        folded = f"<details><summary>The report of the fit</summary>{self.report._repr_html_()}</details>"
        return Html("".join([*self._sections(), folded]))

    def _sections(self) -> list[Html]:
        """Return the pictures, the comparison, and where to go on."""
        pictures = "".join(
            f'<figure style="flex:1 1 18em;margin:0 0 1em"><img src="{_data_url(image)}" alt="{escape(caption)}" '
            f'style="width:100%"><figcaption>{escape(caption)}</figcaption></figure>'
            for image, caption in (
                (self.before, "china.jpg as it is"),
                (self.after, f"the same in {self.n_clusters} colours"),
            )
        )
        table = table_html(
            self._header, self._rows(), "lrrr", "Comparison with scikit-learn, from the same initial centres"
        )
        return [
            Html(f'<div style="display:flex;flex-wrap:wrap;gap:0 1em">{pictures}</div>'),
            Html(f'<div class="xpu"><style>{css()}</style>{table}<p>{escape(self.verdict)}</p></div>'),
            Html(f"<p>{escape(WHERE_TO_GO_ON)}</p>"),
        ]

    def write(self, path: Path) -> None:
        """Write one self-contained HTML file: the pictures, the comparison, where to go on, and the report."""
        page = document("xpulab demo", f"<h1>xpulab demo</h1>\n<p>{escape(self.line)}</p>\n{self._repr_html_()}")
        written(page, path)


def quantise(image: np.ndarray, n_clusters: int = 64, rows: int | None = None) -> Demo:
    """Quantise the colours of a picture on the active cluster, and with scikit-learn from the same initial centres.

    Parameters
    ----------
    image : numpy.ndarray of shape (height, width, 3)
        Values in [0, 1].
    n_clusters : int
        Number of colours.
    rows : int, optional
        Number of pixels to fit on, spread evenly over the picture; all pixels by default. If the picture has fewer
        pixels, they are repeated.

    Returns
    -------
    Demo

    Raises
    ------
    NoClusterError
        If no cluster is running.
    """
    import sklearn.cluster

    from xpulab.cluster import KMeans
    from xpulab.deploy.current import current_cluster

    float64 = all(fact.device.float64 for fact in current_cluster().facts)
    pixels = image.reshape(-1, 3).astype(np.float64 if float64 else np.float32)
    X = pixels if rows is None else pixels[np.linspace(0, len(pixels), rows, endpoint=False).astype(np.intp)]
    start = _start(X, n_clusters)
    parameters: dict[str, Any] = {"n_clusters": n_clusters, "init": start, "n_init": 1}
    ours, first = _timed(KMeans(**parameters), X)
    _, again = _timed(KMeans(**parameters), X)
    with progress.open(progress.TaskReport("scikit-learn: the same fit in this process")):
        theirs, their_seconds = _timed(sklearn.cluster.KMeans(**parameters), X)
    colours = ours.cluster_centers_[ours.predict(pixels)]
    return Demo(
        report=ours.report_,
        before=image,
        after=np.clip(colours, 0, 1).reshape(image.shape),
        n_clusters=n_clusters,
        inertia=(ours.inertia_, theirs.inertia_),
        seconds=(first, again, their_seconds),
        n_iter=(ours.n_iter_, theirs.n_iter_),
        same_labels=float((ours.labels_ == theirs.labels_).mean()),
    )


def _start(X: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return initial colours, each of which differs by up to half a grey level from a pixel's colour.

    Pixels have integer grey levels, so many of them are equally near to the colours of two other pixels. Rounding
    decides such ties, and two programs would continue from them in different ways.
    """
    from sklearn.cluster import kmeans_plusplus

    random = np.random.RandomState(_SEED)
    sample = X[random.permutation(len(X))[: max(1000, 20 * n_clusters)]]
    start, _ = kmeans_plusplus(sample, n_clusters, random_state=_SEED)
    return (start + random.uniform(-0.5, 0.5, start.shape) / 255).astype(X.dtype)


def _timed(estimator: BaseEstimator, X: np.ndarray) -> tuple[Any, float]:
    started = time.perf_counter()
    return estimator.fit(X), time.perf_counter() - started


def _data_url(image: np.ndarray) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, image, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
