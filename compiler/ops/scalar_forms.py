"""Functions of one number as scalar expressions of simpler ones, without cancellation where they are small.

    expm1 x    series below 1/2, e^x - 1 above                      log1p x    log u (x / (u - 1)), u = 1 + x
    sinh x     series below 1, else (e^(x/2)^2 - e^(-x/2)^2) / 2     cosh x     (e^(x/2)^2 + e^(-x/2)^2) / 2
    asin x     atan(x / sqrt((1 - x) (1 + x)))                       acos x     2 atan(sqrt((1 - x) / (1 + x)))
    asinh x    log1p(a + a^2 / (1 + sqrt(1 + a^2))), a = |x|         atanh x    log1p(2 a / (1 - a)) / 2, a = |x|
    acosh x    log1p(t + sqrt t sqrt(t + 2)), t = x - 1              round x    to the even one of two that are near

e^(x/2) is squared in two steps, so that a result within range is not lost to an overflow on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial, log

from compiler.kernels.expressions import Binary, Const, Expr, Ref, Select, Unary, add, mul, sub

_X = Ref(0)
_ONE = Const(1.0)
_LARGE = 1e9
"""The size from which the square of a number, or a difference of 1, no longer matters to the logarithm."""


def _below(x: Expr, y: Expr) -> Expr:
    return Binary("lt", x, y)


def _div(x: Expr, y: Expr) -> Expr:
    return Binary("div", x, y)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Highest power first."""
    total: Expr = Const(coefficients[0])
    for coefficient in coefficients[1:]:
        total = add(mul(total, x), Const(coefficient))
    return total


def _expm1(x: Expr) -> Expr:
    series = mul(x, _polynomial(x, [1 / factorial(k) for k in range(9, 0, -1)]))
    return Select(_below(Unary("abs", x), Const(0.5)), series, sub(Unary("exp", x), _ONE))


def _log1p(x: Expr) -> Expr:
    u = add(_ONE, x)
    whole = Unary("log", u)
    near = Select(Binary("eq", u, _ONE), x, mul(whole, _div(x, sub(u, _ONE))))
    return Select(_below(x, Const(_LARGE)), near, whole)


def _sinh(x: Expr) -> Expr:
    square = mul(x, x)
    series = mul(x, _polynomial(square, [1 / factorial(k) for k in range(9, 0, -2)]))
    up, down = (Unary("exp", mul(x, Const(factor))) for factor in (0.5, -0.5))
    far = sub(mul(mul(Const(0.5), up), up), mul(mul(Const(0.5), down), down))
    return Select(_below(Unary("abs", x), _ONE), series, far)


def _cosh(x: Expr) -> Expr:
    up, down = (Unary("exp", mul(x, Const(factor))) for factor in (0.5, -0.5))
    return add(mul(mul(Const(0.5), up), up), mul(mul(Const(0.5), down), down))


def _asinh(x: Expr) -> Expr:
    a = Unary("abs", x)
    square = mul(a, a)
    near = _log1p(add(a, _div(square, add(_ONE, Unary("sqrt", add(_ONE, square))))))
    far = add(Unary("log", a), Const(log(2.0)))
    return mul(Unary("sign", x), Select(_below(a, Const(_LARGE)), near, far))


def _acosh(x: Expr) -> Expr:
    t = sub(x, _ONE)
    near = _log1p(add(t, mul(Unary("sqrt", t), Unary("sqrt", add(t, Const(2.0))))))
    return Select(_below(x, Const(_LARGE)), near, add(Unary("log", x), Const(log(2.0))))


def _atanh(x: Expr) -> Expr:
    a = Unary("abs", x)
    return mul(mul(Const(0.5), Unary("sign", x)), _log1p(_div(add(a, a), sub(_ONE, a))))


def _round(x: Expr) -> Expr:
    low = Unary("floor", x)
    part, high = sub(x, low), add(low, _ONE)
    is_even = Binary("eq", mul(Const(2.0), Unary("floor", mul(low, Const(0.5)))), low)
    half = Select(is_even, low, high)
    return Select(_below(part, Const(0.5)), low, Select(_below(Const(0.5), part), high, half))


EXPM1, LOG1P = _expm1(_X), _log1p(_X)
SINH, COSH = _sinh(_X), _cosh(_X)
ASIN = Unary("atan", mul(_X, Unary("rsqrt", mul(sub(_ONE, _X), add(_ONE, _X)))))
ACOS = mul(Const(2.0), Unary("atan", Unary("sqrt", _div(sub(_ONE, _X), add(_ONE, _X)))))
ASINH, ACOSH, ATANH = _asinh(_X), _acosh(_X), _atanh(_X)
ROUND = _round(_X)
