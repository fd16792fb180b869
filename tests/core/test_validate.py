"""Environment checks: a correct one passes, each planted fault is caught."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial

import pytest

from tests.support import by_night, is_simulated, needs_host, on_every_backend, run
from warpdrive_min.agreement import CHECKS, Subject, bounds, load_class, run_checks
from warpdrive_min.agreement.checks import python_class
from warpdrive_min.commands.new_env import write_starter
from warpdrive_min.errors import ConfigError

validate = partial(run, "validate")
QUICK = ("--backend", "cpu", "--no-card", "--check", "flags", "--check", "finite")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a starter; forget its imports afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield lambda name="ring": write_starter(name, tmp_path)
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {path.stem for path in tmp_path.iterdir()}:
            del sys.modules[name]


def case_of(package, backend="host", **options):
    """Return a case of a package's environment."""
    return Subject(
        **{"target": str(package), "cls": load_class(str(package)), "backend": backend, "n_steps": 20, **options}
    )


def check(case, *names):
    """Run checks; returns their results by name."""
    return {result.name: result for result in run_checks(case, names or CHECKS)}


def test_module_that_raises_is_named_in_one_line(tmp_path, monkeypatch):
    """The error of a module has its place, and no traceback of ours."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "raising_env.py").write_text("import math\n\nraise RuntimeError('planted')\n")
    with pytest.raises(ConfigError, match=r"must not raise .*raising_env\.py, line 3: RuntimeError: planted\); import"):
        load_class(str(tmp_path / "raising_env.py"))


# ------------------------------------------------------------------ correct environments pass


@on_every_backend
def test_starter_passes(backend, write):
    """The starter passes every check; skipped ones have a reason."""
    case = case_of(write(), backend)
    if is_simulated(backend):
        simulated = replace(case, n_envs=2, n_steps=2, config={"n_agents": 2})
        results = check(simulated, "build", "consistency", "flags")
    else:
        results = check(case)
    assert not [result for result in results.values() if result.status == "failed"], results
    skipped = {name: result.detail for name, result in results.items() if result.status == "skipped"}
    if backend == "cpu":
        assert set(skipped) == {"bounds", "consistency", "bit-identity", "rollout", "one-row"}
        assert all(skipped.values())
    else:
        assert set(skipped) <= {"one-row"}
        assert "0 of" in results["consistency"].detail
        assert "no episode ended" not in results["consistency"].detail, "the run must end episodes"


def test_what_passes_tells_how_episodes_ended_and_what_no_reset_clears(write):
    """A pass reports how episodes ended and arrays not reset."""
    package = write()
    reference, env = package / "reference.py", package / "env.py"
    text = reference.read_text().replace("def step(position: Any,", "def step(tally: Any, position: Any,")
    reference.write_text(
        text.replace("        moves = samp", "        tally[:] += 1 + position[:, 0]\n        moves = samp")
    )
    goal = '        feed.add_data("goal", np.zeros((), np.int32), per_env=True)\n'
    env.write_text(env.read_text().replace(goal, goal + goal.replace("goal", "tally")))
    results = check(case_of(package, "cpu"), "reset", "flags")
    assert [result.status for result in results.values()] == ["passed", "passed"], results
    assert results["reset"].detail.endswith("after two histories (not reset: tally)")
    assert re.search(r"[1-9]\d* episodes ended: [1-9]\d* terminated, \d+ truncated$", results["flags"].detail)


def test_arrays_may_be_as_long_as_there_are_environments(write):
    """The two words of the reset's seed are no rows of two environments."""
    (result,) = check(replace(case_of(write(), "host"), n_envs=2, n_steps=4), "independence").values()
    assert result.status == "passed", result.detail


def test_python_class_is_the_reference_without_numpy_kernels():
    """Without NumPy kernels, the Python class is the reference.

    Checks that need NumPy kernels are skipped.
    """
    target = "tests.environments.counter:PlainCounter"
    cls = load_class(target)
    assert python_class(cls) is cls, "one class for both modes"
    results = check(
        Subject(target=target, cls=cls, backend="host", n_steps=8), "consistency", "bit-identity", "auto-reset"
    )
    assert results["consistency"].status == "passed", results
    assert "Python class" in results["consistency"].detail
    assert results["bit-identity"].status == "skipped"
    assert results["auto-reset"].status == "passed", results


def test_kernel_with_a_thread_for_each_agent_passes():
    """Kernels with a thread per agent pass on `host`.

    All checks without NumPy kernels pass.
    """
    target = "tests.environments.counter:ThreadsCounter"
    case = Subject(target=target, cls=load_class(target), backend="host", n_envs=5, n_steps=8)
    results = check(case, "consistency", "determinism", "partial-reset", "flags", "truncation")
    assert {result.status for result in results.values()} == {"passed"}, results
    assert "Python class" in results["consistency"].detail


