"""vLLM's encoder of images: its cache, and prompts that are cut before an image that cannot be encoded.

As in `Scheduler._try_schedule_encoder_inputs` and `EncoderCacheManager` of vLLM 0.33
(vllm/v1/core/sched/scheduler.py:2018, vllm/v1/core/encoder_cache_manager.py). What a request has passed stays in the
cache until its room is needed, the entry released first being evicted first. A request keeps what it looked up even
where it is not scheduled.

vLLM also bounds the embeddings that a step encodes, by the size of the cache (vllm/config/scheduler.py:306). That bound
needs no code: what a step encodes is in use until its results are there, or until a preemption that takes it back. So
the cache has no room left before the bound is met.

The cache is part of the note that a plan leaves to the next, so nothing else has to know of it.
"""

from typing import NamedTuple

from simulator.request import RequestView


class EncoderCache:
    """Embeddings by image. `holds` are the images, by number, that a request uses; `free` is room that nobody has.

    `released` are entries that no request uses, the first released first; `room` counts what they and `free` give.
    """

    __slots__ = ("free", "holds", "released", "room", "sizes", "users")

    def __init__(self, size: int) -> None:
        self.free = self.room = size
        self.sizes: dict[str, int] = {}
        self.users: dict[str, dict[int, None]] = {}
        self.released: dict[str, None] = {}
        self.holds: dict[RequestView, dict[int, None]] = {}

    def copy(self) -> "EncoderCache":
        """A copy that may be changed."""
        made = EncoderCache(self.free)
        made.room = self.room
        made.sizes, made.released = dict(self.sizes), dict(self.released)
        made.users = {name: dict(rows) for name, rows in self.users.items()}
        made.holds = {request: dict(numbers) for request, numbers in self.holds.items()}
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EncoderCache):
            return NotImplemented
        mine = (self.free, self.room, self.sizes, self.users, list(self.released), self.holds)
        return mine == (other.free, other.room, other.sizes, other.users, list(other.released), other.holds)

    def finds(self, request: RequestView, number: int) -> bool:
        """Let the request use an image that is cached; returns whether it is."""
        name = request.images[number].identifier
        if name not in self.users:
            return False
        if not self.users[name]:
            del self.released[name]
            self.room -= self.sizes[name]
        self._hold(request, number, name)
        return True

    def makes_room(self, size: int, more: int) -> bool:
        """Evict until an image fits behind `more` embeddings of the same request; returns whether it does."""
        needed = size + more
        if needed > self.free:
            if needed > self.room:
                return False
            while needed > self.free:
                name = next(iter(self.released))
                del self.released[name], self.users[name]
                self.free += self.sizes.pop(name)
        return True

    def add(self, request: RequestView, number: int) -> None:
        """Take room for an image that this step encodes."""
        image = request.images[number]
        self.users.setdefault(image.identifier, {})
        self.sizes[image.identifier] = image.embeddings
        self._hold(request, number, image.identifier)
        self.free -= image.embeddings
        self.room -= image.embeddings

    def _hold(self, request: RequestView, number: int, name: str) -> None:
        self.users[name][request.row] = None
        self.holds.setdefault(request, {})[number] = None

    def release(self, request: RequestView, computed_tokens: int | None = None) -> None:
        """The request no longer uses its images: all of them, or those that lie before so many computed tokens."""
        held = self.holds.get(request)
        for number in sorted(held or ()):
            image = request.images[number]
            if computed_tokens is None or image.end <= computed_tokens:
                self._let_go(request, number, image.identifier)

    def _let_go(self, request: RequestView, number: int, name: str) -> None:
        held = self.holds[request]
        del held[number]
        if not held:
            del self.holds[request]
        if not self.users.get(name) or any(request.images[other].identifier == name for other in held):
            return
        self.users[name].pop(request.row, None)
        if not self.users[name]:
            self.released[name] = None
            self.room += self.sizes[name]


class EncoderNote(NamedTuple):
    """What a plan with images leaves to the next. `encoded` are the step's images by request, in all its parts.

    `running`: the requests with prompts of the last steps, whose results may be still to come; None for no step.
    `passed` are the waiting requests that the step has passed over; `tried`: a request of the step met an image, so
    that the next plan may find the cache otherwise.
    """

    cache: EncoderCache
    encoded: dict[str, list[int]]
    embeddings: int
    running: tuple[tuple[RequestView, ...] | None, ...] = ()
    passed: tuple[RequestView, ...] = ()
    tried: bool = False

    @property
    def cache_free(self) -> int:
        """Room in the cache that holds nothing."""
        return self.cache.free


class Encoder:
    """The encoder while a part of a step is planned, on a copy of its cache."""

    __slots__ = ("_inputs", "_repeats", "_whole", "cache", "embeddings", "encoded", "passed", "tried")

    def __init__(self, note: EncoderNote, *, whole_images: bool) -> None:
        self.cache = note.cache.copy()
        self.encoded = {name: list(numbers) for name, numbers in note.encoded.items()}
        self.embeddings = note.embeddings
        self.passed = list(note.passed)
        self.tried = note.tried
        self._whole = whole_images
        self._inputs: list[int] = []
        self._repeats: list[int] = []

    def tokens(self, request: RequestView, computed: int, tokens: int) -> int:
        """How many of a chunk's tokens can be computed: all, or those before an image that cannot be encoded now."""
        self._inputs, self._repeats = [], []
        end, more = computed + tokens, 0
        names: set[str] = set()
        for number, image in enumerate(request.images):
            if image.end <= computed:
                continue
            if image.offset >= end:
                break
            self.tried = True
            if self._whole and computed <= image.offset and computed + tokens < image.end:
                return max(0, image.offset - computed)
            if image.identifier in names:
                self._repeats.append(number)
                continue
            if self.cache.finds(request, number):
                continue
            size = image.embeddings
            if not self.cache.makes_room(size, more):
                return min(tokens, image.offset - computed) if computed < image.offset else 0
            if not image.embeddings_between(max(0, computed - image.offset), min(image.tokens, end - image.offset)):
                continue
            more += size
            names.add(image.identifier)
            self._inputs.append(number)
        return tokens

    def schedule(self, request: RequestView) -> None:
        """Encode what the chunk just asked for needs: its request is scheduled."""
        if not self._inputs:
            return
        self.encoded[request.request_id] = self._inputs
        for number in self._inputs:
            self.cache.add(request, number)
            self.embeddings += request.images[number].embeddings
        for number in self._repeats:
            self.cache.finds(request, number)

    def note(self, running: tuple[tuple[RequestView, ...] | None, ...]) -> EncoderNote:
        """What the next plan finds, or the next part of this one."""
        return EncoderNote(self.cache, self.encoded, self.embeddings, running, tuple(self.passed), self.tried)

    def preempt(self, victim: RequestView) -> None:
        """A victim leaves; what the step was to encode for it is not encoded."""
        taken_back = self.encoded.pop(victim.request_id, ())
        self.embeddings -= sum([victim.images[number].embeddings for number in taken_back])
        self.cache.release(victim)
