"""Rules that are broken on purpose: one function of the product with a fragment of its source replaced.

A place is `module:qualified.name`. The function stays the same object and gets other code, so whoever imported it, or
holds a method of it, runs the changed rule; a rule that moves changes one name here. Of a constant the place names the
constant, and the texts are its old and its new value.
"""

import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest

_FUTURE = __future__.annotations.compiler_flag


def change(patch: pytest.MonkeyPatch, place: str, old: str, new: str) -> None:
    """Replace `old`, which must be there once, by `new` in a function, or as the value of a constant.

    Skips the test where the module is compiled: a rule that is compiled cannot be changed.
    """
    module_name, _, name = place.partition(":")
    module = importlib.import_module(module_name)
    if not str(module.__file__).endswith(".py"):
        pytest.skip("a rule that is compiled cannot be changed")
    owner, found = _look_up(module, name)
    if isinstance(found, FunctionType):
        patch.setattr(found, "__code__", _changed(module, owner, found, old, new))
        return
    assert repr(found) == old, f"{place} is {found!r}, not {old}"
    patch.setattr(owner, name.rpartition(".")[2], ast.literal_eval(new))


def function_at(place: str) -> FunctionType:
    """Return the function, or the method, that a place names."""
    module, _, name = place.partition(":")
    found = _look_up(importlib.import_module(module), name)[1]
    assert isinstance(found, FunctionType), f"{place} is no function"
    return found


def _look_up(module: ModuleType, name: str) -> tuple[Any, Any]:
    """Return what holds the thing of this name, a class or the module, and the thing itself."""
    owner, found = None, module
    for part in name.split("."):
        assert part in vars(found), f"{module.__name__} has no {name}"
        owner, found = found, vars(found)[part]
    return owner, _bare(found)


def _bare(found: Any) -> Any:
    """Return the function below a decorator: a property, a class method, a cache."""
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        for attribute in ("__wrapped__", "__func__", "fget", "func"):
            if (below := getattr(found, attribute, None)) is not None:
                found = below
                break
        else:
            return found
    return found


def _changed(module: ModuleType, owner: Any, function: FunctionType, old: str, new: str) -> Any:
    """Return the code of the function with the fragment replaced, compiled in the module's namespace."""
    source = inspect.getsource(function)
    count = source.count(old)
    assert count == 1, f"{old!r} is {count} times in {module.__name__}:{function.__qualname__}"
    tree = ast.parse(textwrap.dedent(source.replace(old, new)))
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    # `super()` and `__class__` are of the class that a function is written in.
    outer = ast.parse("def made(__class__):\n    return None").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [definition, ast.Return(ast.Name(definition.name, ast.Load()))]
    tree.body = [outer]
    flags = function.__code__.co_flags & _FUTURE
    names = dict(vars(module))
    code = compile(ast.fix_missing_locations(tree), str(module.__file__), "exec", flags, dont_inherit=True)
    exec(code, names)
    make: Callable[[Any], FunctionType] = names["made"]
    changed = make(owner).__code__
    assert changed.co_freevars == function.__code__.co_freevars, f"{function.__qualname__} closes over other names"
    return changed.replace(co_qualname=function.__code__.co_qualname)
