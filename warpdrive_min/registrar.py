"""Registrar of environments and their kernels; import of classes by path."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, ClassVar, TypeGuard, TypeVar

from warpdrive_min.backends import BACKENDS
from warpdrive_min.backends.base import Language, Source
from warpdrive_min.environment import CUDAEnvironmentContext, Environment
from warpdrive_min.errors import ConfigError, WarpDriveError, known, require

EnvClass = TypeVar("EnvClass", bound=type)

ALIASES = {"cuda": "pycuda", "gpu": "pycuda"}
"""Old names of backends."""


class EnvironmentRegistrar:
    """Table of environment classes by name and backend.

    All instances share one table; names ignore case.
    """

    _classes: ClassVar[dict[tuple[str, str], type | str]] = {}
    _sources: ClassVar[dict[tuple[str, Language], Source]] = {}

    def add(
        self, env_backend: str | Sequence[str] = "cpu", cuda_env_src_path: str | Path | None = None
    ) -> Callable[[EnvClass], EnvClass]:
        """Return a decorator that registers a class for one or more backends.

        It is registered under its ``name``.

        Args:
            env_backend: Backend or backends of the class.
            cuda_env_src_path: Source of its kernels for those backends, as for `add_cuda_env_src_path`.

        Raises:
            ConfigError: The name is taken for a backend, or a backend is unknown.
        """
        names = [_backend(name) for name in ([env_backend] if isinstance(env_backend, str) else env_backend)]

        def register(cls: EnvClass) -> EnvClass:
            key = cls.name.lower()  # type: ignore[attr-defined]
            for backend in names:
                self._require_free(key, backend, self._class(key, backend) in (None, cls))
                self._classes[key, backend] = cls
                if cuda_env_src_path is not None and backend != "cpu":
                    self.add_cuda_env_src_path(key, cuda_env_src_path, backend)
            return cls

        return register

    def add_paths(self, paths: Mapping[str, str], env_backend: Sequence[str]) -> None:
        """Register classes that are imported on first use.

        Args:
            paths: Path of each class by its ``name``, ``module:Class``.
            env_backend: Backends of the classes.

        Raises:
            ConfigError: A name is taken by another class.
        """
        for name, path in paths.items():
            for backend in env_backend:
                key = name.lower()
                self._require_free(key, backend, self._classes.get((key, backend), path) == path)
                self._classes[key, backend] = path

    @staticmethod
    def _require_free(key: str, backend: str, is_free: bool) -> None:
        rule = f"{key!r} is registered for {backend!r} already"
        require(is_free, "registrar", rule, do="give the class another name")

    def get(self, name: str, env_backend: str = "cpu") -> type:
        """Return the class of that name for a backend.

        Falls back to a backend of the same language.

        Raises:
            ConfigError: None is registered; lists the registered ones.
        """
        found = self._found(name, env_backend)
        do = f"known are {known(each for each, backend in self._classes if backend in _same_language(env_backend))}"
        require(found is not None, "registrar", f"no environment {name!r} for backend {env_backend!r}", do=do)
        assert found is not None
        return found

    def has_env(self, name: str, env_backend: str = "cpu") -> bool:
        """True if a class of that name is registered for a backend."""
        return self._found(name, env_backend) is not None

    def _found(self, name: str, env_backend: str) -> type | None:
        found = (self._class(name.lower(), backend) for backend in _same_language(env_backend))
        return next(filter(None, found), None)

    def _class(self, key: str, backend: str) -> type | None:
        found = self._classes.get((key, backend))
        return resolve_name(found) if isinstance(found, str) else found

    def add_cuda_env_src_path(self, name: str, cuda_env_src_path: str | Path, env_backend: str = "pycuda") -> None:
        """Register an environment's kernel source, which overrides the class's own.

        Args:
            name: Name of the environment.
            cuda_env_src_path: Path of a ``.cu`` file (`pycuda`, `host`) or dotted name of a module (`numba`, `cpu`).
            env_backend: Backend that runs it; backends of one language share it.

        Raises:
            ConfigError: The path does not fit the backend's language.
        """
        language = BACKENDS[_backend(env_backend)].language
        text = str(cuda_env_src_path)
        if language == "cuda_c":
            require(text.endswith(".cu"), "registrar", f"the CUDA C source of {name!r} must end in .cu", text)
        else:
            is_module = "/" not in text and not text.endswith(".py")
            require(is_module, "registrar", f"the {language} source of {name!r} must be a dotted module name", text)
        self._sources[name.lower(), language] = cuda_env_src_path

    def get_cuda_env_src_path(self, name: str, env_backend: str = "pycuda") -> Source | None:
        """Return the registered source of an environment's kernels, or None."""
        return self._sources.get((name.lower(), BACKENDS[_backend(env_backend)].language))


