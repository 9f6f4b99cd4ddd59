"""scikit-learn's routing of metadata: every estimator says which of its methods take which metadata."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
import sklearn
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter

import xpulab
from xpulab.estimator.proxy import Proxy
from xpulab.linear_model import RidgeCV

ESTIMATORS = [
    kind
    for package in pkgutil.iter_modules(xpulab.__path__)
    if package.ispkg and package.name not in ("spmd", "torch")
    for module in [importlib.import_module(f"xpulab.{package.name}")]
    for kind in (getattr(module, name) for name in getattr(module, "__all__", ()))
    if isinstance(kind, type) and issubclass(kind, Proxy)
]


@pytest.mark.parametrize("routes", [False, True])
@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda each: each.__name__)
def test_every_estimator_says_which_metadata_it_takes(kind: Any, routes: bool) -> None:
    with sklearn.config_context(enable_metadata_routing=routes):
        routing = kind().get_metadata_routing()
    assert isinstance(routing, MetadataRequest | MetadataRouter)


def test_the_routing_of_ridge_cv_is_that_of_scikit_learn() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        theirs = repr(sklearn.linear_model.RidgeCV().get_metadata_routing())
    assert repr(RidgeCV().get_metadata_routing()) == theirs
    ours = RidgeCV(scoring="r2").get_metadata_routing()
    assert repr(ours) == repr(sklearn.linear_model.RidgeCV(scoring="r2").get_metadata_routing())
