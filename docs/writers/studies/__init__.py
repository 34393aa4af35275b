"""Studies of the library: a question, the runs that answer it, and a page of `docs/studies` with a picture.

study       a study and its page; the page's parts are those of the page of claims
NAME.py     a study: the constant `STUDY`, of the scenario `study-NAME`. Nothing registers it.
"""

import importlib
import pkgutil
from pathlib import Path

from docs.writers.studies.study import Study, data_files, page

__all__ = ["Study", "studies", "write"]


def studies() -> dict[str, Study]:
    """Every study by its name, sorted."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        study = getattr(importlib.import_module(f"{__name__}.{module.name}"), "STUDY", None)
        if study is not None:
            found[study.name] = study
    return found


def write(folder: Path, study: Study) -> None:
    """Run a study, and write its page and its picture into `folder`."""
    from docs.writers.studies.panels import panels_picture
    from docs.writers.tables import write_files
    from reports.picture import write

    found = study.measure()
    write(folder / study.picture, panels_picture(study.name, found.panels).png)
    write(folder / f"{study.name}.md", page(study, found))
    write_files(folder.parent, data_files(found))
