"""The compiled core, which is optional: with `BATCHLAB_COMPILE=1 pip install .` mypyc compiles the modules of the loop.

A build that is asked for and fails is an error. `batchlab --version` says which core is in use. What the build needs
stands in build_backend.py, everything else about the distribution in pyproject.toml.
"""

import ast
import os
import re
import runpy
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext


def compiled_modules() -> tuple[str, ...]:
    """The files that the packages of `simulator` name as `COMPILED`; nothing of them is imported.

    Not among them, for mypyc cannot compile them or would change what they are: frozen dataclasses (compiled, they can
    neither be copied nor pickled), and what derives from SimPy or from a built-in class. So a policy is interpreted,
    ours or a user's; what several policies share is compiled. What goes to worker processes says itself how.
    """
    found = []
    for package in sorted(Path("simulator").rglob("__init__.py")):
        for statement in ast.parse(package.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "COMPILED":
                found += [(package.parent / f"{name}.py").as_posix() for name in ast.literal_eval(statement.value)]
    return tuple(sorted(found))


UNFUSED = "/fp:precise" if sys.platform == "win32" else "-ffp-contract=off"
"""No multiplication is fused with an addition: every number is rounded as Python rounds it."""

ASKED = "batchlab: BATCHLAB_COMPILE=1 asks for the compiled core, and"
WITHOUT = "Without BATCHLAB_COMPILE the sources are installed, which give the same results."


class CompiledCore(build_ext):
    """Compile the whole core, or fail."""

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            raise SystemExit(f"{ASKED} an editable install runs the sources. {WITHOUT}")
        try:
            self.distribution.ext_modules = self._translated()
        except SystemExit as error:  # mypyc has printed what it found, and ends the process
            raise SystemExit(f"{ASKED} mypyc could not translate it: see above. {WITHOUT}") from error
        self.reinitialize_command(self)
        self.ensure_finalized()
        super().run()

    def _translated(self) -> list[Extension]:
        """Translate the core to C sources, in a folder of the build."""
        from mypyc.build import mypycify

        folder = Path(self.build_temp) / "mypyc"
        extensions: list[Extension] = mypycify(
            ["--config-file=", *compiled_modules()], group_name="batchlab", target_dir=str(folder), debug_level="0"
        )
        for extension in extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, UNFUSED]
        return extensions


TWO_LINES = "#include <Python.h>\nPyMODINIT_FUNC PyInit_two_lines(void) { return NULL; }\n"


def compiler_fault() -> str | None:
    """Tell why the C compiler cannot extend this Python: its error on `TWO_LINES`; None where it can."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "two_lines.c"
        source.write_text(TWO_LINES, encoding="utf-8")
        command = build_ext(Distribution({"ext_modules": [Extension("two_lines", [str(source)])]}))
        command.build_lib = command.build_temp = folder
        try:
            command.ensure_finalized()
            command.run()
        except Exception as error:  # of any compiler, in any of its ways
            name = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cl"
            return f"the C compiler {name.split()[0]!r} does not work: {str(error).rstrip('.')}"
    return None


def options() -> dict[str, object]:
    """Options of `setup` beside pyproject.toml. The process ends where the core is asked for and cannot be compiled."""
    if os.environ.get("BATCHLAB_COMPILE", "0") in ("", "0"):
        return {}
    if (fault := compiler_fault()) is not None:
        raise SystemExit(f"{ASKED} {fault}. {WITHOUT}")
    return {
        "cmdclass": {"build_ext": CompiledCore},
        "ext_modules": [Extension("batchlab__mypyc", [])],  # for which `CompiledCore` puts those of mypyc
    }


def long_description() -> str:
    """Return README.md with links that work outside the repository: to the files of this version's tag."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = runpy.run_path("scenarios/version.py")["__version__"]

    def at_home(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({project['urls']['Source']}/{kind}/v{version}/{link[3]})"

    return re.sub(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)", at_home, Path("README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    setup(long_description=long_description(), long_description_content_type="text/markdown", **options())
