"""How a client behaves that does not wait for ever: timeouts, and retries with backoff."""

from dataclasses import dataclass
from math import inf

MOST_ATTEMPTS = 1000

_MASK = (1 << 64) - 1


def leaves_s(arrival_s: float, patience_s: float, front_end_s: float) -> float:
    """When the engine hears of a client that waits `patience_s` from its request's arrival: seen from the engine, all
    of the delay between the two lies behind it."""
    return max(arrival_s, arrival_s + patience_s - front_end_s)


@dataclass(frozen=True, slots=True)
class Client:
    """The patience of the clients of a class. The default waits for ever and takes no for an answer.

    A client leaves when `ttft_timeout_s` have passed without a first token, or `timeout_s` without the whole answer,
    both counted from the arrival of the attempt. Leaving cancels the request at the server, unless `cancels` is False:
    such a server computes on for a client that has gone. After a timeout, and after a rejection that another attempt
    may escape, the client tries again, up to `max_attempts` in all; attempt k + 1 comes `backoff(request, k)` later.
    """

    ttft_timeout_s: float = inf
    timeout_s: float = inf
    cancels: bool = True
    max_attempts: int = 1
    backoff_s: float = 1.0
    backoff_factor: float = 2.0
    max_backoff_s: float = inf
    jitter: float = 0.0
    stream: int = 0  # key of the random numbers that the jitter takes

    def backoff(self, request: int, attempt: int) -> float:
        """Seconds from the end of this attempt (1: the first) to the next, for the class's request of this number.

        Exponential: backoff_s x backoff_factor ** (attempt - 1), at most max_backoff_s, of which a uniform share of up
        to `jitter` is taken off: 0 keeps it, 1 is the 'full jitter' of Brooker, Exponential Backoff And Jitter (AWS
        Architecture Blog, 2015). The share belongs to request and attempt, whatever happened before.
        """
        try:
            whole = self.backoff_s * self.backoff_factor ** (attempt - 1)
        except OverflowError:
            whole = inf
        whole = min(whole, self.max_backoff_s)
        return whole * (1.0 - self.jitter * uniform(self.stream, request * MOST_ATTEMPTS + attempt))


def uniform(stream: int, index: int) -> float:
    """The number at this index, in [0, 1), of a stream of random numbers: SplitMix64 with `stream` as its seed.

    Steele, Lea and Flood, Fast splittable pseudorandom number generators (OOPSLA 2014). Its state is seed + index x
    constant, so any number can be had without those before it.
    """
    z = (stream + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53
