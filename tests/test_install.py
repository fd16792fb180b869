"""Package names in a checkout and in a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import envs
import warpdrive_min.envs

ROOT = Path(envs.__file__).parents[1]


def test_environments_have_one_name_everywhere():
    """In a checkout `warpdrive_min.envs` is the folder `envs`."""
    assert warpdrive_min.envs.__all__ == envs.__all__
    assert all(getattr(warpdrive_min.envs, name) is getattr(envs, name) for name in envs.__all__)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install our wheel; return a function that runs Python with it.

    It runs in an empty folder.
    """
    pytest.importorskip("hatchling", reason="builds the wheel")
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "env")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(packages), str(wheel)], check=True)
    # Dependencies come from our packages; .pth files there, as of a checkout, are not read from this path.
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others))

    # Measuring is refused in Numba's simulator, which the tests enable.
    own = {name: value for name, value in os.environ.items() if name not in ("NUMBA_ENABLE_CUDASIM", "PYTHONPATH")}

    def run(*words):
        python = folder / "env" / "bin" / "python"
        done = subprocess.run(
            [python, *words], cwd=packages.parent, env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_wheel_claims_one_name(installed):
    """The wheel installs one top-level package.

    A user's `bench` and `envs` do not collide with ours.
    """
    code = "import importlib.util as u; print([n for n in ('bench', 'envs', 'warpdrive_min') if u.find_spec(n)])"
    assert installed("-c", code) == "['warpdrive_min']\n"


TRAIN = ("train", "-e", "cartpole", "--iterations", "1", "--set", "trainer.num_envs=4", "--set", "saving.basedir=runs")
FLAGS = ("--backend", "host", "--check", "flags", "--configs", "1")
INSTALL = "from warpdrive_min.packages import install_command as c; print(c('bench'))"
SMOKE = ("--preset", "smoke", "--backend", "cpu", "--no-plot")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("-m", "warpdrive_min", *TRAIN, "--set", "trainer.train_batch_size=8", "--backend", "cpu"),
            "finished after 1",
        ),
        (("-m", "warpdrive_min", "validate", "warpdrive_min.envs:CartPole", *FLAGS), "CartPole"),
        (("-m", "warpdrive_min.bench", "run", *SMOKE, "--case", "startup"), "records:"),
        (("-c", "from warpdrive_min.bench import records; print(records([]).empty)"), "True"),
        (("-c", INSTALL), '"warpdrive-min[bench] @ file:///'),
        (("-c", "import warpdrive_min.compat, example_envs.tag_gridworld.tag_gridworld"), ""),
    ],
)
def test_wheel_runs_commands_in_any_folder(installed, words, says):
    """An installed wheel runs its commands in any folder.

    Kernels, run configs, programs and WarpDrive's names are in the package.
    """
    assert says in installed(*words)
