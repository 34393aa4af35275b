"""Random draws: named streams, one for each class and purpose, and the standard normal distribution."""

import hashlib
import math

import numpy as np

from simulator.errors import InputError
from simulator.workload import Floats

# Named random streams: one for each class and purpose, independent of the others.


def stream(seed: int, class_name: str, purpose: str) -> np.random.Generator:
    """Return the random numbers of a class for a purpose ("arrivals", "input", ...) under a seed.

    They depend on these three alone, not on other classes or the policy. Raises InputError for a negative seed.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", hint="allowed: whole numbers from 0")
    name = f"{len(class_name)}:{class_name}:{purpose}".encode()
    digest = hashlib.sha256(name).digest()  # hash() differs from process to process
    key = tuple(int.from_bytes(digest[start : start + 4], "little") for start in range(0, 16, 4))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


# The standard normal distribution with nothing but numpy: its CDF for one number, its inverse for many.

# Coefficients of algorithm AS 241 (PPND16), M. J. Wichura, Applied Statistics 37 (1988) 477-484; relative error
# about 1e-16. Highest power first, as Horner's scheme reads them. Region: near the middle, tail, far tail.
_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def cdf(z: float) -> float:
    """Probability that a standard normal variable is below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def cdf_of(z: Floats) -> Floats:
    """`cdf`, elementwise."""
    return 0.5 * np.fromiter(map(math.erfc, (z / -math.sqrt(2.0)).tolist()), np.float64, len(z))


def inverse_cdf(probability: Floats) -> Floats:
    """The `z` with `cdf(z) == probability`, elementwise; 0 and 1 give the infinities."""
    centred = probability - 0.5
    result = np.empty_like(probability)
    middle = np.abs(centred) <= 0.425
    q = centred[middle]
    result[middle] = q * _ratio(_MIDDLE, 0.180625 - q * q)
    outer = ~middle
    if outer.any():
        tail_mass = np.minimum(probability[outer], 1.0 - probability[outer])
        with np.errstate(divide="ignore", invalid="ignore"):
            r = np.sqrt(-np.log(tail_mass))
            z = np.where(r <= 5.0, _ratio(_TAIL, r - 1.6), _ratio(_FAR, r - 5.0))
        z[np.isinf(r)] = np.inf
        result[outer] = np.copysign(z, centred[outer])
    return result


def quantile(probability: float) -> float:
    """`inverse_cdf` of one number."""
    return float(inverse_cdf(np.array([probability]))[0])


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Floats) -> Floats:
    numerator, denominator = coefficients
    return _horner(numerator, x) / _horner(denominator, x)


def _horner(coefficients: tuple[float, ...], x: Floats) -> Floats:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total
