"""Names imported on first use, old names of modules, and calls after an import."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, TypeVar

Value = TypeVar("Value")


def on_first_use(package: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports names on first use.

    Args:
        package: Name of the package.
        names: Names defined by each module of the package; the modules are attributes, too.
    """
    modules = {name: module for module, each in names.items() for name in each}

    def get(name: str) -> Any:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


class LazyModule:
    """Module that is imported at its first attribute access.

    The module then replaces this object.

    Args:
        name: Name of the module.
        namespace: `globals()` of the importing module.
        alias: Name in that namespace; None: the module's.
    """

    def __init__(self, name: str, namespace: dict[str, Any], alias: str | None = None) -> None:
        self._name, self._namespace, self._alias = name, namespace, alias or name

    def __getattr__(self, attribute: str) -> Any:
        module = self._namespace[self._alias] = importlib.import_module(self._name)
        return getattr(module, attribute)


class ImportedTable(Mapping[str, Value]):
    """Table of objects that are imported on first use.

    Args:
        paths: Path of each object, ``module:name``.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = paths

    def __getitem__(self, key: str) -> Value:
        value: Value = resolve_name(self.paths[key])
        return value

    def __contains__(self, key: object) -> bool:
        return key in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.paths!r})"


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook for old names of moved modules; emits a DeprecationWarning.

    Args:
        moved: New name of each module by its old name, both with the package.
    """

    def __init__(self, moved: Mapping[str, str]) -> None:
        self.moved = moved
        """New name of each module by its old one."""
        sys.meta_path.insert(0, self)  # first, or modules of a moved package would be imported twice

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a moved module, or None.

        Raises:
            ModuleNotFoundError: Another module of a moved package; its new folder may have one of that name.
        """
        if fullname in self.moved:
            return importlib.util.spec_from_loader(fullname, self)
        package = fullname.rpartition(".")[0]
        if package in self.moved:
            raise ModuleNotFoundError(f"No module named {fullname!r}: see {self.moved[package]}", name=fullname)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Import the module under its new name; warn."""
        new = self.moved[spec.name]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Restore the module's spec, which the old name's import replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


class AfterImport(importlib.abc.MetaPathFinder):
    """Import hook that calls a function after each import of a module.

    It calls the function at once if the module is imported already.

    Args:
        name: Name of the module.
        function: Path of the function, ``module:function``; its module is imported when it is needed.
    """

    def __init__(self, name: str, function: str) -> None:
        self.name, self.function = name, function
        sys.meta_path.insert(0, self)
        if sys.modules.get(name):
            self.call()

    def call(self) -> None:
        """Import and call the function."""
        module, _, function = self.function.partition(":")
        getattr(importlib.import_module(module), function)()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the other finders, with the call appended."""
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self.call()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def renamed(old: str, new: str) -> Callable[..., Any]:
    """Return a method for a class's old method name; it warns and calls the new one.

    Args:
        old: Old name of the method.
        new: New name.
    """

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        message = f"{type(self).__name__}.{old} is now {new}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*arguments, **keywords)

    call.__name__ = old
    call.__doc__ = f"Old name of `{new}`."
    return call


def renamed_attribute(old: str, new: str) -> property:
    """Return a property for an attribute's old name; it warns and reads the new one.

    Args:
        old: Old name of the attribute.
        new: New name.
    """

    def read(self: Any) -> Any:
        message = f"{type(self).__name__}.{old} is now {new}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(read, doc=f"Old name of `{new}`.")
