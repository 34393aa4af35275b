"""Real clients on a real socket: the `openai` package and `vllm bench serve`, and the signals that end the server.

The clients may live in an environment of their own: BATCHLAB_VLLM_PYTHON, which holds vLLM, has both.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from scenarios.runs.storage.run_tables import read_csv

_MAIN = "from scenarios.cli.app import main; main()"
# As the command `vllm bench serve`, without the rest of vLLM's command line, which wants what a server needs.
_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
_VLLM_PYTHON = os.environ.get("BATCHLAB_VLLM_PYTHON")
_OPENAI_PYTHON = sys.executable if find_spec("openai") is not None else _VLLM_PYTHON


@contextmanager
def server(out: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own: its base URL. It is ended by SIGTERM, unless that was done."""
    command = [sys.executable, "-c", _MAIN, "serve", "quickstart", "--port", "0", "--out", str(out), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert " at http://" in line, process.stderr and process.stderr.read()
            yield line.split()[-1], process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=300)


@pytest.mark.slow
@pytest.mark.skipif(_OPENAI_PYTHON is None, reason="needs the package openai, here or where BATCHLAB_VLLM_PYTHON is")
def test_the_openai_package(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with server(out, "--api-key", "secret") as (url, process):
        program = Path(__file__).with_name("openai_client.py")
        done = subprocess.run([str(_OPENAI_PYTHON), str(program), url], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert process.returncode == 0
    seen = json.loads(done.stdout)
    assert seen["models"] == ["llama-3.1-8b"]
    assert seen["chat"] == ["length", 7, 7]
    assert seen["completions"] == [3] * 4
    assert seen["stream"] == {"words": 9, "usage": 9}
    assert seen["errors"] == {
        "no_such_model": ["NotFoundError", 404],
        "bad": ["BadRequestError", 400],
        "no_key": ["AuthenticationError", 401],
    }
    assert seen["async"] == {"whole": [20] * 4, "left": [True] * 4}
    table = read_csv(out / "requests.csv.gz")
    assert sorted(table["status"]) == ["aborted"] * 4 + ["finished"] * 10


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(_VLLM_PYTHON is None, reason="needs an environment with vLLM: BATCHLAB_VLLM_PYTHON")
def test_vllm_bench_serve(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with server(out) as (url, process):
        bench = vllm_bench(url, tmp_path, requests=40, rate=10)
    assert process.returncode == 0
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert bench["completed"] == 40
    assert summary["completed"] == 40
    assert bench["total_output_tokens"] == summary["total_output_tokens"] == 40 * 50
    assert bench["total_input_tokens"] == summary["total_input_tokens"]
    figures = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms", "output_throughput")
    print(
        {name: (bench[name], summary[name]) for name in figures}
    )  # how near they are is a matter of the machine: `python -m tests.bench.serve` measures it


def vllm_bench(url: str, folder: Path, *, requests: int, rate: float) -> dict[str, Any]:
    """What `vllm bench serve` says of a server."""
    maker = Path(__file__).with_name("word_tokenizer.py")
    subprocess.run([str(_VLLM_PYTHON), str(maker), str(folder / "tokenizer")], check=True, capture_output=True)
    flags = {
        "--base-url": url.removesuffix("/v1"),
        "--model": "llama-3.1-8b",
        "--tokenizer": str(folder / "tokenizer"),
        "--dataset-name": "random",
        "--random-input-len": "100",
        "--random-output-len": "50",
        "--num-prompts": str(requests),
        "--request-rate": str(rate),
        "--result-dir": str(folder),
        "--result-filename": "bench.json",
        "--percentile-metrics": "ttft,tpot,itl,e2el",
    }
    command = [str(_VLLM_PYTHON), "-c", _BENCH, *(part for flag in flags.items() for part in flag)]
    done = subprocess.run(
        [*command, "--ignore-eos", "--save-result", "--disable-tqdm"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    return found


def test_without_the_extra_the_verb_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from scenarios.cli import serve
    from scenarios.cli.flags import Given
    from simulator.errors import InputError

    monkeypatch.setattr(serve, "_NEEDS", ("starlette", "no_such_package"))
    with pytest.raises(InputError, match="no_such_package, which is not installed") as error:
        serve.serve("quickstart", given=Given())
    assert "batchlab[serve]" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains(tmp_path: Path, number: signal.Signals) -> None:
    import http.client

    out = tmp_path / "run"
    with server(out) as (url, process):
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        connection = http.client.HTTPConnection(host, int(port))
        body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        process.send_signal(number)
        rest = answer.read().decode()
        connection.close()
        process.wait(timeout=300)
        assert rest.endswith("data: [DONE]\n\n")
        assert process.returncode == 0
    assert read_csv(out / "requests.csv.gz")["status"] == ["finished"]
