"""Settings of every test: Hypothesis's profiles, matplotlib without a screen, and what a marker needs to run."""

import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import PROFILE, PROFILES, number

os.environ.setdefault("MPLBACKEND", "Agg")
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(pool, "1")  # the test processes share the cores among them: more threads wait for each other

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BENCH = Path(__file__).parent / "bench"

# A deadline, and the check that data comes fast enough, measure the machine and who else is using it, not the code.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=number(100, "default"),
    derandomize=True,  # the same examples every time and everywhere; `make more-tests` looks for new ones
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
DEFAULT = settings.get_profile("default")
# Examples of its own, the same every time too: `make long-tests` gives the seed.
settings.register_profile("long", DEFAULT, max_examples=number(100, "long"), derandomize=False, database=None)
settings.register_profile("more", DEFAULT, max_examples=2000, derandomize=False)


def pytest_configure() -> None:
    """Load the profile that BATCHLAB_HYPOTHESIS names. A test's own `@settings` and `@examples` go before it."""
    if PROFILE not in PROFILES:
        raise pytest.UsageError(f"BATCHLAB_HYPOTHESIS is {PROFILE!r}; allowed: {', '.join(PROFILES)}")
    settings.load_profile(PROFILE)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # What a shell starts in the background is deaf to Ctrl-C, and so are its children; some tests press it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and keep what was collected out of its sight: it all stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@cache
def no_gpu() -> str | None:
    """Why the tests that need a GPU cannot run here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install -c constraints.txt -e '.[gpu]')"
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


@cache
def no_vllm() -> str | None:
    """Why the tests that need vLLM cannot run here, or None."""
    from tests.parity import live  # an interpreter that has vLLM, which is not the one that runs the tests

    return live.missing()


@cache
def no_sglang() -> str | None:
    """Why the tests that need SGLang cannot run here, or None."""
    from tests.parity import sglang_live

    return sglang_live.missing()


@cache
def no_browser() -> str | None:
    """Why the tests that need a browser cannot run here, or None."""
    missing = [name for name in ("playwright", "axe_playwright_python") if importlib.util.find_spec(name) is None]
    if missing:
        return f"no {' and no '.join(missing)}: pip install -c constraints.txt -e '.[browser]'"
    return None if any(map(shutil.which, BROWSERS)) else f"no browser: none of {', '.join(BROWSERS)} on the PATH"


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are painted, but neither laid out nor rendered: most of the time of a command that writes a report.

    What a picture shows, and that its bytes are equal each time, has tests in tests/reports.
    """
    from matplotlib.figure import Figure

    class Blank(Figure):
        def draw_without_rendering(self) -> None:
            pass

        def savefig(self, fname: Any, **options: Any) -> None:
            fname.write("<svg></svg>" if options["format"] == "svg" else b"\x89PNG")

    monkeypatch.setattr("reports.picture.Figure", Blank)


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the pictures of a report one in six is drawn: what the others show has tests in tests/reports."""
    from reports.pages import run_report

    every = run_report.plots
    monkeypatch.setattr(run_report, "plots", lambda runs, style: every(runs, style)[::6])


NEEDS: dict[str, Callable[[], str | None]] = {
    "gpu": no_gpu, "vllm": no_vllm, "sglang": no_sglang, "browser": no_browser,
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/bench as `bench`, and what Hypothesis draws examples for as `examples`.

    Of the rules that a test breaks on purpose the first stays, and the others are `long`: they test the recorded cases,
    which `make test` runs.
    """
    seen = set[str]()
    for item in items:
        if "place" in getattr(getattr(item, "callspec", None), "params", ()):
            rules = item.nodeid.partition("[")[0]
            if rules in seen:
                item.add_marker(pytest.mark.long)
            seen.add(rules)
        if BENCH in item.path.parents:
            item.add_marker(pytest.mark.bench)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.examples)


@pytest.hookimpl(tryfirst=True)  # before pytest itself looks for skip marks
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, with the reason, a test that needs something that is not here."""
    for marker, missing in NEEDS.items():
        if item.get_closest_marker(marker) is not None and (reason := missing()) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
