"""What a server is: what it adds around the kernels of a step, the command that starts it, and a start that was read.

`scenarios.servers.server_of` has the server of a policy. Where nothing was published, the figures are vLLM's and say
so: the form is known to fit, the numbers are a default to be replaced by one's own.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from simulator.front_end import TOKENISED_S, FrontEnd
from simulator.timing.host import Host

if TYPE_CHECKING:
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model

Since = tuple[int, ...]  # a version, as (0, 19); () is before all
_NEWEST: Since = (10**9,)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a server and the key of the scenario that says the same, for writing it and for reading it.

    `names` are separated by spaces: the first is written, all are read. In a file of options they are keys, dotted
    where they lie deeper. A flag takes a value unless it `means` one. `default` is what the server does without it;
    None where that depends. A flag is left out where its default is meant, unless it is `always` written. `words` are
    the server's own words for values of the scenario, the first of several being written. A flag whose value is text of
    another form has `read`, which raises ValueError for what it does not understand, and `write`.
    """

    names: str
    key: str
    default: object = None
    means: object = None
    always: bool = False
    is_written: bool = True
    words: Mapping[Any, Any] = field(default_factory=dict)
    read: Callable[[str], object] | None = None
    write: Callable[[Any], str] | None = None

    def says(self, value: object) -> bool:
        """Return whether this flag is written for a value of its key."""
        if value is None or not self.is_written or (value == self.default and not self.always):
            return False
        return value in self.words if self.words else self.means is None or self.means == value


@dataclass(frozen=True, slots=True)
class Startup:
    """The circumstances on which a server's defaults depend: the GPU, the version (None: the newest), the model.

    `memory_gib` and `gpu` are memory and name of each GPU. `given` has the keys that were said, dotted, with values.
    """

    memory_gib: float
    gpu: str
    version: str | None = None
    model: "Model | None" = None
    given: Mapping[str, Any] = field(default_factory=dict)


def numbers_of(version: str) -> Since:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Launch:
    """A server's command line, for writing it and for reading it.

    The first of `programs` is written, all are recognised, and so is an image whose name holds one of `images`.
    `model` is the flag of the model, '' where it is the first argument; `model_names` are read too. `options` stand in
    a YAML file that `options_flags` name, `variables` in the environment. `without_effect` are flags that change
    neither schedule nor step times, by what they are about; `not_modelled` those that may, by why they do not here; `*`
    in a name stands for anything.
    `defaults` are the server's own where they depend on its circumstances; a key of `instead` that is given stands for
    the defaults of others. `fixed` is written for a policy without these keys; `written` are values that differ from
    the policy's parameters when they are written, and `joined` makes keys of the policy that no flag says from
    those that one does, and from the name of the `model`, the keys that flags `said`, and a server's data-parallel
    `ranks`. `is_own` says that the policy is the server's own, and not only near to it. `container` is an image
    that starts the server. `balancer` is the router among data-parallel ranks that the server has of its own, ''
    for none; its flag of `replicas` says how many ranks.
    A server of the same program from before a version says so: `until` is that version, `switch` a variable that asks
    for it, `told_by` the remark on its commands.
    """

    programs: Sequence[str]
    images: Sequence[str]
    flags: Sequence[Flag]
    without_effect: Mapping[str, str]
    not_modelled: Mapping[str, str]
    container: str
    model: str = ""
    model_names: Sequence[str] = ()
    options: Sequence[Flag] = ()
    options_flags: Sequence[str] = ()
    variables: Sequence[Flag] = ()
    port: int = 8000
    version: str | None = None
    is_own: bool = True
    fixed: Mapping[str, object] = field(default_factory=dict)
    defaults: Callable[[Startup], Mapping[str, object]] | None = None
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)
    remarks: Callable[[Any, Mapping[str, object]], Sequence[str]] | None = None
    joined: Callable[[Mapping[str, Any]], Mapping[str, object]] | None = None
    written: Callable[[Any, Mapping[str, object]], Mapping[str, object]] | None = None
    balancer: str = ""
    until: Since = ()
    switch: str = ""
    told_by: str = ""

    def usual(self, startup: Startup) -> dict[str, object]:
        """Return what the server does, by dotted key, where the key is not said; what else is said counts."""
        found = {flag.key: flag.default for flag in (*self.options, *self.flags) if flag.default is not None}
        return found | dict(self.defaults(startup) if self.defaults is not None else {})

    def left_out(self, usual: Mapping[str, object], given: Mapping[str, Any]) -> dict[str, object]:
        """Return those of the usual values that hold beside what is given."""
        replaced = [other for key, others in self.instead.items() if given.get(key) is not None for other in others]
        return {key: value for key, value in usual.items() if key not in given and key not in replaced}


@dataclass(frozen=True, slots=True)
class Older:
    """A server as it was before a version: its asynchronous host, and what prompts took by kernels of today's tables.

    A step of prompts alone takes `prompt_times` as long (at least 1), its host included; one with decodes in proportion
    to the tokens of prompts.
    """

    before: Since
    asynchronous: Host
    prompt_times: float = 1.0


@dataclass(frozen=True, slots=True)
class Untabled:
    """Kernels of a server that no tables hold: how many times as long prompts take as by those that stand in for them.

    A layer takes `layer_launch_s` to launch where no graph holds a prompt.
    """

    prompt_times: float
    layer_launch_s: float


