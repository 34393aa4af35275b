"""A scenario from a file, a name or a mapping: found, read, changed by `--set`, checked; and written again."""

import itertools
import numbers
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from scenarios.schema.cost import OwnCostConfig
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.explain import Finding, Origin, explain
from scenarios.schema.source.hints import nearest
from scenarios.schema.source.yaml_source import KeyPath, describe, key_name, parse_yaml, plain_scalar, read_yaml
from simulator.errors import InputError

# Paths that name a place by a variable: `${BATCHLAB_SHARED}/measured/...` for data that is not shipped.

SHARED = "BATCHLAB_SHARED"
"""The variable that names the folder of real traces and measurements."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def shared_folder() -> Path:
    """Return the folder of traces and measurements: $BATCHLAB_SHARED, else `shared` beside the repository."""
    given = os.environ.get(SHARED)
    return Path(given) if given else Path(__file__).resolve().parents[3] / "shared"


def with_variables(path: str) -> str:
    """The path with each `${NAME}` replaced by that environment variable; one that is not set stays as it is.

    `${BATCHLAB_SHARED}` always has a value (`shared_folder`).
    """
    return _VARIABLE.sub(_value, path)


def _value(found: re.Match[str]) -> str:
    name = found[1]
    return str(shared_folder()) if name == SHARED else os.environ.get(name) or found[0]


def unset_hint(path: Path) -> str | None:
    """Return the variable to set, if a file is missing because it is not set; else None."""
    if (unset := _VARIABLE.search(str(path))) is not None:
        return f"the environment variable {unset[1]} is not set"
    shared = shared_folder()
    if path.is_relative_to(shared) and not shared.exists():
        return f"this scenario reads measurements that are not shipped: set {SHARED} to the folder that holds them"
    return None


# `--set a.b=VALUE`: values of a scenario replaced before anything is checked.


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[KeyPath, str]:
    """Set each override's value in `data`, in order; returns which override wrote which path, as `--set ...`.

    The value is YAML. A path's parts are keys; in a list, indices or the items' names. Mappings missing on the way
    are made.
    Raises InputError, naming the override, for what is not `a.b=VALUE` and for a path through a value without keys.
    """
    written: dict[KeyPath, str] = {}
    for override in overrides:
        parts, value = _split(override)
        name = f"--set {override}"
        path, made = _write(data, parts, value, name)
        written = {old: by for old, by in written.items() if old[: len(path)] != path}
        written[path] = written[made] = name
    return written


def _split(override: str) -> tuple[list[str], object]:
    """The path and the value of `a.b=VALUE`."""
    name = f"--set {override}"
    dotted, equals, text = override.partition("=")
    parts = [part.strip() for part in dotted.split(".")]
    if not equals or not all(parts):
        raise InputError("not of the form a.b=VALUE", file=name, hint="as in: --set engine.max_num_seqs=128")
    try:
        return parts, parse_yaml(text, name).data
    except InputError as error:
        raise InputError(f"{dotted}: the value is {error.message}", file=name, hint=error.hint) from None


def _write(data: dict[str, Any], parts: list[str], value: object, name: str) -> tuple[KeyPath, KeyPath]:
    """Set the value. Returns its path, and that of the outermost mapping that had to be made for it, if any."""
    at: Any = data
    done: list[str] = []
    made: int | None = None
    while parts:
        key: Any
        if isinstance(at, list):
            key = _index(at, parts.pop(0), ".".join(done), name)
        elif isinstance(at, dict):
            key = _pop_key(at, parts)
            if parts and at.get(key) is None:
                at[key] = {}
                made = made or len(done) + 1
        else:
            here = ".".join(done)
            hint = f"to replace it as a whole: --set '{here}={{{parts[0]}: ...}}'"
            raise InputError(f"{here} is {describe(at)}: it has no key {parts[0]!r}", file=name, hint=hint)
        done.append(key_name(key))
        if not parts:
            at[key] = value
        at = at[key]
    return tuple(done), tuple(done[:made])


def _index(items: list[Any], part: str, here: str, name: str) -> int:
    """An index of a list: a number, or the `name` of one of its items."""
    if part in (known := [str(index) for index in range(len(items))]):
        return known.index(part)
    names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in items]
    if names.count(part) == 1:
        return names.index(part)
    named = [word for word in names if isinstance(word, str)]
    near = nearest(part, named)
    hint = f"did you mean {here}.{near}?" if near else (f"or by name: {', '.join(named)}" if named else None)
    allowed = f"0 to {len(items) - 1}" if items else "none, it is empty"
    raise InputError(f"{here} is a list: {part!r} is not one of its indices ({allowed})", file=name, hint=hint)


def _pop_key(mapping: Mapping[Any, object], parts: list[str]) -> Any:
    """Take the next key from the parts: several of them where the mapping has a key with a dot, like quantile 0.5."""
    keys = {key_name(key): key for key in mapping}
    length = next((n for n in range(len(parts), 1, -1) if ".".join(parts[:n]) in keys), 1)
    word = ".".join(parts[:length])
    del parts[:length]
    return keys.get(word, word)


_LIBRARY = Path(__file__).parents[1] / "library"
_SCENARIO_OF_A_RUN = "scenario.yaml"

MODELINE = "# yaml-language-server: $schema="
"""A scenario's first line, which tells an editor where the JSON Schema is."""


