"""The name of a queue order that brings its parameters along."""

from __future__ import annotations

from typing import Any, Self


class Order(str):
    """A queue order with parameters: `Order("sjf", aging_s=30.0)`.

    It is the order's name, and may stand wherever a name may: policies hand it on and need not know who takes which
    parameters. Equality is that of names.
    """

    parameters: dict[str, Any]

    def __new__(cls, name: str, **parameters: Any) -> Self:
        order = super().__new__(cls, name)
        order.parameters = parameters
        return order

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.parameters.items()]
        return f"Order({', '.join([repr(str(self)), *given])})"
