"""Studies of the library: a question, the runs that answer it, a page of `docs/studies` with a picture.

study       what a study is, and its page; its parts are those of the page of claims
NAME.py     a study: the constant `STUDY`, of the scenario `study-NAME`. Nothing registers it.

`python -m scenarios.cli.studies docs/studies` writes all pages and pictures, `... docs/studies NAME` one.
"""

from __future__ import annotations

import importlib
import pkgutil

from scenarios.study_pages.study import Study

__all__ = ["Study", "studies"]


def studies() -> dict[str, Study]:
    """Every study by its name, sorted."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        study = getattr(importlib.import_module(f"{__name__}.{module.name}"), "STUDY", None)
        if study is not None:
            found[study.name] = study
    return found
