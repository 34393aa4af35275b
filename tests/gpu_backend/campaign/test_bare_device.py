"""A campaign imports torch, triton, numpy and a carried simpy wheel, and nothing else that is not of Python itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from sortedcontainers import SortedDict as Real

from tests.command import ROOT
from tools.campaign import carried
from tools.campaign.carried import SortedDict, carry

ABSENT = (
    "annotated_types", "jinja2", "markupsafe", "matplotlib", "pandas", "pydantic", "pydantic_core", "pyarrow", "pytest",
    "scipy", "sortedcontainers", "typer", "yaml",
)  # fmt: skip
BARE = """\
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name, name=name)
        return None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {absent!r} else real(name, *more)
sys.meta_path.insert(0, Absent())
from tools.campaign.carried import carry
assert carry() is None
from tools.campaign.run import main
sys.exit(main({arguments!r}))
"""


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The campaign in an interpreter that finds none of the packages above."""
    program = BARE.format(absent=ABSENT, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_campaign_needs_nothing_else(tmp_path: Path) -> None:
    """From the kernel's rows to a fit in the same process."""
    done = bare("--device", "cpu", "--out", str(tmp_path), "--parts", "checks,ceilings,fit")
    assert done.returncode == 1, done.stderr
    assert "fit: 0 s, InputError" in done.stderr, "there are no rows"
    assert "ModuleNotFound" not in done.stderr
    assert "lost" not in done.stderr, "every policy and queue is there"


def test_wheels_are_looked_for_where_the_page_puts_them() -> None:
    """The page has them fetched into `wheels` from the repository's root, which git ignores."""
    assert carried.WHEELS == ROOT / "wheels"
    assert "-d wheels" in carried.FETCH
    assert carried.FETCH in (ROOT / "docs/lockstep.md").read_text(encoding="utf-8")


def test_simpy_must_be_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "_is_there", lambda name: False)
    missing = carry(tmp_path)
    assert missing is not None
    assert "simpy is neither installed nor carried" in missing


def test_a_wheel_is_imported_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "carried_thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_thing.py", "VALUE = 7\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert carry(tmp_path) is None
    import carried_thing  # type: ignore[import-not-found] # made above

    assert carried_thing.VALUE == 7


def test_the_stand_in_sorts_as_the_real_one() -> None:
    real: Real[int, float] = Real()
    ours = SortedDict()
    draws = random.Random(3)
    for _ in range(2000):
        key = draws.randrange(40)
        match draws.randrange(4):
            case 0 | 1:
                real[key] = ours[key] = draws.random()
            case 2:
                assert real.pop(key, None) == ours.pop(key, None)
            case _ if real:
                assert real.popitem(0) == ours.popitem(0)
        assert list(real) == list(ours)
        assert list(real.values()) == list(ours.values())
        if real:
            assert real.peekitem(0) == ours.peekitem(0)
