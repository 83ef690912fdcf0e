"""The local ledger: nothing acknowledged is lost, and nothing wrong is handed out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from disks import mounted
from fedhp.cluster.ledger.base import LedgerDamaged, NotLeader
from fedhp.cluster.ledger.local import LEDGER_FILE, LocalLedger
from fedhp.errors import RunError, StorageFull
from fedhp.seeds import Purpose, generator
from subprocesses import ended_after

NOISE = bytes(generator(1, Purpose.PROBE).integers(0, 256, 60_000, dtype="uint8"))
STATE = NOISE[:10_000]  # three pages


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


@contextlib.asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[LocalLedger]:
    ledger = LocalLedger(folder)
    try:
        await ledger.lead(name="c", address="127.0.0.1:1")
        yield ledger
    finally:
        await ledger.close()


async def state_in(folder: Path) -> bytes | None:
    async with leading(folder) as ledger:
        return await ledger.committed()


def written(folder: Path, *states: bytes) -> bytes:
    """A ledger with these commits; its file."""

    async def work() -> None:
        async with leading(folder) as ledger:
            for state in states:
                await ledger.commit(state)

    run(work())
    return (folder / LEDGER_FILE).read_bytes()


@pytest.fixture
def quick_disk() -> Iterator[Path]:
    """A folder in memory where there is one, for tests that open very many ledgers."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


# --- damage --------------------------------------------------------------------------------


async def refused_or_harmless(folder: Path, content: bytes) -> bool:
    """Whether a ledger with this file is refused; if it is not, it must be as good as new."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / LEDGER_FILE).write_bytes(content)
    ledger = LocalLedger(folder)
    refusal: RunError | None = None
    try:
        await ledger.lead(name="c", address="")
        assert await ledger.committed() == STATE
        await ledger.commit(NOISE[:30_000])
    except RunError as error:
        refusal = error
    await ledger.close()
    if refusal is not None:
        assert str(folder / LEDGER_FILE) in refusal.problem
        assert refusal.fix
        assert (folder / LEDGER_FILE).read_bytes() == content, "a damaged file is left as it is"
        return True
    assert await state_in(folder) == NOISE[:30_000]
    return False


def test_a_file_cut_at_any_length_is_noticed(quick_disk: Path) -> None:
    whole = written(quick_disk / "whole", NOISE[:2000], STATE)
    pages = range(0, len(whole) + 1, 4096)
    anywhere = generator(4, Purpose.PROBE).integers(0, len(whole), 500)
    lengths = {
        *range(600),
        *range(len(whole) - 600, len(whole)),
        *(page + shift for page in pages for shift in (-1, 0, 1)),
        *(int(length) for length in anywhere),
    }

    async def work() -> None:
        for length in sorted(lengths & set(range(len(whole)))):
            refused = await refused_or_harmless(quick_disk / "cut", whole[:length])
            # Only the unused end of the last page may be missing.
            assert refused or whole[length:].strip(b"\0") == b"", length

    run(work())


def test_a_flipped_bit_is_noticed_or_harmless(quick_disk: Path) -> None:
    whole = written(quick_disk / "whole", NOISE[:15_000], STATE)  # some pages are free
    anywhere = generator(2, Purpose.PROBE).integers(0, 8 * len(whole), 1000)
    header = range(8 * 100)  # of the database
    schema = range(8 * 3950, 8 * 4096, 3)
    row = range(8 * 4096, 8 * 4096 + 8 * 12)  # the header of its page

    async def work() -> None:
        outcomes = []
        for bit in (*(int(bit) for bit in anywhere), *header, *schema, *row):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            outcomes.append(await refused_or_harmless(quick_disk / "flipped", bytes(flipped)))
        assert sum(outcomes[: len(anywhere)]) > 300, "many bits of the file matter"

    run(work())


def test_lost_and_foreign_pages_are_noticed(quick_disk: Path) -> None:
    """Pages of an earlier commit, of another ledger, swapped, doubled, or empty."""
    for start in (10_000, 20_000):
        earlier = written(quick_disk / "whole", NOISE[start : start + 10_000])
        foreign = written(quick_disk / "foreign", NOISE[start + 20_000 : start + 30_000])
    whole = written(quick_disk / "whole", STATE)
    assert len(earlier) == len(whole) == len(foreign) == 6 * 4096
    pages = [slice(start, start + 4096) for start in range(0, len(whole), 4096)]
    used = (pages[1], pages[4], pages[5])  # the row and its content; before them what is free

    def replaced(page: slice, content: bytes) -> bytes:
        return whole[: page.start] + content + whole[page.stop :]

    async def work() -> None:
        for page in pages[1:]:
            others = [whole[other] for other in pages if other != page]
            for content in (earlier[page], foreign[page], bytes(4096), *others):
                refused = await refused_or_harmless(quick_disk / "new", replaced(page, content))
                assert refused or page not in used

    run(work())


@pytest.mark.parametrize("content", [b"", b"fedhp", b"something else" * 20])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(content)

    async def work() -> None:
        with pytest.raises(LedgerDamaged, match="the ledger is damaged"):
            await state_in(tmp_path)

    run(work())
    assert (tmp_path / LEDGER_FILE).read_bytes() == content


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / LEDGER_FILE)) as connection:
        connection.execute("CREATE TABLE other (x)")
    before = (tmp_path / LEDGER_FILE).read_bytes()

    async def work() -> None:
        with pytest.raises(LedgerDamaged, match="not a ledger of version"):
            await state_in(tmp_path)

    run(work())
    assert (tmp_path / LEDGER_FILE).read_bytes() == before


# --- kills and power cuts ------------------------------------------------------------------


WRITER = """
import asyncio, sys
from pathlib import Path
from fedhp.cluster.ledger.local import LocalLedger

