"""Programs that stand for a user's Python: whatever they are told to run, they are a fake engine."""

import sys
from pathlib import Path


def fake_python(folder: Path, fault: str = "none") -> str:
    """The path of such a program; `fault` says what is wrong with its engine."""
    program = folder / f"python_{fault}"
    engine = Path(__file__).with_name("fake_engine.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{engine}" {fault} "$@"\n')
    program.chmod(0o755)
    return str(program)
