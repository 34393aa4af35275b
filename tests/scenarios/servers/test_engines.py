"""The server of a policy is found by the policy's name, or stands in a user's own file."""

from pathlib import Path

import pytest

from scenarios.servers import server_of, sglang, tensorrt_llm, tgi, vllm
from scenarios.servers.server import Server
from simulator.policies import named_policies

ENGINES = (vllm, sglang, tensorrt_llm, tgi)
OWN = """
from scenarios.servers import server_of
from simulator.policies.static import Static

SERVER = server_of("sglang")


class Own(Static):
    pass
"""


def servers() -> dict[str, Server]:
    """The servers that engines' files name, by the name of the constant."""
    found = [(name, value) for engine in ENGINES for name, value in vars(engine).items() if isinstance(value, Server)]
    return {name: value for name, value in found if not name.startswith("LIKE_")}


def test_every_server_is_that_of_a_policy() -> None:
    assert {name.lower() for name in servers()} < {*named_policies()}
    for name, server in servers().items():
        assert server_of(name.lower()) is server


def test_policies_that_no_file_names_are_as_quick_as_vllm() -> None:
    others = {*named_policies()} - {name.lower() for name in servers()}
    assert others == {"fastgen", "fastserve", "orca", "static"}
    assert all(server_of(name) is vllm.LIKE_VLLM for name in (*others, "no_such_policy"))


@pytest.mark.parametrize(
    ("text", "name", "server"),
    [
        (OWN, "Own", sglang.SGLANG),
        (OWN.replace("SERVER", "OTHER"), "Own", vllm.LIKE_VLLM),
        ("from simulator.policies.tgi import Tgi\n", "Tgi", tgi.TGI),
    ],
    ids=["with a server", "without", "a built-in class"],
)
def test_a_users_file_may_have_its_own(text: str, name: str, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "vllm.py"  # its name is no policy's
    file.write_text(text, encoding="utf-8")
    assert server_of(f"{file}:{name}") is server
