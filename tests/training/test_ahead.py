"""Kernels compile concurrently while a trainer is built."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from envs import ENVS
from tests.training.builders import ON_GPU, PPO, make_trainer
from warpdrive_min import EnvWrapper
from warpdrive_min.backends import gpu
from warpdrive_min.backends.gpu import CudaProgram, GpuBackend
from warpdrive_min.commands import early as command
from warpdrive_min.commands.environments import run_config_path
from warpdrive_min.errors import CompileError
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.paths import ahead, early, table
from warpdrive_min.training.paths.cuda_c import matrix_units
from warpdrive_min.training.paths.triton.launch import compiled_ahead, launch, rehearsal
from warpdrive_min.training.trainer import Trainer


class Kernel:
    """Records its launches and compilations."""

    __name__ = "kernel"

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def __getitem__(self, grid):
        return lambda *given: self.events.append(("launch", grid, *given))

    def warmup(self, *given, grid):
        """Compile."""
        self.events.append(("compile", grid, *given))


class Compilers:
    """Compiles at once, Triton's kernels only if it `can`."""

    def __init__(self, *, can: bool = True) -> None:
        self.can = can

    def run(self, load):
        """Compile a program."""
        load()

    def prepare_triton(self):
        """Return whether Triton compiles."""
        return self.can


@pytest.mark.parametrize("can", [True, False])
def test_rehearsed_launches_only_compile(can):
    """Rehearsed launches only compile, and later ones run.

    This holds after an error in the rehearsal too. A Triton without threads compiles at the first launch.
    """
    kernel = Kernel()

    def fail():
        launch(kernel, (2,))(1)
        assert compiled_ahead(lambda: kernel.events.append("program"))
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"), rehearsal(Compilers(can=can)):
        fail()
    launch(kernel, (3,))(1)
    assert not compiled_ahead(lambda: pytest.fail("compiled"))
    assert kernel.events == [*([("compile", (2,), 1)] if can else []), "program", ("launch", (3,), 1)]


@pytest.fixture
def nothing_started(monkeypatch):
    """Begin and end without preparations."""
    monkeypatch.setattr(early, "_threads", [])
    monkeypatch.setattr(early, "_starts", [])
    monkeypatch.setattr(early, "_releases", [])
    early.prepare_triton.cache_clear()
    yield
    early.prepare_triton.cache_clear()


def test_nothing_is_rehearsed_on_a_cpu():
    """Nothing is rehearsed on a CPU, without Triton kernels."""
    with ahead.compiled(torch.device("cpu"), lambda: pytest.fail("rehearsed")):
        assert not compiled_ahead(lambda: pytest.fail("compiled"))


@pytest.mark.parametrize(
    ("words", "started"),
    [
        ("evaluate", []),
        ("train --backend host", []),
        ("train --set trainer.env_backend=host", []),
        ("train", ["GPU 0"]),
        ("train --backend numba", ["GPU 0", "numba"]),
        ("train --gpus=2", []),
        ("train -qn2", []),
        ("train --set trainer.num_gpus=2", []),
        ("train --explain", []),
        ("train --set trainer.env_backend='cpu'", []),
        ("train -e cpu --results-dir numba", ["GPU 0"]),
        ("train -e cartpole --config ppo", ["GPU 0", "learn.cu for GPU 0"]),
        ("train -e cartpole --backend numba", ["GPU 0", "learn.cu for GPU 0", "numba"]),
        ("train -e pendulum", ["GPU 0"]),
        ("train -e cartpole --set policy.shared.model.fc_dims=[256,256]", ["GPU 0"]),
        ("train -e cartpole --set trainer.exact=true", ["GPU 0"]),
        ("train -e cartpole --resume latest", ["GPU 0"]),
        ("train -e cartpole --set policy.shared.model.fused=false", ["GPU 0"]),
        ("train -e cartpole --trace trace.json --unfused", ["GPU 0"]),
        ("train -e envs.classic_control.cartpole:CartPole", ["GPU 0"]),
        ("train -e cartpole --gpus", []),
        ("train -e cartpole --set stop", []),
    ],
)
def test_only_training_on_a_gpu_starts_early(words, started, monkeypatch, nothing_started):
    """`train` starts what its words name; it leaves wrong words to the command."""
    calls = []
    monkeypatch.setattr(GpuBackend, "start", lambda _, index: calls.append(f"GPU {index}"))
    monkeypatch.setattr(CudaProgram, "build", lambda self, index: calls.append(f"{self.source.name} for GPU {index}"))
    monkeypatch.setattr(command.numba_server, "start", lambda: calls.append("numba"))
    command.start(words.split())
    early.wait()
    assert sorted(calls) == started


