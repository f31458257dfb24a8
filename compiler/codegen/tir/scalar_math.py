"""Transcendental functions in f32 as polynomials in operations that vectorise on every target.

TVM's LLVM back end turns `exp`, `log`, `tanh`, `erf`, ... into one libm call per lane; these are a few dozen vector
instructions instead. Largest errors over the whole range, in units in the last place (ulp) against float64, as the
tests measure them: exp 1.0, log 1.0, sigmoid 2.5, tanh 2.0, erf 1.5, sin and cos 1.5 (|x| <= 1e9), atan 2.0, pow 1.0.

Special values are those of C: exp(-inf) = 0, log(0) = -inf, log(x < 0) = NaN, NaN in, NaN out. Powers of e below
2**-125 (exp, and sigmoid far below zero) are 0; other subnormal results are produced where the processor does not flush
them. Nothing here converts a float to an integer (undefined in LLVM for
NaN): rounding adds a large constant, after which the integer is in the low bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tvm import tirx

from compiler.codegen.tir.tir import Block, Value, base, dtype, lanes_of, literal

_ROUND_F32 = 12582912.0  # 1.5 * 2**23
_ROUND_F64 = 6755399441055744.0  # 1.5 * 2**52
_LN2 = math.log(2.0)


def _like(value: float, x: Value) -> Value:
    return literal(value, base(x), lanes_of(x))


def _int(value: int, x: Value) -> Value:
    return literal(value, "int32", lanes_of(x))


def _bits(x: Value) -> Value:
    return tirx.reinterpret(dtype("int32", lanes_of(x)), x)


def _float(bits: Value) -> Value:
    return tirx.reinterpret(dtype("float32", lanes_of(bits)), bits)


def _fma(x: Value, y: Value, z: Value) -> Value:
    return tirx.call_llvm_pure_intrin(str(x.ty.dtype), "llvm.fma", x, y, z)


def _horner(block: Block, x: Value, coefficients: Sequence[float]) -> Value:
    """Polynomial in `x`, highest power first."""
    total = _like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        total = block.let(_fma(total, x, _like(coefficient, x)), "p")
    return total


def is_nan(x: Value) -> Value:
    """Whether `x` is NaN. Not `x != x`: TVM's float `NE` is LLVM's *ordered* comparison, false for NaN."""
    return tirx.Not(tirx.EQ(x, x))


def _at_most(x: Value, high: float) -> Value:
    """`x`, or the bound where `x` is above it; NaN stays."""
    return tirx.Select(tirx.LT(_like(high, x), x), _like(high, x), x)


def _clamp(x: Value, low: float, high: float) -> Value:
    """`x` within bounds; NaN stays."""
    above = _at_most(x, high)
    return tirx.Select(tirx.LT(x, _like(low, x)), _like(low, x), above)


def _scale(block: Block, x: Value, power: Value) -> Value:
    """`x * 2**power` for |power| <= 252 (int32), in two factors so that the ends of the range round once."""
    half = block.let(tirx.shift_right(power, _int(1, x)), "h")
    rest = block.let(tirx.Sub(power, half), "h")
    first, second = (_float(tirx.shift_left(tirx.Add(part, _int(127, x)), _int(23, x))) for part in (half, rest))
    return block.let(tirx.Mul(tirx.Mul(x, first), second), "scaled")


_HALF_POWER = _ROUND_F32 + 126.0
"""Added to a whole number n, its low bits are the exponent field of 2**(n - 1)."""
_EXP = (0.002762893394, 0.016737560876, 0.08333678842, 0.3333304022, 0.9999998682, 2.0, 2.0)
"""2 e**r for |r| <= ln 2 / 2, highest power first; relative error 3e-9."""


def _exp_within(block: Block, x: Value, *, low_bits: bool = True) -> Value:
    """e**x for x in [-87.3, 89.4]: x = n ln 2 + r, then 2 e**r times 2**(n - 1).

    That factor covers the largest results (2**128 has no exponent field of its own, but overflows as a product) at the
    price of results below 2**-125, where it is 0. `low_bits`: r is exact for large |n| too.
    """
    shifted = block.let(_fma(x, _like(1 / _LN2, x), _like(_HALF_POWER, x)), "t")
    n = block.let(tirx.Sub(shifted, _like(_HALF_POWER, x)), "n")
    r = block.let(_fma(n, _like(-0.693145752 if low_bits else -_LN2, x), x), "r")
    if low_bits:
        r = block.let(_fma(n, _like(-1.42860677e-6, x), r), "r")
    factor = _float(tirx.shift_left(_bits(shifted), _int(23, x)))
    return block.let(tirx.Mul(_horner(block, r, _EXP), factor), "exp")


def exp(block: Block, x: Value) -> Value:
    """e**x; 0 below x = -87 (2**-125), infinite above 88.72."""
    return _exp_within(block, block.let(_clamp(x, -87.3, 89.4), "x"))


def _split(block: Block, x: Value) -> tuple[Value, Value]:
    """(m, e): x = m * 2**e with m in [2/3, 4/3) and e as f32, for positive finite x, subnormal ones included."""
    small = block.let(tirx.LT(x, _like(1.17549435e-38, x)), "small")
    scaled = block.let(tirx.Select(small, tirx.Mul(x, _like(8388608.0, x)), x), "x")
    bits = block.let(_bits(scaled), "bits")
    offset = tirx.Sub(bits, _int(0x3F2AAAAB, x))
    exponent = block.let(tirx.shift_right(offset, _int(23, x)), "e")
    m = block.let(_float(tirx.Sub(bits, tirx.shift_left(exponent, _int(23, x)))), "m")
    bias = tirx.Select(small, _like(-23.0, x), _like(0.0, x))
    return m, block.let(tirx.Add(tirx.Cast(dtype("float32", lanes_of(x)), exponent), bias), "e")


def _log_ends(x: Value, inside: Value) -> Value:
    """`inside` where 0 < x < inf; the logarithm's values elsewhere (inf and NaN stay what they are)."""
    value = tirx.Select(tirx.LT(x, _like(math.inf, x)), inside, x)
    value = tirx.Select(tirx.LT(x, _like(0.0, x)), _like(math.nan, x), value)
    return tirx.Select(tirx.EQ(x, _like(0.0, x)), _like(-math.inf, x), value)


