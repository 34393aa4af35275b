"""Runs in an environment that has vLLM: cases on stdin, a line each; the scheduler's records on stdout, a line each.

usage: python vllm_driver.py FOLDER_OF_THE_ORACLE
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import vllm_oracle

    for line in sys.stdin:
        try:
            answer = list(vllm_oracle.run(json.loads(line)))
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
