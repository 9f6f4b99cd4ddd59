"""scikit-learn's own tests and checks, run against the scalers on two engines."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from xpulab.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

pytestmark = pytest.mark.cluster

_checks = parametrize_with_checks([StandardScaler(), MinMaxScaler(clip=True), MaxAbsScaler(), RobustScaler()])


# That of scikit-learn 1.7 holds a generator, of which pytest warns.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpulab.deploy.cluster._clusters", [pair])
    check(estimator)
