"""Start of a GPU's context and of compilers, before `train` imports torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from warpdrive_min.backends import BACKENDS, numba_server
from warpdrive_min.commands.environments import environments, make_environment, read_settings
from warpdrive_min.commands.plan import make_plan
from warpdrive_min.errors import WarpDriveError
from warpdrive_min.packages import is_class_path
from warpdrive_min.training.paths import early, planned


def start(words: Sequence[str]) -> None:
    """Start what a command will need; its words are not checked yet."""
    if words[:1] != ["train"] or {"--help", "--explain"} & set(words):
        return
    rank = os.environ.get("LOCAL_RANK")
    try:
        index = int(rank or 0)
        given, _ = _Parser().parse_known_args(words[1:])
        settings = read_settings(given.set, "train.set")
    except (argparse.ArgumentError, ValueError, WarpDriveError):  # the command reports it
        return
    backend = given.backend or settings.get("trainer.env_backend")
    if backend not in (None, "pycuda", "numba") or (rank is None and (given.gpus or "trainer.num_gpus" in settings)):
        return  # there is no GPU, or each rank starts its own
    on_gpu: Any = BACKENDS[backend or "pycuda"]
    with suppress(Exception):  # the command reports it
        if not given.resume and "--unfused" not in words:
            _compile(given, settings, on_gpu, index)
    early.start_gpu(on_gpu, index)
    with suppress(Exception):
        if backend == "numba":
            numba_server.start()


def _compile(given: argparse.Namespace, settings: Mapping[str, Any], backend: Any, index: int) -> None:
    if given.env is not None and given.env not in environments() and is_class_path(given.env):
        return  # a user's code runs only once all words are checked
    more = {} if given.population is None else {"population.size": given.population}
    plan = make_plan(given.env, given.config, {**settings, **more}, None, None)
    env = make_environment(plan.env_name, plan.run_config.env, "train")
    builds = [partial(build, index) for build in planned.builds(plan.run_config, env, backend)]
    early.compile_apart(partial(backend.prepare_compiler, index), builds)


class _Parser(argparse.ArgumentParser):
    """Reader of the few options that matter here."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False, exit_on_error=False)
        self.add_argument("--env", "-e")
        self.add_argument("--config", type=Path)
        self.add_argument("--set", action="append", default=[])
        self.add_argument("--backend")
        self.add_argument("--gpus", "-n", type=int)
        self.add_argument("--population", "-p", type=int)
        self.add_argument("--resume")
        self.add_argument("--quiet", "-q", action="store_true")  # may stand before others, as in -qn2

    def error(self, message: str) -> NoReturn:
        """Raise the error, which would end the process."""
        raise argparse.ArgumentError(None, message)
