"""A scenario from servers that were read: each key with the place it was taken from, and notes on all the rest."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from scenarios.assembly.engines import caches_prefixes, engine_keys
from scenarios.assembly.replica_parts import STATIC, build
from scenarios.schema.allowed import is_of, nearest_known
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.servers import policy_of
from scenarios.servers.flags import Read, launch_of, read_start, version_in
from scenarios.servers.server import Launch, Start, Startup
from scenarios.servers.vllm import ACCEPTANCE
from simulator.errors import InputError, did_you_mean
from simulator.hardware.gpus import GPUS, find_gpu
from simulator.hardware.models import HUGGING_FACE, MODELS, bare_name, built_in_of, precision_in, published_fields
from simulator.policies import policy_class, policy_parameters

_SECTIONS = ("model", "hardware", "cost", "sampling", "engine", "replicas", "router", "workload")
_PLAIN = {"kind": "linear", "base_s": 1.0, "per_token_s": 0.0, "per_context_token_s": 0.0}  # takes no server's defaults
_PLACEHOLDER = {"preset": "chat", "rate": 1.0, "requests": 500}
_GPU = "h200"  # the default of a scenario
_VERSION, _TOKENS = "engine.version", "kv_tokens"
_BY_DEFAULT = "the server's default"


@dataclass(frozen=True, slots=True)
class Found:
    """A scenario: as data, with the place of each dotted key; `read` and `notes` say what it does not hold."""

    data: Mapping[str, Any]
    why: Mapping[str, str]
    read: Read
    notes: Sequence[str]
    scenario: Scenario

    def text(self) -> str:
        """Return the scenario as YAML, each key with a comment."""
        lines = []
        for section, value in self.data.items():
            if section in ("hardware", "engine"):
                lines.append(f"{section}:")
                lines += [self._line(f"  {key}", one, f"{section}.{key}") for key, one in value.items()]
            else:
                lines.append(self._line(section, value, section))
        return "\n".join(lines) + "\n"

    def _line(self, key: str, value: object, path: str) -> str:
        written = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
        line = f"{key}: {written.removesuffix('...' + chr(10)).strip()}"
        return f"{line:<38}  # {self.why[path]}" if path in self.why else line

    def all_notes(self) -> list[str]:
        """Return a line for each flag that the scenario does not say, and what else a reader must know."""
        read = self.read
        near = [
            f"{flag} is unknown{f', did you mean --{name}?' if name else ''}" for flag, name in read.unknown.items()
        ]
        left = [f"{flag} is left out: {why}" for flag, why in read.not_modelled.items()]
        idle = [f"{flag} has no effect here: {why}" for flag, why in read.without_effect.items()]
        return [*self.notes, *(f"warning: {each}" for each in near), *left, *idle]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        read = self.read
        return {"scenario": dict(self.data), "from": dict(self.why), "not_modelled": read.not_modelled,
                "without_effect": read.without_effect, "unknown": read.unknown, "notes": list(self.notes)}  # fmt: skip


def make(
    starts: Sequence[Start], *, gpu: str | None = None, trace: Path | None = None, overrides: Sequence[str] = ()
) -> Found:
    """Make the scenario of servers; what several say is as the first says.

    Raises InputError where they name no model that is known, or say what no scenario can hold.
    """
    launch = launch_of(starts[0])
    read, notes = Read(), [note for start in starts for note in start.notes]
    for start in starts:
        read.add(read_start(launch, start, notes))
    chosen = dict(each.partition("=")[::2] for each in overrides)
    model, why = (chosen["model"], "--set") if "model" in chosen else model_of(read.model, starts[0].place)
    card, why_gpu = _gpu(starts, gpu, chosen.get("hardware.gpu"))
    data = {"model": model, "hardware.gpu": card, "engine.policy": policy_of(launch)}
    places = {"model": why, "hardware.gpu": why_gpu, "engine.policy": f"the scheduler of {launch.programs[0]}"}
    if "version" in policy_parameters(policy_class(policy_of(launch))):
        data[_VERSION], places[_VERSION] = version_of(launch, starts, read.taken.pop(_VERSION, None))
    dimensions = load({"model": model, "workload": _PLACEHOLDER}).resolve_model()
    said = data.get(_VERSION)
    startup = Startup(find_gpu(card).memory_gib, card, None if said is None else str(said), dimensions)
    given = _given(launch, read, startup, places)
    _accept(given, places, notes)
    _settle(launch, data, given, places)
    return _finish(data, places, read, notes, trace, overrides)


def _gpu(starts: Sequence[Start], asked: str | None, chosen: str | None) -> tuple[str, str]:
    if asked or chosen:
        return asked or str(chosen), "--gpu" if asked else "--set"
    named = next((name for start in starts if (name := gpu_of(start.gpu))), None)
    return (named, "its name in the source") if named else (_GPU, "NOT SAID, and it decides the most: --gpu NAME")


def _given(launch: Launch, read: Read, startup: Startup, places: dict[str, str]) -> dict[str, Any]:
    """Return what flags say and, where they say nothing, what the server then does."""
    given = {key: value for key, (value, _) in read.taken.items()}
    places |= {key: flag for key, (_, flag) in read.taken.items()}
    usual = launch.usual(replace(startup, given=given))
    if _TOKENS in given:
        usual.pop(STATIC, None)
    for key, value in launch.left_out(usual, given).items():
        given[key], places[key] = value, _BY_DEFAULT
    about = {**given, "model": read.model, "said": frozenset(read.taken)}
    for key, value in (launch.joined(about) if launch.joined else {}).items():
        given[key], places[key] = value, "follows from the others"
    return given


def _accept(given: dict[str, Any], places: dict[str, str], notes: list[str]) -> None:
    """Put the acceptance that a server has counted beside its drafter, which its metrics do not name."""
    key = ACCEPTANCE.rpartition(".")[0]
    law, drafter = given.pop(ACCEPTANCE, None), given.get(key)
    if law is None:
        return
    rates, place = law["rates"], places.pop(ACCEPTANCE)
    if drafter is None:
        notes.append(
            f"warning: the server verifies {len(rates)} drafts and accepts {rates} of them, by position, but its "
            f"metrics do not name its drafter: give its command or start-up log too, or --set '{key}={{method: ..., "
            f"num_speculative_tokens: {len(rates)}, acceptance: {{rates: {rates}}}}}'"
        )
    elif drafter["num_speculative_tokens"] > len(rates):
        notes.append(f"warning: {place} has {len(rates)} positions for {drafter['num_speculative_tokens']} drafts")
    else:
        given[key] = {**drafter, "acceptance": law}
        places[key] = f"{places[key]}; acceptance: {place}"


def _settle(launch: Launch, data: dict[str, Any], given: dict[str, Any], places: dict[str, str]) -> None:
    """Put what was given into the data; what the policy does not have, and defaults that are its own, are left out."""
    given.pop("ranks", None)
    widths = {key.removeprefix("model."): given.pop(key) for key in list(given) if key.startswith("model.")}
    widths = {key: value for key, value in widths.items() if value is not None}
    if widths:
        data["model"] = ({"base": data["model"]} if isinstance(data["model"], str) else data["model"]) | widths
    if tokens := given.pop(_TOKENS, None):
        given.setdefault("hardware.num_gpu_blocks", tokens // (given.get("engine.block_size") or 1))
        places.setdefault("hardware.num_gpu_blocks", f"{places[_TOKENS]}: {tokens:,} tokens")
    if given.get("engine.enable_prefix_caching") and not caches_prefixes(policy_of(launch)):
        given["engine.enable_prefix_caching"] = False
    own = {f"engine.{key}" for key in engine_keys(policy_of(launch), {})}
    plain = load({"engine": {"policy": policy_of(launch)}, "cost": _PLAIN, "workload": _PLACEHOLDER}).resolved()
    usual = {f"{section}.{key}": value for section in ("hardware", "engine") for key, value in plain[section].items()}
    for key, value in given.items():
        is_own = not key.startswith("engine.") or key in own
        is_usual = (places[key] == _BY_DEFAULT and usual.get(key) == value) or (key == "replicas" and value == 1)
        if value is not None and is_own and not is_usual:
            data[key] = value


def _finish(
    data: dict[str, Any],
    places: dict[str, str],
    read: Read,
    notes: list[str],
    trace: Path | None,
    overrides: Sequence[str],
) -> Found:
    """Nest the keys, add step times and traffic, and check the whole."""
    name = re.sub(r"[^\w.+-]+", "-", Path(read.model).name).strip("-._+")[:90]
    data["workload"] = {"trace": {"path": str(trace)}} if trace else dict(_PLACEHOLDER)
    places["workload"] = str(trace) if trace else "A PLACEHOLDER, not your traffic: --trace FILE gives it"
    if trace is None:
        notes.append("warning: the workload is a placeholder: give your traffic with --trace FILE")
    scenario, why = _priced(_nested(f"{name or 'a'}-server", data), overrides)
    places |= {"cost": why, **{each.partition("=")[0]: "--set" for each in overrides}}
    given = scenario.model_dump(exclude_unset=True)
    found = {key: given[key] for key in ("name", *_SECTIONS, "seed", "slo") if key in given}
    try:
        build(scenario)
    except InputError as error:
        hint = f" ({error.hint})" if error.hint else ""
        notes.append(f"warning: this scenario does not run as it is: {error.message}{hint}")
    return Found(found, places, read, notes, scenario)


def _nested(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    nest: dict[str, Any] = {"name": name}
    for section in _SECTIONS:
        for key, value in data.items():
            around, _, last = key.partition(".")
            if around == section:
                nest[section] = {**nest.get(section, {}), last: value} if last else value
    return nest


def _priced(data: Mapping[str, Any], overrides: Sequence[str]) -> tuple[Scenario, str]:
    """Return the scenario by measured kernels where they are shipped, else by the roofline, and why."""
    said: Mapping[str, Any] = data.get("cost", {})
    for cost in [said, {}] if said else [said]:  # what is said of experts has no effect on a model without
        with suppress(InputError):
            found = load({**data, "cost": {"kind": "profile", **cost}}, overrides)
            found.cost.build(found)
            return found, "measured kernels for this model and GPU"
    return load({**data, "cost": {"kind": "roofline"}}, overrides), "no measured kernels for this model and GPU"


def model_of(name: str, place: str) -> tuple[Any, str]:
    """Return the model of a repository, a folder or a config.json, and why it is the one.

    Raises InputError for one that is not known; `place` is where it was named.
    """
    if not name:
        raise InputError("names no model", file=place, hint="give one: --set model=NAME (batchlab list models)")
    path = Path(name)
    config = path / "config.json" if path.is_dir() else path
    if config.suffix == ".json" and config.is_file():
        return str(config.absolute()), f"{name}: its config.json"
    own = built_in_of(name)
    if own is None:
        bare = bare_name(name)
        hint = f"{did_you_mean(bare, MODELS)}give a model of `batchlab list models` or a config.json: --set model=NAME"
        raise InputError(f"the model {name} is not known", file=place, hint=hint)
    fields = published_fields(own, name)
    model: Any = {"base": own, **fields} if fields else own
    changed = f" in {precision_in(name)}" if fields else ""
    return model, name if name == HUGGING_FACE[own] else f"{name}: as {HUGGING_FACE[own]}{changed}"


def gpu_of(text: str) -> str | None:
    """Return the GPU that a label or a log names: every part of its name is in one word, the longest name first."""
    words = re.findall(r"[a-z0-9-]+", text.lower())
    for name in sorted(GPUS, key=len, reverse=True):
        if any(all(part in word for part in name.split("-")) for word in words):
            return name
    return None


def version_of(launch: Launch, starts: Sequence[Start], told: tuple[object, str] | None) -> tuple[str, str]:
    """Return the version whose rules are followed, and where it was said; the nearest one where it is not known."""
    known = policy_parameters(policy_class(policy_of(launch)))["version"].words
    image = next((start.image for start in starts if version_in(start.image)), "")
    remark = next((match[1] for start in starts if (match := re.search(r"vLLM (0\.\d+)", start.remark))), None)
    if told:
        found, why = str(told[0]), told[1]
    elif remark:
        found, why = remark, "the remark behind the command"
    elif image:
        found, why = str(version_in(image)), f"the image {image}"
    else:
        return known[-1], "not said: the newest"
    near = nearest_known(known, found) or known[-1]
    return near, why if is_of(near, found) else f"{why}: of {found} the rules are taken to be those of {near}"
