"""Public code for WarpDrive, unchanged, on a GPU and by ``--host``.

Results are as docs/compat.md states. The environment variable PUBLIC_WARP_DRIVE_CODE names a folder with checkouts:
`warp-drive` (salesforce/warp-drive at bac017e), `warp-drive-1.1` and so on (at its tags, or where docs/compat.md says),
`crowd` (superboySB/Awesome-Mobile-Crowdsensing at 54c7797), `rice` (mila-iqia/climate-cooperation-competition at
148ed85), `rice-1` (AlaiaS/AI-Climate at e0d2da3), `rice-2` (pjwozny/a4gcc at b85250e), `rice-3`
(adityak77/climate-cooperation-competition at 442e7ba), `lightning` (Lightning-AI/tutorials at 264d0b0), `collective`
(Finebouche/collective_MARL at 85f4c27) and `ai-economist` (salesforce/ai-economist at a84d5f3). They import `gym` 0.26
and GPUtil; RICE scikit-learn; `lightning` pytorch_lightning; the last one pandas, lz4, pycryptodome.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.builders import needs_host

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("PUBLIC_WARP_DRIVE_CODE")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib")
NO_NUMBA = "--ignore-glob=*numba_tests*"
WITHOUT_TRAINING = (*(f"tests/{part}" for part in ("warp_drive", "example_envs", "multiblocks_per_env")), NO_NUMBA)
SCRIPT = "warp_drive/training/scripts/example_training_script_pycuda.py"
COVID = "covid_and_economy_environment"
FIRST = ("1.1", "1.2", "1.3", "1.4", "1.5")
TAGS = ("1.6", "2.0", "2.3", "2.4", "2.5", "2.6")
ON_BOTH = (
    ("crowd", (*PYTEST, "tests/warp_drive"), "8 passed"),
    ("crowd", (*PYTEST, "tests/example_envs"), "5 passed"),
    ("crowd", (*PYTEST, "tests/multiblocks_per_env"), "6 passed"),
    *(("crowd", (f"warp_drive/run_toturial_{n}.py",), "rc 0") for n in (2, 3, 4)),
    ("crowd", ("envs/tag_gridworld/run_cpu_gpu_env_consistency_checks.py",), "rc 0"),
    ("crowd", ("envs/tag_continuous/run_cpu_gpu_env_consistency_checks.py",), "scenario 'test2', step 1: rewards"),
    ("crowd", ("envs/crowd_sim/run_cpu_gpu_env_consistency_checks.py",), "ModuleNotFoundError"),
    ("rice", ("scripts/run_cpu_gpu_env_consistency_checks.py",), "scenario 'no_negotiation'"),
    ("rice", ("scripts/train_with_warp_drive.py",), "Valid submission"),
)
"""Checkout, command and final output, with a GPU and under ``--host``."""
RUNS = [
    ("warp-drive", (*PYTEST, "tests/warp_drive/pycuda_tests"), "8 passed"),
    ("warp-drive", (*PYTEST, "tests/example_envs/pycuda_tests"), "5 passed"),
    ("warp-drive", (*PYTEST, "tests/multiblocks_per_env"), "6 passed"),
    ("warp-drive", (*PYTEST, "tests/wd_training"), "3 passed"),
    *((f"warp-drive-{tag}", (*PYTEST, "tests"), "1 failed, 12 passed") for tag in FIRST),
    *((f"warp-drive-{tag}", (*PYTEST, *WITHOUT_TRAINING), "has no attribute 'rand'") for tag in TAGS[:4]),
    *((f"warp-drive-{tag}", (*PYTEST, *WITHOUT_TRAINING), "19 passed") for tag in TAGS[4:]),
    ("warp-drive", (SCRIPT, "-e", "tag_gridworld"), "rc 0"),
    ("warp-drive", (SCRIPT, "-e", "tag_gridworld", "-a"), "trainer.num_gpus: must be greater than or equal to 1"),
    ("warp-drive", ("tutorials/tutorial-2.a-warp_drive_sampler.ipynb",), "rc 0"),
    ("warp-drive", ("tutorials/tutorial-3-warp_drive_reset_and_log.ipynb",), "rc 0"),
    *ON_BOTH,
    *((entry, ("scripts/train_with_warp_drive.py",), "submission file is created") for entry in ("rice-1", "rice-2")),
    ("rice-3", ("scripts/run_cpu_gpu_env_consistency_checks.py",), "takes 137 arguments"),
    ("rice-3", ("scripts/train_with_warp_drive.py",), "takes 137 arguments"),
    ("lightning", ("lightning_examples/warp-drive/multi_agent_rl.py",), "No supported gpu backend found"),
    ("ai-economist", ("tests/run_covid19_cpu_gpu_consistency_checks.py",), "verify_activation_code"),
    ("ai-economist", ("ai_economist/training/training_script.py", "-e", COVID), "verify_activation_code"),
]
"""Checkout, command and final output under ``--host``."""
NUMBA_SCRIPT = SCRIPT.replace("pycuda", "numba")
ON_A_GPU = [
    ("warp-drive", (*PYTEST, "tests/warp_drive/pycuda_tests"), "8 passed"),
    ("warp-drive", (*PYTEST, "tests/warp_drive/numba_tests"), "11 passed"),
    ("warp-drive", (*PYTEST, "tests/example_envs/pycuda_tests"), "5 passed"),
    ("warp-drive", (*PYTEST, "tests/example_envs/numba_tests"), "float_"),
    ("warp-drive", (*PYTEST, "tests/multiblocks_per_env"), "6 passed"),
    ("warp-drive", (*PYTEST, "tests/wd_training"), "3 passed"),
    *((f"warp-drive-{tag}", (*PYTEST, *WITHOUT_TRAINING), "19 passed") for tag in TAGS[4:]),
    *(("warp-drive", (SCRIPT, "-e", name), "rc 0") for name in ("tag_gridworld", "tag_continuous")),
    *(
        ("warp-drive", (NUMBA_SCRIPT, "-e", name), "rc 0")
        for name in (
            *("tag_gridworld", "tag_gridworld_with_reset_pool", "tag_continuous", "single_cartpole"),
            *("single_mountain_car", "single_continuous_mountain_car", "single_acrobot", "single_pendulum"),
        )
    ),
    *(
        ("warp-drive", (f"tutorials/{name}.ipynb",), "rc 0")
        for name in (
            *("tutorial-1.a-warp_drive_basics", "tutorial-1.b-warp_drive_basics", "tutorial-2.a-warp_drive_sampler"),
            *("tutorial-2.b-warp_drive_sampler", "tutorial-3-warp_drive_reset_and_log", "simple-end-to-end-example"),
            "tutorial-5-training_with_warp_drive",  # both need IPython, and ffmpeg for a video
            "tutorial-7-training_with_warp_drive_and_pytorch_lightning",
        )
    ),
    (
        "warp-drive/example_envs/rlchemists",
        (NUMBA_SCRIPT.rpartition("training/")[2], "-e", "single_agent_one_atom", "-t", "diffusion2d"),
        "No module named 'single_agent_one_atom.single_agent_one_atom_step_numba'",
    ),
    *ON_BOTH,
    ("crowd", ("warp_drive/run_toturial_1.py",), "rc 0"),
]
"""Checkout, command and final output on a GPU."""


def script_of(notebook: Path, folder: Path) -> Path:
    """Write a notebook's code cells as a script without IPython lines."""
    cells = [cell["source"] for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line for cell in cells for line in "".join(cell).splitlines()]
    script = folder / "script.py"
    script.write_text("\n".join(re.sub(r"^(\s*)(!|%|pip )", r"\1pass  # \2", line) for line in lines))
    return script