@dataclass(frozen=True, slots=True)
class Server:
    """A server: what it adds to a step (`host`) and between clients and a step (`front_end`), and how it is started.

    An engine that schedules one way only has a host of that way alone. `overlaps_since` is the version from which on
    an engine schedules asynchronously by default, None for none. `filters` are the seconds that top-k and top-p take
    for each row of logits and each token of the vocabulary, of versions before one, the oldest first; nothing after
    the last. They come on top of an asynchronous host; figures of a synchronous one hold what its runs did.
    `older` are its versions that took longer, the oldest first. `asynchronous_of` is the host by the kind of the model,
    None for one that is the same for all. `untabled` says which models it computes with kernels without tables.
    `launch` is its command line; None: no server has the policy. `kernels` is the word for the engine in the names of
    kernel tables (`h100-vllm-0.24`). `prompt_graphs` says that CUDA graphs hold steps with prompts too, up to the
    captured size. `all_to_all`: ranks that share experts send a token to those of its experts alone. `fuses_since` is
    the version from which on all-reduces of dense models hold their norms where that is asked apart, None for none.
    """

    front_end: FrontEnd
    front_end_source: str
    synchronous: Host | None = None
    asynchronous: Host | None = None
    filters: Sequence[tuple[Since, float, str]] = ()
    overlaps_since: Since | None = ()
    older: Sequence[Older] = ()
    asynchronous_of: Callable[["Model"], Host | None] | None = None
    untabled: Callable[["Model", "Gpu"], Untabled | None] | None = None
    overload_status: int = 503  # HTTP status where the queue is full: 503 of vLLM (`QueueOverflowError`) and SGLang
    launch: Launch | None = None
    kernels: str = "vllm"
    prompt_graphs: bool = True
    all_to_all: bool = False
    fuses_since: Since | None = None

    def host(
        self,
        version: str | None = None,
        async_scheduling: bool | None = None,
        filtered_vocab: int = 0,
        model: "Model | None" = None,
    ) -> Host:
        """Return what the host adds to a step, with its source.

        `version` None is the newest. `async_scheduling` None is what that version does by default. A newer version
        told to be synchronous is as slow as the last that was so by default, an older one told to be asynchronous as
        quick as the first that is. `filtered_vocab` is the vocabulary, where top-k or top-p take tokens out of it. An
        asynchronous host is that of the `model`'s kind, if the engine's differs by that.
        """
        numbers = _NEWEST if version is None else numbers_of(version)
        overlaps = async_scheduling
        if overlaps is None:
            overlaps = self.overlaps_since is not None and numbers >= self.overlaps_since
        if not overlaps or self.asynchronous is None:
            return self.synchronous or self.asynchronous or Host()
        found = self.asynchronous
        if self.asynchronous_of is not None and model is not None:
            found = self.asynchronous_of(model) or found
        if (older := self._older(version)) is not None:
            found = older.asynchronous
        each_s, source = next(((s, source) for before, s, source in self.filters if numbers < before), (0.0, ""))
        if not filtered_vocab or not each_s:
            return found
        return replace(found, per_seq_s=found.per_seq_s + each_s * filtered_vocab, source=f"{found.source}; {source}")

    def prompt_times(self, version: str | None = None) -> float:
        """Return how many times as long as their kernels prompts take; None is the newest version."""
        older = self._older(version)
        return 1.0 if older is None else older.prompt_times

    def fuses(self, version: str | None = None) -> bool:
        """Return whether this version's all-reduces hold norms by default; None is the newest version."""
        numbers = _NEWEST if version is None else numbers_of(version)
        return self.fuses_since is not None and numbers >= self.fuses_since

    def _older(self, version: str | None) -> Older | None:
        if version is None or not self.older:
            return None
        return next((older for older in self.older if numbers_of(version) < older.before), None)

    def source_of_front_end(self, front_end: FrontEnd) -> str:
        """Return where figures of the front end come from; '' for figures that only the scenario has."""
        usual = (self.front_end.of(vocab) for vocab in (0, *TOKENISED_S))
        return self.front_end_source if front_end in usual else ""


@dataclass(frozen=True, slots=True)
class Start:
    """One server of a source. `words` are its program and arguments, as far as they are known.

    `said` are keys of the scenario that the source says outside of flags, each with its value and where it stands;
    `gpu` is any text that may name the GPU; `options` are keys of a file of options.
    """

    place: str
    words: Sequence[str] = ()
    image: str = ""
    gpu: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, tuple[object, str]] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # texts of files by name, where the source holds them
    remark: str = ""  # a comment behind the words
    notes: Sequence[str] = ()


def plain(name: str) -> str:
    """Return the name of a flag without its hyphens in front, and with hyphens for underscores."""
    return name.lstrip("-").replace("_", "-")


def as_words(data: Mapping[str, object]) -> list[str]:
    """Return a mapping of flags as words: true is a flag alone, false its opposite."""
    words: list[str] = []
    for key, value in data.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            several = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(json.dumps(each) if isinstance(each, dict) else str(each) for each in several)]
    return words


def arguments_in(text: str) -> dict[str, Any]:
    """Read `name=value, ...` as Python writes it; values that are no plain ones are left out."""
    found = {}
    for name, value in re.findall(r"(\w+)=('[^']*'|\"[^\"]*\"|[\w.+-]+)(?=[,)\s]|$)", text):
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found
