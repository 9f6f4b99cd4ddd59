"""What a row adds to the loss of a linear model, and its residuals: device functions for each kind of loss.

They replace the products of a row with the coefficients, which are staged in its work-item's memory, by the residuals
of the row: derivatives of its loss by these products, times its weight.

References
----------
.. [1] scikit-learn's ``sklearn/linear_model/_linear_loss.py``: half the binomial or multinomial deviance.
.. [2] B. Jørgensen, "Exponential dispersion models", Journal of the Royal Statistical Society B 49 (1987), 127-162: the
   deviance of Tweedie's distributions. As in scikit-learn, losses are half of it, without what is constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from xpulab.kernels.language import DeviceFunction, device_function, fma, index

__all__ = ["KINDS", "Kind", "residual_function"]

#: Two classes; several; the deviance of Tweedie's distribution, whose mean is the exponential of the row's product
#: ("log"), or the product itself ("identity"); by how much a product falls short of the margin of its class, of two
#: classes, or of each class against all others ("margins"); and by how much it misses its target ("distance").
Kind = Literal["binary", "multinomial", "log", "identity", "margin", "margins", "distance"]
KINDS: tuple[Kind, ...] = ("binary", "multinomial", "log", "identity", "margin", "margins", "distance")


def residual_function(kind: Kind, second: bool, number: type[Any]) -> DeviceFunction:
    """Make the function that replaces the staged products of a row by its residuals, and returns its loss.

    With `second` the residuals are those of the step, whose products are staged at `step_at`, and there is no loss. The
    `target` of a row is the number of its class, or a number. Of the `settings`, Tweedie's distributions have their
    power; margins and distances have two numbers, `limit` and `bend`: what is missed, v, loses bend / 2 * v**2 up to
    the limit, and from there on as much for each unit as at the limit. Margins have one more for each column, by which
    the losses of the rows of its own class are multiplied. Distances have three more: what may be missed, and by what
    the losses of products below and above their targets are multiplied.
    """
    return _MAKERS[kind](second, number)


def _binary(second: bool, number: type[Any]) -> DeviceFunction:
    zero, one = number(0), number(1)

    @device_function
    def residual_of(stage, at, step_at, column_size, k, target, weight, settings):  # type: ignore[no-untyped-def]
        sign = one if target == zero else -one
        z = stage[index(at)] * sign
        t = math.exp(-abs(z))
        share = (one if z >= zero else t) / (one + t)
        if second:
            other = t / ((one + t) * (one + t))
            stage[index(at)] = other * weight * stage[index(step_at)]
            return zero
        stage[index(at)] = share * sign * weight
        return weight * (max(z, zero) + math.log1p(t))

    return residual_of


def _multinomial(second: bool, number: type[Any]) -> DeviceFunction:
    zero, one = number(0), number(1)

    @device_function
    def residual_of(stage, at, step_at, column_size, k, target, weight, settings):  # type: ignore[no-untyped-def]
        most = stage[index(at)]
        top = zero
        own = most
        for j in range(1, k):
            raw = stage[index(at + j * column_size)]
            top = number(j) if raw > most else top
            most = raw if raw > most else most
            own = raw if target == number(j) else own
        rest = zero
        mean = zero
        for j in range(k):
            share = math.exp(stage[index(at + j * column_size)] - most)
            rest += zero if top == number(j) else share
            stage[index(at + j * column_size)] = share
            if second:
                mean = fma(share, stage[index(step_at + j * column_size)], mean)
        inverse = one / (one + rest)
        mean = mean * inverse
        for j in range(k):
            share = stage[index(at + j * column_size)] * inverse
            if second:
                residual = share * (stage[index(step_at + j * column_size)] - mean)
            else:
                residual = share - one if target == number(j) else share
            residual = residual * weight
            stage[index(at + j * column_size)] = residual
        if second:
            return zero
        return weight * (math.log1p(rest) + (most - own))

    return residual_of


def _deviance(log: bool) -> Callable[[bool, type[Any]], DeviceFunction]:
    """Return the maker of the function for Tweedie's distributions; their means are exponentials, or the products."""

    def make(second: bool, number: type[Any]) -> DeviceFunction:
        zero, one, two = number(0), number(1), number(2)

        @device_function
        def residual_of(stage, at, step_at, column_size, k, target, weight, settings):  # type: ignore[no-untyped-def]
            power = settings[index(0)]
            z = stage[index(at)]
            first = two - power
            other = one - power
            if log:
                log_mean = z
                mean = math.exp(other * z)  # to the power `other`, as `own` is, without the target
                grown = math.exp(first * z)
                own = target * mean
                residual = grown - own
                bend = first * grown - other * own
            else:
                log_mean = math.log(z)  # not a number below zero, where only a normal distribution has means
                scale = one if power == zero else math.exp(-power * log_mean)
                mean = scale * z
                grown = mean * z
                own = target * mean
                residual = scale * (z - target)
                bend = one if power == zero else scale * (other + power * target / z)
            if second:
                residual = bend * stage[index(step_at)]
            # What is not a number is not zero after a multiplication by the weight of a row beyond the last one.
            stage[index(at)] = zero if weight == zero else residual * weight
            if second:
                return zero
            loss = (log_mean if first == zero else grown / first) - (
                target * log_mean if other == zero else own / other
            )
            if power == zero:
                loss = (mean - target) * (mean - target) / two
            return zero if weight == zero else loss * weight

        return residual_of

    return make


def _margins(second: bool, number: type[Any]) -> DeviceFunction:
    zero, half, one = number(0), number(0.5), number(1)

    @device_function
    def residual_of(stage, at, step_at, column_size, k, target, weight, settings):  # type: ignore[no-untyped-def]
        limit = settings[index(0)]
        bend = settings[index(1)]
        total = zero
        for j in range(k):
            own = target != zero if k == 1 else target == number(j)
            sign = one if own else -one
            by = settings[index(2 + j)] * weight if own else weight
            short = one - sign * stage[index(at + j * column_size)]
            if second:
                step = stage[index(step_at + j * column_size)]
                inside = short > zero and short <= limit
                stage[index(at + j * column_size)] = bend * step * by if inside else zero
            else:
                cut = min(max(short, zero), limit)
                stage[index(at + j * column_size)] = -sign * bend * cut * by
                total += bend * cut * (short - half * cut) * by
        return total

    return residual_of


def _distance(second: bool, number: type[Any]) -> DeviceFunction:
    zero, half = number(0), number(0.5)

    @device_function
    def residual_of(stage, at, step_at, column_size, k, target, weight, settings):  # type: ignore[no-untyped-def]
        limit = settings[index(0)]
        bend = settings[index(1)]
        missed = target - stage[index(at)]
        by = settings[index(3)] if missed > zero else settings[index(4)]
        beyond = abs(missed) - settings[index(2)]
        if second:
            inside = beyond > zero and beyond <= limit
            stage[index(at)] = by * bend * stage[index(step_at)] * weight if inside else zero
            return zero
        cut = min(max(beyond, zero), limit)
        slope = by * bend * cut * weight
        stage[index(at)] = -slope if missed > zero else slope
        return slope * (beyond - half * cut)

    return residual_of


_MAKERS: dict[Kind, Callable[[bool, type[Any]], DeviceFunction]] = {
    "binary": _binary,
    "multinomial": _multinomial,
    "log": _deviance(log=True),
    "identity": _deviance(log=False),
    "margin": _margins,
    "margins": _margins,
    "distance": _distance,
}