def test_check_of_bounds_finds_the_thread_without_an_agent(tmp_path):
    """The bounds check catches a thread that writes without an agent."""
    cls = load_class("tests.environments.counter:ThreadsCounter")
    source = tmp_path / "kernel.cu"
    text = cls.kernel_sources["cuda_c"].read_text()
    source.write_text(text.replace("rewards[mine] =", "rewards[mine + 1] = rewards[mine] ="))
    faulty = type("Faulty", (cls,), {"kernel_sources": {"cuda_c": source}})
    found = bounds.find_fault(Subject(target="", cls=faulty, backend="host", n_envs=5, n_steps=2))
    assert "written outside the array: rewards 1 elements after it" in found


def test_python_class_is_the_base_of_a_cuda_class():
    """The reference of a CUDA class is its Python base class."""
    cls = load_class("tests.environments.counter:PlainCounter")

    class Python:
        def step(self, actions=None):
            return actions

    assert python_class(type("Cuda", (Python, cls), {"step": lambda self: None})) is Python


# ------------------------------------------------------------------ faults are caught

REWARD = "    rewards[env][agent] ="
FAULTS = {
    "wrong sign": ("- MOVE_COST * moved", "+ MOVE_COST * moved", "consistency", "rewards of environment"),
    "no barrier": (
        "  }\n  WD_SYNC();  // all agents have moved\n  WD_EACH_AGENT(local, env, agent) {\n",
        "",
        "bit-identity",
        "observations of environment",
    ),
    "write after": (
        REWARD,
        "    if (env == n_envs - 1) rewards[env + 1][agent] = 7.f;\n" + REWARD,
        "bounds",
        "written outside the array: rewards 1 elements after it",
    ),
    "hidden state": (
        REWARD,
        "    static int calls = 0;\n    if (++calls % 1000 == 0) seen[3] += 1.f;\n" + REWARD,
        "determinism",
        "observations of environment",
    ),
    "number of environments": (
        "wd_below(words.x, N_CELLS)",
        "wd_below(words.x + 77777777 * n_envs, N_CELLS)",
        "independence",
        "position of environment",
    ),
    "not written": (
        "seen[1] = static_cast<float>(left)",
        "if (agent == 0) seen[1] = static_cast<float>(left)",
        "written",
        "step 1, not written, or computed from its old value: observations of environment 0, agent 1, component 1",
    ),
    "not reset": (
        "      position[env][agent] = wd_below(words.x, N_CELLS);\n",
        "",
        "reset",
        "(not reset: position, observations)",
    ),
    "stale observations": (
        "    if (_done_[env] || force) observe(position[env], goal[env], agent, observations[env][agent]);\n",
        "    (void)agent;\n",
        "reset",
        "observations of environment",
    ),
    "all restart": (
        "_reset_seed_, force, n_envs);\n  WD_SYNC()",
        "_reset_seed_, 1, n_envs);\n  WD_SYNC()",
        "partial-reset",
        "an environment that is not done changed: _timestep_",
    ),
    "final observations": (
        "= observations[env][agent][feature]",
        "= 0.5f + observations[env][agent][feature]",
        "auto-reset",
        "final_observations of environment",
    ),
    "unseen": (
        "    position[env][agent] = (position",
        "    if (WD_OBSERVED) position[env][agent] = (position",
        "rollout",
        "20 steps in one launch, keep='last': ",
    ),
    "not a number": (
        "seen[1] = static_cast<float>(left)",
        "seen[1] = static_cast<float>(left) / static_cast<float>(left)",
        "finite",
        "observations of environment 0, agent 0, component 1: want a finite number, got nan",
    ),
    "flag of two": (
        "_done_[env] = reached | out_of_time",
        "_done_[env] = 2 * (reached | out_of_time)",
        "flags",
        "_done_ of environment",
    ),
    "late end": (">= EPISODE_LENGTH", "> EPISODE_LENGTH", "truncation", "_done_ of environment 1: want 1, got 0"),
    "no kernel": ("WD_KERNEL(step)(int ", "WD_KERNEL(step)(short ", "build", "cannot bind the parameter"),
    "no reset": (
        "WD_KERNEL(reset)",
        "WD_KERNEL(restart)",
        "build",
        "kernel.cu has no kernel 'reset', which ring.reference",
    ),
}


