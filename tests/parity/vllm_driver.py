"""Runs in an environment that has vLLM: cases on stdin, a line each; the scheduler's records on stdout, a line each.

usage: python vllm_driver.py FOLDER_OF_THE_ORACLE
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    sys.path[0] = sys.argv[1]  # instead of this folder, whose modules are not meant
    oracle = importlib.import_module("vllm_oracle")
    answer: list[dict[str, Any]] | dict[str, str]
    for line in sys.stdin:
        try:
            answer = list(oracle.run(json.loads(line)))
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
