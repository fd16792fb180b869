"""Package names in a checkout and in a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
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
    """Install our wheel; return a function that runs a program with it.

    It runs in an empty folder, and returns the output.
    """
    pytest.importorskip("hatchling", reason="builds the wheel")
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "env")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    python = ["--python", str(folder / "env" / "bin" / "python")]
    subprocess.run([*pip, *python, "install", "-q", "--no-deps", str(wheel)], check=True)
    # Dependencies come from our packages; .pth files there, as of a checkout, are not read from this path.
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others))

    # Measuring is refused in Numba's simulator, which the tests enable.
    own = {name: value for name, value in os.environ.items() if name not in ("NUMBA_ENABLE_CUDASIM", "PYTHONPATH")}

    def run(program, *words, exit_code=0):
        words = [folder / "env" / "bin" / program, *words]
        done = subprocess.run(words, cwd=packages.parent, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout + done.stderr * bool(exit_code)

    return run


def test_wheel_claims_one_name(installed):
    """The wheel installs one top-level package.

    A user's `bench` and `envs` do not collide with ours.
    """
    code = "import importlib.util as u; print([n for n in ('bench', 'envs', 'warpdrive_min') if u.find_spec(n)])"
    assert installed("python", "-c", code) == "['warpdrive_min']\n"


CARTPOLE = "warpdrive_min/CartPole-v0"
TRAIN = ("train", "-e", "cartpole", "--iterations", "1", "--set", "trainer.num_envs=4", "--set", "saving.basedir=runs")
FLAGS = ("--backend", "host", "--check", "flags", "--configs", "1")
SMOKE = ("--preset", "smoke", "--backend", "cpu", "--no-plot")
PROGRAM = f"""
import sys
from importlib.util import find_spec

import warpdrive_min.compat, example_envs.tag_gridworld.tag_gridworld
from warpdrive_min import cli
from warpdrive_min.bench import records
from warpdrive_min.packages import install_command

train = {[*TRAIN, "--set", "trainer.train_batch_size=8", "--backend", "cpu"]}
for words in (train, {["validate", "warpdrive_min.envs:CartPole", *FLAGS]}):
    cli.app(words, standalone_mode=False)
print(records([]).empty, install_command("bench"))
if find_spec("gymnasium"):
    import gymnasium
    print(gymnasium.make_vec("warpdrive_min:{CARTPOLE}", num_envs=3))
"""
"""What an installed package is used for, in one process: its imports take seconds."""


def test_wheel_works_in_any_folder(installed):
    """An installed wheel trains, validates and reads records in any folder.

    Kernels, run configs, programs and WarpDrive's names are in the package.
    """
    said = installed("python", "-c", PROGRAM)
    for each in ("finished after 1", "CartPole", "True ", '"warpdrive-min[bench] @ file:///'):
        assert each in said
    assert find_spec("gymnasium") is None or f"GymnasiumVectorEnv({CARTPOLE}, num_envs=3)" in said


def test_wheel_measures_in_any_folder(installed):
    """An installed wheel measures points in processes of their own."""
    assert "records:" in installed("warpdrive-bench", "run", *SMOKE, "--case", "return_scan")


@pytest.mark.parametrize(
    ("script", "module", "words"),
    [
        ("warpdrive-min", "warpdrive_min", ["--help"]),
        ("warpdrive-min", "warpdrive_min", ["no-such-command"]),
        ("warpdrive-bench", "warpdrive_min.bench", ["list"]),
        ("warpdrive-bench", "warpdrive_min.bench", ["gate", "--nonsense"]),
    ],
)
def test_console_scripts_are_the_modules(installed, script, module, words):
    """A console script prints what `python -m` prints, with its exit code."""
    exit_code = {"no-such-command": 2, "gate": 5}.get(words[0], 0)
    said = [installed(*program, *words, exit_code=exit_code) for program in ([script], ["python", "-m", module])]
    assert said[0] == said[1] != ""


def test_console_script_of_a_checkout_runs_the_folder_bench():
    """In a checkout, `warpdrive-bench` is `python -m bench`."""
    code = "from warpdrive_min.scripts import bench; bench()"
    words = [[sys.executable, "-c", code, "list"], [sys.executable, "-m", "bench", "list"]]
    said = [subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout for each in words]
    assert said[0] == said[1] != ""
