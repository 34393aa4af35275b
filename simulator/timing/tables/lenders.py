"""Parts that tables lack, from other tables of the same GPU: of another version, or of another engine.

Kernels of one GPU differ less from engine to engine than a roofline does from a kernel, and often are the same library
(DeepGEMM, FlashInfer). What is taken so is marked as borrowed, with the name of whose it is.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from simulator.errors import InputError
from simulator.timing.tables.part_sources import BORROWED, PartSource
from simulator.timing.tables.table_schema import Tables

R = TypeVar("R")


def first(own: Tables, lenders: Sequence[Tables], take: Callable[[Tables], R]) -> tuple[R, Tables]:
    """Return what `take` makes of the first tables that have it, and these. The own ones' InputError if none has."""
    try:
        return take(own), own
    except InputError:
        for lender in lenders:
            with suppress(InputError):
                return take(lender), lender
        raise


def with_products(own: Tables, precisions: Iterable[str], lenders: Sequence[Tables]) -> Tables:
    """Return the tables with products of these precisions, where the lenders have what they lack."""
    products, lent = dict(own.products), {}
    for precision in precisions:
        lender = next((each for each in lenders if precision in each.products), None)
        if precision not in products and lender is not None:
            products[precision], lent[precision] = lender.products[precision], lender.software
    return replace(own, products=products, document={**own.document, "lent": lent}) if lent else own


def marked(parts: Iterable[PartSource], own: Tables, software: str) -> list[PartSource]:
    """Return parts as borrowed from the software, unless it is the tables' own."""
    if software == own.software:
        return list(parts)
    return [replace(part, how=BORROWED, words=as_under(part.words, software)) for part in parts]


def as_under(words: str, software: str) -> str:
    """Return the words of a part with whose kernels it has."""
    return f"{words}, as under {software}" if words else f"as under {software}"
