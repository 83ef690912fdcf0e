"""A run of real processes, compared bit by bit with the simulation of the same experiment."""

from __future__ import annotations

from pathlib import Path

import tomli_w
import torch

from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.protocol.codec import row_digest
from fedhp.cluster.worker.data import worker_experiment
from fedhp.config import Experiment, to_tables
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor


def check_network_bits(experiment: Experiment, folder: Path, *, module: str) -> None:
    """The plans must depend on nothing that is measured, so that a simulation makes the same."""
    prepare(experiment)  # which makes the example importable
    with Cluster(experiment, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    assert check_invariants(folder, rounds=experiment.rounds) == []
    engine = LocalExecutor(prepare(worker_experiment(tomli_w.dumps(to_tables(experiment)))))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected: list[set[str]] = []
    for _ in loop_of(engine).rounds():
        sent = engine.state()["models"][:, : engine.prepared.layout.mixed]
        expected.append({row_digest(row).hex() for row in sent})
    engine.close()
    torch.set_num_threads(threads)
    digests: dict[int, set[str]] = {}
    for events in read_timeline(folder).worker_events.values():
        for event in events:
            if event["event"] == "mixed":
                digests.setdefault(int(event["round"]), set()).add(str(event["digest"]))
    assert digests == dict(enumerate(expected, start=1))
    verification = verify(folder, trust=[module])
    workers, rounds = experiment.workers, experiment.rounds
    assert [verdict.compared for verdict in verification.rounds] == [workers] * rounds
    assert verification.equal