def log(block: Block, x: Value) -> Value:
    """Natural logarithm: x = m 2**e, log x = e ln 2 + log1p(m - 1), polynomial of degree 9."""
    m, e = _split(block, x)
    f = block.let(tirx.Sub(m, _like(1.0, x)), "f")
    s = block.let(tirx.Mul(f, f), "s")
    even = _horner(block, s, [-0.130310059, -0.121483512, -0.166846126, -0.249996200])
    odd = _horner(block, s, [0.140869141, 0.139814854, 0.200120345])
    r = block.let(_fma(odd, f, even), "r")
    r = block.let(_fma(r, f, _like(0.333331972, x)), "r")
    r = block.let(_fma(r, f, _like(-0.5, x)), "r")
    r = block.let(_fma(r, s, f), "r")
    return block.let(_log_ends(x, block.let(_fma(e, _like(_LN2, x), r), "r")), "log")


def sigmoid(block: Block, x: Value) -> Value:
    """1 / (1 + e**-x): where e**-x overflows, 1 / inf is the right 0."""
    e = exp(block, block.let(_negated(x), "x"))
    return block.let(tirx.Div(_like(1.0, x), tirx.Add(_like(1.0, x), e)), "sigmoid")


def _negated(x: Value) -> Value:
    return tirx.Mul(x, _like(-1.0, x))


def _with_sign_of(x: Value, magnitude: Value) -> Value:
    sign = tirx.bitwise_and(_bits(x), _int(-(2**31), x))
    return _float(tirx.bitwise_or(_bits(magnitude), sign))


def tanh(block: Block, x: Value) -> Value:
    """Odd polynomial below 0.625 (Cephes), 1 - 2 / (e**2|x| + 1) above."""
    size = block.let(tirx.abs(x), "a")
    s = block.let(tirx.Mul(x, x), "s")
    p = _horner(block, s, [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1])
    near = block.let(_fma(tirx.Mul(p, s), x, x), "near")
    e = _exp_within(block, block.let(_at_most(tirx.Add(size, size), 20.0), "x"), low_bits=False)
    far = tirx.Sub(_like(1.0, x), tirx.Div(_like(2.0, x), tirx.Add(e, _like(1.0, x))))
    far = block.let(_with_sign_of(x, block.let(far, "far")), "far")
    return block.let(tirx.Select(tirx.LT(size, _like(0.625, x)), near, far), "tanh")


def erf(block: Block, x: Value) -> Value:
    """Error function: odd polynomial below 0.93, 1 - e**q(|x|) above (after N. Juffa)."""
    size = block.let(tirx.abs(x), "a")
    s = block.let(tirx.Mul(x, x), "s")
    p = _horner(
        block,
        s,
        [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1],
    )
    near = block.let(_fma(p, x, x), "near")
    t = block.let(_at_most(size, 4.0), "t")
    q = _horner(
        block,
        t,
        [-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1],
    )
    q = block.let(_fma(q, t, _negated(t)), "q")
    far = block.let(tirx.Sub(_like(1.0, x), _exp_within(block, q, low_bits=False)), "far")
    far = block.let(_with_sign_of(x, far), "far")
    return block.let(tirx.Select(tirx.LT(size, _like(0.927734375, x)), near, far), "erf")


