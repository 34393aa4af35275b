"""The bound on consecutive steps that produce no token."""

from simulator.engine.state import ReplicaState

# No prompt of a real model takes so many steps.
MAX_STEPS_WITHOUT_A_TOKEN = 100_000


class Progress:
    """Consecutive steps and rests of a replica without a token; set `barren_steps` to 0 at each token or arrival."""

    __slots__ = ("_state", "barren_steps")

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.barren_steps = 0

    def missed(self) -> None:
        """A step or a timed rest gave no token. Raises PolicyError beyond the bound."""
        self.barren_steps += 1
        if self.barren_steps > MAX_STEPS_WITHOUT_A_TOKEN:
            state = self._state
            raise state.broken(
                f"follows {MAX_STEPS_WITHOUT_A_TOKEN:,} consecutive steps that produced no token: "
                f"{len(state.running)} requests running, {len(state.waiting)} waiting, "
                f"{state.blocks.num_free} free blocks"
            )