def run(checkout: Path, *words: str, host: bool = True) -> str:
    """Run a command line in a checkout; return output and exit code.

    Args:
        checkout: Folder, the working folder of the run.
        words: Script or ``-m module``, and its arguments.
        host: Run by ``--host``, and scripts without assertions, most of which require a GPU.
    """
    python = [sys.executable, *(["-O"] if host and words[0] != "-m" else []), "-W", "ignore"]
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(checkout)])
    ran = subprocess.run(
        [*python, "-m", "warpdrive_min.compat", *(["--host"] if host else []), *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{ran.stdout}{ran.stderr}rc {ran.returncode}"


needs_checkouts = pytest.mark.skipif(FOLDER is None, reason="no checkouts; name their folder by PUBLIC_WARP_DRIVE_CODE")


@needs_checkouts
@pytest.mark.parametrize(
    ("project", "words", "says", "host"),
    [
        pytest.param(
            *each, host, id=f"{each[0]}-{'-'.join(each[1][-2:])}", marks=needs_host if host else pytest.mark.gpu
        )
        for runs, host in ((RUNS, True), (ON_A_GPU, False))
        for each in runs
    ],
)
def test_public_code_runs(project, words, says, host, tmp_path):
    """Public code succeeds, or fails as docs/compat.md states.

    Some code fails by an error that it makes itself.
    """
    checkout = Path(str(FOLDER), project)
    if words[0].endswith(".ipynb"):
        words = (str(script_of(checkout / words[0], tmp_path)),)
    assert says in run(checkout, *words, host=host)


OWN_TRAINER = """
import sys
import yaml
from example_envs.tag_continuous.tag_continuous import TagContinuous
from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld
from example_envs.single_agent.classic_control.pendulum.pendulum import CUDAClassicControlPendulumEnv
from own_a2c import TrainerA2C
from own_ddpg import TrainerDDPG
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.utils.common import get_project_root

name, algorithm = sys.argv[1:]
config = yaml.safe_load((get_project_root() / f"warp_drive/training/run_configs/{name}.yaml").read_text())
config["env"]["episode_length"] = 10
config["trainer"].update(num_envs=8, train_batch_size=80, num_episodes=20, seed=3)
config["saving"]["basedir"] = "saved"
for policy in config["policy"].values():
    policy["algorithm"] = algorithm
classes = {"tag_continuous": TagContinuous, "tag_gridworld": CUDATagGridWorld}
env = classes.get(name, CUDAClassicControlPendulumEnv)(**config["env"])
wrapper = EnvWrapper(env, num_envs=8, env_backend="pycuda")
agents = {"shared": list(env.action_space)}
if len(config["policy"]) > 1:
    agents = {"tagger": list(env.taggers), "runner": list(env.runners)}
trainer_class = TrainerDDPG if algorithm == "DDPG" else TrainerA2C
trainer = trainer_class(env_wrapper=wrapper, config=config, policy_tag_to_agent_id_map=agents)
trainer.train()
state = "state" if name == "single_pendulum" else "loc_x"
print(trainer.current_timestep, trainer.fetch_episode_states([state])[state].shape)
"""


@needs_host
@needs_checkouts
@pytest.mark.parametrize(
    ("name", "algorithm", "says"),
    [
        ("tag_gridworld", "A2C", "{'shared': 160} (11, 5)"),
        ("tag_gridworld", "PPO", "{'shared': 160} (11, 5)"),
        ("tag_continuous", "A2C", "{'runner': 160, 'tagger': 160} (11, 110)"),
        ("single_pendulum", "DDPG", "{'shared': 80} (11, 1, 2)"),
    ],
)
def test_warp_drives_trainer_trains_as_a_users(name, algorithm, says, tmp_path):
    """WarpDrive's own trainers train on our arrays, models and losses.

    They run as a user's derived trainers do.
    """
    trainers = Path(str(FOLDER), "warp-drive/warp_drive/training/trainers")
    files = {f"own_{stem}": (trainers / f"trainer_{stem}.py").read_text() for stem in ("base", "a2c", "ddpg")}
    base = "warp_drive.training.trainers.trainer_base"
    files = {stem: text.replace(base, "own_base") for stem, text in files.items()} | {"script": OWN_TRAINER}
    for stem, each in files.items():
        (tmp_path / f"{stem}.py").write_text(each)
    assert says in run(tmp_path, "script.py", name, algorithm)


OWN_MODEL = """
import sys
import yaml
from example_envs.tag_continuous.tag_continuous import TagContinuous
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.models.factory import ModelFactory
from warp_drive.training.trainers.trainer_a2c import TrainerA2C
from warp_drive.utils.common import get_project_root

ModelFactory.add("own", "own_fully_connected", "FullyConnected")
config = yaml.safe_load((get_project_root() / "warp_drive/training/run_configs/tag_continuous.yaml").read_text())
config["env"]["episode_length"] = 10
config["trainer"].update(num_envs=8, train_batch_size=80, num_episodes=20, seed=3)
config["saving"]["basedir"] = "saved"
for policy in config["policy"].values():
    policy["model"]["type"] = "own"
env = TagContinuous(**config["env"])
wrapper = EnvWrapper(env, num_envs=8, env_backend="pycuda")
agents = {"tagger": list(env.taggers), "runner": list(env.runners)}
trainer = TrainerA2C(env_wrapper=wrapper, config=config, policy_tag_to_agent_id_map=agents)
trainer.train()
print(trainer.current_timestep, type(trainer.models["runner"]).__module__)
"""


@needs_host
@needs_checkouts
@pytest.mark.parametrize("version", ["-1.1", *(f"-{tag}" for tag in TAGS), ""])
def test_warp_drives_network_trains_as_a_users(version, tmp_path):
    """A copy of WarpDrive's network finds its data.

    It lies next to the script, on the model base of 2.7.
    """
    folder = Path(str(FOLDER), f"warp-drive{version}", "warp_drive/training/models")
    for stem in ("fully_connected", "model_base"):
        if (file := folder / f"{stem}.py").exists():
            text = file.read_text().replace("warp_drive.training.models.model_base", "own_model_base")
            (tmp_path / f"own_{stem}.py").write_text(text)
    (tmp_path / "script.py").write_text(OWN_MODEL)
    assert "{'runner': 160, 'tagger': 160} own_fully_connected" in run(tmp_path, "script.py")


COLLECTIVE = """
from config import run_config
from custom_env import CUDACustomEnv
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.models.factory import ModelFactory
from warp_drive.training.trainers.trainer_a2c import TrainerA2C
from warp_drive.utils.env_registrar import EnvironmentRegistrar

run_config["env"].update(num_preys=4, num_predators=2, episode_length=6, preparation_length=2)
run_config["trainer"].update(num_envs=2, train_batch_size=6, num_episodes=4)
run_config["saving"]["basedir"] = "saved"
registrar = EnvironmentRegistrar()
registrar.add_cuda_env_src_path(CUDACustomEnv.name, "custom_env_step_numba", env_backend="numba")
env = CUDACustomEnv(**run_config["env"])
wrapper = EnvWrapper(env_obj=env, num_envs=2, env_backend="numba", env_registrar=registrar)
ModelFactory.add("predator_policy", "predator_policy", "PredatorPolicy")
ModelFactory.add("prey_policy", "prey_policy", "PreyPolicy")
trainer = TrainerA2C(wrapper, run_config, {"predator": list(env.predators), "prey": list(env.preys)}, verbose=False)
trainer.train()
print(trainer.current_timestep)
"""


@needs_checkouts
def test_collective_marl_trains_its_own_models(monkeypatch, tmp_path):
    """Collective-MARL's notebook trains its models with WarpDrive's trainer.

    Cells are smaller; the trainer replaces its fork's.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(str(FOLDER), "collective")), *sys.path]))
    (tmp_path / "script.py").write_text(COLLECTIVE)
    assert "{'prey': 24, 'predator': 24}" in run(tmp_path, "script.py", host=False)
