"""Files of kernel times: JSON, gzipped or not, with a schema and a version. An error says what is wrong with one."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of file: its schema and version, what it is called, and the command that writes it."""

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
            what = f"cannot read the {self.called.removeprefix('a ')}: {error.strerror or error}"
            raise InputError(what, file=str(path)) from None
        except (ValueError, EOFError, zlib.error) as error:
            raise InputError(f"not {self.called}: {error}", file=str(path)) from None

    @contextmanager
    def opened(self, document: object, file: str | None) -> Iterator[dict[str, Any]]:
        """The document, if it is of this schema and version. What is missing or damaged in it is an InputError."""
        if not isinstance(document, dict) or document.get("schema") != self.schema:
            what = f'not {self.called}: "schema" is not "{self.schema}"'
            raise InputError(what, file=file, hint=f"{self.writer} writes them")
        if document.get("version") != self.version:
            what = f"{self.called} of version {document.get('version')!r}; this batchlab reads version {self.version}"
            raise InputError(what, file=file, hint=f"make the file again from its source: {self.writer}")
        try:
            yield document
        except KeyError as error:
            raise InputError(f"{self.called} with no {error}", file=file) from None
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(f"{self.called}, but damaged: {error}", file=file) from None
