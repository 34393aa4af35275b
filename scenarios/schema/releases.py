"""A release of a server that is not known here: the nearest one that is, whose rules are taken in its place.

Rules change seldom from one release to the next (`simulator/policies/chunked_prefill/versions.py`), so an older or
newer release is served as the oldest or newest known one. A run says so; what is no release of that server is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.errors import InputError
from simulator.policies import DEFAULT_POLICY, named_policies, policy_class, policy_parameters

KEY = "version"
PATCH = r"(?:\.\d[\w.+-]*)?"
RELEASE = rf"^v?(\d{{1,2}})\.(\d{{1,2}}){PATCH}$"
DEVELOPMENT = r"^(?:main|nightly|latest|dev)\b[\w.+-]*$"


def nearest_known(known: Sequence[str], asked: object) -> str | None:
    """Of the known releases, oldest first, the one whose rules are taken for what is asked for; None for no release.

    A patch has the rules of its release, a build of the development branch those of the newest. Numbers more than one
    major release beyond the newest are no release.
    """
    text = str(asked)
    if re.match(DEVELOPMENT, text):
        return known[-1]
    numbers = _numbers(text)
    if not numbers or numbers[0] > _numbers(known[-1])[0] + 1:
        return None
    return known[max(0, sum(_numbers(each) <= numbers for each in known) - 1)]


def is_of(release: str, asked: object) -> bool:
    """True if what is asked for is this release, or a patch of it."""
    return _numbers(str(asked)) == _numbers(release)


def with_known(data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys of an engine with a release that is known, and what was asked for instead; '' where it is known."""
    policy, asked = data.get("policy", DEFAULT_POLICY), data.get(KEY)
    if asked is None or isinstance(asked, bool) or policy not in named_policies():
        return dict(data), ""
    try:
        parameter = policy_parameters(policy_class(str(policy))).get(KEY)
    except InputError:  # said where the policy is loaded
        return dict(data), ""
    if parameter is None or not parameter.words or _is_written(parameter.words, asked):
        return dict(data), ""
    near = nearest_known(parameter.words, asked)
    if near is None:
        return dict(data), ""
    return {**data, KEY: near}, "" if is_of(near, asked) else str(asked)


def others(known: Sequence[str]) -> list[dict[str, Any]]:
    """JSON Schemas of what else `nearest_known` takes: text, and numbers of YAML's."""
    nearest, majors = {"x-allowed": "of any other release the nearest"}, _numbers(known[-1])[0] + 2
    release = rf"^v?(?:{'|'.join(map(str, range(majors)))})\.\d{{1,2}}{PATCH}$"
    return [
        {"type": "string", "pattern": f"{release}|{DEVELOPMENT}", **nearest},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": majors, **nearest},
    ]


def _is_written(known: Sequence[str], asked: object) -> bool:
    """True if a word is meant as it is, or as a number of YAML's (0.20)."""
    return asked in known or (isinstance(asked, float) and asked in map(float, known))


def _numbers(release: str) -> tuple[int, ...]:
    """The first two numbers of a release; none of what is no release."""
    found = re.match(RELEASE, release)
    return (int(found[1]), int(found[2])) if found else ()
