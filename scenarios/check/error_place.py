"""An error in the words of its type, with the line of the policy's file where it happened."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path


def blame(error: BaseException, policy: object) -> str:
    """`KeyError: 'x' at my_policy.py:12`; without a place where no line of the policy's file is on the way."""
    cause = error
    while cause.__cause__ is not None:  # SimPy raises a copy
        cause = cause.__cause__
    text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    file = str(getattr(sys.modules.get(type(policy).__module__), "__file__", None))
    lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == file]
    return f"{text} at {Path(file).name}:{lines[-1]}" if lines else text
