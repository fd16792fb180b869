"""Package names in a checkout and in a wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import envs
import warpdrive_min.envs
from tests import tutorial
from tests.support import by_night

ROOT = Path(envs.__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_environments_have_one_name_everywhere():
    """In a checkout `warpdrive_min.envs` is the folder `envs`."""
    assert warpdrive_min.envs.__all__ == envs.__all__
    assert all(getattr(warpdrive_min.envs, name) is getattr(envs, name) for name in envs.__all__)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the sdist, and the wheel of it, as a release does."""
    pytest.importorskip("build", reason="builds the wheel")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def runner(python, folder):
    """Return a function that runs a program of an environment in a folder.

    It returns the output.
    """
    # Measuring is refused in Numba's simulator, which the tests enable.
    own = {name: value for name, value in os.environ.items() if name not in ("NUMBA_ENABLE_CUDASIM", "PYTHONPATH")}

    def run(program, *words, exit_code=0):
        words = [python.with_name(program), *words]
        done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, check=False)
        assert exit_code in (None, done.returncode), f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr * bool(done.returncode)

    return run


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install our wheel, with our dependencies; return a `runner`."""
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "-q", "--no-deps", str(wheel)], check=True)
    # Dependencies come from our packages; .pth files there, as of a checkout, are not read from this path.
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others))
    return runner(python, packages.parent)


def test_release_files_are_valid_and_small(wheel):
    """Package indexes accept the files, which have no tests and no results."""
    pytest.importorskip("twine", reason="checks the files")
    (sdist,) = wheel.parent.glob("*.tar.gz")
    words = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    subprocess.run(words, check=True, capture_output=True)
    with tarfile.open(sdist) as files:
        names = {name.split("/")[1] for name in files.getnames()}
    assert {"warpdrive_min", "envs", "bench", "README.md", "LICENSE", "pyproject.toml"} <= names
    assert not names & {"tests", "results", "docs"}
    assert sdist.stat().st_size + wheel.stat().st_size < 4e6


def test_wheel_claims_one_name(installed):
    """The wheel installs one top-level package.

    A user's `bench` and `envs` do not collide with ours.
    """
    code = "import importlib.util as u; print([n for n in ('bench', 'envs', 'warpdrive_min') if u.find_spec(n)])"
    assert installed("python", "-c", code) == "['warpdrive_min']\n"


CARTPOLE = "warpdrive_min/CartPole-v0"
TRAIN = ("train", "-e", "cartpole", "--iterations", "1", "--set", "trainer.num_envs=4", "--set", "saving.basedir=runs")
ONE_ITERATION = (*TRAIN, "--set", "trainer.train_batch_size=8")
FLAGS = ("--backend", "host", "--check", "flags", "--configs", "1")
SMOKE = ("--preset", "smoke", "--backend", "cpu", "--no-plot")
PROGRAM = f"""
import sys
from importlib.util import find_spec

import warpdrive_min.compat, example_envs.tag_gridworld.tag_gridworld
from warpdrive_min import cli
from warpdrive_min.bench import records
from warpdrive_min.packages import install_command

train = {[*ONE_ITERATION, "--backend", "cpu"]}
for words in (train, {["validate", "warpdrive_min.envs:CartPole", *FLAGS]}):
    cli.app(words, standalone_mode=False)
print(records([]).empty, install_command("bench"))
if find_spec("gymnasium"):
    import gymnasium
    print(gymnasium.make_vec("warpdrive_min:{CARTPOLE}", num_envs=3))