def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] = (),
    *,
    check_files: bool = True,
    defaults: Mapping[str, Any] | None = None,
) -> Scenario:
    """The scenario that `source` is or names, with the overrides `a.b=VALUE` applied, checked as a whole.

    A text is the name of a shipped scenario or else the path of a YAML file. Relative paths in a file are relative to
    it; those in a mapping or an override to the working directory. All of them come out absolute, and unless
    `check_files` is False what they name must exist. `defaults` are top-level keys that the source may leave out.

    Raises InputError with file:line:column of the offending key, or with the override that is wrong, what is allowed
    there and the nearest match. Where several things are wrong, the others are listed too.
    """
    document = _open(source)
    document.origin.overrides.update(apply_overrides(document.data, overrides))
    for key, value in (defaults or {}).items():
        document.data.setdefault(key, value)
    _make_absolute(document)
    _find_real_engine(document)
    _read_model_config(document)
    document.data.setdefault("name", document.name)
    findings = _contradictions(document)
    try:
        scenario = Scenario.model_validate(document.data)
    except ValidationError as error:
        raise document.origin.error(_together(findings, explain(error, Scenario, document.data))) from None
    if check_files:
        findings += _missing_files(scenario)
    if findings:
        raise document.origin.error(findings)
    scenario._base_dir, scenario._origin = document.base_dir, document.origin
    return scenario


def dump(scenario: Scenario) -> str:
    """The scenario as YAML, every default shown, in the schema's order. `load` of it gives an equal scenario.

    Only the parameters of a user's policy that were not given are left out: their defaults are in its own file.
    """
    return yaml.dump(
        _plain(scenario.resolved()), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


def shipped() -> tuple[str, ...]:
    """The names of the scenarios that come with the package, sorted."""
    return tuple(sorted(path.stem for path in _LIBRARY.glob("*.yaml")))


def header(name: str) -> list[str]:
    """The comment at the head of a shipped scenario, a line each, without what it tells an editor."""
    lines = (_LIBRARY / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line for line in comment if not line.startswith(MODELINE)]


@dataclass(frozen=True, slots=True)
class _Document:
    """Plain data on their way to a scenario."""

    data: dict[str, Any]
    name: str  # of the scenario, unless it has one
    base_dir: Path
    origin: Origin


# ------------------------------------------------------------------------------------------------------------- finding


def _open(source: object) -> _Document:
    if isinstance(source, Scenario):
        return _Document(_plain(source.model_dump(exclude_unset=True)), source.name, source.base_dir, Origin())
    if isinstance(source, Mapping):
        return _Document(_plain(source), "scenario", Path.cwd(), Origin())
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"a scenario is a path, a name or a mapping, not {describe(source)}")
    path = Path(source)
    if isinstance(source, str) and re.fullmatch(r"[\w-]+", source) and source in shipped():
        path = _LIBRARY / f"{source}.yaml"
    elif isinstance(source, str) and not _exists(path):
        raise _not_found(source)
    if path.suffix == ".json" and (path.parent / _SCENARIO_OF_A_RUN).is_file():
        beside = path.parent / _SCENARIO_OF_A_RUN
        raise InputError("is a result of a run, not a scenario", file=str(source), hint=f"its scenario is {beside}")
    read = read_yaml(path)
    assert isinstance(read.data, dict)
    name = re.sub(r"[^\w.+-]+", "-", path.stem).strip("-._+") or "scenario"
    return _Document(read.data, name, path.absolute().parent, Origin(read.file, {**read.values, **read.keys}))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):
        return []