async def main():
    ledger = LocalLedger(Path(sys.argv[1]))
    await ledger.lead(name="c", address="")
    state = await ledger.committed()
    number = int.from_bytes(state[:8]) if state else 0
    noise = Path(sys.argv[2]).read_bytes()
    while len(sys.argv) < 4 or number < int(sys.argv[3]):
        number += 1
        await ledger.commit(number.to_bytes(8) + noise[: number * 3701 % 9_000])
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


def state_of(number: int) -> bytes:
    """What the writer commits as its commit of this number."""
    return number.to_bytes(8) + NOISE[: number * 3701 % 9_000]


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    (tmp_path / "noise").write_bytes(NOISE)
    return tmp_path / "noise"


def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, noise: Path) -> None:
    lives = generator(3, Purpose.PROBE).integers(1, 30, 20)
    folder, epochs = tmp_path / "ledger", 0
    for lines in lives:
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(noise)],
            stdout=subprocess.PIPE,
            text=True,
        )
        with ended_after(child):
            assert child.stdout is not None
            acknowledged = [int(child.stdout.readline()) for _ in range(lines)]
            child.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in child.stdout if line.endswith("\n")]

        async def check(last: int = acknowledged[-1]) -> None:
            nonlocal epochs
            ledger = LocalLedger(folder)
            epoch = await ledger.lead(name="c", address="")
            state = await ledger.committed()
            await ledger.close()
            assert state in (state_of(last), state_of(last + 1))
            assert epoch == epochs + 2
            epochs = epoch

        run(check())


needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"
)


def traced(*options: str, program: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = ["strace", "-f", *options, sys.executable, "-c", WRITER, *program]
    traced = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "Operation not permitted" in traced.stderr and "ptrace" in traced.stderr:
        pytest.skip("processes cannot be traced here")
    return traced


@needs_strace
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "ftruncate"])
def test_a_kill_at_any_write_or_sync_of_a_commit(call: str, tmp_path: Path, noise: Path) -> None:
    """One commit more each time, killed at its first such call, its second, its third, ..."""
    folder, acknowledged = tmp_path / "ledger", 3
    written(folder, state_of(1), state_of(2), state_of(3))
    for occurrence in range(1, 60):
        killing = f"inject={call}:signal=KILL:when={occurrence}"
        program = (str(folder), str(noise), str(acknowledged + 1))
        child = traced("-e", f"trace={call}", "-e", killing, program=program)
        last, acknowledged = acknowledged, acknowledged + child.stdout.count("\n")

        async def check(earliest: int = acknowledged, latest: int = last + 1) -> int:
            state = await state_in(folder)
            assert state is not None
            number = int.from_bytes(state[:8])
            assert earliest <= number <= latest
            assert state == state_of(number)
            return number

        acknowledged = asyncio.run(check())
        if child.returncode == 0:
            break
    else:
        pytest.fail("the writer never came to its end")
    assert occurrence > {"pwrite64": 12, "fdatasync": 6, "ftruncate": 2}[call]


