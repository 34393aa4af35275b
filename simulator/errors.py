"""The errors that a user can mend: bad input, a policy with a broken plan, a router with a broken choice."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The beginning of a hint, which names the nearest of the known names; empty where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""


class InputError(Exception):
    """Bad input: what is wrong, where, and what is allowed. The command line prints it and exits with 2.

    `str(error)` reads like a compiler's message: ``file:line:column: message``, then the hint.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.hint = hint

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class PolicyError(Exception):
    """A plan that cannot be carried out: the policy, the step, and the rule that the plan breaks.

    `file` is that of a user's own policy.
    """

    def __init__(self, message: str, file: str | None = None) -> None:
        super().__init__(message, file)  # SimPy makes an error that leaves a process anew, from its `args`
        self.message = message
        self.file = file

    def __str__(self) -> str:
        return f"{self.file}: {self.message}" if self.file else self.message


class RouterError(Exception):
    """A router chose what is no replica: names the request."""
