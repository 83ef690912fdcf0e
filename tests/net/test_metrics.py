"""Metrics and health over HTTP, of a real coordinator and of made-up ones; and logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from fedhp.cluster import metrics_server
from fedhp.cluster.coordinator.process import metrics
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings, coordinate
from fedhp.cluster.coordinator.process.metrics import Metrics, Snapshot, health
from fedhp.cluster.metrics_server import MetricsServer
from fedhp.cluster.ops import logs
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.worker.metrics import WorkerMetrics, WorkerSnapshot
from fedhp.errors import ConfigError, Interrupted
from net.clusters import PATIENCE, tiny
from net.federation import experiment, start_federation
from net.federation import line as in_a_row
from unit.record.rounds import mesh, planned_round
from waiting import wait_until_async


def served(look: Callable[[], Snapshot], ask: Callable[[str], Awaitable[None]]) -> Metrics:
    """A server on some port while somebody asks it."""
    numbers = Metrics()

    async def main() -> None:
        server = MetricsServer("127.0.0.1:0", numbers.registry, lambda: numbers.update(look()))
        try:
            await ask(f"http://127.0.0.1:{server.port}")
        finally:
            await asyncio.to_thread(server.close)

    asyncio.run(main())
    return numbers


async def get(address: str, *, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        return await client.request(method, address)


def test_a_round_becomes_metrics() -> None:
    numbers = Metrics()
    record = planned_round(3, mesh(3), cut=0.0)
    numbers.round_ended(record)
    numbers.round_ended(record)
    value = numbers.registry.get_sample_value
    assert value("fedhp_round_seconds_count") == 2
    assert value("fedhp_round_seconds_sum") == pytest.approx(2 * record.timing.round_time)
    assert value("fedhp_mean_waiting_seconds") == pytest.approx(record.timing.mean_waiting_time)
    for worker in range(3):
        label = {"worker": str(worker)}
        assert value("fedhp_local_steps", label) == record.local_steps[worker]
        assert value("fedhp_step_seconds", label) == pytest.approx(record.step_time[worker])
    a, b = record.links[0].tolist()
    sent = value("fedhp_link_bytes_total", {"a": str(a), "b": str(b)})
    assert sent == 2 * record.link_bytes[0]
    assert record.evaluation is not None
    assert value("fedhp_mean_accuracy") == pytest.approx(record.evaluation.mean_accuracy)


def test_very_many_links_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_LINKS", 2)
    numbers, record = Metrics(), planned_round(4, mesh(4), cut=0.0)
    numbers.round_ended(record)
    samples = [
        sample
        for family in numbers.registry.collect()
        for sample in family.samples
        if sample.name == "fedhp_link_bytes_total"
    ]
    assert len(samples) == 3
    assert sum(sample.value for sample in samples) == record.link_bytes.sum()


def test_a_snapshot_becomes_metrics_and_a_health_check() -> None:
    now = Snapshot(
        state="paused",
        why="etcd is gone",
        leading=True,
        epoch=7,
        round_index=3,
        rounds=9,
        members={"ready": 2, "suspect": 1},
        refused={"replay": 4},
        quarantined=1,
        disk_free=2.5e9,
    )
    pages: list[str] = []

    async def ask(address: str) -> None:
        pages.append((await get(f"{address}/metrics")).text)
        answer = await get(f"{address}/healthz")
        assert (answer.status_code, answer.text) == (503, "paused: etcd is gone\n")
        assert (await get(f"{address}/secret")).status_code == 404
        assert (await get(f"{address}/metrics", method="POST")).status_code == 405

    served(lambda: now, ask)
    for line in (
        "fedhp_epoch 7.0",
        "fedhp_round 3.0",
        "fedhp_paused 1.0",
        "fedhp_disk_free_bytes 2.5e+09",
        "fedhp_quarantined 1.0",
        'fedhp_members{status="ready"} 2.0',
        'fedhp_members{status="dead"} 0.0',
        'fedhp_refused_messages_total{reason="replay"} 4.0',
    ):
        assert line in pages[0].splitlines(), line


@pytest.mark.parametrize(
    ("now", "well", "words"),
    [
        (Snapshot(), False, "waiting: for the lead"),
        (Snapshot(state="running", leading=True, round_index=2, rounds=5), True, "round 2 of 5"),
        (Snapshot(state="running", leading=False), False, "does not lead"),
        (Snapshot(state="gathering", why="0 of 3", leading=True), False, "gathering: 0 of 3"),
        (Snapshot(state="finished", rounds=5), True, "finished"),
    ],
)
def test_health(now: Snapshot, well: bool, words: str) -> None:
    healthy, message = health(now)
    assert healthy is well
    assert words in message


def test_an_event_loop_that_hangs_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "EVENT_LOOP_SECONDS", 0.05)
    asked, answers = threading.Event(), []

    async def ask(address: str) -> None:
        def call() -> None:
            asked.set()
            answers.append(httpx.get(f"{address}/healthz", trust_env=False, timeout=PATIENCE))

        thread = threading.Thread(target=call)
        thread.start()
        asked.wait(PATIENCE)
        thread.join(PATIENCE)  # which keeps the loop itself busy

    served(lambda: Snapshot(state="running", leading=True), ask)
    assert answers[0].status_code == 503
    assert "event loop does not answer" in answers[0].text


def test_a_port_in_use_is_an_error() -> None:
    async def ask(address: str) -> None:
        port = address.rpartition(":")[2]
        with pytest.raises(ConfigError, match="cannot listen"):
            MetricsServer(f"127.0.0.1:{port}", Metrics().registry, lambda: health(Snapshot()))

    served(Snapshot, ask)


def test_a_real_coordinator_that_gathers(tmp_path: Path) -> None:
    init_authority(tmp_path)
    issue(tmp_path, "coordinator", hosts=("127.0.0.1",), roles=("coordinator",))
    settings = CoordinatorProcessSettings(
        experiment=tiny(),
        certificates=tmp_path,
        folder=tmp_path / "run",
        metrics="127.0.0.1:0",
    )
    ports: list[int] = []

    class Ports(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.startswith("metrics at port") and isinstance(record.args, tuple):
                ports.append(int(str(record.args[0])))

    async def main() -> None:
        stop = asyncio.Event()
        running = asyncio.ensure_future(coordinate(settings, stop=stop))
        announced = tmp_path / "run" / "coordinator.json"
        await wait_until_async(lambda: announced.exists() or running.done(), "its address")
        assert not running.done(), running.result()
        address = f"http://127.0.0.1:{ports[0]}"
        answer = await get(f"{address}/healthz")
        while answer.text.startswith(("starting", "waiting")):
            answer = await get(f"{address}/healthz")
        assert answer.status_code == 503
        assert "0 of 3 workers are ready" in answer.text
        page = (await get(f"{address}/metrics")).text.splitlines()
        assert "fedhp_epoch 1.0" in page
        assert "fedhp_leading 1.0" in page
        expiry = 'fedhp_certificate_expiry_seconds{name="coordinator"} '
        seconds = next(float(line[len(expiry) :]) for line in page if line.startswith(expiry))
        assert seconds == pytest.approx(365 * 86400, abs=PATIENCE)
        stop.set()
        with pytest.raises(Interrupted, match="the run is saved"):
            await running

    logger, handler = logging.getLogger("fedhp"), Ports()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        asyncio.run(asyncio.wait_for(main(), PATIENCE))
    finally:
        logger.removeHandler(handler)


def test_a_worker_serves_its_metrics(certificates: Path, tmp_path: Path) -> None:
    first, second = Attempt(1, 1, 1), Attempt(1, 2, 1)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            address = f"127.0.0.1:{holder.getsockname()[1]}"
        async with start_federation(experiment(workers=2), certificates, tmp_path) as federation:
            coordinator = federation.coordinator
            federation.start(0, metrics=address)
            federation.start(1)
            await coordinator.until(lambda: {"w0", "w1"} <= coordinator.stored.keys())
            for attempt, committed in ((first, INITIAL), (second, first)):
                coordinator.mixing(in_a_row(2), committed=committed, attempt=attempt)
                for worker in (0, 1):
                    await coordinator.report(worker)
            coordinator.beat = second
            await coordinator.answer_beats(0, 2)
            answer = await get(f"http://{address}/healthz")
            assert (answer.status_code, answer.text) == (200, "waiting, round 2\n")
            page = (await get(f"http://{address}/metrics")).text.splitlines()
            values = dict(row.rsplit(" ", 1) for row in page if not row.startswith("#"))
            number = {name: float(value) for name, value in values.items()}
            assert number["fedhp_worker_rounds_total"] == 2
            assert number["fedhp_worker_steps_total"] == 2 * 3
            assert number["fedhp_worker_round_seconds_count"] == 2
            assert number["fedhp_worker_step_seconds"] > 0
            assert number["fedhp_worker_sent_bytes_total"] > 0
            assert number["fedhp_worker_received_bytes_total"] > 0
            assert number["fedhp_worker_epoch"] == 1
            assert number["fedhp_worker_round"] == 2
            assert number["fedhp_worker_joined"] == 1
            assert number["fedhp_worker_coordinator_silent_seconds"] < PATIENCE
            for phase in ("waiting", "training"):
                assert number[f'fedhp_worker_phase_seconds_total{{phase="{phase}"}}'] > 0
            for name in ("w0", "w1"):  # its own and that of a peer that called it
                assert number[f'fedhp_certificate_expiry_seconds{{name="{name}"}}'] > 0

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.mark.parametrize(
    ("now", "well", "words"),
    [
        (WorkerSnapshot(), False, "joining"),
        (WorkerSnapshot(joined=True, silent_seconds=99.0), False, "not answered for 99 s"),
        (WorkerSnapshot(joined=True, phase="training", silent_seconds=0.1), True, "training"),
    ],
)
def test_health_of_a_worker(now: WorkerSnapshot, well: bool, words: str) -> None:
    healthy, message = WorkerMetrics().update(now)
    assert healthy is well
    assert words in message


def test_refused_messages_of_a_worker_are_counted() -> None:
    numbers = WorkerMetrics()
    numbers.update(WorkerSnapshot(refused={"ticket": 3}))
    value = numbers.registry.get_sample_value
    assert value("fedhp_worker_refused_messages_total", {"reason": "ticket"}) == 3


# --- logs --------------------------------------------------------------------------------------

PEM = "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----"


@pytest.fixture
def log() -> Iterator[Callable[[logs.Format], tuple[logging.Logger, io.StringIO]]]:
    handlers: list[logging.Handler] = []

    def make(form: logs.Format) -> tuple[logging.Logger, io.StringIO]:
        stream = io.StringIO()
        handlers.append(logs.set_up(who="w1", form=form, stream=stream))
        return logging.getLogger("fedhp.test"), stream

    yield make
    for handler in handlers:
        logging.getLogger(logs.ROOT).removeHandler(handler)


Log = Callable[[logs.Format], tuple[logging.Logger, io.StringIO]]


def test_lines_for_machines_are_strict_json(log: Log) -> None:
    logger, stream = log("json")
    facts = {"round": 3, "level": "mine", "loss": float("nan"), "path": Path("a"), "x": {1}}
    logger.warning("over%s\nand out", "taken", extra=facts)
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("bad")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    first = json.loads(lines[0], parse_constant=lambda token: pytest.fail(token))
    assert first["message"] == "overtaken\nand out"
    assert (first["level"], first["who"], first["round"]) == ("warning", "w1", 3)
    assert (first["level_"], first["loss"], first["path"], first["x"]) == ("mine", "nan", "a", [1])
    assert "ValueError: inner" in json.loads(lines[1])["message"]


def test_lines_for_people_are_one_line_each(log: Log) -> None:
    logger, stream = log("text")
    logger.info("two\nlines", extra={"round": 3})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"info w1: two\nlines (round=3)")


@pytest.mark.parametrize("form", logs.FORMATS)
def test_secrets_stay_out_of_logs(log: Log, form: logs.Format) -> None:
    logger, stream = log(form)
    logger.info(
        "key %s at etcd://me:hunter2@host:2379",
        PEM,
        extra={
            "password": "hunter2",
            "api_token": "hunter2",
            "nested": {"private_key": "hunter2", "text": PEM},
            "list": [PEM],
            "raw": b"hunter2",
            "digest": np.float64(1.0),
        },
    )
    text = stream.getvalue()
    assert "hunter2" not in text
    assert "MIGH" not in text
    assert "me:" in text
    assert "7 bytes" in text
