"""`LogisticRegressionCV`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.linear_model
from sklearn.metrics import get_scorer
from sklearn.utils.metadata_routing import process_routing

from xpulab._sklearn import (
    _check_method_params,
    _fit_context,
    _raise_for_params,
    _routing_enabled,
    _safe_indexing,
    scorer_of_classes,
)
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.interrupted import sentence
from xpulab.estimator.labels import checked_labels
from xpulab.estimator.resumable import ResumableFit
from xpulab.estimator.rows import require_weight
from xpulab.estimator.sending import Result
from xpulab.exceptions import CallInterrupted
from xpulab.linear_model._classifiers.logistic import MORE, LogisticRegression
from xpulab.linear_model._classifiers.logistic_loss import Checked, ClassesInput, LogisticClassifier
from xpulab.linear_model._fitted import require_few
from xpulab.linear_model._folds import groups_of, splits_of
from xpulab.linear_model._minimised import tell
from xpulab.sharing.linear_models import Coding, Minimisation, Paths, PathsState, Solution

__all__ = ["LogisticRegressionCV"]


@dataclass(frozen=True, kw_only=True)
class _Input(ClassesInput):
    """A fit.

    Attributes
    ----------
    y : array or ShardedArray
        The labels, for scorers.
    strengths : numpy.ndarray of shape (n_cs,)
        The values of C.
    ratios : list
        The values of the l1 ratio; None for that which the penalty says.
    shares : list of float
        The shares of the l1 norm that they stand for.
    splits : list of (numpy.ndarray, numpy.ndarray)
        Indices of the training rows and of the test rows of each fold.
    paths : Paths
    scorer : callable or None
        None for the accuracy, which the engines compute.
    scored_with : dict
        Parameters of the scorer.
    scores : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs), optional
        What the scorer has found.
    refit, legacy : bool
    """

    y: Any
    strengths: npt.NDArray[np.float64]
    ratios: list[float | None]
    shares: list[float]
    splits: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    paths: Paths
    scorer: Any
    scored_with: Mapping[str, Any]
    scores: npt.NDArray[np.float64] | None = None
    refit: bool
    legacy: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of folds, of l1 ratios, and of values of C."""
        return len(self.splits), len(self.ratios), len(self.strengths)

    def table(self, coef: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return coefficients (n_columns, n_features + fit_intercept) from the layout of scikit-learn's solvers."""
        return coef.reshape(self.coding.n_columns, -1, order="F")

    def tables(self, state: PathsState) -> npt.NDArray[np.float64]:
        """Return the coefficients of all fits, (n_folds, n_l1_ratios, n_cs, n_columns, n_features + fit_intercept)."""
        return np.array([self.table(coef) for coef in state["coefs"]]).reshape(
            *self.shape, self.coding.n_columns, len(state["coefs"][0]) // self.coding.n_columns
        )


_Theirs = sklearn.linear_model.LogisticRegressionCV


class _Splits:
    """Ends the fit of scikit-learn's estimator where it begins to compute."""

    def get_n_splits(self, *_: Any) -> int:
        """Return some number."""
        return 2

    def split(self, *_: Any, **__: Any) -> Any:
        """Raise `Checked`."""
        raise Checked


class LogisticRegressionCV(ResumableFit[_Input], LogisticClassifier, sklearn.linear_model.LogisticRegressionCV):
    """`LogisticRegression` with a penalty that is chosen by cross-validation, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.linear_model.LogisticRegressionCV`, for any number of
    engines. The rows are sent once: a fold is the same rows with other weights.

    The signature is that of the installed version of scikit-learn.

    Parameters
    ----------
    Cs : int or array-like, default=10
        The inverse strengths of the penalty to try, or their number.
    l1_ratios : array-like or None
        The shares of the l1 norm in the penalty to try; the default is that of scikit-learn.
    fit_intercept : bool, default=True
        Whether there is a constant term.
    cv : int, cross-validation generator, iterable or None, default=None
        The folds; five stratified ones by default. A split must not contain a row twice.
    penalty, dual, intercept_scaling, random_state, n_jobs : as in scikit-learn
        The last four have no effect with these solvers.
    scoring : str, callable or None
        None is the accuracy, which the engines compute. Any other scorer is called in this process, for a
        `LogisticRegression` on the engines and the test rows of a fold; not for code that runs on the ranks.
    solver : {"lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"}, default="lbfgs"
        As for `LogisticRegression`. The l1 norm needs "saga".
    tol : float, default=1e-4
        Tolerance of the solver's stopping rule, as for `LogisticRegression`.
    max_iter : int, default=100
        Largest number of iterations of the solver in each fit.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, which those of all rows determine.
    verbose : int, default=0
        Whether to print messages.
    refit : bool, default=True
        Whether all rows are fitted with the best penalty. Otherwise the coefficients are the means of those that are
        best for each fold.
    use_legacy_attributes : bool
        Whether the attributes have the shapes of scikit-learn before 1.10; the default is that of scikit-learn.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, in ascending order.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, float64.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts; zeros without `fit_intercept`.
    Cs_ : ndarray of shape (n_cs,)
        The inverse strengths that were tried.
    l1_ratios_ : ndarray of shape (n_l1_ratios,)
        The shares that were tried.
    coefs_paths_ : dict or ndarray
        Coefficients, float64, of each fold and penalty.
    scores_ : dict or ndarray
        Score of the test rows of each fold for each penalty.
    C_, l1_ratio_ : ndarray or float
        The best penalty.
    n_iter_ : ndarray
        Number of iterations of each fit.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. A run is a path, which is a fold with
        an l1 ratio; its iterations are the values of C, with the accuracy of the test rows.

    See Also
    --------
    sklearn.linear_model.LogisticRegressionCV : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.linear_model import LogisticRegressionCV
    >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], ["no", "no", "no", "yes", "yes", "yes"]
    >>> model = LogisticRegressionCV(cv=3, l1_ratios=(0,), scoring="accuracy", use_legacy_attributes=False)
    >>> with xpulab.XPUCluster(n=2):
    ...     model.fit(X, y).predict([[4.5]])
    array(['yes'], dtype='<U3')
    """

    _task: ClassVar[str] = "LogisticRegression.paths"
    _left: ClassVar[tuple[str, str]] = ("parameters", "model.fit(X, y)")
    _fitted: ClassVar[tuple[str, ...]] = ("coef_", "intercept_")
    _own: ClassVar[tuple[str, ...]] = (*ResumableFit._own, "_found")

    coefs_paths_: Any
    scores_: Any
    C_: Any
    l1_ratio_: Any

    #: What the fits of the folds have found, until a scorer has scored them.
    _found: Any = None

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None, **params: Any
    ) -> LogisticRegressionCV:
        """Find the best penalty by cross-validation, and fit all rows with it.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64.
        y : array-like or ShardedArray of shape (n_samples,)
            Labels: numbers or strings in an array, numbers in a handle. The splitter gets them in this process.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows in fits and in scores.
        **params : dict
            Parameters of the splitter and of the scorer, with scikit-learn's metadata routing.

        Returns
        -------
        LogisticRegressionCV
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, for solvers that are not supported, for a split that
            has a row twice, and if X and y are handles with different numbers of rows per rank or different dtypes. No
            rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. `resume` continues after the last fit of a fold with a penalty, also as
            ``xpulab.interrupted().resume()``.
        """
        _raise_for_params(params, self, "fit")
        cluster = current_ranks()
        self._check_parameters()
        rows: Any = self._checked(cluster, X, reset=True)
        y = checked_labels(self, cluster, y, rows)
        weights = self._weights(sample_weight, rows, only_non_negative=False)
        labels, coding = self._labelled(cluster, y, weights)
        scorer, split_with, scored_with = self._asked(labels.classes, sample_weight, params)
        if scorer is not None and isinstance(rows, ShardedArray) and not rows.stays:
            raise ValueError(
                f"scoring={self.scoring!r} was given on the ranks, which have the accuracy: pass scoring='accuracy', "
                "or fit in the notebook"
            )
        splits = splits_of(self.cv, rows.shape[0], y, classifier=True, **split_with)
        groups, places = groups_of(splits, rows.shape[0])
        if isinstance(weights, np.ndarray):
            for train, test in splits:
                require_weight(weights[train].sum())
                require_weight(weights[test].sum())
        strengths, (ratios, shares) = self._strengths(), self._ratios()
        legacy = getattr(self, "use_legacy_attributes", True)
        checked = _Input(
            X=rows,
            y=y,
            weights=weights,
            targets=labels.targets,
            classes=labels.classes,
            coding=coding,
            n_init=len(splits) * len(ratios),
            max_iter=len(strengths),
            strengths=strengths,
            ratios=ratios,
            shares=shares,
            splits=splits,
            paths=Paths(
                groups,
                places,
                self._fits(rows, coding, strengths, shares),
                refit=bool(self.refit) if scorer is None else None,
            ),
            scorer=scorer,
            scored_with=scored_with,
            refit=bool(self.refit),
            legacy=legacy is True or legacy == "warn",
            parameters=self.get_params(deep=False),
        )
        return self._run(cluster, checked)

    def _check_parameters(self) -> None:
        """Raise an error for parameters that are not supported; raise and warn as scikit-learn does for all others."""
        self._require_solver()
        some = {"class_weight": None, "verbose": 0, "cv": _Splits()}
        plain = _Theirs(**self.get_params(deep=False) | some)
        with ONE_AT_A_TIME, contextlib.suppress(Checked):
            plain.fit([[-1.0], [1.0]], [0, 1])

    def _strengths(self) -> npt.NDArray[np.float64]:
        if isinstance(self.Cs, numbers.Integral):
            return np.logspace(-4, 4, int(self.Cs))
        return np.asarray(self.Cs, np.float64)

    def _ratios(self) -> tuple[list[float | None], list[float]]:
        """Return the l1 ratios, and the shares of the l1 norm for which they and `penalty` stand."""
        given = None if isinstance(self.l1_ratios, str) else self.l1_ratios
        penalty = getattr(self, "penalty", "deprecated")
        of_penalty = {"l1": 1.0, "l2": 0.0}.get(penalty)
        if of_penalty is not None or given is None:
            return [None], [of_penalty or 0.0]
        return list(given), [float(ratio) for ratio in given]

    def _fits(
        self, X: Any, coding: Coding, strengths: npt.NDArray[np.float64], shares: list[float]
    ) -> list[list[Minimisation]]:
        """Return the fits of each path, after checks of what depends on the rows."""
        self._require_strategy(coding.n_classes)
        if self.solver == "newton-cholesky":
            require_few(X, coding.n_columns, bool(np.isfinite(strengths).all()), "'newton-cg' or 'lbfgs'")
        start = np.zeros(coding.n_columns * (X.shape[1] + bool(self.fit_intercept)))
        return [
            [self._minimisation(start, (1 - share) / strength, share / strength) for strength in strengths]
            for share in shares
        ]

    def _asked(
        self, classes: npt.NDArray[Any], sample_weight: Any, params: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
        """Return the scorer, None for the accuracy, and the parameters of the splitter and of the scorer."""
        routed = _routing_enabled()
        by_accuracy = self.scoring in (None, "warn") or (self.scoring == "accuracy" and not routed)
        scorer = None if by_accuracy else scorer_of_classes(get_scorer(self.scoring), classes)
        if routed:
            asked = process_routing(self, "fit", sample_weight=sample_weight, **params)
            return scorer, asked.splitter.split, asked.scorer.score
        return scorer, {}, {} if sample_weight is None else {"sample_weight": sample_weight}

    def _room(self, checked: _Input) -> int:
        n_fits = int(np.prod(checked.shape))
        start = checked.paths.fits[0][0].start
        return (1 << 20) + n_fits * (2048 + (0 if start is None else start.nbytes))

    def _arguments(self, cluster: Ranks, checked: _Input, state: dict[str, Any] | None) -> dict[str, Any]:
        return {"paths": checked.paths, "coding": checked.coding}

    def _keep_state(self, checked: _Input, state: Mapping[str, Any], labels: npt.NDArray[Any] | None) -> None:
        """Set nothing: the penalty is not chosen."""

    def _keep(self, checked: _Input, answer: Mapping[str, Any], labels: Any) -> None:
        if checked.paths.refit is None:  # the scores are to come
            self._found = answer["state"]
        else:
            self._set(checked, answer["state"], answer["refitted"], answer["chosen"])

    def _tell(self, checked: _Input, answer: Mapping[str, Any]) -> None:
        told = answer["state"]["told"] if checked.scores is None else []
        for solution in [*told, answer.get("refitted")]:
            if solution:
                tell(solution, checked.paths.fits[0][0].max_iter, MORE)

    def _run(
        self,
        cluster: Ranks,
        checked: Any,
        state: dict[str, Any] | None = None,
        method: str = "fit",
        labels: Result | None = None,
    ) -> Any:
        """Fit from the beginning, or from a state. A scorer scores all fits before the rows are fitted once more."""
        if checked.scorer is None or checked.scores is not None:
            return super()._run(cluster, checked, state, method, labels)
        if state is None or len(state["scores"]) < np.prod(checked.shape):
            super()._run(cluster, checked, state, method, labels)
            state, self._found = self._found, None
        found: Any = state
        try:
            scores = self._scored(checked, checked.tables(found))
        except KeyboardInterrupt:
            self._stopped, self._stopped_in = (checked, found), "after the fits of all folds"
            said = sentence(self, type(self).__name__, method, f" {self._stopped_in}", resumes=True)
            cluster.keep_interrupted(self, said)
            raise CallInterrupted(said) from None
        refit = Paths.best_of(scores) if checked.refit else False
        scored = replace(checked, scores=scores, paths=replace(checked.paths, refit=refit))
        return super()._run(cluster, scored, found, method, labels)

    def _set(self, checked: _Input, state: PathsState, refitted: Solution, best: tuple[int, int]) -> None:
        """Set the attributes."""
        paths, scores = checked.tables(state), checked.scores
        if scores is None:
            scores = (state["scores"][:, 0] / state["scores"][:, 1]).reshape(checked.shape)
        n_iter = np.array([solution["n_iter"] for solution in state["told"]], np.int32).reshape(checked.shape)
        chosen: tuple[Any, Any]
        if checked.refit:
            table = checked.table(refitted["coef"])
            chosen = checked.strengths[best[1]], checked.ratios[best[0]]
        else:
            n_folds, n_paths, _ = checked.shape
            places = np.argmax(scores.swapaxes(1, 2).reshape(n_folds, -1), axis=1)
            number, path = np.divmod(places, n_paths)
            table = paths[np.arange(n_folds), path, number].mean(axis=0)
            share = np.mean(np.array(checked.shares)[path]) if checked.ratios != [None] else 0.0
            chosen = np.mean(checked.strengths[number]), share
        d = checked.X.shape[1]
        self.classes_ = checked.classes
        self.coef_ = np.ascontiguousarray(table[:, :d])
        self.intercept_ = table[:, d].copy() if table.shape[1] > d else np.zeros(len(table))
        self.Cs_, self.l1_ratios_ = checked.strengths, np.asarray(checked.ratios)
        if checked.legacy:
            self._set_as_before(checked, chosen, paths, scores, n_iter)
        else:
            self.C_ = float(chosen[0])
            self.l1_ratio_ = checked.shares[0] if checked.ratios == [None] else float(chosen[1] or 0.0)
            self.coefs_paths_, self.scores_, self.n_iter_ = paths, scores, n_iter

    def _set_as_before(
        self, checked: _Input, chosen: tuple[Any, Any], paths: npt.NDArray[Any], scores: npt.NDArray[Any],
        n_iter: npt.NDArray[Any],
    ) -> None:  # fmt: skip
        """Set the attributes in the shapes of scikit-learn before 1.10, with the values of C before the ratios."""
        no_ratios = checked.ratios == [None]
        of_columns = checked.classes if checked.coding.n_columns > 1 else checked.classes[1:]

        def swapped(found: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return found[:, 0] if no_ratios else found.swapaxes(1, 2)

        each = np.moveaxis(swapped(paths), -2, 0)
        self.coefs_paths_ = dict(zip(of_columns, each, strict=True))
        self.scores_ = dict.fromkeys(of_columns, swapped(scores))
        self.n_iter_ = swapped(n_iter)[None]
        self.C_, self.l1_ratio_ = (np.array([one] * checked.coding.n_columns) for one in chosen)

    def _scored(self, checked: _Input, paths: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the score of each fold, l1 ratio and C, by the scorer."""
        scores = np.empty(checked.shape)
        model, d = LogisticRegression(solver=self.solver), checked.X.shape[1]
        model.classes_, model.n_features_in_ = checked.classes, d
        for fold, (_, test) in enumerate(checked.splits):
            X, y = (_safe_indexing(each, test) for each in (checked.X, checked.y))
            params = _check_method_params(X=checked.X, params=checked.scored_with, indices=test)
            for path, number in np.ndindex(checked.shape[1:]):
                table = paths[fold, path, number]
                model.C = checked.strengths[number]
                model.coef_ = table[:, :d]
                model.intercept_ = table[:, d] if table.shape[1] > d else np.zeros(len(table))
                with ONE_AT_A_TIME:
                    scores[fold, path, number] = checked.scorer(model, X, y, **params)
        return scores

    def score(
        self, X: npt.ArrayLike | ShardedArray, y: Any, sample_weight: npt.ArrayLike | None = None, **score_params: Any
    ) -> float:
        """Return the score of `scoring`; without it, the share of the rows whose label is predicted correctly.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : array-like or ShardedArray of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.
        **score_params : dict
            Parameters of the scorer, with scikit-learn's metadata routing.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `decision_function`.
        """
        if self.scoring in (None, "warn", "accuracy") and not score_params and not _routing_enabled():
            return super().score(X, y, sample_weight)
        given = score_params if sample_weight is None else {**score_params, "sample_weight": sample_weight}
        with ONE_AT_A_TIME:
            return float(_Theirs.score(self, X, y, **given))