def atan(block: Block, x: Value) -> Value:
    """Arc tangent: |x| above tan(3 pi / 8) is turned by pi / 2, above tan(pi / 8) by pi / 4 (Cephes)."""
    size = block.let(tirx.abs(x), "a")
    far, middle = tirx.LT(_like(2.414213562, x), size), tirx.LT(_like(0.4142135624, x), size)
    over = tirx.Select(far, _like(-1.0, x), tirx.Select(middle, tirx.Sub(size, _like(1.0, x)), size))
    under = tirx.Select(far, size, tirx.Select(middle, tirx.Add(size, _like(1.0, x)), _like(1.0, x)))
    t = block.let(tirx.Div(over, under), "t")
    start = tirx.Select(far, _like(math.pi / 2, x), tirx.Select(middle, _like(math.pi / 4, x), _like(0.0, x)))
    s = block.let(tirx.Mul(t, t), "s")
    p = _horner(block, s, [8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1])
    lost = tirx.Select(far, _like(-4.371139e-8, x), tirx.Select(middle, _like(-2.1855695e-8, x), _like(0.0, x)))
    turned = block.let(tirx.Add(start, tirx.Add(_fma(tirx.Mul(p, s), t, t), lost)), "turned")
    return block.let(_with_sign_of(x, turned), "atan")


def _wave(block: Block, x: Value, quarter: int) -> Value:
    """sin(x + quarter * pi / 2): x = j pi/2 + r in f64, then the polynomial that j and `quarter` choose."""
    wide = block.let(tirx.Cast(dtype("float64", lanes_of(x)), x), "x")
    shifted = block.let(_fma(wide, _like(2 / math.pi, wide), _like(_ROUND_F64, wide)), "t")
    j = block.let(tirx.Sub(shifted, _like(_ROUND_F64, wide)), "j")
    r = block.let(_fma(j, _like(-1.5707963267948966, wide), wide), "r")
    r = block.let(_fma(j, _like(-6.123233995736766e-17, wide), r), "r")
    a = block.let(_clamp(tirx.Cast(dtype("float32", lanes_of(x)), r), -0.8, 0.8), "a")
    low = tirx.Cast(dtype("int32", lanes_of(x)), tirx.reinterpret(dtype("int64", lanes_of(x)), shifted))
    turn = block.let(tirx.Add(low, _int(quarter, x)), "turn")
    s = block.let(tirx.Mul(a, a), "s")
    sine = _horner(block, s, [2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1])
    sine = block.let(_fma(sine, tirx.Mul(s, a), a), "sine")
    cosine = _horner(block, s, [2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0])
    even = tirx.EQ(tirx.bitwise_and(turn, _int(1, x)), _int(0, x))
    value = block.let(tirx.Select(even, sine, cosine), "wave")
    negative = tirx.shift_left(tirx.bitwise_and(turn, _int(2, x)), _int(30, x))
    return block.let(_float(tirx.bitwise_xor(_bits(value), negative)), "wave")


def sin(block: Block, x: Value) -> Value:
    """Sine; accurate for |x| <= 1e9, within [-1, 1] beyond, NaN for infinities."""
    return _wave(block, x, 0)


def cos(block: Block, x: Value) -> Value:
    """Cosine; accurate for |x| <= 1e9, within [-1, 1] beyond, NaN for infinities."""
    return _wave(block, x, 1)


def _log2_wide(block: Block, x: Value) -> Value:
    """log2 of non-negative x as f64, good to 1e-13: 2 atanh((m - 1) / (m + 1)) by its series."""
    m, e = _split(block, x)
    wide = dtype("float64", lanes_of(x))
    m = block.let(tirx.Cast(wide, m), "m")
    s = block.let(tirx.Div(tirx.Sub(m, _like(1.0, m)), tirx.Add(m, _like(1.0, m))), "s")
    p = _horner(block, block.let(tirx.Mul(s, s), "s2"), [1 / k for k in (17, 15, 13, 11, 9, 7, 5, 3, 1)])
    inside = block.let(_fma(tirx.Mul(p, s), _like(2 / _LN2, s), tirx.Cast(wide, e)), "log2")
    zero = tirx.EQ(x, _like(0.0, x))
    outside = tirx.Select(tirx.LT(x, _like(math.inf, x)), inside, tirx.Cast(wide, x))
    return block.let(tirx.Select(zero, _like(-math.inf, s), outside), "log2")


