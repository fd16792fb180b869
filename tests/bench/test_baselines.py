"""Speed-ups divide by the best CPU code of the same work."""

from __future__ import annotations

import pytest

from bench.core.point import PLAIN, PLAIN_CASES, PLAIN_ENVS
from bench.core.record import Record
from bench.show.documents import TABLES
from bench.show.records import best_on_cpu, work_of
from bench.show.tables import headline
from bench.workloads.cases import CASES
from tests.bench.builders import point, record

THREADS = {"cpu": 1, PLAIN: 1, "host": 16, "pycuda": None}


def of(backend: str, rate: float, n_envs: int = 100, **changes) -> Record:
    """Return a record of CartPole."""
    return record(rate, point=point(backend, n_envs), threads=THREADS[backend], **changes)


def peer(rate: float, n_envs: int = 100, threads: int | None = 4, **axes) -> Record:
    """Return another project's CartPole record."""
    where = {"peer": "gymnasium", "env": "cartpole", "n_envs": n_envs, "n_agents": 1, "work": "simulate", **axes}
    return record(rate, case="peer", point=where, threads=threads, taken="in turns with ours")


ALL = [of("cpu", 1e6), of(PLAIN, 1e7), of("host", 2e7), of("pycuda", 8e8)]


@pytest.mark.parametrize(
    ("records", "name", "times"),
    [
        (ALL, "C++ (16 threads)", "40"),
        ([*ALL, of(PLAIN, 4e7, started_at="2026-01-02T00:00:00")], "plain NumPy (1 thread)", "20"),
        ([*ALL, peer(8e7, variant="vectorised")], "gymnasium vectorised (4 threads)", "10"),
        ([*ALL, peer(8e7)], "gymnasium (4 threads)", "10"),
        ([*ALL, peer(8e9, threads=None)], "C++ (16 threads)", "40"),
        ([*ALL, peer(8e9, work="train")], "C++ (16 threads)", "40"),
        ([*ALL, peer(8e9, n_envs=64)], "C++ (16 threads)", "40"),
        ([*ALL, of("host", 8e9, run_id="other")], "C++ (16 threads)", "40"),
        ([of(PLAIN, 1e7, 64), *ALL[2:]], "C++ (16 threads)", "40"),
        ([of("cpu", 9e8), *ALL[1:]], "C++ (16 threads)", "40"),
    ],
    ids=["C++", "NumPy", "a peer's variant", "a peer", "a GPU", "training", "a size", "a run", "sizes", "the oracle"],
)
def test_headline_is_over_the_best_code_on_a_cpu(records, name, times):
    """The headline's baseline is the fastest CPU code."""
    made = headline(records)
    texts = {column.name: column.text(ALL[-1]) for column in made.columns}
    assert (texts["times the best CPU code"], texts["best CPU code"]) == (times, name)
    assert not any("oracle" in header for header in texts)


def test_headline_of_old_records_names_the_oracle():
    """Without a NumPy baseline, ratios name the code and threads."""
    old = [each for each in ALL if each.point["backend"] != PLAIN]
    made = headline([*old, peer(8e7)])
    texts = {column.name: column.text(made.rows[0]) for column in made.columns}
    assert texts["times reference (NumPy, 1 thread)"] == "800"
    assert texts["times C++ (16 threads)"] == "40"
    assert not any("best" in name for name in texts)
    assert best_on_cpu(old) == {}


def economy(backend: str, rate: float) -> Record:
    """Return a record of RICE."""
    return record(rate, point=point(backend, 100) | {"env": "rice", "n_agents": 27}, threads=THREADS[backend])


def test_best_code_of_an_economy_is_cpp():
    """An economy's baseline is C++."""
    shown = [economy("cpu", 1e5), economy("host", 2e6), economy("pycuda", 8e7)]
    assert best_on_cpu(shown) == {work_of(shown[1]): shown[1]}
    made = TABLES["env_step"](shown)
    row = dict(zip([column.name for column in made.columns], made.cells[-1], strict=True))
    assert (row["times the best CPU code"], row["best CPU code"]) == ("40", "C++ (16 threads)")
    assert "times plain NumPy (1 thread)" not in row
    head = {column.name: column.text(shown[-1]) for column in headline(shown).columns}
    assert (head["times the best CPU code"], head["best CPU code"]) == ("40", "C++ (16 threads)")
    assert best_on_cpu([shown[0], shown[2]]) == {}
    assert best_on_cpu([each.model_copy(update={"case": "rollout"}) for each in shown]) == {}
    old = TABLES["env_step"]([*shown, economy(PLAIN, 1e6)])
    (ratio,) = (column for column in old.columns if column.name == "times plain NumPy (1 thread)")
    assert ratio.text(shown[-1]) == "80"


def test_exact_builds_are_no_opponent():
    """Exact builds are no baseline.

    They do more than the work needs.
    """
    exact = record(9e9, point={**point("host", 100), "exact": True}, threads=16)
    assert best_on_cpu([*ALL, exact])[work_of(exact)] is ALL[2]


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_tables_say_over_which_code(case):
    """Table rows have ratios to the best code and to NumPy."""
    shown = [each.model_copy(update={"case": case}) for each in ALL]
    made = TABLES[case](shown)
    header = [column.name for column in made.columns]
    row = dict(zip(header, made.cells[-1], strict=True))
    assert row["backend"] == "CUDA C (PyCUDA)"
    assert [row[name] for name in ("times the best CPU code", "best CPU code", "times plain NumPy (1 thread)")] == [
        "40",
        "C++ (16 threads)",
        "80",
    ]
    old = TABLES[case]([each for each in shown if each.point["backend"] != PLAIN])
    (ratio,) = (column for column in old.columns if column.name.startswith("times "))
    assert ratio.name == "times reference (NumPy, 1 thread)"
    assert ratio.text(shown[-1]) == "800"


@pytest.mark.parametrize("preset", ["smoke", "default", "full"])
def test_every_size_of_a_gpu_has_a_best_code(preset, monkeypatch):
    """Each size on a GPU is measured in C++ too."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    points = [each for each in CASES["env_step"].points(preset) if not each["exact"]]
    of_code = {name: {work(each) for each in points if each["backend"] == name} for name in ("host", "pycuda", PLAIN)}
    lacking = of_code["pycuda"] - of_code[PLAIN]
    assert of_code["host"] == of_code["pycuda"]
    assert all(env not in PLAIN_ENVS or (env == "tag_continuous" and n_agents >= 2_000) for env, _, n_agents in lacking)


def work(each) -> tuple[str, int, int]:
    """Return environment and sizes of a point."""
    return each["env"], each["n_envs"], each["n_agents"]
