"""ARCHITECTURE.md: short, a request's life and the files to read come first, and names are in their files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
# `name` in `path`, as the table of places says it.
PLACE = re.compile(r"`(\w+)` in `([\w./]+\.py)`")
ROOM = re.compile(r"^\| ((?:`[\w./]+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)
NAMED = re.compile(r"`((?:simulator|scenarios|reports|calibration|gpu_backend|docs|tests)/[\w./]*)`")
MAX_LINES = 200


def test_the_map_is_short() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES


def test_the_life_of_a_request_comes_first() -> None:
    """Eight steps, each with the function that does it."""
    steps = re.split(r"^\d\. ", TEXT.split("\n## ")[1], flags=re.MULTILINE)[1:]
    assert len(steps) == 8
    assert [step for step in steps if not PLACE.search(" ".join(step.split()))] == []


def test_25_files_come_second() -> None:
    listed = re.findall(r"^(\d+)\. `([\w./]+\.py)`: .+\.$", TEXT.split("\n## ")[2], re.MULTILINE)
    assert [int(number) for number, _ in listed] == list(range(1, 26))
    assert [path for _, path in listed if not (ROOT / path).is_file()] == []


def test_files_and_folders_exist() -> None:
    assert [path for path in NAMED.findall(TEXT) if not (ROOT / path).exists()] == []


def test_a_room_is_told_in_a_sentence() -> None:
    rooms = ROOM.findall(TEXT)
    assert len(rooms) > 30
    assert [room for room, told in rooms if not re.fullmatch(r"[A-Z].*\.", told)] == []


def test_every_place_has_the_name() -> None:
    places = PLACE.findall(" ".join(TEXT.split()))
    assert len(places) > 10
    missing = [(name, path) for name, path in places if not re.search(rf"\b{name}\b", (ROOT / path).read_text("utf-8"))]
    assert missing == []