@dataclass
class DiskFile:
    """A file as a disk may have it: what was synced, and writes in any state."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: truncate to here

    def sync(self) -> None:
        for change in self.pending:
            self._apply(self.synced, *change)
        self.pending.clear()

    def after_a_power_cut(self, draw: Any) -> bytes:
        """The synced content, and of later writes any sectors or none."""
        content = bytearray(self.synced)
        for offset, data in self.pending:
            if data is None:
                if draw.random() < 0.5:
                    self._apply(content, offset, None)
                continue
            for start in range(0, len(data), 512):
                if draw.random() < 0.5:
                    self._apply(content, offset + start, data[start : start + 512])
        return bytes(content)

    @staticmethod
    def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
        if data is None:
            del content[offset:]
            content.extend(bytes(offset - len(content)))
            return
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


CALL = re.compile(
    r"(?P<call>pwrite64|fdatasync|fsync|ftruncate|write)\((?P<handle>\d+)<(?P<path>[^>]*)>"
    r"(?:, \"(?P<data>[^\"]*)\")?(?P<rest>[^)]*)\)"
)


@needs_strace
def test_a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged(
    quick_disk: Path, noise: Path
) -> None:
    """The calls of five commits are recorded, and cut off after every one of them."""
    folder = quick_disk / "ledger"
    written(folder, state_of(1))
    database, journal = DiskFile(bytearray((folder / LEDGER_FILE).read_bytes())), DiskFile()
    files = {str(folder / LEDGER_FILE): database, f"{folder / LEDGER_FILE}-journal": journal}
    calls = "trace=pwrite64,fdatasync,fsync,ftruncate,write"
    options = ("-y", "-xx", "-s", "100000", "-e", calls)
    child = traced(*options, program=(str(folder), str(noise), "6"))
    assert child.returncode == 0
    draw, acknowledged, cuts = generator(6, Purpose.PROBE), 1, 0

    async def check() -> None:
        for _ in range(3):
            after = quick_disk / "after"
            shutil.rmtree(after, ignore_errors=True)
            after.mkdir()
            (after / LEDGER_FILE).write_bytes(database.after_a_power_cut(draw))
            (after / f"{LEDGER_FILE}-journal").write_bytes(journal.after_a_power_cut(draw))
            assert await state_in(after) in (state_of(acknowledged), state_of(acknowledged + 1))

    async def work() -> None:
        nonlocal acknowledged, cuts
        for line in child.stderr.splitlines():
            call = CALL.search(line)
            if call is None:
                continue
            path = bytes.fromhex(call["path"].replace("\\x", "")).decode()
            data = bytes.fromhex((call["data"] or "").replace("\\x", ""))
            if call["call"] == "write":
                acknowledged += call["handle"] == "1" and data.strip().isdigit()
            elif path in files:
                file = files[path]
                if call["call"] == "pwrite64":
                    offset = int(call["rest"].split(",")[2])
                    file.pending.append((offset, data))
                elif call["call"] == "ftruncate":
                    file.pending.append((int(call["rest"].split(",")[1]), None))
                else:
                    file.sync()
            await check()
            cuts += 1

    run(work())
    assert acknowledged == 6
    assert not database.pending
    assert bytes(database.synced) == (folder / LEDGER_FILE).read_bytes()
    assert cuts > 60


# --- a full or failing disk ----------------------------------------------------------------


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    async def work(disk: Path) -> None:
        filler = disk / "filler"
        filler.write_bytes(b"x" * 140_000)
        async with leading(disk) as ledger:
            await ledger.commit(STATE)
            with pytest.raises(StorageFull, match="full") as caught:
                await ledger.commit(NOISE)
            assert str(disk / LEDGER_FILE) in caught.value.problem
            assert "what was committed is kept" in caught.value.fix
            assert await ledger.committed() == STATE
            await ledger.commit(STATE[1:])
            filler.unlink()
            await ledger.commit(NOISE)
        assert await state_in(disk) == NOISE

    with mounted(tmp_path / "disk", "200k") as disk:
        run(work(disk))


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    async def work(disk: Path) -> None:
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(b"x" * 4096)
        with pytest.raises(StorageFull):
            await state_in(disk / "ledger")
        filler.unlink()
        assert await state_in(disk / "ledger") is None

    with mounted(tmp_path / "disk", "64k") as disk:
        run(work(disk))


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: needs no rights, unlike a mount."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_stops_in_the_middle(tmp_path: Path) -> None:
    """SQLite reports it as an error of the disk: the ledger is not used any more."""

    async def work() -> None:
        async with leading(tmp_path) as ledger:
            await ledger.commit(STATE)
            with files_of_at_most(20_000), pytest.raises(RunError, match="cannot be used"):
                await ledger.commit(NOISE)
            with pytest.raises(RunError, match="cannot be used any more"):
                await ledger.commit(b"more")
        assert await state_in(tmp_path) == STATE

    run(work())


class FailingDisk:
    """A connection whose commits fail, as after a failed fsync."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self.inner = inner

    def execute(self, text: str, *values: Any) -> Any:
        if text == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self.inner.execute(text, *values)

    in_transaction = False

    def close(self) -> None:
        self.inner.close()


