"""The gallery of shipped scenarios, docs/gallery.md, and its pictures.

A picture is what the command under it draws; the words are those of the scenario's own head.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Shot:
    """The picture of a scenario: of these policies, and of which kind."""

    policies: Sequence[str]
    kind: str
    alt: str

    def command(self, name: str) -> str:
        return f"batchlab compare {name} --policies {shlex.quote(','.join(self.policies))}"


_ALL = ("static", "continuous", "preemptive", "chunked_prefill")
_BUDGETS = tuple(f"chunked_prefill:max_num_batched_tokens={tokens}" for tokens in (128, 512, 8192))
_MODES = tuple(f"preemptive:preemption_mode={mode}" for mode in ("recompute", "swap", "pause"))
SHOTS = {
    "quickstart": Shot(_ALL, "timeline", "Requests running and waiting, memory and step time over five minutes"),
    "azure-conv": Shot(_ALL, "itl_cdf", "The share of gaps between tokens by their length"),
    "chunk-size": Shot(_BUDGETS, "itl_cdf", "The share of gaps between tokens by their length, a curve a budget"),
    "long-tail": Shot(("static", "continuous"), "gantt", "What each slot did under static and continuous batching"),
    "memory-pressure": Shot(_ALL, "timeline", "Requests running and waiting, memory and step time"),
    "preemption-modes": Shot(_MODES, "e2el_cdf", "The share of requests by end-to-end latency, a curve a mode"),
    "priorities": Shot(("chunked_prefill", "preemptive"), "ttft_cdf", "The share of requests by time to first token"),
}
"""By the name of the scenario, in the order of the page."""

_OTHERS = (
    ("claim-", "Common claims about batching", "claims.md"),
    ("study-", "Studies: a question each", "studies/low-rates.md"),
    ("drafts-", "Speculative decoding", "speculative.md"),
    ("offload-", "KV on the host", "kv-offload.md"),
    ("adapters-", "Adapters", "studies/adapters.md"),
    ("images-", "Images in prompts", "traces.md"),
    ("measured-", "Servers whose logs are public", "accuracy.md"),
    ("blind-", "Servers predicted before their logs were seen", "accuracy.md"),
    ("tables-", "Models priced from public tables of kernels", "accuracy.md"),
    ("lockstep-", "A tiny model really executed", "lockstep.md"),
    ("ragged-", "Six requests on GPT-2", "claims.md"),
)
LABEL_WORDS = 3
"""So many words before a colon are a label, as "Claim 1", which the page leaves out."""

_HEAD = """# The scenarios that are shipped

Each scenario has a picture, the command that makes it, and the words of its own head. `batchlab list scenarios` shows
one line for each. A name may stand wherever a path to a scenario may. `make pages PAGES=gallery` writes this page and
its pictures again."""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    from scenarios.schema.loader import header, shipped

    yield _HEAD
    for name, shot in SHOTS.items():
        head = header(name)
        yield f"\n## {name}\n\n{head[0].removeprefix('# ')}\n"
        yield f"![{shot.alt}]({picture(name)})\n"
        yield f"```sh\n{shot.command(name)}      # plots/{shot.kind}.png\n```\n"
        yield from _told(head[1:])
        yield f"\nThe file: [{name}.yaml](../scenarios/library/{name}.yaml)"
    yield "\n## And the others\n\n| scenario | what | page |\n| --- | --- | --- |"
    for start, what, where in _OTHERS:
        for name in sorted(each for each in shipped() if each.startswith(start)):
            line = header(name)[0].removeprefix("# ").partition(": ")
            is_label = bool(line[2]) and len(line[0].split()) <= LABEL_WORDS
            told = (line[2] if is_label else "".join(line)).rstrip(".").replace("|", "\\|")
            yield f"| [`{name}`](../scenarios/library/{name}.yaml) | {told} | [{what}]({where}) |"


def picture(name: str) -> str:
    """The path of a scenario's picture, from the page."""
    return f"pictures/gallery-{name}.png"


def _told(head: Sequence[str]) -> Iterator[str]:
    """The parts of a head as paragraphs, lists, and a block of commands."""
    parts: dict[str, list[str]] = {}
    word = ""
    for line in head:
        text = line.removeprefix("#").rstrip()
        if (found := re.match(r" (Shows|Look at|Try) +(.*)", text)) is not None:
            word = found[1]
            parts[word] = [found[2]]
        elif not text.strip() or not text.startswith("   "):
            word = ""  # what stands behind the parts is for readers of the file
        elif word:
            parts[word].append(text.strip())
    yield f"**Shows.** {' '.join(parts['Shows'])}\n"
    yield "**Look at**\n"
    yield from _items(parts["Look at"])
    yield "\n```sh\n" + "\n".join(parts["Try"]) + "\n```"


def _items(lines: Sequence[str]) -> Iterator[str]:
    """Lines of a head as a list: a dash begins an item, other lines go on."""
    items: list[str] = []
    for line in lines:
        if line.startswith("- ") or not items:
            items.append(line.removeprefix("- "))
        else:
            items[-1] += f" {line}"
    yield from (f"- {item}" for item in items)


def draw(folder: Path, name: str) -> None:
    """Write a scenario's picture below `folder`."""
    from scenarios.runs.comparison import compare
    from scenarios.runs.variants import split_variants
    from scenarios.schema.loader import load

    shot = SHOTS[name]
    path = folder / picture(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    compare(load(name), split_variants(",".join(shot.policies))).plot(shot.kind).save(path)


def write(folder: Path) -> None:
    """Write the page and all its pictures into `folder`."""
    for name in SHOTS:
        draw(folder, name)
    (folder / "gallery.md").write_text(page(), encoding="utf-8", newline="\n")
