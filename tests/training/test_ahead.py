"""Kernels compile concurrently while a trainer is built."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from envs import ENVS
from tests.training.builders import ON_GPU, PPO, make_trainer
from warpdrive_min import EnvWrapper
from warpdrive_min.backends import gpu
from warpdrive_min.backends.base import Availability, Backend
from warpdrive_min.backends.cuda_rollouts import kernel_of
from warpdrive_min.backends.gpu import CudaProgram, GpuBackend
from warpdrive_min.backends.pycuda_driver import PyCudaBackend
from warpdrive_min.commands import early as command
from warpdrive_min.commands.environments import run_config_path
from warpdrive_min.env_wrapper import step_functions
from warpdrive_min.errors import CompileError
from warpdrive_min.function_manager import KernelPlan
from warpdrive_min.rollouts import Episodes, Rollouts
from warpdrive_min.training.config import BEST_EPISODES, RunConfig
from warpdrive_min.training.models.fully_connected import FullyConnected
from warpdrive_min.training.paths import ahead, early, planned, table
from warpdrive_min.training.paths.cuda_c import matrix_units
from warpdrive_min.training.paths.facts import Facts
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
    monkeypatch.setattr(early, "_forks", [])
    early.prepare_triton.cache_clear()
    yield
    early.prepare_triton.cache_clear()


def test_nothing_is_rehearsed_on_a_cpu():
    """Nothing is rehearsed on a CPU, without Triton kernels."""
    with ahead.compiled(torch.device("cpu"), lambda: pytest.fail("rehearsed")):
        assert not compiled_ahead(lambda: pytest.fail("compiled"))


PROGRAMS = ["evaluate.cu", "learn.cu"]
STEPS = ["step", "step"]  # of training and of evaluation
ALL = [*PROGRAMS, "play_episodes", "rollout_with_policy", *STEPS]


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
        ("train -e cartpole --config ppo", ["GPU 0", *ALL]),
        ("train -e cartpole --set saving.keep_best=false", ["GPU 0", *PROGRAMS, "rollout_with_policy", "step"]),
        ("train -e cartpole --set trainer.fused_rollout=false", ["GPU 0", *PROGRAMS, "play_episodes", *STEPS]),
        ("train -e cartpole --population 4", ["GPU 0", *PROGRAMS, "step"]),
        ("train -e cartpole -p 4", ["GPU 0", *PROGRAMS, "step"]),
        ("train -e cartpole --backend numba", ["GPU 0", *PROGRAMS, "numba"]),
        ("train -e pendulum", ["GPU 0", *STEPS]),
        ("train -e tag_continuous", ["GPU 0", "step"]),  # two policies learn: none is kept as the best
        ("train -e cartpole --set policy.shared.model.fc_dims=[256,256]", ["GPU 0", *STEPS]),
        ("train -e cartpole --set trainer.exact=true", ["GPU 0"]),
        ("train -e cartpole --resume latest", ["GPU 0"]),
        ("train -e cartpole --set policy.shared.model.fused=false", ["GPU 0", *STEPS]),
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
    monkeypatch.setattr(GpuBackend, "most_shared_bytes", lambda *_: Facts().shared_bytes)
    monkeypatch.setattr(CudaProgram, "build", lambda self, index: calls.append((index, self.source.name)))
    monkeypatch.setattr(
        PyCudaBackend, "build", lambda _, _source, given, index: calls.append((index, kernel_of(given) or "step"))
    )
    monkeypatch.setattr(command.numba_server, "start", lambda: calls.append("numba"))
    monkeypatch.setattr(early, "compile_apart", lambda prepare, builds: [build() for build in builds])
    command.start(words.split())
    early.wait()
    assert sorted(call[1] if isinstance(call, tuple) else call for call in calls) == started
    assert {call[0] for call in calls if isinstance(call, tuple)} <= {0}


def test_what_starts_early_needs_no_torch():
    """The kernel of learning is known before torch is imported."""
    code = (
        "import sys; from warpdrive_min.backends import cuda_c, gpu; from warpdrive_min.commands import early; "
        "gpu._attribute = lambda number, index: 9 if number < 97 else 232_448; "
        "cuda_c.compile_cubin = lambda source, *_: sys.stdout.write(f'{source.name} {\"torch\" in sys.modules}\\n'); "
        "early.early.compile_apart = lambda prepare, builds: [build() for build in builds]; "
        "early.start(['train', '-e', 'cartpole']); early.early.wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == sorted(f"{name} False" for name in [*PROGRAMS, *["kernel.cu"] * 4])


class OnGpu(Backend):
    """GPU backend that records kernels and compiles none."""

    name, language, threads = "pycuda", "cuda_c", None

    def __init__(self) -> None:
        self.made: list[tuple] = []

    def availability(self):
        """Return that it is there."""
        return Availability(True, "")

    def compile(self, *_):
        """Fail: a program or a plan is built."""
        pytest.fail("compiled")

    def build(self, source, constants, index=None):
        """Keep a kernel."""
        self.made.append((source, dict(constants)))

    def most_shared_bytes(self, index=None):
        """Return the shared memory of an H100's block, bytes."""
        return Facts().shared_bytes

    def has_warp_groups(self, index=None):
        """Return that an H100's groups of warps multiply."""
        return True

    def program(self, source, constants, shared_bytes):
        """Keep a program, which compiles nothing."""
        self.made.append((source, constants, shared_bytes))
        return SimpleNamespace(load=lambda: None, build=lambda index: None)


