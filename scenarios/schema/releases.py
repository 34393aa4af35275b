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
_RELEASE = re.compile(r"v?(\d{1,2})\.(\d{1,2})(?:\.\d[\w.+-]*)?$")
_DEVELOPMENT = re.compile(r"(?:main|nightly|latest|dev)\b[\w.+-]*$")


def nearest_known(known: Sequence[str], asked: object) -> str | None:
    """The release whose rules are taken for one that is not among the known ones, oldest first; None for no release.

    A build of the development branch is as the newest. Numbers a major release beyond the newest are no release.
    """
    text = str(asked)
    if _DEVELOPMENT.match(text):
        return known[-1]
    found = _RELEASE.match(text)
    if found is None:
        return None
    numbers, releases = (int(found[1]), int(found[2])), [_numbers(each) for each in known]
    if numbers in releases or numbers[0] > releases[-1][0] + 1:
        return None
    return known[max(0, sum(each < numbers for each in releases) - 1)]


def with_known(data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys of an engine with a release that is known, and what was asked for instead; '' where it is known."""
    policy, asked = data.get("policy", DEFAULT_POLICY), data.get(KEY)
    if asked is None or isinstance(asked, bool) or policy not in named_policies():
        return dict(data), ""
    try:
        parameter = policy_parameters(policy_class(str(policy))).get(KEY)
    except InputError:  # said where the policy is loaded
        return dict(data), ""
    if parameter is None or not parameter.words or _is_known(parameter.words, asked):
        return dict(data), ""
    near = nearest_known(parameter.words, asked)
    return (dict(data), "") if near is None else ({**data, KEY: near}, str(asked))


def _is_known(known: Sequence[str], asked: object) -> bool:
    """True if a word is meant as it is, or as a number of YAML's (0.20)."""
    return asked in known or (isinstance(asked, float) and asked in map(float, known))


def _numbers(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)