@pytest.mark.parametrize("fault", [by_night(each) if each == "write after" else each for each in FAULTS])
def test_fault_is_caught(fault, write):
    """A fault in kernel.cu fails its check, which names the array."""
    old, new, name, message = FAULTS[fault]
    package = write()
    source = package / "kernel.cu"
    text = source.read_text()
    assert text.count(old) == 1, "the fault must be planted"
    source.write_text(text.replace(old, new))
    result = check(case_of(package), name)[name]
    assert result.status == "failed", result
    assert message in result.detail


@pytest.mark.nightly
def test_step_of_numba_that_only_moves_if_seen_is_caught(write):
    """A Numba step that works only if ``is_observed`` is caught.

    The flag is true in a rollout's last step only.
    """
    pytest.importorskip("numba")
    source = write() / "kernel_numba.py"
    moves = "            if env < n_envs:\n                position[env, agent] = ("
    planted = {
        "        results: Results,\n": "        results: Results,\n        is_observed: int32,\n",
        moves: moves.replace("env < n_envs", "env < n_envs and is_observed != 0"),
    }
    text = source.read_text()
    for old, new in planted.items():
        assert text.count(old) == 1, "the fault must be planted"
        text = text.replace(old, new)
    source.write_text(text)
    case = case_of(source.parent, "numba", n_envs=2, n_steps=4, config={"n_agents": 2})
    (result,) = check(case, "rollout").values()
    assert result.status == "failed", result
    assert "4 steps in one launch, keep='last': " in result.detail


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            REWARD,
            "    if (env == 0) goal[-2] = agent;\n" + REWARD,
            "written outside the array: goal 2 elements before it",
        ),
        (
            "position[env][agent] == goal[env],",
            "position[env][agent] == goal[env + (env == n_envs - 1)],",
            "read outside an array: the memory there changes step",
        ),
    ],
)
def test_guard_zones_tell_writes_and_reads(old, new, message, write):
    """Guard zones locate writes, and detect reads by their influence."""
    source = write() / "kernel.cu"
    text = source.read_text()
    assert text.count(old) == 1, "the fault must be planted"
    source.write_text(text.replace(old, new))
    assert message in bounds.find_fault(case_of(source.parent, config={"n_cells": 6}))


def test_kernels_that_crash_are_not_run_further(write):
    """After a crash in the kernels, other checks are skipped."""
    source = write() / "kernel.cu"
    source.write_text(source.read_text().replace(REWARD, "    rewards[env + 1000000000][agent] = 7.f;\n" + REWARD))
    results = check(case_of(source.parent), "bounds", "flags")
    assert "the kernels crashed their process (SIGSEGV)" in results["bounds"].detail
    assert results["flags"].status == "skipped"
    assert "bounds failed" in results["flags"].detail


def test_flag_that_is_never_cleared_is_caught_in_the_reference_too(write):
    """A flag that a reset forgets is caught on `cpu`.

    The reference is checked alone.
    """
    source = write() / "reference.py"
    text = source.read_text()
    assert "        clock.done[envs] = 0\n" in text
    source.write_text(text.replace("        clock.done[envs] = 0\n", ""))
    result = check(case_of(source.parent, "cpu"), "reset")["reset"]
    assert result.status == "failed"
    assert "after a forced reset: _done_ of environment 0: want 0, got 1" in result.detail


# ------------------------------------------------------------------ the command


def test_command_reports_as_table_and_json(write, tmp_path):
    """The command reports a table and JSON with configs and seeds."""
    report = tmp_path / "report.json"
    result = validate(write(), *QUICK, "--configs", 2, "--seed", 5, "--config", "n_agents=3", "--json", report)
    assert "passed (2 runs)" in result.output
    found = json.loads(report.read_text())
    assert found["class"] == "Ring"
    assert [(each["check"], each["seed"]) for each in found["results"]] == [
        ("finite", 5),
        ("flags", 5),
        ("finite", 6),
        ("flags", 6),
    ]
    configs = [each["config"] for each in found["results"]]
    assert configs[0]["n_agents"] == configs[2]["n_agents"] == 3, "the given config goes before a random one"
    assert configs[0]["n_cells"] != configs[2]["n_cells"]
    assert {path.name for path in tmp_path.iterdir()} == {"ring", "report.json"}


def test_long_checks_print_their_progress_in_a_pipe(write, monkeypatch):
    """Nothing is printed before the first config is done, or within ten seconds."""
    words = [write(), *QUICK, "--configs", 3]
    assert "configs checked" not in validate(*words).output
    monkeypatch.setattr("warpdrive_min.commands.validate.QUIET_S", 0.0)
    said = validate(*words).output
    assert re.findall(r"cpu: (\d) of 3 configs checked, about \d+ s left", said) == ["1", "2"]


