"""Division of counts, which the engine and policies do at every step."""


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b, for integers."""
    return -(-a // b)
