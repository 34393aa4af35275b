"""Texts as tokens, and answers as words: a stand-in for the model's tokenizer, which batchlab does not have.

A token is a word of up to eight letters with the blank before it (a longer word is several), up to three digits, up to
three signs, or blanks: English text comes to about five characters a token, where Llama 3's tokenizer has four to five.
A client that needs exact counts sends token ids. The id of a token is a checksum of it, so equal texts have equal ids,
which is all that a prefix cache asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from zlib import crc32

VOCABULARY = 100_000
_TOKEN = re.compile(r" ?[^\W\d_]{1,8}| ?\d{1,3}| ?(?:[^\w\s]|_){1,3}|\s{1,8}")
_TEXT = """
the of and to in is that it was for on are as with they at be this from have or by one had not but what all were when
we there can an your which their if will each about how up out them then she many some so these would other into has
more her two like him see time could no make than first been its who now people my made over did down only way find
use may water long little very after word just where most know get through back much go good new our me man too any
day same right look think also around another came come work three must because does part even place well such here
take why help put years away again off went old number great tell men say small every found still between name should
home big give air line set own under read last never us left end along while might next
"""
_WORDS = _TEXT.split()
_MASK = (1 << 64) - 1


def token_id(piece: str) -> int:
    """The id of a token."""
    return crc32(piece.encode("utf-8", "surrogatepass")) % VOCABULARY


_BEGIN = [token_id(word) for word in _WORDS]
_GO_ON = [token_id(f" {word}") for word in _WORDS]


class Tokenizer:
    """Remembers the tokens it has seen, to turn ids back into text."""

    def __init__(self) -> None:
        self._pieces = dict(zip([*_BEGIN, *_GO_ON], [*_WORDS, *(f" {word}" for word in _WORDS)], strict=True))

    def count(self, text: str) -> int:
        """Count the tokens of a text."""
        return sum(1 for _ in _TOKEN.finditer(text))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        pieces: list[str] = _TOKEN.findall(text)
        ids = [token_id(piece) for piece in pieces]
        self._pieces.update(zip(ids, pieces, strict=True))  # at most one for each id
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of these tokens, with a word for an id that no text had."""
        return "".join([self._pieces.get(each) or f" {_WORDS[each % len(_WORDS)]}" for each in ids])


class Answer:
    """The words of an answer, one a token: `key` decides which. Made as they are asked for."""

    __slots__ = ("_end", "_key")

    def __init__(self, key: int, *, end: int | None = None) -> None:
        self._key = key
        self._end = end  # where a stop string cuts the text off, in characters

    def _word(self, place: int) -> int:
        mixed = (self._key + (place + 1) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        return (mixed >> 32) % len(_WORDS)

    def text(self, start: int, stop: int) -> str:
        """The text of tokens `start` to `stop` (excluded)."""
        text = self._whole(start, stop)
        return text if self._end is None else text[: max(0, self._end - len(self._whole(0, start)))]

    def _whole(self, start: int, stop: int) -> str:
        text = " ".join([_WORDS[self._word(place)] for place in range(start, stop)])
        return f" {text}" if start and text else text

    def ids(self, tokens: int) -> tuple[int, ...]:
        """The ids of its first tokens, as `Tokenizer.encode` has them."""
        return tuple([(_GO_ON if place else _BEGIN)[self._word(place)] for place in range(tokens)])

    def stopped(self, stops: Sequence[str], tokens: int, min_tokens: int) -> tuple[Answer, int] | None:
        """The answer cut off before the first stop string among its first tokens, and how many tokens that takes.

        None where there is none. A stop string that is complete within `min_tokens` does not count.
        """
        ends = list(accumulate(len(self._whole(place, place + 1)) for place in range(tokens)))
        text = self._whole(0, tokens)
        found = []
        for stop in stops:
            begin = text.find(stop)
            while begin >= 0:
                needed = next(place for place, end in enumerate(ends, 1) if end >= begin + len(stop))
                if needed > min_tokens:
                    found.append((begin, needed))
                    break
                begin = text.find(stop, begin + 1)
        if not found:
            return None
        begin, needed = min(found)
        return Answer(self._key, end=begin), needed
