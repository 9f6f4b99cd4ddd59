"""What all estimators share: one call's checks, its data, its progress and its report."""
