"""What ranks answer to tasks, and the keys of each rank's result, for the ranks that fill them and who reads them.

Unless a description says otherwise, values are equal on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy.typing as npt

from xpulab.sharing.sources import Pickled

__all__ = [
    "Agreement",
    "Batches",
    "BinEdges",
    "Boosted",
    "Categories",
    "ClassMoments",
    "Classes",
    "ColumnStatistics",
    "Components",
    "DrawnRowOfRank",
    "Encoded",
    "EngineOfReply",
    "Explored",
    "ExploredDensity",
    "ExploredMixture",
    "ForestScore",
    "Found",
    "LastCall",
    "LinearProducts",
    "Measured",
    "Moments",
    "MomentsOfColumns",
    "Nearest",
    "OwnRows",
    "Percentiles",
    "Products",
    "ProductsOfColumns",
    "Quantiles",
    "Range",
    "Reply",
    "Singular",
    "SparseSolution",
    "Status",
    "Total",
    "UsersResult",
    "Within",
]

_Array = npt.NDArray[Any]

Status = Literal["ok", "interrupted", "error", "peer failed"]


class EngineOfReply(TypedDict):
    """The engine that has run a task."""

    rank: int
    host: str
    pid: int
    device: str
    cores: list[int]


class Reply(TypedDict):
    """What a rank answers to a task.

    `result` is a mapping, whose keys depend on the task; it is empty after an exception. `error` has the type, module,
    message and traceback of an exception, `seconds` the seconds of each phase, and `total` the seconds from the task's
    arrival to its end.
    """

    status: Status
    result: Any
    error: dict[str, str] | None
    seconds: dict[str, float]
    total: float
    engine: EngineOfReply


class LastCall(TypedDict):
    """A call of an estimator: the notebook's description of it, see `FitReport.to_dict`, and the rank's reply."""

    report: Any
    reply: Reply


class Measured(TypedDict):
    """What a user's code did on a rank.

    `seconds` is its wall time. `activities` has for each kind and name how often, with how many bytes and how long.
    `collectives` has, by the name of the function and the ranks that take part, the moments at which the rank has
    entered and left the calls. `moments` has kind, name, beginning and seconds of the latest activities. Moments, such
    as the one at which the code `began`, are those of the `time.perf_counter` of the rank's host.
    """

    began: float
    seconds: float
    activities: list[tuple[str, str, int, int | None, float]]
    collectives: dict[tuple[Any, ...], tuple[list[float], list[float]]]
    moments: list[tuple[str, str, float, float]]


class UsersResult(TypedDict, total=False):
    """Of "run" and "%%xpu": how a user's code has ended on a rank.

    `outcome` is "ok", "error", "interrupted", "peer failed" or "left out". `error` has the type, message and traceback
    of an exception, and where in the user's code it was raised. `omitted` is the number of printed characters that were
    not kept. `value` is what a function has returned, pickled, or the last expression of a cell as text. `out` are the
    variables that were asked for, `figures` those of matplotlib as PNG, `shown` the numbers of those that the output
    has, and `usage` is there if it was measured.
    """

    outcome: str
    error: dict[str, str] | None
    omitted: int
    value: Any
    out: dict[str, Pickled]
    figures: list[bytes]
    shown: list[int]
    usage: Measured


class OwnRows(TypedDict):
    """Of every task: `rows` is the number of rows of the rank itself."""

    rows: int


class ElementwiseRows(OwnRows):
    """Of "columns.elementwise": whether there is NaN among the results of all ranks."""

    nan: bool


class Frequencies(OwnRows):
    """In how many rows of all ranks each column has a stored value: int64 of shape (n_features,)."""

    counts: npt.NDArray[Any]


class StoredRows(OwnRows):
    """Rows that are kept under a handle: the numbers of stored values of each rank, if they are sparse."""

    stored: tuple[int, ...] | None


@dataclass(frozen=True)
class Moments:
    """Moments of the columns of all rows: float64 arrays of shape (n_features,). NaN is ignored.

    Attributes
    ----------
    count : numpy.ndarray
        Number of values that are not NaN.
    weight : numpy.ndarray
        Sum of the weights of these values.
    mean : numpy.ndarray
        Weighted mean.
    squares : numpy.ndarray
        Weighted sum of the squared differences from the mean.
    lengths : numpy.ndarray
        The root of this sum, also where the sum is too large or too small for float64.
    minimum, maximum : numpy.ndarray
        NaN for a column of NaN only.
    """

    count: _Array
    weight: _Array
    mean: _Array
    squares: _Array
    lengths: _Array
    minimum: _Array
    maximum: _Array


@dataclass(frozen=True)
class Products:
    """Weighted sums over all rows of products of columns and targets; all arrays are float64.

    Attributes
    ----------
    weight : float
        Sum of the weights; without weights, the number of rows.
    mean : numpy.ndarray of shape (n_features,)
        Weighted mean of the columns.
    gram : numpy.ndarray of shape (n_features, n_features)
        Gram matrix of the columns, minus their means if centred.
    target_mean : numpy.ndarray of shape (n_targets,)
        Weighted mean of the targets.
    cross : numpy.ndarray of shape (n_features, n_targets)
        Products of columns and targets.
    target_gram : numpy.ndarray of shape (n_targets, n_targets)
        Gram matrix of the targets; empty without targets.
    lost : bool
        Whether products have left the range of the dtype in which they were computed, so that the arrays are useless.
    """

    weight: float
    mean: _Array
    gram: _Array
    target_mean: _Array
    cross: _Array
    target_gram: _Array
    lost: bool = False


class MomentsOfColumns(OwnRows):
    """Of "moments" and "moments_of_weighted"."""

    moments: Moments


class ProductsOfColumns(OwnRows, total=False):
    """Of "products", on rank 0; and the triangle from which the products come, if they come from one."""

    products: Products
    r: _Array


class LinearProducts(OwnRows):
    """Of "linear_products": the products of all rows, how they were added up, and those of each assignment to folds."""

    products: Products
    sharp: bool
    folds: list[dict[str, _Array]]


class SparseSolution(OwnRows):
    """Of "sparse_least_squares": coefficients, means of columns and targets, and whether the iterations converged."""

    coef: _Array
    mean: _Array
    target_mean: _Array
    converged: bool


class ClassMoments(OwnRows):
    """Of "GaussianNB.fit": weights (n_classes,) and moments (n_classes, n_features) of the rows of each class.

    `variance` is the largest of all columns, of all rows without weights.
    """

    weight: _Array
    mean: _Array
    squares: _Array
    variance: float


class ClassSums(OwnRows):
    """Of "class_sums": the sums of the rows of each class (n_classes, n_features), and of their weights (n_classes,).

    `least` is the smallest number of all rows, or 0.
    """

    sums: _Array
    weight: _Array
    least: float


class Classes(OwnRows):
    """Of "labels.classes": the distinct labels in ascending order, and the sums of the weights of the rows of each."""

    classes: _Array
    totals: _Array


class Quantiles(OwnRows):
    """Of "quantiles": the numbers on both sides of each quantile, and its position between them, from 0 to 1.

    All are of shape (n_fractions, n_features).
    """

    lower: _Array
    upper: _Array
    between: _Array


class Percentiles(OwnRows):
    """Of "encoding.quantiles": (n_percents, n_features)."""

    quantiles: _Array


class ColumnStatistics(OwnRows, total=False):
    """Of "columns.statistics": the number of values, and their mean or mode, or what `Quantiles` has for the median."""

    count: _Array
    value: _Array
    lower: _Array
    upper: _Array
    between: _Array


class Categories(OwnRows):
    """Of "encoding.categories": the distinct numbers of each column in ascending order, and how often each occurs.

    Of "forest.classes", `counts` may be sums of weights.
    """

    values: list[_Array]
    counts: list[_Array]


class Encoded(OwnRows):
    """Of "encoding.encode": some of the numbers of each column that have no category."""

    unknown: list[_Array]


class BinEdges(OwnRows):
    """Of "bins.edges": for each column the edges of its bins, and the categories and texts of warnings."""

    columns: list[tuple[_Array, list[tuple[type[Warning], str]]]]


class FirstRows(OwnRows):
    """Of "columns.head"."""

    first: _Array


class TargetSums(OwnRows):
    """Of "encoding.target_sums": for each column an array (n_folds, 3, n_categories, n_targets)."""

    sums: list[_Array]


class Texts(OwnRows):
    """Of "encoding.texts": the distinct strings of each column, in ascending order."""

    texts: list[tuple[str, ...]]


class WeightFacts(OwnRows):
    """Of "weights.facts": whether any weight is not 0, and the first negative one with the index of its row."""

    some: bool
    negative: tuple[float, int] | None


class Total(OwnRows, total=False):
    """Of "metrics.silhouette" and "forest.weight", and of "GaussianMixture.predict" without a target: a sum."""

    total: float


class Range(OwnRows):
    """Of "forest.range": the least and the largest target of each output, and their mean, which NumPy computes."""

    least: _Array
    largest: _Array
    mean: _Array


class ForestScore(OwnRows, total=False):
    """Of "forest.score".

    `right` is the number of rows whose classes are predicted. For each output, `errors` is the sum of the squared
    errors, and `spread` that of the squared differences of the targets from their mean.
    """

    right: int
    errors: _Array
    spread: _Array


class Singular(OwnRows):
    """Of "randomized_svd": singular values and right singular vectors, and moments of the columns."""

    singular: _Array
    right: _Array
    mean: _Array
    squares: _Array
    explained: _Array | None


class Components(OwnRows, total=False):
    """Of "wide_svd", from rank 0: means of columns, singular values and right vectors, or the triangle of the rows."""

    mean: _Array
    singular: _Array
    right: _Array
    r: _Array


class Batches(OwnRows):
    """Of "batch_triangles": the shift, and for each batch in which the rank has rows its number and triangle."""

    shift: _Array
    parts: list[Any]


class Agreement(OwnRows):
    """Of "LogisticRegression.score": the weight of rows with equal labels, and of all rows."""

    equal: float
    weight: float


class Nearest(OwnRows):
    """Of "neighbors.nearest": the unit of the distances that the ranks have written."""

    unit: float


class Within(Nearest):
    """Of "neighbors.within": for each query how many of the rank's own rows are near, what is compared, and which."""

    counts: _Array
    compared: _Array
    places: _Array