def _not_found(source: str) -> InputError:
    names = shipped()
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or "/" in source or os.sep in source:
        if path.stem in names:
            return InputError("no such file", file=source, hint=f"the shipped scenario is called `{path.stem}`")
        near = nearest(path.name, [name for name in _names_in(path.parent) if name.endswith((".yaml", ".yml"))])
        return InputError("no such file", file=source, hint=f"did you mean {path.parent / near}?" if near else None)
    near = nearest(source, names)
    known = f"shipped scenarios: {', '.join(names) or 'none'}; anything else is the path of a YAML file"
    hint = f"did you mean `{near}`? {known}" if near else known
    return InputError(f"no shipped scenario and no file is called {source!r}", hint=hint)


# ---------------------------------------------------------------------------------------------------------- resolution


_OF_A_GROUP = (("cost", "path"), ("cost", "kind"), ("model",), ("model", "base"), ("engine", "policy"))
_PATHS = (("workload", "trace", "path"), ("workload", "trace", "format"), *_OF_A_GROUP, ("router",), ("router", "kind"))


def _make_absolute(document: _Document) -> None:
    """Paths in the data: from the file's folder, or from the working directory if an override wrote them."""
    for around, holder in _holders(document):
        for path in _OF_A_GROUP if around else _PATHS:
            _make_one_absolute(document, holder, path, around)
    measure = document.data.get("measure")
    metrics = measure.get("metrics") if isinstance(measure, dict) else None
    for place in range(len(metrics)) if isinstance(metrics, list) else ():
        _make_one_absolute(document, metrics, (place,), ("measure", "metrics"))


def _holders(document: _Document) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """The mappings that name a model and a policy, each with its place: the scenario, and the groups of its fleet."""
    yield (), document.data
    fleet = document.data.get("fleet")
    for place, group in enumerate(fleet if isinstance(fleet, list) else ()):
        if isinstance(group, dict):
            yield ("fleet", str(place)), group


