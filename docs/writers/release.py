"""A release: what is missing before a tag, and the part of CHANGELOG.md that tells of it.

`python -m docs.writers.release check v1.0.0` prints what is missing and ends with 1, or prints nothing.
`python -m docs.writers.release notes v1.0.0` prints the notes.
`python -m docs.writers.release home ACCOUNT` writes the account of the public home into the files that name it.
All need Python alone.
"""

import re
import sys
from pathlib import Path

from scenarios.version import __version__

ROOT = Path(__file__).parents[2]
PLACEHOLDER = re.compile(r"\bOWNER(?=/batchlab\b|\.github\.io\b)")
"""The account of the public home, before one is chosen."""

HOME = (
    ".github/ISSUE_TEMPLATE/config.yml",
    "CITATION.cff",
    "docs/notebook.ipynb",
    "docs/schemastore.json",
    "pyproject.toml",
)
"""The files that name the public home."""

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(\S+) \((\d{4}-\d\d-\d\d)\)")


def notes(tag: str, changelog: str) -> str:
    """Return the part of the changelog below a version's heading. Raises LookupError where there is none."""
    headings = list(_HEADING.finditer(changelog))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading[1].split()[0] == tag.removeprefix("v"):
            return changelog[heading.end() : following.start() if following else None].strip() + "\n"
    raise LookupError(f"CHANGELOG.md has no part for {tag}: a heading `## {tag.removeprefix('v')} (YYYY-MM-DD)`")


def missing(tag: str, root: Path = ROOT) -> list[str]:
    """List what is missing before `tag` is a release, each in a sentence."""
    changelog, citation, *named = (_read(root / path) for path in ("CHANGELOG.md", "CITATION.cff", *HOME))
    found = []
    if tag != f"v{__version__}":
        found.append(f"the tag is {tag}, and scenarios/version.py says {__version__}: it must be v{__version__}")
    first = _HEADING.search(changelog)
    released = _RELEASED.fullmatch(first[1]) if first else None
    if released is None or released[1] != __version__:
        found.append(f"CHANGELOG.md must begin with `## {__version__} (YYYY-MM-DD)`")
    elif not re.search(rf'^version: {re.escape(__version__)}\ndate-released: "{released[2]}"$', citation, re.MULTILINE):
        found.append(f'CITATION.cff must say `version: {__version__}` and `date-released: "{released[2]}"`')
    found += [
        f"{path} names no public home yet: OWNER stands for the account (docs/releasing.md)"
        for path, text in zip(HOME, named, strict=True)
        if PLACEHOLDER.search(text)
    ]
    return found


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run one of the commands; return the exit code."""
    match arguments:
        case ["check", tag]:
            found = missing(tag)
            print("".join(f"{line}\n" for line in found), end="", file=sys.stderr)
            return int(bool(found))
        case ["notes", tag]:
            try:
                print(notes(tag, _read(ROOT / "CHANGELOG.md")), end="")
            except LookupError as error:
                print(error.args[0], file=sys.stderr)
                return 1
            return 0
        case ["home", account]:
            for path in map(ROOT.joinpath, HOME):
                path.write_text(PLACEHOLDER.sub(account, _read(path)), encoding="utf-8", newline="\n")
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
