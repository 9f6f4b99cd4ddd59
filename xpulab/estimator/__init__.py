"""The code that all estimators share: the checks of a call, its data, its progress and its report."""
