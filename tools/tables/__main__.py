"""Make the shipped profiles and tables again: `python -m tools.tables ROOT [NAME ...]`.

ROOT is what a maker says; what has no source below it is left as it is.
"""

import sys
from pathlib import Path

from simulator.errors import InputError
from tools.tables import experts, kernels, latent, linear, profiles


def make_all(root: Path, names: list[str]) -> None:
    """Make all that has a source below `root`, or of that what is named. Raises InputError where nothing has."""
    folder = Path(__file__).parents[1]
    made = 0
    for maker in (profiles, kernels, experts, latent, linear):
        for name in maker.NAMES:
            if (not names or name in names) and (path := maker.make(root, folder, name)) is not None:
                print(f"{path.name}: {path.stat().st_size / 1e6:.3f} MB", flush=True)
                made += 1
    if not made:
        raise InputError(f"no source of a shipped profile or table below {root}")


if __name__ == "__main__":
    try:
        if len(sys.argv) < 2:
            raise InputError("no folder of sources", hint="make tables ROOT=FOLDER")
        make_all(Path(sys.argv[1]), sys.argv[2:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
