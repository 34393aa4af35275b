"""One server of a source by the table of its flags: which server it is, its version, and all that it says."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from scenarios.schema.releases import is_of, nearest_known
from scenarios.servers.config_file import as_words, flat
from scenarios.servers.flags import Read, read_options, read_variables, read_words
from scenarios.servers.names import version_in
from scenarios.servers.start import Start, launch_of_image, launches, policy_of, program
from simulator.errors import InputError
from simulator.policies import policy_class, policy_parameters
from simulator.servers import Launch


def launch_of(start: Start) -> Launch:
    """Return the command line of a server, in the age that the source says."""
    found = program(start.words)
    launch = found[0] if found else launch_of_image(start.image)
    if launch is None:
        raise InputError("it starts no server that is known here", file=start.place)
    numbers = tuple(int(part) for part in (version_in(start.image) or "9999").split("."))
    variables = {f"{name}={value}" for name, value in start.environment.items()}
    for older in launches():
        told = older.told_by and (older.told_by in start.remark or older.switch in variables or numbers < older.until)
        if told and set(older.programs) == set(launch.programs):
            return older
    return launch


def read_start(launch: Launch, start: Start, notes: list[str]) -> Read:
    """Read the flags of one source, the files that they name, and what else it says; notes are added."""
    found = program(start.words)
    read = read_words(launch, start.words[found[1] if found else 0 :])
    for flag, file in read.files.items():
        _read_file(read, launch, flag, file, start.files, notes)
    read_options(launch, dict(flat(start.options)), read)
    read_variables(launch, start.environment, read)
    said = dict(start.said)
    if replicas := re.search(r"on each of ([\d,]+) replicas", start.remark):
        said["replicas"] = (int(replicas[1].replace(",", "")), "the remark behind the command")
    if "replicas" in read.taken:
        ranks, flag = read.taken["ranks"] = read.taken["replicas"]
        if "replicas" in said:  # so many servers, each of so many ranks
            number, where = said["replicas"]
            read.taken["replicas"] = (int(str(number)) * int(str(ranks)), f"{where}, times {flag}")
            if "hardware.enable_expert_parallel" in read.taken:
                notes.append(f"warning: here all replicas share experts, not the {ranks} ranks of each server alone")
        elif launch.balancer and ranks != 1:
            read.taken["router"] = (launch.balancer, f"the server's own, for {flag}")
    read.taken = {**said, **read.taken}
    return read


def _read_file(read: Read, launch: Launch, flag: str, file: str, files: Mapping[str, str], notes: list[str]) -> None:
    """Read a file of flags that a command names: flags win over those of a file, options of a file over flags."""
    path = Path(file)
    if path.name not in files and not path.is_file():
        notes.append(f"warning: {flag} {file} is no file here: what it says is not taken")
        return
    try:
        data = yaml.safe_load(files[path.name] if path.name in files else path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"cannot be read as YAML: {error}", file=file) from None
    if not isinstance(data, dict):
        raise InputError("expected a mapping of flags", file=file)
    if launch.options:
        read_options(launch, dict(flat(data)), read)
    else:
        read.add(read_words(launch, as_words(data)))


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
