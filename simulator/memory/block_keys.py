"""Keys of KV blocks, and those of the requests that a prefix cache has to do with.

Equal keys mean equal tokens up to and including the block. A key is made from token ids, the block hashes of a trace, a
shared prefix group, the conversation, or, where nothing is said of content, from the request itself; and from the
adapter, where one computes the block. A prefix cache knows content by these keys alone.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from typing import Final, cast

from simulator.division import cdiv
from simulator.errors import InputError
from simulator.request import PromptContent, Request

_Tokens = tuple[Hashable, ...]
Parts = tuple[_Tokens, _Tokens]  # the tokens of a prompt and its answer; to join them would touch every one
Stretch = tuple[int, int, int]  # a text, and the places of a sequence from and up to which it goes on with that
# The key of its first block, the place behind its last, what it is a part of, where another went on otherwise, and, of
# one that was cut, which many begin with, the tokens behind its first block and what its key covers of the next.
_Text = tuple[int, int, Parts, int, _Tokens]


class Chains:
    """Numbers for names, and texts of token ids by the key of the block before and the tokens of their first block.

    A text goes on to its end, where other requests may go on with texts of their own: so a request with token ids has
    one entry, however long it is. `tidy` forgets what is not used, once more than `least` are known, and `growth` times
    as many as were kept the last time.
    """

    __slots__ = ("_count", "_growth", "_least", "_most", "_names", "texts")

    def __init__(self, least: int = sys.maxsize, growth: int = 1) -> None:
        self._least = self._most = least
        self._growth = growth
        self._count = 0  # of the names, and of the blocks of the texts
        self._names: dict[tuple[str, Hashable], int] = {}
        self.texts: dict[tuple[Hashable, _Tokens], _Text] = {}

    def named(self, kind: str, name: Hashable) -> int:
        """The number of a name."""
        return self._names.get((kind, name)) or self._names.setdefault((kind, name), self.after(1))

    def after(self, blocks: int) -> int:
        """A number that nothing has, where the next ones are those of so many blocks."""
        first = self._count + 1
        self._count += blocks
        return first * NUMBER

    def __len__(self) -> int:
        """Names and texts that are known."""
        return len(self._names) + len(self.texts)

    def tidy(self, used: Callable[[], Iterable[int]]) -> None:
        """Forget what has none of the keys that are used, if it is time to."""
        if len(self) > self._most:
            self._keep(used())
            self._most = max(self._least, self._growth * len(self))

    def _keep(self, used: Iterable[int]) -> None:
        """Forget every name and text, but for those with a key that is used, and what these go on from."""
        texts = {text[0]: before for (before, _), text in self.texts.items()}
        numbers = sorted([*texts, *self._names.values()])  # the keys from one to before the next are its own
        kept: set[int] = set()
        for key in used:
            before: Hashable = key
            while isinstance(before, int) and before:
                number = numbers[bisect_right(numbers, before) - 1]
                if number in kept:
                    break
                kept.add(number)
                before = texts.get(number)
        self.texts = {key: text for key, text in self.texts.items() if text[0] in kept}
        self._names = {name: number for name, number in self._names.items() if number in kept}

    def follow(self, key: Hashable, parts: Parts, stop: int, size: int, lookahead: int = 0) -> list[Stretch]:
        """`stop` blocks of tokens behind `key`: the texts that are there, as far as these go, and then a text more."""
        found: list[Stretch] = []
        texts = self.texts
        prompt = parts[0]
        length = len(prompt)
        place = 0
        while place < stop:
            start = place * size
            end = start + size + lookahead
            first = key, prompt[start:end] if end <= length else _cut(parts, start, end)
            text = texts.get(first)
            if text is None:
                number = self.after(stop - place)
                texts[first] = number, stop, parts, 0, ()
                found.append((number - place, place, stop))
                break
            number, end, other, left, tokens = text
            most = end if end < stop else stop
            same = place + 1
            if same < most:
                start, behind = same * size, most * size + lookahead
                theirs = tokens if tokens and most == end else other[0][start:behind]
                if behind <= length and prompt[start:behind] == theirs:
                    same = most  # nearly always
                else:
                    same = _common(parts, other, same, most, size, lookahead)
            if same == left < most:  # many do: the text is cut here, and its beginning compared at once
                behind = same * size + lookahead
                texts[first] = number, same, other, 0, _cut(other, (place + 1) * size, behind)
                tail = number + same - place
                texts[tail - 1, _cut(other, same * size, behind + size)] = tail, end, other, 0, ()
            elif same < most:
                texts[first] = number, end, other, same, tokens
            name = number - place
            if found and found[-1][0] == name:  # the same text, which was cut
                place = found.pop()[1]
            found.append((name, place, same))
            key = name + same - 1
            place = same
        return found


def _common(parts: Parts, other: Parts, place: int, end: int, size: int, lookahead: int) -> int:
    """The first block from `place` on that differs; `end` if none does before it."""
    prompt = (len(parts[0]) - lookahead) // size
    guesses = [prompt + 1, prompt]  # the answer often is what differs
    while place < end:
        middle = guesses.pop() if guesses else (place + end + 1) // 2
        if place < middle <= end:
            start, behind = place * size, middle * size + lookahead
            if _cut(parts, start, behind) == _cut(other, start, behind):
                place = middle
            else:
                end = middle - 1
    return place


def _cut(parts: Parts, start: int, stop: int) -> _Tokens:
    """The tokens from `start` to before `stop`."""
    prompt, answer = parts
    length = len(prompt)
    if stop <= length:
        return prompt[start:stop]
    return answer[start - length : stop - length] if start >= length else prompt[start:] + answer[: stop - length]


# A key is a number times `NUMBER`, and the block's place where the number names what goes on for several blocks. With
# `HASHED` the number is a trace's own. Of 32 bits, it is the golden ratio's multiplier (Knuth, TAOCP 3, 6.4): runs of
# keys lie apart in a hash table, where powers of two had them collide.
HASHED = 2_654_435_761
NUMBER = 2 * HASHED
IDS: Final = "ids"
HASH: Final = "hash"
GROUP: Final = "group"
CONVERSATION: Final = "conversation"
_AT_ONCE = 32  # keys worked out together, as decoding asks for one after the other


class BlockKeys:
    """Keys of one request's full blocks, by their index in its sequence of prompt and output tokens.

    The first `num_shared` blocks may be found in other requests too, and their keys are integers; `tells_answer`: some
    of these hold tokens of the answer. Blocks behind hold a token of which nothing is known, which is the request's
    own: no other request has such a key. A key covers the `lookahead` tokens behind its block, too.
    """

    __slots__ = (
        "_blocks_a_hash",
        "_chains",
        "_known",
        "_lookahead",
        "_request",
        "_row",
        "_size",
        "_stretches",
        "_tokens",
        "num_shared",
        "tells_answer",
    )

    def __init__(self, request: Request, block_size: int, chains: Chains, lookahead: int = 0) -> None:
        content = request.content
        self._row = request.row
        self._size = block_size
        self._lookahead = lookahead
        self._chains = chains
        self._request = request
        self._tokens: Parts = (), ()
        self._blocks_a_hash = 0  # 0: they take more than a division to find
        self._known: list[Hashable] = []  # of the leading shared blocks, computed on demand
        self._stretches: list[Stretch] | None = None
        self.num_shared = num_shared_blocks(request, block_size, lookahead)
        self.tells_answer = self.num_shared > request.input_tokens // block_size
        if content is not None and content.prompt_token_ids:
            self._tokens = _tokens(request, content, block_size)
        elif content is not None and content.block_hashes and not lookahead and request.lora is None:
            self._blocks_a_hash = content.hash_block_size // block_size

    def __getitem__(self, block: int) -> Hashable:
        """The key of the full block with this index, from 0."""
        return self.first(block + 1)[block] if block < self.num_shared else (self._row, block)

    def first(self, blocks: int) -> list[Hashable]:
        """Keys of the leading shared blocks, at least so many where there are: a list that is not to be changed."""
        known = self._known
        start = len(known)
        if start < blocks and start < self.num_shared:
            self._extend(known, start, min(max(blocks, start + _AT_ONCE), self.num_shared))
        return known

    def _extend(self, known: list[Hashable], start: int, stop: int) -> None:
        """Work out the keys of the blocks from `start` to before `stop`."""
        if self._blocks_a_hash:
            self._extend_hashed(known, start, stop)
        else:
            for part in self.ranges(start, stop):
                known += part

    def stretches(self) -> list[Stretch]:
        """The shared blocks as parts of texts: equal content has an equal place in an equal text, and no other has."""
        found = self._stretches
        if found is None:
            found = self._stretches = self._find_stretches() if self.num_shared else []
        return found

    def _find_stretches(self) -> list[Stretch]:
        content, size, shared = self._request.content, self._size, self.num_shared
        assert content is not None
        chains = self._chains
        if self._tokens[0]:
            return chains.follow(_of(self._request.lora, 0), self._tokens, shared, size, self._lookahead)
        if content.block_hashes and not self._lookahead:  # hashes are a text, too
            hash_size = content.hash_block_size
            step = max(1, size // hash_size)
            names = content.block_hashes[step - 1 :: step]
            if hash_size <= size:
                return chains.follow((self._request.lora,), (names, ()), shared, 1)
            each = hash_size // size  # blocks of a hash, which a text names one by one
            found = chains.follow((self._request.lora,), (names, ()), cdiv(shared, each), 1)
            return [(text + a - a * each, a * each, min(b * each, shared)) for text, a, b in found]
        named = stretches(self._request, size, 0, shared, self._lookahead)
        return [(chains.named(kind, name), start, stop) for kind, name, start, stop in named]

    def text_at(self, place: int) -> Stretch | None:
        """The part of a text that a block lies in; None for a request's own."""
        for stretch in self.stretches():
            if place < stretch[2]:
                return stretch
        return None

    def ranges(self, start: int, stop: int) -> list[range]:
        """The keys of the shared blocks from `start` to before `stop`; of token ids those of all."""
        if self._tokens[0]:
            return [range(text + first, text + end) for text, first, end in self.stretches()]
        found = []
        for kind, name, first, end in stretches(self._request, self._size, start, stop, self._lookahead):
            if kind == HASH and self._request.lora is None:
                number = cast(int, name) * NUMBER + HASHED
            else:
                number = self._chains.named(kind, name)
            found.append(range(number + first, number + end))
        return found

    def _extend_hashed(self, known: list[Hashable], start: int, stop: int) -> None:
        """The same where a hash names one block or several, all of which are known together."""
        assert self._request.content is not None
        each = self._blocks_a_hash
        first = start // each
        for name in self._request.content.block_hashes[first : -(-stop // each)]:
            number = name * NUMBER + HASHED + first * each
            known += range(number, number + each)
            first += 1
        del known[self.num_shared :]


def num_shared_blocks(request: Request, block_size: int, lookahead: int = 0) -> int:
    """The leading full blocks of a request that other requests may have too, its answer's included.

    The `lookahead` tokens behind each are known to be shared as well. InputError where the size of its hashes does not
    go with the block size.
    """
    content = request.content
    if content is None:
        return 0
    if content.prompt_token_ids:
        return max(0, len(content.prompt_token_ids) + len(content.output_token_ids) - lookahead) // block_size
    if content.block_hashes:
        check_hash_size(request, block_size)
        hashed = min(len(content.block_hashes) * content.hash_block_size, request.input_tokens)
        return max(0, hashed - lookahead) // block_size
    return _grouped(request, content, block_size, lookahead) if content.conversation is None else sys.maxsize


def stretches(
    request: Request, block_size: int, start: int, stop: int, lookahead: int = 0
) -> list[tuple[str, Hashable, int, int]]:
    """The shared blocks from `start` to before `stop`, as (kind, name, first, end).

    Blocks of one kind and name have equal content where they have equal places, if all before is equal too.
    """
    content, lora = request.content, request.lora
    assert content is not None
    found: list[tuple[str, Hashable, int, int]] = []
    if content.prompt_token_ids:
        tokens = content.prompt_token_ids + content.output_token_ids
        for block in range(start, stop):
            name = tokens[block * block_size : (block + 1) * block_size]
            found.append(
                (IDS, _of(lora, _with_images(request, block * block_size, block_size, name)), block, block + 1)
            )
    elif content.block_hashes:
        hash_size = content.hash_block_size
        while start < stop:
            place = ((start + 1) * block_size + lookahead - 1) // hash_size  # of the hash that names the last token
            end = min(stop, max(start + 1, ((place + 1) * hash_size - lookahead) // block_size))
            found.append((HASH, _of(lora, content.block_hashes[place]), start, end))
            start = end
    else:
        grouped = min(_grouped(request, content, block_size, lookahead), stop)
        if start < grouped:
            found.append((GROUP, _of(lora, content.prefix_group), start, grouped))
        if max(start, grouped) < stop:
            found.append((CONVERSATION, _of(lora, content.conversation), max(start, grouped), stop))
    return found


def _tokens(request: Request, content: PromptContent, block_size: int) -> Parts:
    """The token ids of a request; the last of a block stands beside the images that lie in the block."""
    if not request.images:
        return content.prompt_token_ids, content.output_token_ids
    marked: list[Hashable] = [*content.prompt_token_ids, *content.output_token_ids]
    for last in range(block_size - 1, len(marked), block_size):
        marked[last] = _with_images(request, last + 1 - block_size, block_size, marked[last])
    return tuple(marked), ()


def _with_images(request: Request, first: int, size: int, name: Hashable) -> Hashable:
    """What names a block from token `first` on with the images that lie in it: vLLM's hash holds both."""
    if not request.images:
        return name
    found = [(i.identifier, i.offset - first) for i in request.images if i.offset < first + size and i.end > first]
    return (name, *found) if found else name


def _of(lora: str | None, name: Hashable) -> Hashable:
    """What names a block that this adapter computed: vLLM's hash of a block holds the adapter's name."""
    return name if lora is None else (lora, name)


def _grouped(request: Request, content: PromptContent, block_size: int, lookahead: int) -> int:
    """Leading blocks that lie wholly in a shared prefix."""
    return max(0, min(content.prefix_tokens, request.input_tokens) - lookahead) // block_size


def check_hash_size(request: Request, block_size: int) -> None:
    """Raise InputError unless the size of a request's block hashes and `block_size` divide one another."""
    content = request.content
    assert content is not None
    if content.hash_block_size % block_size and block_size % content.hash_block_size:
        raise InputError(
            f"request {request.request_id} has hashes of {content.hash_block_size}-token blocks, "
            f"which do not go with block_size = {block_size}: one must be a multiple of the other"
        )


# The block keys of requests.

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