def _general_power(block: Block, x: Value, y: Value) -> Value:
    """|x|**y for y != 0, in f64 so that the result rounds once: 2**(y log2 |x|)."""
    wide = dtype("float64", lanes_of(x))
    log2 = _log2_wide(block, block.let(tirx.abs(x), "a"))
    t = block.let(_clamp(block.let(tirx.Mul(tirx.Cast(wide, y), log2), "t"), -160.0, 140.0), "t")
    shifted = block.let(tirx.Add(t, _like(_ROUND_F64, t)), "r")
    n = block.let(tirx.Sub(shifted, _like(_ROUND_F64, t)), "n")
    r = block.let(tirx.Mul(tirx.Sub(t, n), _like(_LN2, t)), "r")
    p = _horner(block, r, [1 / math.factorial(k) for k in range(11, -1, -1)])
    power = tirx.Cast(dtype("int32", lanes_of(x)), tirx.reinterpret(dtype("int64", lanes_of(x)), shifted))
    return _scale(block, block.let(tirx.Cast(dtype("float32", lanes_of(x)), p), "p"), block.let(power, "n"))


def quotient(x: Value, y: Value, number: Callable[[float, str, int], Value] = literal) -> Value:
    """x / y; by an ordinary constant, a product with its reciprocal (within 1.5 ulp, a tenth of the time).

    `number` writes that (see `expressions.Functions.literal`).
    """
    constant = _constant(y)
    if constant is None or not 1e-30 < abs(constant) < 1e30:
        return tirx.Div(x, y)
    return tirx.Mul(x, number(1.0 / constant, base(x), lanes_of(x)))


def short_power(block: Block, x: Value, y: Value) -> Value | None:
    """x**y of a small constant exponent; None: it is another."""
    constant = _constant(y)
    return _POWERS[constant](block, x) if constant in _POWERS else None


def power(block: Block, x: Value, y: Value) -> Value:
    """x**y as C's `powf`; small constant exponents become products, square roots and reciprocals."""
    short = short_power(block, x, y)
    if short is not None:
        return short
    size = _general_power(block, x, y)
    half = block.let(tirx.Mul(y, _like(0.5, y)), "half")
    fraction = block.let(tirx.NE(tirx.floor(y), y), "fraction")
    odd = tirx.And(tirx.NE(tirx.floor(half), half), tirx.Not(fraction))
    below_zero = tirx.LT(_bits(x), _int(0, x))
    signed = tirx.Select(tirx.And(below_zero, odd), tirx.Sub(_like(0.0, x), size), size)
    finite_negative = tirx.And(tirx.LT(x, _like(0.0, x)), tirx.LT(_like(-math.inf, x), x))
    value = tirx.Select(tirx.And(finite_negative, fraction), _like(math.nan, x), signed)
    turning = tirx.And(tirx.EQ(x, _like(-1.0, x)), tirx.EQ(tirx.abs(y), _like(math.inf, y)))
    is_one = tirx.Or(tirx.Or(tirx.EQ(y, _like(0.0, y)), tirx.EQ(x, _like(1.0, x))), turning)
    return block.let(tirx.Select(is_one, _like(1.0, x), value), "pow")


def _constant(y: Value) -> float | None:
    scalar = y.value if isinstance(y, tirx.Broadcast) else y
    return float(scalar.value) if isinstance(scalar, tirx.FloatImm) else None


def _reciprocal(block: Block, x: Value) -> Value:
    return tirx.Div(_like(1.0, x), x)


def _rsqrt(block: Block, x: Value) -> Value:
    return tirx.Div(_like(1.0, x), tirx.sqrt(x))


def _square(block: Block, x: Value) -> Value:
    return block.let(tirx.Mul(x, x), "square")


_POWERS: Mapping[float | None, Callable[[Block, Value], Value]] = {
    0.0: lambda block, x: _like(1.0, x),
    1.0: lambda block, x: x,
    2.0: _square,
    3.0: lambda block, x: tirx.Mul(_square(block, x), x),
    4.0: lambda block, x: _square(block, _square(block, x)),
    0.5: lambda block, x: tirx.sqrt(x),
    -0.5: _rsqrt,
    -1.0: _reciprocal,
    -2.0: lambda block, x: _reciprocal(block, _square(block, x)),
}

UNARY_F32: Mapping[str, Callable[[Block, Value], Value]] = {
    "abs": lambda block, x: tirx.abs(x),
    "atan": atan,
    "cos": cos,
    "erf": erf,
    "exp": exp,
    "floor": lambda block, x: tirx.floor(x),
    "log": log,
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
    "sigmoid": sigmoid,
    "sin": sin,
    "sqrt": lambda block, x: tirx.sqrt(x),
    "tanh": tanh,
}
"""The f32 functions of one operand by name: (block, x) -> value."""
