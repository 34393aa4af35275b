"""Files of tables: JSON, gzipped or not, with a schema and a version; what is wrong with one in words."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tables: its schema and version, what it is called, and what writes it."""

    schema: str
    version: int
    called: str
    writer: str

    def read(self, path: Path) -> object:
        """The JSON of a file. InputError where it cannot be read, or is none."""
        try:
            data = path.read_bytes()
            return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except OSError as error:
            raise InputError(f"cannot read the {self.called}: {error.strerror or error}", file=str(path)) from None
        except (ValueError, EOFError, zlib.error) as error:
            raise InputError(f"no {self.called}: {error}", file=str(path)) from None

    @contextmanager
    def opened(self, document: object, file: str | None) -> Iterator[Mapping[str, Any]]:
        """The document, if it is of this schema and version. What is missing or damaged in it is an InputError."""
        if not isinstance(document, dict) or document.get("schema") != self.schema:
            raise InputError(
                f'no {self.called}: "schema" is not "{self.schema}"', file=file, hint=f"{self.writer} writes them"
            )
        if document.get("version") != self.version:
            what = f"{self.called} of version {document.get('version')!r}; this batchlab reads version {self.version}"
            raise InputError(what, file=file, hint=f"make them again from their source: {self.writer}")
        try:
            yield document
        except KeyError as error:
            raise InputError(f"the {self.called} have no {error}", file=file) from None
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise InputError(f"the {self.called} are damaged: {error}", file=file) from None


class OfSoftware(Protocol):
    """Tables of a GPU under a version of an engine."""

    @property
    def name(self) -> str: ...

    @property
    def gpu(self) -> str: ...

    @property
    def software(self) -> str: ...


T = TypeVar("T", bound=OfSoftware)


def nearest_versions(tables: Iterable[T], gpu: str, software: str) -> list[T]:
    """Sort the tables of a GPU, those whose version is nearest to `software` first."""
    wanted = _minor(software)
    found = [each for each in tables if each.gpu == gpu]
    return sorted(found, key=lambda each: (abs(_minor(each.software) - wanted), each.name))


def _minor(software: str) -> float:
    """The minor number of "vLLM 0.19.0"; 0 where there is none."""
    parts = software.split()[-1].split(".")
    return float(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0.0
