"""Imports of names that xpulab does not have."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import subprocess
import sys

import pytest

import xpulab
from xpulab import missing


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import xpulab.isotonic", "scikit-learn's works on arrays: import sklearn.isotonic"),
        ("import xpulab.isotonic.anything", "scikit-learn's works on arrays: import sklearn.isotonic"),
        ("from xpulab import isotonic", "scikit-learn's works on arrays: import sklearn.isotonic"),
        ("from xpulab.metrics import hinge_loss", "works on arrays: from sklearn.metrics import hinge_loss"),
        ("from xpulab.linear_model import ARDRegression", "from sklearn.linear_model import ARDRegression"),
        ("from xpulab.metrics import hinge_los", "from sklearn.metrics import hinge_loss, which works on arrays"),
        ("from xpulab.cluster import Kmeans", "did you mean: from xpulab.cluster import KMeans"),
        ("import xpulab.cluster.Kmeans", "did you mean: from xpulab.cluster import KMeans"),
        ("from xpulab.cluster import PCA", "did you mean: from xpulab.decomposition import PCA"),
        ("from xpulab import KMeans", "did you mean: from xpulab.cluster import KMeans"),
        ("from xpulab import XPUcluster", "did you mean: from xpulab import XPUCluster"),
        ("import xpulab.clusters", "did you mean: import xpulab.cluster"),
        ("from xpulab.spmd.cluster import Kmeans", "did you mean: from xpulab.spmd.cluster import KMeans"),
        ("import xpulab.spmd.cluster.kmeans", "did you mean: from xpulab.spmd.cluster import KMeans"),
        ("from xpulab.spmd.cluster import PCA", "did you mean: from xpulab.spmd.decomposition import PCA"),
        ("from xpulab.spmd import KMeans", "did you mean: from xpulab.spmd.cluster import KMeans"),
        ("import xpulab.spmd.clusters", "did you mean: import xpulab.spmd.cluster"),
        ("from xpulab.torch import NeuralNetClasifier", "did you mean: from xpulab.torch import NeuralNetClassifier"),
        ("from xpulab.torch import prepair", "did you mean: from xpulab.torch import prepare"),
    ],
)
def test_an_import_that_cannot_be_done_says_what_to_import(statement: str, said: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import xpulab.qqqqqqqq", "No module named 'xpulab.qqqqqqqq'"),
        ("from xpulab.spmd.cluster import qqqqqqqq", "cannot import name 'qqqqqqqq' from 'xpulab.spmd.cluster'"),
        ("from xpulab.cluster import qqqqqqqq", "cannot import name 'qqqqqqqq' from 'xpulab.cluster'"),
        ("import numpy.qqqqqqqq", "No module named 'numpy.qqqqqqqq'"),
    ],
)
def test_without_a_similar_name_the_error_is_that_of_python(statement: str, said: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert said in str(caught.value)


def test_a_name_that_may_be_missing_is_only_not_there() -> None:
    assert not hasattr(xpulab, "isotonic")
    assert not hasattr(importlib.import_module("xpulab.cluster"), "Kmeans")
    assert importlib.util.find_spec("xpulab._isotonic") is None
    missing.install()
    assert sum(isinstance(finder, missing.Finder) for finder in sys.meta_path) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("isotonic", "scikit-learn's works on arrays: import sklearn.isotonic"),
        ("KMeans", "did you mean: from xpulab.cluster import KMeans"),
        ("clusters", "did you mean: import xpulab.cluster"),
        ("qqqqqqqq", "module 'xpulab' has no attribute 'qqqqqqqq'"),
        ("__qqqqqqqq__", "module 'xpulab' has no attribute '__qqqqqqqq__'"),
    ],
)
def test_an_attribute_that_is_missing_says_what_to_import(name: str, said: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(xpulab, name)
    assert said in str(caught.value)


@pytest.mark.slow
def test_packages_are_there_after_the_import_of_xpulab() -> None:
    code = (
        "import sys, xpulab; assert not {'sklearn', 'numpy'} & {*sys.modules}; "
        "print(xpulab.decomposition.PCA.__name__, xpulab.metrics.__name__, xpulab.exceptions.XpulabError.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("PCA xpulab.metrics XpulabError\n", "")


def test_the_names_of_xpulab_are_its_public_ones_and_its_packages() -> None:
    packages = {module.name for module in pkgutil.iter_modules(xpulab.__path__) if module.ispkg}
    public = {name for name in packages if importlib.util.find_spec(f"sklearn.{name}")} | {"basic_statistics"}
    assert {*dir(xpulab)} == public | {"exceptions", "spmd", "torch"} | {*xpulab.__all__}
