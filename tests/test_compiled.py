"""The compiled core: how it is chosen, and that it writes what the sources write.

Where the core is not compiled, as in a checkout, the tests that need it are skipped; `make compiled-test` has it.
"""

import os
import re
import runpy
import subprocess
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

from scenarios.version import __version__
from simulator import Sources, is_compiled
from simulator.policies import built_in_policies
from tests.command import ROOT, SMALL, START, batchlab, small, tree
from tests.test_house import TOPS

SETUP = ROOT / "setup.py"
in_a_checkout = pytest.mark.skipif(not SETUP.exists(), reason="an installation has no setup.py")
compiled = pytest.mark.skipif(not is_compiled(), reason="the core is not compiled here: make compiled-test")

OWN_POLICY = """
from dataclasses import dataclass
from simulator.plan import Chunk, StepPlan

@dataclass(frozen=True)
class OneByOne:
    max_num_seqs: int = 1

    def plan(self, view):
        if view.num_decoding or view.prefilling or not view.waiting:
            return StepPlan()
        return StepPlan(prefill=(Chunk(view.waiting.head, view.waiting.head.num_tokens_to_compute),))
"""
SHARING = SMALL.replace("      input:", "      prefix: {groups: 4, tokens: 100}\n      input:").replace(
    "blocks: 400", "blocks: 120, swap_space_gib: 1"
)
ONE_BY_ONE = re.sub("policy: .*}", "policy: mine.py:OneByOne}", SMALL)
BROKEN = OWN_POLICY.replace("return StepPlan()", "return None")


def run(*arguments: str, cwd: Path, pure: bool) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, on the sources or on what is installed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BATCHLAB_PURE": str(int(pure))}
    return subprocess.run([*START, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@in_a_checkout
def test_the_core_holds_what_mypyc_leaves_as_it_is() -> None:
    """Compiled, a frozen dataclass could be neither copied nor pickled, some built-in classes not derived from.

    Nor may what is interpreted derive from a compiled class, or extend a protocol, which is none when it is compiled.
    """
    core = runpy.run_path(str(SETUP))["compiled_modules"]()
    paths = {path for top in TOPS for path in (ROOT / top).rglob("*.py")} - {ROOT / name for name in core}
    others = "".join([path.read_text(encoding="utf-8") for path in paths])
    assert len(core) == len(set(core)) > 20
    for name in core:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "frozen=True" not in text, name
        assert not re.search(r"^class \w+\((?:OrderedDict|Event|Environment)", text, re.MULTILINE), name
        for derived in re.findall(r"^class (\w+)", text, re.MULTILINE):
            assert not re.search(rf"^class \w+\([^)\[]*\b{derived}\b", others, re.MULTILINE), derived


def test_sources_are_found_beside_what_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "engine.py").touch()
    (tmp_path / f"engine{EXTENSION_SUFFIXES[0]}").touch()
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").touch()
    folders = [str(tmp_path)]
    usual, found = PathFinder.find_spec("engine", folders), Sources.find_spec("simulator.engine", folders)
    assert [spec and spec.origin for spec in (usual, found)] == [
        str(tmp_path / f"engine{EXTENSION_SUFFIXES[0]}"), str(tmp_path / "engine.py"),
    ]  # fmt: skip
    room = Sources.find_spec("simulator.room", folders)
    assert room is not None
    assert room.submodule_search_locations == [str(tmp_path / "room")]
    assert Sources.find_spec("simulator.nothing", folders) is None
    assert Sources.find_spec("scenarios.engine", folders) is None, "others are found as ever"


def test_the_version_says_which_core_runs(tmp_path: Path) -> None:
    which = "compiled core" if is_compiled() else "pure Python"
    assert batchlab("--version", cwd=tmp_path).out == f"batchlab {__version__}, {which}\n"
    assert run("--version", cwd=tmp_path, pure=True).stdout == f"batchlab {__version__}, pure Python\n"


@compiled
@pytest.mark.parametrize(
    "policies",
    [
        built_in_policies(),
        ["chunked_prefill:async_scheduling=true", "preemptive:preemption_mode=swap"],
        ["chunked_prefill:enable_prefix_caching=true", "sglang:enable_prefix_caching=true"],
    ],
    ids=["each", "otherwise", "with-a-prefix-cache"],
)
def test_run_folders_are_equal_to_the_byte(tmp_path: Path, policies: list[str]) -> None:
    scenario = str(small(tmp_path, SHARING))
    for out in ("pure", "core"):
        command = ["compare", scenario, "--policies", ",".join(policies), "--out", str(tmp_path / out), "--quiet"]
        done = run(*command, cwd=tmp_path, pure=out == "pure")
        assert done.returncode == 0, done.stderr
    pure, core = tree(tmp_path / "pure"), tree(tmp_path / "core")
    assert len(pure) > 5 * len(policies)
    assert pure.pop("report.html") != core.pop("report.html"), "which says the core"
    assert core == pure
    pages = [(tmp_path / out / "report.html").read_text(encoding="utf-8") for out in ("pure", "core")]
    assert pages[1].replace("batchlab (compiled core)", "batchlab (pure Python)") == pages[0]


@compiled
def test_a_policy_of_the_users_own_runs_on_both(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    scenario = str(small(tmp_path, ONE_BY_ONE))
    for out in ("pure", "core"):
        done = run("run", scenario, "--out", str(tmp_path / out), "--quiet", cwd=tmp_path, pure=out == "pure")
        assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "core") == tree(tmp_path / "pure")


@compiled
def test_a_broken_policy_is_told_of_in_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    command = ["run", str(small(tmp_path, ONE_BY_ONE)), "--out", "out", "--quiet"]
    pure, core = (run(*command, cwd=tmp_path, pure=pure) for pure in (True, False))
    assert "is None and not a StepPlan" in pure.stderr
    assert (core.returncode, core.stderr) == (pure.returncode, pure.stderr)