@pytest.mark.parametrize(("name", "which"), [("cartpole", ""), ("cartpole", "ppo"), ("acrobot", "ppo")])
@pytest.mark.parametrize(("value_clip", "rows_apart"), [(None, 8), (0.2, 1), (None, 2)])
def test_early_kernel_is_that_of_the_trainer(name, which, value_clip, rows_apart, monkeypatch):
    """Kernels of learning that start early are those of a trainer."""
    monkeypatch.setattr("warpdrive_min.training.paths.constants.ROWS_APART", rows_apart)
    config = RunConfig.load(run_config_path(name, which)).to_dict()
    config["policy"]["shared"]["value_clip"] = value_clip
    config["policy"]["shared"]["model"]["fc_dims"] = [64, 64]
    config["trainer"] |= {"num_envs": 2, "train_batch_size": 8, "precision": "tf32"}
    config, backend, before = RunConfig.from_dict(config), OnGpu(), OnGpu()
    env, chosen = ENVS[name](), config.trainer.precision
    for build in planned._network(config, env).builds(config, env, before):
        build(0)
    monkeypatch.setattr(matrix_units, "processors", lambda _: 132)
    monkeypatch.setattr(matrix_units, "present", lambda _: chosen)

    def learning(network, learned, **_):
        kernel = matrix_units.Learning(backend, network, learned, precision=chosen)
        with rehearsal(Compilers()):
            matrix_units.Evaluation(backend, network, of_value=True)(torch.zeros(1, 4), torch.zeros(1))
        return kernel

    monkeypatch.setattr(table.cpu, "Learning", learning)
    Trainer(EnvWrapper(ENVS[name](), num_envs=2, env_backend="host", auto_reset=True), config, saves=False)
    assert before.made == backend.made != []
    n_rows = 2 if which == "ppo" else 8  # of a minibatch
    assert before.made[0][0].name == ("group_learn.cu" if n_rows > rows_apart else "learn.cu")


SHIPPED = [
    ("acrobot", "ppo"),
    ("cartpole", ""),
    ("cartpole", "ppo"),
    ("continuous_mountain_car", "ddpg"),
    ("covid19_economy", "ppo"),
    ("mountain_car", "ppo"),
    ("pendulum", "ppo"),
    ("rice", "a2c"),
    ("tag_continuous", "ppo"),
    ("tag_gridworld", "a2c"),
]


@pytest.mark.parametrize(("name", "which"), SHIPPED)
def test_early_kernels_are_those_of_the_wrapper(name, which):
    """Kernels of steps that start early are those of a wrapper with arrays."""
    config, before, backend = RunConfig.load(run_config_path(name, which)), OnGpu(), OnGpu()
    network = planned._network(config, ENVS[name]())
    for plan in planned._plans(config, ENVS[name](), before, network):
        plan.build(0)
    wrapper = EnvWrapper(ENVS[name](), num_envs=3, env_backend="host", auto_reset=True)
    alone = wrapper.like(3)
    for each in (wrapper, alone):
        each.reset()
    n_envs = config.trainer.num_envs
    n_learners = sum(policy.to_train for policy in config.policy.values())
    for each, n in ((wrapper, n_envs), (alone, min(n_envs, BEST_EPISODES)))[: 2 if n_learners == 1 else 1]:
        sources, of_step = each._loaded
        functions = step_functions(each.env, n, each.blocks_per_env, backend, auto_reset=each.auto_reset)
        KernelPlan(functions, sources, of_step).build(0)
    if network is not None and network.space.n_types == 1 and not wrapper.env.masks_actions:
        model = FullyConnected(network.layers.n_features, network.space, next(iter(config.policy.values())).model)
        of_model, _ = matrix_units.in_episodes(model.as_network(), "fp32")
        few = replace(alone._subject(), backend=backend, n_envs=min(n_envs, BEST_EPISODES))
        many = replace(wrapper._subject(AUTO_RESET=True), backend=backend, n_envs=n_envs)
        Episodes(few, of_model).kernel.build(0)
        Rollouts(many).collection(model, is_tf32=config.trainer.precision == "tf32").build(0)
    assert before.made == backend.made


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
    monkeypatch.setattr(gpu, "properties", lambda index: gpu.Properties("sm_90", 101_376))
    monkeypatch.setattr(gpu.cuda_c, "compile_cubin", lambda *_: pytest.fail("compiled"))
    with pytest.raises(CompileError, match=r"must need at most the GPU's shared memory, 101,376 bytes .*113184"):
        CudaProgram(Path("learn.cu"), {}, {"learn": 113_184}).build(0)


