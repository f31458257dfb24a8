"""Import rows of the family: activations."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import Case, X, floats


def cases() -> Iterator[Case]:
    for op in ("HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Celu", "Selu", "Softplus", "Mish", "Softsign"):
        yield Case(op, (X,))
    yield Case("ThresholdedRelu", (X,), {"alpha": 0.3})
    yield Case("HardSigmoid", (X,), {"alpha": 0.3, "beta": 0.4}, label="attributes")
    yield Case("Celu", (X,), {"alpha": 0.7}, label="alpha")
    yield Case("PRelu", (X, floats(4)))
    yield Case("Gelu", (X,), opset=20)
    yield Case("Gelu", (X,), {"approximate": "tanh"}, opset=20, label="tanh")
