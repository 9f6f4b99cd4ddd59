"""The report of one call of an estimator: the record, with its text, HTML and figure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xpulab.names import Listed
from xpulab.report.html import comparison_html, fit_html, page_html
from xpulab.report.record import PHASES, EngineReport, FitRecord, Iteration, Pair
from xpulab.report.rendering import Displayed, written
from xpulab.report.task import Status, Timed
from xpulab.report.text import comparison_text, fit_line, fit_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PHASES", "Comparison", "EngineReport", "FitReport", "Iteration", "Status", "Timed"]


@dataclass(repr=False)
class FitReport(FitRecord, Displayed, Listed):
    """The report of one call of an estimator: its engines, its iterations, and the seconds of each phase.

    `report_` of an estimator is the report of its last fit, and `XPUCluster.last` returns that of the last call. A
    notebook shows it as a table; `str` makes text of it, `to_html` a page, and `plot` a figure.

    Attributes
    ----------
    estimator : str
        The estimator's name, ``"KMeans"``.
    method : str
        The method called, ``"fit"``.
    parameters : dict
        The estimator's parameters as plain values, as far as they can be described. An array is replaced by a
        description of its shape, so the report contains no data.
    n_samples, n_features : int
        Shape of the data.
    dtype : str
        Type in which the engines computed, ``"float32"``.
    status : {"running", "finished", "not converged", "interrupted", "failed"}
        State of the call; "not converged" if it finished at ``max_iter``.
    message : str
        While the call runs, its present step. At the end, why it was interrupted or failed.
    started : str
        Start of the call in UTC, in ISO 8601; by default the time of construction.
    seconds : float
        Wall time of the call in the calling process.
    n_init : int
        Number of runs from different starts.
    engines : list of EngineReport
        One per rank, in the order of the ranks.
    iterations : list of Iteration
        The iterations of all runs, in the order in which they ran.
    versions : dict of str to str
        Package or driver -> its version.
    notes : list of str
        Remarks on the call and on the placement of the engines, such as ``"2 engines share the cores 0-1"``.
    sent : float
        Seconds in which the calling process copied the rows to where the engines read them.
    waited : float
        Seconds until the call of another client had ended.
    lost, restart : float
        If engines were lost and the cluster has started new ones, the seconds before the loss, and until the new
        engines were ready. `sent`, `waited` and the seconds of the engines are then those after it.
    converged : bool, optional
        Whether the call ended because the algorithm had converged; None if the algorithm does not say.
    part : str
        Where the call is in a search or a cross-validation of scikit-learn's, such as
        ``"candidate 3 of 12, fold 2 of 5"``; empty outside of these.
    final : dict of str to float
        What a fit that has ended gives the estimator, such as ``inertia``: k-means moves the centres once more after it
        has computed the metric of its last iteration. Empty if the last metric is the estimator's.
    chosen_run : int
        Number of the run whose result the estimator has, counted from 1; 0 if the algorithm does not say.
    every_run : bool
        Whether the estimator has the results of all runs, each of which is of one class.
    stays : bool
        Whether the engines had the rows before the call, or read them from files.
    files : bool
        Whether the engines read the rows from files.
    spooled : bool
        Whether the calling process wrote the rows to a file, from which the engines read them in passes, because the
        rows do not fit into memory. `sent` are then the seconds in which it did so.
    reading : float
        Longest time in seconds for which an engine waited for rows that it does not keep, and reads in each pass.

    See Also
    --------
    Comparison : Two reports side by side.
    """

    _internal = frozenset({"display", "finish", "lasting", "reached", "replaced", "span", "step"})

    def line(self) -> str:
        """Return the progress of a running call, on one line."""
        return fit_line(self)

    def __repr__(self) -> str:
        return f"<FitReport {self.headline}>"

    def __str__(self) -> str:
        return fit_text(self)

    def _repr_html_(self) -> str:
        return fit_html(self)

    def to_html(self, path: str | os.PathLike[str] | None = None, extra: Iterable[str] = ()) -> str:
        """Return the report as a self-contained HTML page.

        Parameters
        ----------
        path : path-like, optional
            File to write the page to, in UTF-8.
        extra : iterable of str
            Further sections, in HTML, which follow the results. They are not escaped, so do not build them from text
            of other people.

        Returns
        -------
        str
            The page.
        """
        return written(page_html(self, extra), path)

    def plot(self, axes: tuple[Axes, Axes] | None = None) -> Figure:
        """Draw two panels: the first metric against iteration, and the seconds of each engine by phase.

        Parameters
        ----------
        axes : pair of matplotlib Axes, optional
            The axes to draw on; those of a new figure by default.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from xpulab.report.figure import draw

        return draw(self, axes)

    def compare(self, other: FitReport) -> Comparison:
        """Show this report and another one side by side, as text and HTML.

        Parameters
        ----------
        other : FitReport

        Returns
        -------
        Comparison
        """
        return Comparison(self, other)


@dataclass(repr=False)
class Comparison(Pair, Displayed):
    """Two reports side by side."""

    def __str__(self) -> str:
        return comparison_text(self)

    def _repr_html_(self) -> str:
        return comparison_html(self)
