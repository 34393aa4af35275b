"""The place of each value of a scenario: an error found later still names file, line and column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scenarios.schema.source.explain import Finding
from scenarios.schema.source.yaml_source import KeyPath, Mark
from simulator.errors import InputError

_MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file, or an override."""

    file: str | None
    line: int | None = None
    column: int | None = None

    @property
    def order(self) -> tuple[float, float]:
        """Files by line; overrides after them."""
        return (math.inf if self.line is None else self.line, self.column or 0)

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(frozen=True, slots=True)
class Origin:
    """The places of a document's keys: `marks` in its file (None for a mapping from Python), and the overrides.

    `overrides` tells which `--set` wrote a path and all below it.
    """

    file: str | None = None
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def error(self, findings: Sequence[Finding]) -> InputError:
        """One error for all the findings: the first, by its place, and the others listed."""
        placed = {finding.path: (self.place(finding.path), finding) for finding in reversed(findings)}
        unknown = {path[:-1]: place for path, (place, found) in placed.items() if found.message == "unknown key"}

        def order(entry: tuple[Place, Finding]) -> tuple[object, ...]:
            place, finding = entry
            missing = finding.message == "missing"  # perhaps only misspelt: then the unknown key comes first
            return (*(unknown.get(finding.path[:-1], place) if missing else place).order, missing, finding.path)

        (place, first), *others = sorted(placed.values(), key=order)
        hints = [first.hint] if first.hint else []
        for where, other in others[:_MOST_FINDINGS]:
            hint = f" ({other.hint})" if other.hint else ""
            hints.append(f"also {where}{': ' if str(where) else ''}{_dotted(other)}{hint}")
        if len(others) > _MOST_FINDINGS:
            hints.append(f"and {len(others) - _MOST_FINDINGS} more")
        return InputError(
            _dotted(first), file=place.file, line=place.line, column=place.column, hint="\n  ".join(hints) or None
        )

    def place(self, path: KeyPath) -> Place:
        """The place of a key: an override, or the file's line and column; the nearest key around a missing one."""
        for length in range(len(path), -1, -1):
            part = path[:length]
            if part in self.overrides:
                return Place(self.overrides[part])
            if (mark := self.marks.get(part)) is not None:
                return Place(self.file, mark.line, mark.column)
        return Place(self.file)


def _dotted(finding: Finding) -> str:
    return f"{'.'.join(finding.path)}: {finding.message}" if finding.path else finding.message
