"""What all estimators share: checking, sending, following and taking back one call."""