class Found(OwnRows, total=False):
    """Of "KMeans.predict": the inertia, if no labels were asked for, and the launch shape of the kernel."""

    inertia: float
    launch_shape: str | None


class Explored(TypedDict, total=False):
    """The state of an explorer of k-means after a change.

    `inertia` is there if trails began or an iteration ran, and `converged` says whether `KMeans` would end after it.
    `selected` counts the rows that the user has selected by cluster; None if no shape was drawn.
    """

    converged: bool
    inertia: float
    centers: _Array
    selected: _Array | None


class ExploredMixture(TypedDict):
    """The state of an explorer of a mixture after a change; `selected` as in `Explored`.

    `parameters` has weights, means, covariances and factors in float64. `lower_bound` is the mean log-likelihood of a
    row for these parameters, if they were computed.
    """

    parameters: dict[str, _Array] | None
    lower_bound: float | None
    selected: _Array | None


class ExploredDensity(TypedDict):
    """The state of an explorer of DBSCAN after a change; `selected` as in `Explored`.

    `sizes` are those of the clusters, and `kinds` the numbers of cores, of border rows and of noise; None if they stay.
    """

    sizes: _Array | None
    kinds: _Array | None
    selected: _Array | None


class DrawnRowOfRank(TypedDict):
    """Of "explore.row": the row that a rank has in the pixel nearest to a place; `square` is infinite if it has none.

    `square` is the squared distance in pixels, `number` that of the row among the rows of all ranks, and `pixel` the
    line and the column.
    """

    square: float
    number: int
    pixel: tuple[int, int]
    values: _Array
    cluster: int


class DrawnRows(OwnRows):
    """Of "isolation.rows": the rows, float32, without their shape; on rank 0 only."""

    drawn: _Array | None


class Percentile(OwnRows):
    """Of "isolation.percentile"; on rank 0 only."""

    percentile: float | None


class Boosted(TypedDict, total=False):
    """The state of gradient boosting: nodes of trees by iteration; `categories` are numbers in the rows, by column."""

    run: int
    iteration: int
    trees: list[list[_Array]]
    train_score: list[float]
    validation_score: list[float]
    rng: Any
    thresholds: list[_Array]
    categories: list[_Array]
