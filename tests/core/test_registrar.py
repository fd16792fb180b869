"""The registrar: environments and their sources by name and backend."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import run_python
from warpdrive_min import EnvironmentRegistrar
from warpdrive_min.errors import ConfigError


@pytest.fixture
def registrar(monkeypatch: pytest.MonkeyPatch) -> EnvironmentRegistrar:
    """A registrar whose shared tables are empty for the test."""
    monkeypatch.setattr(EnvironmentRegistrar, "_classes", {})
    monkeypatch.setattr(EnvironmentRegistrar, "_sources", {})
    return EnvironmentRegistrar()


class Walk:
    """A class to register."""

    name = "Walk"


def test_class_is_found_by_its_name_in_any_case(registrar):
    """A class is found by name in any case and instance."""
    assert registrar.add()(Walk) is Walk
    assert registrar.get("walk") is registrar.get("WALK", "cpu") is EnvironmentRegistrar().get("Walk") is Walk
    assert registrar.has_env("wALK")
    assert not registrar.has_env("Walk", "pycuda")


def test_class_added_by_its_path_is_imported_on_first_use(registrar, monkeypatch):
    """A class added by its path is imported when it is asked for; its name is taken."""
    registrar.add_paths({"Walk": "walks.fast:Walk"}, ["cpu", "numba"])
    monkeypatch.setitem(sys.modules, "walks", ModuleType("walks"))
    monkeypatch.setitem(sys.modules, "walks.fast", module := ModuleType("walks.fast"))
    module.Walk = Walk
    assert registrar.get("walk", "numba") is Walk
    assert registrar.add("cpu")(Walk) is Walk
    with pytest.raises(ConfigError, match="'walk' is registered for 'numba' already"):
        registrar.add("numba")(type("Other", (), {"name": "Walk"}))


def test_shipped_environments_are_imported_on_first_use():
    """The table imports only the environment that is asked for."""
    code = "import sys, envs; envs.ENVS['rice']; print(*(name for name in sys.modules if name[-4:] == '.env'))"
    assert run_python("-c", code, cwd=Path(__file__).parents[2]).split() == ["envs.rice.env"]


def test_several_backends_share_a_class_and_old_names_mean_pycuda(registrar):
    """A list registers several backends; "cuda" and "gpu" mean `pycuda`."""
    registrar.add(["numba", "cuda"])(Walk)
    assert registrar.get("walk", "pycuda") is registrar.get("walk", "gpu") is registrar.get("walk", "numba") is Walk
    assert not registrar.has_env("walk", "cpu")


def test_unknown_name_lists_those_of_the_backend(registrar):
    """An unknown name lists the names of its backend only."""
    registrar.add("cpu")(Walk)
    registrar.add("numba")(type("Run", (), {"name": "Run"}))
    with pytest.raises(ConfigError, match=r"no environment 'wlak' for backend 'cpu'; known are walk$"):
        registrar.get("wlak")


def test_name_is_taken_once_for_a_backend(registrar):
    """A backend's name can have only one class."""
    registrar.add()(Walk)
    registrar.add()(Walk)
    other = type("Other", (), {"name": "WALK"})
    for add in (lambda: registrar.add()(other), lambda: registrar.add_paths({"Walk": "walks:Walk"}, ["cpu"])):
        with pytest.raises(ConfigError, match="'walk' is registered for 'cpu' already"):
            add()
    registrar.add("numba")(other)
    assert registrar.get("walk", "numba") is other


@pytest.mark.parametrize("use", ["add", "get", "has_env", "add_cuda_env_src_path", "get_cuda_env_src_path"])
def test_unknown_backend_raises(registrar, use):
    """Every method refuses an unknown backend."""
    before = {"add": (), "add_cuda_env_src_path": ("walk", "walk.cu")}.get(use, ("walk",))
    with pytest.raises(ConfigError, match=r"unknown backend .got 'tpu'.; known are cpu, host, numba, pycuda"):
        getattr(registrar, use)(*before, "tpu")


def test_source_is_shared_by_the_backends_of_a_language(registrar):
    """Backends of one language share a source; the last one counts.

    A .cu file is for `pycuda` and `host`, a module for `numba`.
    """
    registrar.add_cuda_env_src_path("Walk", "old.cu")
    registrar.add_cuda_env_src_path("Walk", Path("walk.cu"), "host")
    registrar.add_cuda_env_src_path("Walk", "games.walk", "numba")
    assert registrar.get_cuda_env_src_path("walk") == registrar.get_cuda_env_src_path("WALK", "host") == Path("walk.cu")
    assert registrar.get_cuda_env_src_path("walk", "numba") == "games.walk"
    assert registrar.get_cuda_env_src_path("walk", "cpu") is None
    assert registrar.get_cuda_env_src_path("run") is None


def test_source_can_come_with_the_class(registrar):
    """The decorator registers a source for its backends, except `cpu`."""
    registrar.add(["cpu", "pycuda"], cuda_env_src_path="walk.cu")(Walk)
    assert registrar.get_cuda_env_src_path("walk") == "walk.cu"
    assert registrar.get_cuda_env_src_path("walk", "cpu") is None


@pytest.mark.parametrize(
    ("path", "backend", "message"),
    [
        ("walk.cpp", "pycuda", "the CUDA C source of 'walk' must end in .cu .got 'walk.cpp'"),
        ("games.walk", "host", "must end in .cu"),
        ("games/walk", "numba", "the numba source of 'walk' must be a dotted module name"),
        ("walk.py", "cpu", "the numpy source of 'walk' must be a dotted module name .got 'walk.py'"),
    ],
)
def test_source_must_fit_the_language(registrar, path, backend, message):
    """A source of the wrong kind for its language raises."""
    with pytest.raises(ConfigError, match=message):
        registrar.add_cuda_env_src_path("walk", path, backend)
