"""The servers of a source, whatever kind it is of."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from scenarios.servers import launches, sglang, vllm
from scenarios.servers.flags import flat, knows, read_command
from scenarios.servers.manifests import read_manifests, read_services, read_values
from scenarios.servers.server import Start, as_words
from simulator.errors import InputError

_SECONDS = 10
_MOST_BYTES = 64 * 2**20
_FILES = (".yaml", ".yml", ".log", ".txt", ".json", ".sh", ".prom")
_KINDS = "vLLM's or TensorRT-LLM's YAML of flags, a compose file, Kubernetes manifests, Helm values, a log, a scrape"


def read_source(source: str) -> list[Start]:
    """Return the servers of a command line, a file or an address.

    Raises InputError, with the file, where there is none in it.
    """
    if source.startswith(("http://", "https://")):
        return [read_server(source)]
    path = Path(source)
    if "\n" not in source and len(source) < 1000 and path.is_file():
        return _of_file(path)
    if " " not in source.strip() and path.suffix in _FILES:
        raise InputError("no such file", file=source)
    return [read_command(source)]


def choose(starts: Sequence[Start], wanted: str | None) -> tuple[Start, list[str]]:
    """Return the server that is meant, the first by default, and notes on the others."""
    places = [start.place for start in starts]
    if wanted is not None:
        starts = [start for start in starts if wanted in start.place]
        if not starts:
            raise InputError(f"no server is called {wanted!r}", file="--server", hint=f"there are: {'; '.join(places)}")
    others = [start.place for start in starts[1:]]
    if not others:
        return starts[0], []
    told = f"{starts[0].place} is taken of several servers; --server NAME takes another: {'; '.join(others)}"
    return starts[0], [f"warning: {told}"]


def read_server(url: str) -> Start:
    """Return what a running vLLM, SGLang or TensorRT-LLM says of itself. Raises InputError where none answers."""
    base = url.removesuffix("/").removesuffix("/metrics").removesuffix("/v1")
    metrics = _get(f"{base}/metrics")
    args = _get(f"{base}/get_server_info")
    models = _get(f"{base}/v1/models")
    if not any((metrics, args, models)):
        raise InputError(f"no server answers at {base}", file=url, hint="its /metrics or /v1/models must be reachable")
    if args and "model_path" in (info := json.loads(args)):
        return sglang.start_of(info, base)
    start = vllm.read_metrics(metrics or "", f"{base}/metrics")
    said = dict(start.said)
    version = _get(f"{base}/version")
    if version and (match := re.search(r"(\d+\.\d+)", version)):
        said["engine.version"] = (match[1], f"{base}/version")
    served = json.loads(models).get("data") or [] if models else []
    if served:
        name = served[0].get("root") or served[0].get("id")
        return Start(base, (*vllm.PROGRAM.split(), str(name)), said=said, notes=start.notes)
    return Start(base, start.words, said=said, notes=start.notes)


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            return str(answer.read(2**24).decode("utf-8", "replace"))
    except (urllib.error.URLError, OSError, ValueError):
        return None


def _of_file(path: Path) -> list[Start]:
    file = str(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"larger than {_MOST_BYTES // 2**20} MiB", file=file, hint="give the lines of the start")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None
    if (logged := sglang.read_log(text, file) or vllm.read_log(text, file)) is not None:
        return [logged]
    if "\nvllm:" in text or "# HELP " in text:
        if (scraped := vllm.read_metrics(text, file)).words:
            return [scraped]
        raise InputError("this scrape has no metrics of vLLM", file=file)
    if path.suffix not in (".yaml", ".yml", ".json"):
        return [read_command(text, file)]
    return _of_yaml(text, file)


def _of_yaml(text: str, file: str) -> list[Start]:
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            str(getattr(error, "problem", None) or "cannot be read as YAML"),
            file=file, line=mark.line + 1 if mark else None, column=mark.column + 1 if mark else None,
        ) from None  # fmt: skip
    first = documents[0] if documents and isinstance(documents[0], Mapping) else {}
    if any(isinstance(each, Mapping) and "kind" in each for each in documents):
        found = read_manifests(documents, file)
    elif isinstance(first.get("services"), Mapping):
        found = read_services(first, file)
    elif not (found := read_values(first, file)):
        flags = read_config(first, file)
        found = [] if flags is None else [flags]
    if not found:
        raise InputError("nothing in it starts a server that is known here", file=file, hint=f"it may be {_KINDS}")
    return found


def read_config(data: Mapping[str, object], place: str) -> Start | None:
    """Return the server that knows the most keys of a file of flags; None where none knows one."""
    launch = max(launches(), key=lambda each: sum(knows(each, key) for key in data))
    if not any(knows(launch, key) for key in data):
        return None
    words = launch.programs[0].split()
    if launch.options:
        return Start(place, words, options=dict(flat(data)))
    return Start(place, (*words, *as_words(data)))
