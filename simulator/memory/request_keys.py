"""The block keys of the requests that a prefix cache has to do with."""

from collections.abc import Callable, Iterable
from typing import Final

from simulator.memory.block_keys import BlockKeys, Chains
from simulator.request import Request

_TEXTS: Final = 4000  # so many are kept in any case
# And so many times as many as were kept the last time: to look for what nothing holds takes as long as a twentieth of a
# request, for each text known.
_GROWTH: Final = 4


class RequestKeys:
    """Keys by request, worked out once for each.

    `num_telling` counts the requests whose answers others may find: what decoding fills of them has to enter the cache
    in time. What others decode is their own, and need have entered only when they leave.

    With speculative decoding a key may cover the `lookahead` tokens behind its block too, which the drafter has read;
    or the last block of every hit is dropped (`drops_hit_block`). A block is found if `behind` tokens or more follow it
    in the sequence: one is left to compute, and what its key covers is known.

    `used` gives the keys that are kept elsewhere, the last of each stretch. Where it is known, texts are forgotten that
    are neither there nor in a request at hand.
    """

    __slots__ = (
        "_chains", "_keys", "behind", "block_size", "drops_hit_block", "lookahead", "num_telling", "used",
    )  # fmt: skip

    def __init__(self, block_size: int, lookahead: int = 0, *, drops_hit_block: bool = False) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self.behind = max(1, lookahead)
        self.drops_hit_block = drops_hit_block
        self.num_telling = 0
        self._keys: dict[int, BlockKeys] = {}
        self._chains = Chains(_TEXTS, _GROWTH)
        self.used: Callable[[], Iterable[int]] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, request: Request) -> BlockKeys:
        """The keys of this request."""
        keys = self._keys.get(request.row)
        if keys is None:
            if self.used is not None:
                self._chains.tidy(self._all_used)
            keys = self._keys[request.row] = BlockKeys(request, self.block_size, self._chains, self.lookahead)
            self.num_telling += keys.tells_answer
        return keys

    def _all_used(self) -> list[int]:
        """What is used elsewhere, and the last key of each text of the requests at hand."""
        assert self.used is not None
        at_hand = [text + stop - 1 for keys in self._keys.values() for text, _, stop in keys.stretches()]
        return [*self.used(), *at_hand]

    def end(self, row: int) -> None:
        """Forget the keys of a request."""
        keys = self._keys.pop(row, None)
        if keys is not None:
            self.num_telling -= keys.tells_answer

    def key_at(self, request: Request, place: int) -> int | None:
        """A name of the content of this block of a request; None where it is behind what others may have."""
        stretch = self.of(request).text_at(place)
        return None if stretch is None else stretch[0] + place
