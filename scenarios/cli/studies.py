"""`python -m scenarios.cli.studies FOLDER [NAME ...]`: write the pages and pictures of studies again, or of some.

This brings together what may not know of each other: scenarios and pictures.
"""

from __future__ import annotations

import sys
from pathlib import Path

from simulator.errors import InputError


def write_studies(folder: Path, names: list[str]) -> None:
    """Write NAME.md and NAME.png of each study into `folder`; of all without names. Raises InputError for others."""
    from reports.files import write
    from reports.panels import panels_picture
    from scenarios.schema.source.hints import did_you_mean
    from scenarios.study_pages import studies
    from scenarios.study_pages.study import page

    known = studies()
    for name in names:
        if name not in known:
            raise InputError(f"no study is called {name!r}", hint=did_you_mean(name, list(known)))
    for name in names or known:
        found = known[name].measure()
        write(folder / known[name].picture, panels_picture(name, found.panels).png)
        write(folder / f"{name}.md", page(known[name], found))


def main() -> None:
    """The command."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m scenarios.cli.studies FOLDER [NAME ...]")
    try:
        write_studies(Path(sys.argv[1]), sys.argv[2:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
