"""The prefixes that prompts of a workload share, as a tree: what a prefix cache could find, whatever it does find.

A node is a stretch of tokens; the way from the root to it is a prefix. Its requests are those that begin with all of
that, in their prompts or, as a conversation goes on from there, their answers. Only stretches that two requests or more
share are kept. A stretch ends where some of them part.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
from annotated_types import doc

from simulator.request import PromptContent
from simulator.results.records import Ints, Records
from simulator.workload import Workload

MOST_REQUESTS = 50_000  # of a workload: the first ones, so that a long trace does not take long
MOST_NODES = 20_000  # those of the most requests
TOKENS = 64  # of prompts that are known token by token, compared at once


@dataclass(frozen=True, slots=True)
class PrefixColumns:
    """One entry a stretch, each behind its parent; the first is the root: all requests, and no token."""

    parent: Annotated[
        Ints, doc("the line, from 0, of the stretch before it; -1 for the first, which is for all requests")
    ]
    from_tokens: Annotated[Ints, doc("of the prompt, before it")]
    to_tokens: Annotated[Ints, doc("of the prompt, up to its end")]
    requests: Annotated[Ints, doc("whose prompts begin with all of it")]

    @property
    def repeated_tokens(self) -> int:
        """Prompt tokens that an earlier request had already, at the same place behind the same tokens."""
        return int(((self.to_tokens - self.from_tokens) * (self.requests - 1))[1:].sum())


def shared_prefixes(workload: Workload | None, records: Records) -> PrefixColumns | None:
    """The tree of a workload's prompts; None where the prefix cache found nothing, or they are not known."""
    if workload is None or workload.content is None or not (records.requests.cached_tokens > 0).any():
        return None
    sizes = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    requests = list(zip(islice(workload.content, MOST_REQUESTS), sizes, strict=False))
    lengths: dict[str, set[int]] = defaultdict(set)  # of each conversation, with its answers: the next begins with it
    for content, size in requests:
        if content is not None and content.conversation is not None:
            lengths[content.conversation].add(sum(size))
    ends = {name: sorted(found) for name, found in lengths.items()}
    tree = _Tree()
    for content, size in requests:
        if content is not None:
            tree.add(_stretches(content, *size, ends))
    return tree.columns(len(requests))


def _stretches(
    content: PromptContent, input_tokens: int, output_tokens: int, ends: Mapping[str, Sequence[int]]
) -> Iterator[tuple[Hashable, int]]:
    """A request from its beginning: what names a stretch behind those before it, and the tokens up to its end."""
    if content.prompt_token_ids:
        tokens = content.prompt_token_ids + content.output_token_ids
        for end in range(TOKENS, len(tokens) + 1, TOKENS):
            yield tokens[end - TOKENS : end], end
        return
    if content.block_hashes:
        for place, name in enumerate(content.block_hashes, 1):
            yield name, min(place * content.hash_block_size, input_tokens)
        return
    shared = min(content.prefix_tokens, input_tokens)
    if content.prefix_group is not None and shared:
        yield ("group", content.prefix_group, shared), shared
    if content.conversation is not None:
        for end in ends[content.conversation]:
            if shared < end <= input_tokens + output_tokens:
                yield ("conversation", content.conversation, end), end


class _Tree:
    """Stretches by their parents and names, counted; the root is 0."""

    def __init__(self) -> None:
        self._child: dict[tuple[int, Hashable], int] = {}
        self._parent, self._from, self._to, self._requests = [-1], [0], [0], [0]

    def add(self, stretches: Iterator[tuple[Hashable, int]]) -> None:
        node, before = 0, 0
        for name, end in stretches:
            fresh = len(self._parent)
            child = self._child.setdefault((node, name), fresh)
            if child == fresh:
                self._parent.append(node)
                self._from.append(before)
                self._to.append(end)
                self._requests.append(0)
            self._requests[child] += 1
            node, before = child, end

    def columns(self, count: int) -> PrefixColumns:
        """The stretches that are shared, those at whose border none part put together; `count` is all requests."""
        self._requests[0] = count
        parent, requests = np.array(self._parent), np.array(self._requests)
        shared = np.flatnonzero(requests > 1)
        if len(shared) > MOST_NODES:
            shared = np.sort(shared[np.argsort(-requests[shared], kind="stable")][:MOST_NODES])
        # A stretch that all requests of its parent go on to is the end of its parent's.
        last = {0: 0}
        kept: list[list[int]] = [[-1, 0, 0, count]]
        for node in shared.tolist():
            if node == 0:
                continue
            above = last[int(parent[node])]
            if above and kept[above][3] == requests[node]:
                kept[above][2] = self._to[node]
                last[node] = above
            else:
                last[node] = len(kept)
                kept.append([above, self._from[node], self._to[node], int(requests[node])])
        return PrefixColumns(*np.array(kept, dtype=np.int64).T.copy())
