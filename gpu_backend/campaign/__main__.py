"""`python -m gpu_backend.campaign`: makes carried wheels importable, then runs."""

from __future__ import annotations

import sys

from gpu_backend.campaign.carried import FETCH, carry

if __name__ == "__main__":
    missing = carry()
    if missing is not None:
        sys.stderr.write(f"error: {missing}\n  hint: {FETCH}\n")
        sys.exit(2)
    from gpu_backend.campaign.run import main

    sys.exit(main())