@pytest.mark.parametrize("on_end", ["SIG_DFL", "SIG_IGN"])
@pytest.mark.parametrize("n_cores", [1, 16])
def test_kernels_compile_in_processes_of_their_own(n_cores, on_end, tmp_path):
    """Each kernel has a process, which prints nothing; an error ends only its own.

    The system may wait for ended processes itself.
    """
    code = f"""
import os, signal
signal.signal(signal.SIGCHLD, signal.{on_end})
from functools import partial
from pathlib import Path
from warpdrive_min.training.paths import early
os.cpu_count = lambda: {n_cores}
def build(name):
    print("output", flush=True)
    Path({str(tmp_path)!r}, name).write_text(str(os.getpid()))
    raise ValueError("planted")
early.compile_apart(lambda: None, [partial(build, name) for name in "abc"])
early.wait()
early.release()  # they have ended
print(os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers = {path.read_text() for path in tmp_path.iterdir()}
    assert len(numbers - {done.stdout.strip()}) == 3
    assert done.stderr == ""


@pytest.mark.parametrize("end", ["early.release()", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_compilations_end_with_the_command(end, tmp_path):
    """No process goes on to compile when the command ends or releases its GPU."""
    file = tmp_path / "process"
    code = f"""
import os, signal, time
from pathlib import Path
from warpdrive_min.training.paths import early
def build():
    Path({str(file)!r} + ".part").write_text(str(os.getpid()))
    os.rename({str(file)!r} + ".part", {str(file)!r})
    time.sleep(60)
early.compile_apart(lambda: None, [build])
while not os.path.exists({str(file)!r}):
    time.sleep(0.01)
{end}
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    number, deadline = int(file.read_text()), time.monotonic() + 20
    while Path(f"/proc/{number}").exists() and "Z" not in Path(f"/proc/{number}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.01)


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
@pytest.mark.parametrize(("backend", "n_kernels"), [("pycuda", len(ALL)), ("numba", len(PROGRAMS))])
def test_early_kernels_compile_without_torch(backend, n_kernels, tmp_path):
    """Forks compile all kernels; the driver works in their parent only."""
    code = "import sys; from warpdrive_min.commands import early; "
    code += f"early.start(['train', '-e', 'cartpole', '--backend', '{backend}']); early.early._forks[0].wait(); "
    code += "print('torch' in sys.modules)"
    environment = {**os.environ, "WARPDRIVE_MIN_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert len(list(tmp_path.glob("*.cubin"))) == n_kernels


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ON_GPU)
@pytest.mark.parametrize(("name", "which"), [("cartpole", "ppo"), ("tag_gridworld", "a2c"), ("pendulum", "ppo")])
def test_run_uses_all_kernels_that_start_early(name, which, backend, tmp_path):
    """A run without an early start compiles the same kernels."""
    words = ["train", "-e", name, "--config", which, "--iterations", "1", "--backend", backend]
    compiled = []
    for folder, first in (("early", "pass"), ("late", "early.start = lambda _: None")):
        code = f"import runpy; from warpdrive_min.commands import early; {first}; "
        code += "runpy.run_module('warpdrive_min', run_name='__main__', alter_sys=True)"
        command = [sys.executable, "-c", code, *words, "--set", f"saving.basedir={tmp_path / folder}"]
        cache = tmp_path / f"cache-{folder}"
        subprocess.run(command, env={**os.environ, "WARPDRIVE_MIN_CACHE": str(cache)}, check=True, capture_output=True)
        compiled.append({path.name for path in cache.glob("*.cubin")})
    assert compiled[0] == compiled[1] != set()


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