def test_command_shows_speeds(write):
    """The command prints speeds per number of environments.

    It names the publishing tool.
    """
    result = validate(write(), "--backend", "cpu", "--check", "flags", "--envs", 2)
    assert all(f" {n} " in result.output for n in (2, 20, 200))
    assert "python -m bench" in result.output


def test_command_takes_the_name_of_a_shipped_environment():
    """A shipped environment's name works, as in `train -e`.

    Bounds run too, in a separate process.
    """
    result = validate("cartpole", "--backend", "cpu", "--check", "flags", "--check", "bounds", "--envs", 2)
    assert result.output.startswith("CartPole")
    assert "python -m bench run --env cartpole`" in result.output


def test_command_has_small_sizes_in_the_simulator_unless_others_are_asked_for(write, tmp_path, monkeypatch):
    """The command uses small sizes in the simulator by default.

    It reports this, as faults that need time or many environments are missed.
    """
    monkeypatch.setattr("warpdrive_min.commands.validate._is_simulated", lambda backend: backend == "cpu")
    package, report = write(), tmp_path / "report.json"
    for asked, sizes in (([], (3, 5)), (["--envs", 4], (4, 5)), (["--envs", 8, "--steps", 40], (8, 40))):
        result = validate(package, *QUICK, *asked, "--json", report)
        assert ("set --envs and --steps for more" in result.output) is (sizes != (8, 40))
        assert "backend pycuda" not in result.output, "only another one was asked for"
        assert {(each["n_envs"], each["n_steps"]) for each in json.loads(report.read_text())["results"]} == {sizes}


def test_command_fails_with_a_check(write):
    """A failed check gives exit code 1 and its detail."""
    source = write() / "reference.py"
    source.write_text(
        source.read_text().replace("clock.done[:] = results.terminated", "clock.done[:] = 3 * results.terminated")
    )
    result = validate(source.parent, *QUICK, exits=1)
    assert "want 0 or 1, got 3" in result.output


@needs_host
def test_command_names_the_first_error_of_a_build_and_skips_the_rest_in_a_row(write):
    """The command prints a build's first error once.

    The author sees the line to fix, not each skipped check.
    """
    source = write() / "kernel.cu"
    source.write_text(source.read_text().replace(REWARD, "    nowhere += 1;\n" + REWARD))
    result = validate(source.parent, "--backend", "host", "--no-card", "--config", "n_agents=3", exits=1)
    assert "nowhere" in result.output
    assert result.output.count("build failed") == 1
    assert re.search(r"\d+ checks .*skipped .*build failed; fix that first", result.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/folder"], "the path must exist"),
        (["no_such_module:Ring"], "cannot import"),
        (["chess"], "unknown environment (got 'chess'); known are"),
        *[([name], "must be a path, or a module's dotted name") for name in (":Ring", "..ring:Ring", "a..b:Ring")],
        (["tests.environments.counter"], "give one as PATH:Class"),
        (["tests.environments.counter", "--class", "Nobody"], "has no environment 'Nobody'"),
        (["tests.environments.counter:Counter", "--backend", "abacus"], "unknown backend"),
        (["tests.environments.counter:Counter", "--check", "taste"], "unknown check"),
        (["tests.environments.counter:Counter", "--config", "limit"], "must be KEY=VALUE"),
    ],
)
def test_command_says_what_it_cannot_check(arguments, message):
    """Without possible checks, the exit code is 2, with a reason."""
    result = validate(*arguments, exits=2)
    assert message in result.output


def test_package_with_the_name_of_another_is_refused(tmp_path, monkeypatch):
    """A package with another module's name is refused."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("")
    with pytest.raises(ConfigError, match="must not have the name of another module"):
        load_class(str(tmp_path / "json"))


def test_module_inside_a_package_is_found_with_its_siblings(write):
    """A path to a module or its folder gives the same class."""
    package = write()
    assert load_class(str(package / "env.py")) is load_class(str(package))
    assert load_class(str(package)).__module__ == "ring.env"


def test_class_of_a_file_may_have_the_name_of_its_base(tmp_path, monkeypatch):
    """It is the file's own, found with and without its name."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "own_cart.py"
    path.write_text("from envs import CartPole as Shipped\n\n\nclass CartPole(Shipped):\n    name = 'OwnCart'\n")
    assert load_class(str(path)) is load_class(f"{path}:CartPole")
    assert load_class(str(path)).name == "OwnCart"
    assert load_class("envs:Rice").name == "Rice"
    with pytest.raises(ConfigError, match=r"'Nope' \(known: .*CartPole, "):
        load_class("envs:Nope")
