"""SGLang's forecast of memory where every answer has a fixed length (its `ignore_eos`)."""

from collections.abc import Sequence
from operator import itemgetter

from simulator.plan import View
from simulator.request import RequestView

IGNORE_EOS_RESERVE_TOKENS = 1


class EosForecast:
    """Who leaves when, and whether all fit until then.

    Requests are (tokens left, tokens held), those that leave first in front: `add_one_req_ignore_eos`
    (python/sglang/srt/managers/schedule_policy.py:1241, SGLang 0.5.23).
    """

    def __init__(self, requests: Sequence[RequestView], view: View) -> None:
        self._view = view
        self._states = [state for request in requests if (state := self._state(request))[0] > 0]
        self._states.sort(key=itemgetter(0))

    def _state(self, request: RequestView) -> tuple[float, int]:
        outputs = self._view.known_outputs(request)
        return request.max_tokens * 1.0 - outputs, request.input_tokens + outputs

    def insert(self, request: RequestView) -> None:
        """Insert a request; as in SGLang, one that stays longest comes before the last."""
        state = self._state(request)
        if state[0] <= 0:
            return
        at = 0
        for at, other in enumerate(self._states):  # noqa: B007 - the last index if none stays as long
            if state[0] <= other[0]:
                break
        self._states.insert(at, state)

    def fits(self, memory: float) -> bool:
        """True if memory is enough at each departure; `memory` tokens are free now."""
        freed = 0
        for place, (left, held) in enumerate(self._states):
            stay = len(self._states) - place
            if memory + freed - left * stay <= IGNORE_EOS_RESERVE_TOKENS * stay:
                return False
            freed += held
        return True