def _make_one_absolute(document: _Document, holder: Any, path: tuple[Any, ...], around: KeyPath) -> None:
    """Make absolute what stands under the keys `path` of `holder`, if it is a path; `around` is the holder's place."""
    for key in path[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(holder, list if isinstance(path[-1], int) else dict):
        return
    value = holder[path[-1]] if isinstance(holder, list) else holder.get(path[-1])
    if not isinstance(value, str) or not value:
        return
    is_code = path[0] in ("engine", "router") or path[-1] in ("kind", "format") or "metrics" in around  # path.py:NAME
    written, colon, name = value.rpartition(":") if is_code else (value, "", "")
    ending = ".py" if is_code else ".json" if path[0] == "model" else ""
    if not written.endswith(ending):
        return  # the name of something built in
    whole = (*around, *map(str, path))
    from_override = any(whole[:length] in document.origin.overrides for length in range(1, len(whole) + 1))
    base = Path.cwd() if from_override else document.base_dir
    holder[path[-1]] = f"{_absolute(base, with_variables(written))}{colon}{name}"


def _find_real_engine(document: _Document) -> None:
    """Make the path of a real engine's Python absolute; links stay, for they say which environment it is.

    The policy `real` with a Python that has SGLang alone is `real_sglang`.
    """
    for around, holder in _holders(document):
        engine = holder.get("engine")
        python = engine.get("python") if isinstance(engine, dict) else None
        if not isinstance(engine, dict) or not isinstance(python, str):
            continue
        if "/" in python or os.sep in python:
            key = (*around, "engine", "python")
            is_override = any(key[:length] in document.origin.overrides for length in range(1, len(key) + 1))
            base = Path.cwd() if is_override else document.base_dir
            python = engine["python"] = str(base / Path(with_variables(python)).expanduser())
        if engine.get("policy") == "real":
            from simulator.policies.real.asked import has_sglang_alone

            engine["policy"] = "real_sglang" if has_sglang_alone(python) else "real"


def _read_model_config(document: _Document) -> None:
    """Replace the path of a config.json by the model's dimensions: a scenario is whole without that file."""
    for around, holder in _holders(document):
        _read_config_of(document, holder, around)


def _read_config_of(document: _Document, holder: dict[str, Any], around: KeyPath) -> None:
    """Replace the path in the model of `holder`, which stands under `around`; the scenario's own tells `sampling`."""
    from simulator.hardware.model import spelled_out
    from simulator.hardware.model_config import is_config, read_model_config
    from simulator.sampling import beside

    written = holder.get("model")
    path, changes = (written.get("base"), written) if isinstance(written, Mapping) else (written, {})
    if not isinstance(path, str) or not is_config(path):
        return
    key: KeyPath = (*around, "model", "base") if changes else (*around, "model")
    try:
        model = read_model_config(Path(path))
        own = spelled_out({name: value for name, value in changes.items() if name != "base"})
        asked = {} if around else beside(Path(path))
    except InputError as error:
        raise document.origin.error([Finding(key, error.message, error.hint)]) from None
    defaults = {field.name: field.default for field in fields(model)}
    dimensions = {name: value for name, value in asdict(model).items() if value != defaults[name]}
    if own:
        dimensions["name"] = f"{model.name} (changed)"
    holder["model"] = {**dimensions, **own}
    own_sampling = holder.get("sampling")
    if asked and (own_sampling is None or isinstance(own_sampling, dict)):
        holder["sampling"] = {**asked, **(own_sampling or {})}


def _absolute(base: Path, written: str) -> Path:
    try:
        return (base / Path(written).expanduser()).resolve()
    except (OSError, ValueError, RuntimeError):  # no such home, a NUL in the name: reading it will say so
        return base / written


_GENERATED = tuple(
    ("workload", key) for key in ("preset", "rate", "benchmark", "requests", "duration_s", "arrival", "classes")
)


def _contradictions(document: _Document) -> list[Finding]:
    """A workload that is both read and generated, or neither: the schema would call one of the keys unknown."""
    workload = document.data.get("workload")
    if not isinstance(workload, Mapping):
        return []
    generated = [path for path in _GENERATED if workload.get(path[1]) is not None]
    if workload.get("trace") is None:
        known = ("trace", "max_tokens", "predictor", *(key for _, key in _GENERATED))
        if generated or any(key not in known for key in workload):
            return []
        hint = "give `trace: {path: ...}`, `preset`, `benchmark`, or `classes` with `requests` or `duration_s`"
        return [Finding(("workload",), "holds neither a trace nor classes", hint)]
    if not generated:
        return []
    trace = ("workload", "trace")
    if document.origin.place(trace).line is None and document.origin.place(generated[0]).line is not None:
        hint = "to replace what the file generates: --set 'workload={trace: {path: ...}}'"
        return [Finding(trace, f"contradicts {'.'.join(generated[0])}: a workload is either read or generated", hint)]
    hint = "keep `trace`, or `classes` with `requests` or `duration_s`"
    return [Finding(generated[0], "contradicts workload.trace: a workload is either read or generated", hint)]


def _together(contradictions: list[Finding], others: list[Finding]) -> list[Finding]:
    """All findings, without those that a contradiction entails: its keys called unknown, or missing."""
    if not contradictions:
        return others
    return contradictions + [
        finding
        for finding in others
        if not (finding.path[:2] in _GENERATED and finding.message in ("unknown key", "missing"))
    ]


def _missing_files(scenario: Scenario) -> list[Finding]:
    found = []
    path: Path | None = getattr(scenario.workload, "path", None)  # of a trace
    if path is not None and not _exists(path):
        from scenarios.traces.detect import public_source_hint

        found.append(_no_file(("workload", "trace", "path"), path, public_source_hint(path.name)))
    file = scenario.engine.policy_file
    if file is not None and not _exists(file):
        found.append(_no_file(("engine", "policy"), file))
    for place, file in enumerate(scenario.measure.files):
        if not _exists(file):
            found.append(_no_file(("measure", "metrics", str(place)), file))
    if isinstance(scenario.cost, OwnCostConfig) and not _exists(scenario.cost.file):
        found.append(_no_file(("cost", "kind"), scenario.cost.file))
    file = scenario.routing.file
    if file is not None and not _exists(file):
        found.append(_no_file(("router",) if isinstance(scenario.router, str) else ("router", "kind"), file))
    return found


def _no_file(key: KeyPath, path: Path, source: str | None = None) -> Finding:
    """`source` says where a file of this name can be had."""
    if (hint := unset_hint(path)) is not None:
        return Finding(key, f"no such file: {path}", hint)
    near = nearest(path.name, _names_in(path.parent))
    hint = f"did you mean {near}, in the same folder?" if near else None
    hints = (hint if _exists(path.parent) else f"there is no folder {path.parent}", source)
    return Finding(key, f"no such file: {path}", "\n  ".join(text for text in hints if text) or None)


# ---------------------------------------------------------------------------------------------------------- plain data


def _plain(value: Any) -> Any:
    """Mappings, sequences, paths and numbers of any make as YAML has them."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, (int, float)) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, (bool, int)) else value


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # a base class chosen at run time
    """Write YAML; text that YAML 1.1 or our reading of 1.2 would take for something else gets quotes."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = None if isinstance(plain_scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quoted)


_Dumper.add_representer(str, _represent_text)
