"""Public code that was written for WarpDrive, as shipped, under ``--host``: what docs/compat.md says of it.

The environment variable PUBLIC_WARP_DRIVE_CODE names a folder with checkouts: `warp-drive` (salesforce/warp-drive at
bac017e), `crowd` (superboySB/Awesome-Mobile-Crowdsensing), `rice` (mila-iqia/climate-cooperation-competition at
148ed85) and `ai-economist` (salesforce/ai-economist at a84d5f3). They import `gym` 0.26 and GPUtil; RICE scikit-learn;
the last one pandas, lz4 and pycryptodome.
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
RUNS = [
    ("warp-drive", (*PYTEST, "tests/warp_drive/pycuda_tests"), "8 passed"),
    ("warp-drive", (*PYTEST, "tests/example_envs/pycuda_tests"), "1 failed, 4 passed"),
    ("warp-drive", (*PYTEST, "tests/multiblocks_per_env"), "1 failed, 5 passed"),
    ("warp-drive", (*PYTEST, "tests/wd_training"), "3 passed"),
    ("warp-drive", ("warp_drive/training/scripts/example_training_script_pycuda.py", "-e", "tag_gridworld"), "rc 0"),
    ("warp-drive", ("tutorials/tutorial-2.a-warp_drive_sampler.ipynb",), "dummy base class Event"),
    ("warp-drive", ("tutorials/tutorial-3-warp_drive_reset_and_log.ipynb",), "rc 0"),
    ("crowd", (*PYTEST, "tests/warp_drive"), "8 passed"),
    ("crowd", (*PYTEST, "tests/example_envs"), "1 failed, 4 passed"),
    ("crowd", (*PYTEST, "tests/multiblocks_per_env"), "1 failed, 5 passed"),
    ("crowd", ("warp_drive/run_toturial_3.py",), "rc 0"),
    ("crowd", ("envs/tag_gridworld/run_cpu_gpu_env_consistency_checks.py",), "rc 0"),
    ("crowd", ("envs/tag_continuous/run_cpu_gpu_env_consistency_checks.py",), "scenario 'test2', step 1: rewards"),
    ("crowd", ("envs/crowd_sim/run_cpu_gpu_env_consistency_checks.py",), "ModuleNotFoundError"),
    ("rice", ("scripts/run_cpu_gpu_env_consistency_checks.py",), "scenario 'no_negotiation'"),
    ("rice", ("scripts/train_with_warp_drive.py",), "Valid submission"),
    ("ai-economist", ("tests/run_covid19_cpu_gpu_consistency_checks.py",), "verify_activation_code"),
]
"""Checkout, what is run in it, and what it says at its end."""


def script_of(notebook: Path, folder: Path) -> Path:
    """Write the code cells of a notebook as a script; lines for IPython do nothing."""
    cells = [cell["source"] for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line for cell in cells for line in "".join(cell).splitlines()]
    script = folder / "script.py"
    script.write_text("\n".join(re.sub(r"^(\s*)(!|%|pip )", r"\1pass  # \2", line) for line in lines))
    return script


@needs_host
@pytest.mark.skipif(FOLDER is None, reason="there are no checkouts; name their folder by PUBLIC_WARP_DRIVE_CODE")
@pytest.mark.parametrize(("project", "words", "says"), RUNS, ids=[f"{run[0]}-{run[1][-1]}" for run in RUNS])
def test_public_code_runs_on_host(project, words, says, tmp_path):
    """It ends well, or by an error of its own or what docs/compat.md says; ``-O`` leaves out assertions of a GPU."""
    checkout = Path(str(FOLDER), project)
    if words[0].endswith(".ipynb"):
        words = (str(script_of(checkout / words[0], tmp_path)),)
    optimised = [] if words[0] == "-m" else ["-O"]
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(checkout)])
    ran = subprocess.run(
        [sys.executable, *optimised, "-W", "ignore", "-m", "warpdrive_min.compat", "--host", *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert says in f"{ran.stdout}{ran.stderr}rc {ran.returncode}"