def test_what_starts_early_needs_no_torch():
    """The kernel of learning is known before torch is imported."""
    code = (
        "import sys; from warpdrive_min.backends.gpu import CudaProgram; from warpdrive_min.commands import early; "
        "CudaProgram.build = lambda self, index: print(self.source.name, 'torch' in sys.modules); "
        "early.start(['train', '-e', 'cartpole']); early.early.wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "learn.cu False\n"


class Programs:
    """Keeps the arguments of each program."""

    def __init__(self) -> None:
        self.made: list[tuple] = []

    def program(self, *given):
        """Make a program."""
        self.made.append(given)


@pytest.mark.parametrize(("name", "which"), [("cartpole", ""), ("cartpole", "ppo"), ("acrobot", "ppo")])
@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_early_kernel_is_that_of_the_trainer(name, which, value_clip, monkeypatch):
    """The kernel that starts early is the one that a trainer makes of its tensors."""
    config = RunConfig.load(run_config_path(name, which)).to_dict()
    config["policy"]["shared"]["value_clip"] = value_clip
    config["trainer"] |= {"num_envs": 2, "train_batch_size": 8}
    config, backend, before = RunConfig.from_dict(config), Programs(), Programs()
    early.learning_program(config, ENVS[name](), before)
    given = {"precision": config.trainer.precision}
    monkeypatch.setattr(matrix_units, "processors", lambda _: 132)
    monkeypatch.setattr(
        table.cpu, "Learning", lambda network, learned, **_: matrix_units.Learning(backend, network, learned, **given)
    )
    Trainer(EnvWrapper(ENVS[name](), num_envs=2, env_backend="host", auto_reset=True), config, saves=False)
    assert before.made == backend.made != []


def test_rank_starts_its_own_gpu(monkeypatch, nothing_started):
    """A rank starts its own GPU; an error there is left to the command."""
    calls = []

    def start(_, index):
        calls.append(index)
        raise OSError("planted")

    monkeypatch.setattr(GpuBackend, "start", start)
    monkeypatch.setenv("LOCAL_RANK", "1")
    command.start(["train", "--gpus", "2"])
    early.wait()
    assert calls == [1]


def test_wrong_rank_starts_nothing(monkeypatch, nothing_started):
    """A rank that is no number is left to the command."""
    monkeypatch.setattr(GpuBackend, "start", lambda *_: pytest.fail("started"))
    monkeypatch.setenv("LOCAL_RANK", "first")
    command.start(["train", "-e", "cartpole"])
    early.wait()


def test_kernel_that_does_not_fit_a_gpu_is_not_compiled(monkeypatch):
    """A kernel that needs too much shared memory is refused, not compiled."""
    monkeypatch.setattr(gpu, "_attribute", lambda number, index: 101_376)
    monkeypatch.setattr(gpu.cuda_c, "compile_cubin", lambda *_: pytest.fail("compiled"))
    with pytest.raises(CompileError, match=r"must need at most the GPU's shared memory, 101,376 bytes .*113184"):
        CudaProgram(Path("learn.cu"), {}, {"learn": 113_184}).build(0)


def test_gpu_is_released(monkeypatch, nothing_started):
    """A process that will not use its GPU releases it once."""
    calls = []
    monkeypatch.setattr(GpuBackend, "start", lambda _, index: lambda: calls.append(index))
    command.start(["train"])
    early.release()
    early.release()
    assert calls == [0]


def test_triton_is_prepared_once(monkeypatch, nothing_started):
    """Triton is prepared once, however many policies need it."""
    calls = []
    monkeypatch.setattr(early, "_prepare_triton", lambda: calls.append("triton"))
    for _ in range(2):
        early.prepare_triton()
    early.wait()
    assert calls == ["triton"]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ON_GPU)
def test_command_does_not_import_triton(backend, tmp_path):
    """The README's training run needs no Triton, whose import takes time."""
    words = ["train", "-e", "cartpole", "--config", "ppo", "--set", "trainer.num_episodes=64"]
    words += ["--set", f"trainer.env_backend={backend}", "--set", f"saving.basedir={tmp_path}"]
    command = [sys.executable, "-X", "importtime", "-m", "warpdrive_min", *words]
    imports = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    names = {line.rpartition("|")[2].strip() for line in imports.splitlines()}
    assert "torch" in names
    assert "triton" not in names


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ON_GPU)
def test_no_kernel_compiles_after_construction(backend, tmp_path, monkeypatch):
    """All kernels of CartPole's PPO compile in the constructor."""
    from triton import knobs
    from triton.runtime.jit import JITFunction

    from warpdrive_min.training.paths.triton import learning_kernels, narrow_kernels, rows_kernels

    for module in (learning_kernels, narrow_kernels, rows_kernels):
        for kernel in vars(module).values():
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()
    compiled = []

    def listen(*, src, cache_hit, **_):
        if not cache_hit:
            compiled.append(src.name)

    monkeypatch.setattr(knobs.compilation, "listener", listen)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    policy = {**PPO, "model": {"fc_dims": [64, 64], "shared": False}}
    trainer = make_trainer(ENVS["cartpole"](), {"shared": policy}, backend, n_envs=64, basedir=tmp_path)
    assert not compiled, "its kernels are in CUDA C"
    compiled.clear()
    trainer.train(2)
    trainer.evaluate(4)
    trainer.graceful_close()
    assert not compiled


def test_threads_load_programs_on_the_gpu_of_the_trainer(monkeypatch):
    """A new thread begins with the first GPU, also in a rank that has another."""
    events = []

    @contextmanager
    def chosen(device):
        events.append(device)
        yield
        events.append("left")

    monkeypatch.setattr(torch.cuda, "device", chosen)
    gpu = torch.device("cuda", 3)
    with ahead.Compilers(gpu) as compilers:
        compilers.run(lambda: events.append("load"))
        compilers.finish()
    assert events == [gpu, "load", "left"]