def _backend(name: str) -> str:
    resolved = ALIASES.get(name, name)
    require(resolved in BACKENDS, "registrar", "unknown backend", name, f"known are {known(BACKENDS)}")
    return resolved


def _same_language(name: str) -> list[str]:
    """Return a backend, then others of the same language."""
    chosen = BACKENDS[_backend(name)]
    others = [each.name for each in BACKENDS.values() if each.language == chosen.language and each is not chosen]
    return [chosen.name, *others]


env_registrar = EnvironmentRegistrar()
"""Shared registrar."""


# ------------------------------------------------------------------ classes by path


def load_class(target: str, name: str | None = None) -> type[CUDAEnvironmentContext]:
    """Import an environment class.

    Args:
        target: Folder of a package, path of a module, ``package.module:ClassName`` or ``PATH:ClassName``. A path needs
            no installation: the folder above the outermost package is added to ``sys.path``.
        name: Name of the class, if there are several.

    Raises:
        ConfigError: The module or class is missing, there are several classes, or another module has that name.
    """
    dotted, _, after = target.partition(":")
    path, who = Path(target), "environment"
    if path.exists():
        module = _import_path(path)
    elif after and os.path.exists(dotted) and not dotted.isidentifier():
        module, name = _import_path(Path(dotted)), after
    else:
        require(after or "/" not in target, who, f"the path must exist (got {target})")
        is_name = all(part.isidentifier() for part in dotted.split("."))
        require(is_name, who, "must be a path, or a module's dotted name", target, "give it as module:Class")
        module = _import(dotted, target)
        name = after or name
    if name and _is_environment(found := getattr(module, name, None)):
        return found
    attributes = dict.fromkeys([*vars(module), *getattr(module, "__all__", ())])  # some are imported on first use
    values = (getattr(module, attribute, None) for attribute in attributes)
    classes = {each.__name__: each for each in values if _is_environment(each)}
    require(name or classes, who, f"{target} must have a class derived from Environment (got none)", do="add one")
    own = [each for each, cls in classes.items() if f"{cls.__module__}.".startswith(f"{module.__name__}.")]
    choices = own or list(classes)  # others are imported, such as a base class
    rule = f"{target} must have one environment, or be followed by its name (got {known(choices)})"
    require(name or len(choices) == 1, who, rule, do="give one as PATH:Class or module:Class")
    name = name or choices[0]
    rule = f"{target} has no environment {name!r} (known: {known(classes)})"
    require(name in classes, who, rule, do="give one of these")
    return classes[name]


def _is_environment(value: Any) -> TypeGuard[type[CUDAEnvironmentContext]]:
    """Return True for a class derived from those of environments."""
    own = (Environment, CUDAEnvironmentContext)
    return inspect.isclass(value) and issubclass(value, CUDAEnvironmentContext) and value not in own


def _import_path(path: Path) -> ModuleType:
    path, who = path.resolve(), "environment"
    file = path / "__init__.py" if path.is_dir() else path
    require(file.exists(), who, f"{path} must be a package (got a folder without __init__.py)", do="add one")
    top = path.parent
    while (top / "__init__.py").exists():
        top = top.parent
    if str(top) not in sys.path:
        sys.path.insert(0, str(top))
    dotted = ".".join(path.relative_to(top).with_suffix("").parts)
    module = _import(dotted, str(path))
    rule = f"{path} must not have the name of another module (got {dotted!r}, which is {module.__file__})"
    require(Path(module.__file__ or "").resolve() == file, who, rule, do="rename it")
    return module


def _import(dotted: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(dotted)
    except ImportError as error:
        raise ConfigError(f"environment: cannot import {dotted!r} of {target}: {error}") from error
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise ConfigError(f"environment: {target} must be Python code ({where}: {error.msg})") from error
    except SystemExit as error:
        raise ConfigError(f"environment: {target} must not end Python as it is imported (sys.exit)") from error
    except WarpDriveError:
        raise
    except Exception as error:  # a module from outside may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{last.filename}, line {last.lineno}: {type(error).__name__}: {error}"
        do = "import it in Python to see the whole traceback"
        raise ConfigError.of("environment", f"{target} must not raise as it is imported ({what})", do=do) from error
