"""Naive Bayes classifiers, under the names of `sklearn.naive_bayes`."""

from xpulab.naive_bayes._bernoulli import BernoulliNB
from xpulab.naive_bayes._complement import ComplementNB
from xpulab.naive_bayes._gaussian import GaussianNB
from xpulab.naive_bayes._multinomial import MultinomialNB

__all__ = ["BernoulliNB", "ComplementNB", "GaussianNB", "MultinomialNB"]
