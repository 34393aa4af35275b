"""The pages of docs/: those written from code are as written, the site builds, and commands can be given."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from docs.writers import commands, gallery
from scenarios.cli.app import app
from scenarios.schema.loader import shipped
from tests.browser import chromium
from tests.command import batchlab

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# A command of ours in a block that is no console: nothing is said about what it prints.
GIVEN = re.compile(r"^(?:    )?(batchlab [a-z].*)$", re.MULTILINE)
SHELL = re.compile(r"```(?:sh)?\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(("name", "module"), [("commands", commands), ("gallery", gallery)])
def test_pages_from_code_are_as_written(name: str, module: Any) -> None:
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == module.page(), (
        f"write it again: make pages PAGES={name}"
    )


def test_every_shipped_scenario_is_in_the_gallery() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert [name for name in shipped() if f"/{name}.yaml)" not in text] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    if find_spec("mkdocs") is None:
        pytest.skip("needs the extra `docs`")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_every_page_and_fetches_nothing(site: Path) -> None:
    assert {path.relative_to(DOCS).with_suffix(".html") for path in PAGES} <= {
        path.relative_to(site) for path in site.rglob("*.html")
    }
    fetched = [
        (path.name, address)
        for path in site.rglob("*.html")
        for address in re.findall(
            r"<(?:script|img|link)[^>]* (?:src|href)=\"?(https?://[^\"> ]+)", path.read_text("utf-8")
        )
    ]
    assert fetched == []


@pytest.mark.browser
def test_search_works_when_the_site_is_opened_from_a_folder(site: Path) -> None:
    with chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "studies/retries.html").as_uri())
        page.locator("input[name=query]").click()
        page.keyboard.type("preemption")
        first = page.locator("a.md-search-result__link").first
        first.wait_for()
        assert (
            site / (first.get_attribute("href") or "").removeprefix(f"{site.as_uri()}/").partition("#")[0]
        ).is_file()
        assert [address for address in asked if not address.startswith("file:")] == []


def test_no_picture_is_left_over() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [path.name for path in (DOCS / "pictures").iterdir() if f"pictures/{path.name}" not in texts] == []


def given() -> list[tuple[str, str]]:
    """Page and command of every block of commands without their outputs, those of README.md among them."""
    found = []
    for path in [ROOT / "README.md", *PAGES]:
        for block in SHELL.findall(path.read_text(encoding="utf-8")):
            joined = block.replace("\\\n", " ")
            found += [(path.stem, command) for command in GIVEN.findall(joined)]
    return found


def test_every_command_of_the_pages_is_one() -> None:
    """Its verb is there, and so are its flags."""
    assert len(given()) > 40
    whole: Any = get_command(app())
    for page, text in given():
        words = shlex.split(text, comments=True)[1:]
        command = whole
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands") or words[:1] == ["--install-completion"], f"{page}: {text}"
        flags = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags]
        assert not [flag for flag in unknown if flag != "--install-completion"], f"{page}: {text}"


def test_the_answer_in_the_readme_is_what_the_command_prints() -> None:
    """Its lines stand, in order, in the page whose commands a test runs; `...` stands for lines left out."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = iter((DOCS / "which-policy.md").read_text(encoding="utf-8").splitlines())
    block = re.search(r"```\n(\$ batchlab .*?)```", readme, re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line != "..."]
    assert len(lines) > 5
    assert [line for line in lines if line not in page] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.SHOTS)
def test_the_command_below_a_picture_makes_it(name: str, tmp_path: Path) -> None:
    shot = gallery.SHOTS[name]
    words = shlex.split(shot.command(name))[1:]
    done = batchlab(*words, "--out", "made", "--quiet", cwd=tmp_path)
    assert done.code == 0, done.err
    gallery.draw(tmp_path, name)
    assert (tmp_path / gallery.picture(name)).read_bytes() == (tmp_path / f"made/plots/{shot.kind}.png").read_bytes()