"""
"""What an installed package is used for, in one process: its imports take seconds."""


@pytest.mark.nightly
def test_wheel_works_in_any_folder(installed):
    """An installed wheel trains, validates and reads records in any folder.

    Kernels, run configs, programs and WarpDrive's names are in the package.
    """
    said = installed("python", "-c", PROGRAM)
    for each in ("finished after 1", "CartPole", "True ", '"warpdrive-min[bench] @ file:///'):
        assert each in said
    assert find_spec("gymnasium") is None or f"GymnasiumVectorEnv({CARTPOLE}, num_envs=3)" in said


@pytest.mark.nightly
def test_wheel_measures_in_any_folder(installed):
    """An installed wheel measures points in processes of their own."""
    assert "records:" in installed("warpdrive-bench", "run", *SMOKE, "--case", "return_scan")


@pytest.mark.parametrize(
    ("script", "module", "words"),
    [
        by_night("warpdrive-min", "warpdrive_min", ["--help"]),
        ("warpdrive-min", "warpdrive_min", ["no-such-command"]),
        ("warpdrive-bench", "warpdrive_min.bench", ["list"]),
        by_night("warpdrive-bench", "warpdrive_min.bench", ["gate", "--nonsense"]),
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


# ------------------------------------------------------------------ releases


def test_release_publishes_without_a_token_and_runs_no_code_with_its_rights():
    """Only the job that publishes may sign, and it has no commands and no checkout."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in build
    assert publish["permissions"] == {"id-token": "write", "attestations": "write"}
    assert publish["environment"] == "pypi"
    uses = [step.get("uses", "run").partition("@")[0] for step in publish["steps"]]
    assert uses == ["actions/download-artifact", "actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]
    assert all("password" not in step.get("with", {}) for step in publish["steps"])


@pytest.mark.parametrize(("tag", "exit_code"), [(f"v{VERSION}", 0), ("v9.9.9", 1)])
def test_release_refuses_a_tag_that_is_not_the_version(tag, exit_code):
    """The workflow's check of the tag passes for the version alone."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (script,) = [each["run"] for each in workflow["jobs"]["build"]["steps"] if "GITHUB_REF_NAME" in each.get("run", "")]
    own = {**os.environ, "GITHUB_REF_NAME": tag, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr


# ------------------------------------------------------------------ README from a wheel

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"python -m ((?:bench|warpdrive_min)\b[^`\n]*)", README)
"""Commands of README, in its order."""
OPTIONS = re.findall(r"^\| `(-[^`]+)` \|", README, re.MULTILINE)
"""Options of `train` in README's table."""
NEEDS_MORE = {
    "bench table newest --on nvidia-h100 --overview": (1, "newest has no record"),
    "bench gate --baseline main": (4, "git"),
    "bench reproduce RUN_ID": (None, "env_step["),  # of times too short to reproduce
    "bench run --ray auto": (2, "Ray"),
    "bench doctor": (None, "problem"),  # a busy machine is one
}
"""Commands that need a clone, other packages or a quiet machine: exit code, and a part of the output.

README names those that need a clone.
"""
FEWER = {
    "bench": ["--help"],
    "warpdrive_min": ["--help"],
    "bench run": ["--preset", "smoke", "--env", "cartpole"],
    "bench run --env NAME": ["--preset", "smoke"],
    "bench peers": ["--preset", "smoke", "--peer", "gymnasium", "--where", "env=cartpole"],
    "warpdrive_min train -e tag_continuous": ["--iterations", "1", "--set", "trainer.num_envs=4"],
    "warpdrive_min train -e NAME": ["--iterations", "1"],
    "warpdrive_min validate NAME": ["--configs", "1", "--no-card"],
}
"""Options that shorten a command."""


@pytest.mark.nightly
def test_readme_runs_from_the_wheel_alone(wheel, tmp_path):
    """README's commands run in an empty folder, from the wheel alone."""
    env, folder = tmp_path / "env", tmp_path / "folder"
    folder.mkdir()
    venv.create(env, with_pip=True)
    python, pins = env / "bin" / "python", ["-c", str(ROOT / "constraints.txt")]
    run = runner(python, folder)
    run("pip", "install", "-q", *pins, "torch")  # alone, as in noxfile.py
    run("pip", "install", "-q", *pins, f"warpdrive-min[bench,bridges,render,train] @ {wheel.as_uri()}")
    (folder / "script.py").write_text("import warp_drive.env_wrapper\n")
    (readme,) = [block.text for block in tutorial.blocks(ROOT / "README.md") if block.runs]
    run("python", "-c", readme)
    names = {"NAME": "ring_race", "RECORDS": "results"}
    for command in COMMANDS:
        words = shlex.split(command, comments=True)
        key = " ".join(words)
        words = [names.get(word, word) for word in [*words, *FEWER.get(key, [])]]
        module = {"bench": "warpdrive_min.bench"}.get(words[0], words[0])
        if "new-env" in words:
            shutil.rmtree(folder / words[2], ignore_errors=True)
        exit_code, message = NEEDS_MORE.get(key, (0, ""))
        said = run("python", "-m", module, *words[1:], exit_code=exit_code)
        assert message in said, f"{command}: {said}"
        if found := re.search(r"evaluate:.* evaluate (\S+)", said):
            names["RUN"] = found[1]
        if found := re.search(r"^records: .*/(.*)\.jsonl$", said, re.MULTILINE):
            names["RUN_ID"] = found[1]
    for command in ("report", "paper"):
        run("warpdrive-bench", command)
    assert "--auto-scale" in OPTIONS
    for option in OPTIONS:
        words = re.sub(r"\d+", "2", option).split()
        run("warpdrive-min", *(["train", "-e", "cartpole"] if option == "--auto-scale" else ONE_ITERATION), *words)
