"""`python -m tools.campaign`: makes carried wheels importable, then runs."""

import sys

from tools.campaign.carried import FETCH, carry

if __name__ == "__main__":
    missing = carry()
    if missing is not None:
        sys.stderr.write(f"error: {missing}\n  hint: {FETCH}\n")
        sys.exit(2)
    from tools.campaign.run import main

    sys.exit(main())
