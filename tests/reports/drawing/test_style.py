import itertools
import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from reports.picture import CARD, OTHERS, draw, look, mix, shorten, styles
from simulator.policies import built_in_policies, style_of

BUILT_IN = {name: style for name in built_in_policies() if (style := style_of(name)) is not None}

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SEEN_BY = {
    "everybody else": np.eye(3),
    "deuteranopes": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopes": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(color: str) -> NDArray[np.float64]:
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIE L*a*b* of linear RGB: where a distance of 2 is the smallest that a person sees."""
    xyz = XYZ @ np.clip(rgb, 0.0, 1.0) / WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, eyes: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(lab(eyes @ linear(one)) - lab(eyes @ linear(other))))


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    high, low = sorted((float(XYZ[1] @ linear(color)) + 0.05 for color in (one, other)), reverse=True)
    return high / low


def test_distance_knows_what_a_deuteranope_confuses() -> None:
    assert distance("#ff0000", "#808000", SEEN_BY["deuteranopes"]) < 26 < distance("#ff0000", "#808000", np.eye(3))


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_policies_are_told_apart_by(eyes: str) -> None:
    colors = [color for color, _ in BUILT_IN.values()] + list(OTHERS)
    close = {
        pair: found for pair in itertools.combinations(colors, 2) if (found := distance(*pair, SEEN_BY[eyes])) < 15.0
    }
    assert close == {}


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_shades_of_one_policy_are_told_apart_by(eyes: str) -> None:
    shades = [style.color for style in styles([(f"run {i}", "static") for i in range(3)]).values()]
    assert min(distance(*pair, SEEN_BY[eyes]) for pair in itertools.combinations(shades, 2)) > 15.0


@pytest.mark.parametrize("page", [CARD, "#171b21"], ids=["light", "dark"])
def test_built_in_colors_stand_out_from_the_page(page: str) -> None:
    assert min(contrast(color, page) for color, _ in BUILT_IN.values()) >= 3.0


def test_line_styles_say_it_a_second_time() -> None:
    dashes = [dash for _, dash in BUILT_IN.values()]
    assert len(set(dashes)) == len(dashes)


def test_built_in_policies_look_the_same_in_every_company() -> None:
    alone = styles([("a", "continuous")])["a"]
    crowd = styles([("x", "mine.py:X"), ("s", "static"), ("c", "continuous"), ("y", "y.py:Y")])
    assert crowd["c"] == alone
    assert alone.color == BUILT_IN["continuous"][0]


def test_other_policies_take_free_colors_in_order() -> None:
    found = styles([("b", "b.py:B"), ("static", "static"), ("a", "a.py:A")])
    assert [found["b"].color, found["a"].color] == list(OTHERS[:2])
    assert found == styles([("b", "b.py:B"), ("static", "static"), ("a", "a.py:A")])


def test_many_runs_all_look_different() -> None:
    runs = [(f"user {i}", f"p{i}.py:P") for i in range(9)] + [(f"static {i}", "static") for i in range(4)]
    assert len(set(styles(runs).values())) == len(runs)


def test_second_run_of_a_policy_keeps_its_hue_in_another_dash() -> None:
    first, second = styles([("a", "static"), ("b", "static")]).values()
    assert second.color == mix(first.color, -0.42)
    assert second.dash != first.dash


def test_mix() -> None:
    assert mix("#ff8000", 0.0) == "#ff8000"
    assert mix("#ff8000", 1.0) == "#ffffff"
    assert mix("#ff8000", -1.0) == "#000000"
    assert mix("#000000", 0.5) == "#808080"


def test_look_ignores_the_users_settings_and_puts_them_back() -> None:
    with mpl.rc_context({"font.size": 33.0, "axes.grid.axis": "y"}):
        with look():
            assert (mpl.rcParams["font.size"], mpl.rcParams["axes.grid.axis"]) == (9.0, "both")
        assert (mpl.rcParams["font.size"], mpl.rcParams["axes.grid.axis"]) == (33.0, "y")


def paint(figure: Figure) -> str:
    axes = figure.subplots()
    axes.bar([1, 2], [3, 4], hatch="//")
    axes.set_title(shorten("_a $x_1$ label"))
    return "what to look for"


def test_pictures_have_both_renderings_and_no_stamp() -> None:
    picture = draw("p", (2.0, 1.5), paint)
    assert picture.caption == "what to look for"
    assert picture.png.startswith(b"\x89PNG")
    assert b"Software" not in picture.png
    assert picture.svg.count("<svg") == 1
    assert "dc:date" not in picture.svg
    assert "<!--  _a $x_1$ label -->" in picture.svg, "a user's dollar signs are no formula"


def test_pictures_are_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nsvg.hashsalt: other\n", encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.reports.drawing.test_style import draw, paint\n"
        "picture = draw('p', (2.0, 1.5), paint)\n"
        "sys.stdout.buffer.write(picture.png + picture.svg.encode())\n"
    )
    environment = {**os.environ, "MATPLOTLIBRC": str(tmp_path), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], env=environment, capture_output=True, check=True
    )
    here = draw("p", (2.0, 1.5), paint)
    assert done.stdout == here.png + here.svg.encode()


def test_labels_of_any_script_are_drawn_without_a_warning() -> None:
    def write(figure: Figure) -> str:
        figure.text(0.5, 0.5, "方针 🙂")
        return ""

    assert draw("p", (2.0, 1.0), write).png


def test_shorten() -> None:
    assert shorten("policy max_num_seqs=256", 12) == "polic…qs=256", "what differs stands at the end"
    assert shorten("two\nlines\x1b[31m") == "two lines [31m"
    assert shorten("_hidden by matplotlib") == " _hidden by matplotlib"


def test_no_two_runs_share_a_colour() -> None:
    policies = ["static", "continuous", "preemptive", "chunked_prefill", "vllm", "sglang", "orca", "tgi", "mine.py"]
    for mixed in itertools.product(("chunked_prefill", "sglang", "mine.py", "vllm"), repeat=4):
        runs = [(f"run {place}", policy) for place, policy in enumerate([*policies, *mixed])]
        assert len({look.color for look in styles(runs).values()}) == len(runs)
    seven = [(f"run {place}", policy) for place, policy in enumerate(["chunked_prefill"] * 6 + ["static"])]
    assert len({look.color for look in styles(seven).values()}) == 7