def test_after_a_failed_sync_only_a_new_ledger_helps(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as ledger:
            await ledger.commit(b"good")
            inner = ledger._connection
            assert inner is not None
            ledger._connection = FailingDisk(inner)  # type: ignore[assignment]
            with pytest.raises(RunError, match="disk I/O error"):
                await ledger.commit(b"perhaps")
            ledger._connection = inner
            with pytest.raises(RunError, match="cannot be used any more"):
                await ledger.commit(b"more")
        assert await state_in(tmp_path) == b"good"

    run(work())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """As root every file can be written: a header that allows only reading stands for it."""
    content = bytearray(written(tmp_path, STATE))
    content[18] = 3  # the version that writers need
    (tmp_path / LEDGER_FILE).write_bytes(content)

    async def work() -> None:
        with pytest.raises(RunError, match="readonly") as caught:
            await state_in(tmp_path)
        assert "permissions" in caught.value.fix

    run(work())


# --- one at a time -------------------------------------------------------------------------


def test_another_process_leads_only_after_the_first_is_killed(tmp_path: Path, noise: Path) -> None:
    folder = tmp_path / "ledger"
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(noise)], stdout=subprocess.PIPE, text=True
    )

    async def work() -> None:
        assert child.stdout is not None
        lines = child.stdout
        assert await asyncio.to_thread(lines.readline) == "1\n"
        ledger = LocalLedger(folder)
        waiting = asyncio.create_task(ledger.lead(name="c", address=""))
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done
        child.kill()
        rest = await asyncio.to_thread(lines.readlines)
        assert await waiting == 2
        state = await ledger.committed()
        assert state is not None
        assert int.from_bytes(state[:8]) - (1 + len(rest)) in (0, 1)
        await ledger.close()

    with ended_after(child):
        run(work())


def test_two_that_start_at_once_get_different_epochs(quick_disk: Path) -> None:
    """Both may find no file and make one; only one of the files counts."""

    async def candidate(folder: Path) -> int:
        ledger = LocalLedger(folder)
        epoch = await ledger.lead(name="c", address="")
        await ledger.close()
        return epoch

    async def work() -> None:
        for number in range(10):
            folder = quick_disk / str(number)
            epochs = await asyncio.gather(*(candidate(folder) for _ in range(4)))
            assert sorted(epochs) == [1, 2, 3, 4]
            names = {path.name for path in folder.iterdir()}
            assert names <= {LEDGER_FILE, f"{LEDGER_FILE}-journal"}

    run(work())


def test_a_commit_during_the_close_is_made_or_refused(tmp_path: Path) -> None:
    async def work() -> None:
        ledger = LocalLedger(tmp_path)
        await ledger.lead(name="c", address="")
        outcomes = await asyncio.gather(
            ledger.commit(b"one"), ledger.close(), ledger.commit(b"two"), return_exceptions=True
        )
        assert list(outcomes[:2]) == [None, None]
        assert isinstance(outcomes[2], NotLeader)
        assert await state_in(tmp_path) == b"one"

    run(work())


def test_a_database_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as ledger:
            await ledger.commit(b"one")
            assert ledger.leads()
            (tmp_path / LEDGER_FILE).rename(tmp_path / "away")
            shutil.copy(tmp_path / "away", tmp_path / LEDGER_FILE)
            assert not ledger.leads()
            with pytest.raises(NotLeader):
                await ledger.commit(b"two")
            assert ledger.lost.is_set()
        assert await state_in(tmp_path) == b"one"

    run(work())


def test_the_database_does_not_grow_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as ledger:
            for number in range(40):
                await ledger.commit(NOISE[number : number + 50_000])
            files = [tmp_path / LEDGER_FILE, tmp_path / f"{LEDGER_FILE}-journal"]
            assert sum(file.stat().st_size for file in files) < 2 * 50_000

    run(work())


def test_the_epoch_is_on_the_disk_before_anyone_hears_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path / "a") as ledger:
            await ledger.commit(b"one")
        async with leading(tmp_path / "a"):
            copy = tmp_path / "b"
            shutil.copytree(tmp_path / "a", copy)
            ledger = LocalLedger(copy)
            assert await ledger.lead(name="d", address="") == 3
            assert await ledger.committed() == b"one"
            await ledger.close()

    run(work())


def test_a_ledger_leads_once_and_never_after_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as ledger:
            with pytest.raises(RuntimeError, match="only once"):
                await ledger.lead(name="c", address="127.0.0.1:1")
        unused = LocalLedger(tmp_path)
        await unused.close()
        with pytest.raises(RuntimeError, match="only once"):
            await unused.lead(name="c", address="127.0.0.1:1")
        assert not unused.leads()

    run(work())


@pytest.mark.parametrize("rows", [0, 2])
def test_a_ledger_has_one_row(rows: int, tmp_path: Path) -> None:
    written(tmp_path, STATE)
    with contextlib.closing(sqlite3.connect(tmp_path / LEDGER_FILE)) as connection, connection:
        if rows:
            connection.execute("INSERT INTO ledger SELECT * FROM ledger")
        else:
            connection.execute("DELETE FROM ledger")
    with pytest.raises(LedgerDamaged, match=f"{rows} valid rows, not 1"):
        run(_read(tmp_path))


async def _read(folder: Path) -> None:
    await state_in(folder)
