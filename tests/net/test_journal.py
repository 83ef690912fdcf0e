"""The journal: nothing acknowledged is lost, and nothing wrong is handed out."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import mounted
from fedhp.cluster.ledger.journal import Journal, JournalBusy, JournalDamaged, Record
from fedhp.errors import RunError, StorageFull
from fedhp.seeds import Purpose, generator

# Bytes without zeros, as a compressed state has them: no part of it looks like an empty sector.
NOISE = bytes(generator(1, Purpose.PROBE).integers(1, 256, 20_000, dtype="uint8"))
RECORDS = tuple(Record(kind, NOISE[100 * kind : 100 * kind + 17 * kind]) for kind in range(1, 7))


def written(path: Path, records: tuple[Record, ...] = RECORDS) -> list[int]:
    """Write a journal; the offsets at which its records begin, and its end."""
    with contextlib.closing(Journal(path)) as journal:
        offsets = [journal.size]
        for record in records:
            journal.append(record.kind, record.body)
            offsets.append(journal.size)
    return offsets


def reread(path: Path) -> tuple[Record, ...]:
    with contextlib.closing(Journal(path)) as journal:
        return journal.read()


@pytest.fixture
def quick_disk() -> Iterator[Path]:
    """A folder in memory where there is one, for tests that open very many journals."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    offsets = written(tmp_path / "j")
    assert reread(tmp_path / "j") == RECORDS
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        assert journal.torn is None
        assert journal.size == offsets[-1] == (tmp_path / "j").stat().st_size
        journal.append(9, b"")
        assert journal.read() == (*RECORDS, Record(9, b""))


def test_a_record_cut_at_any_byte_is_cut_off_and_told(quick_disk: Path) -> None:
    path = quick_disk / "j"
    *_, last, end = written(path)
    whole = path.read_bytes()
    for size in range(last + 1, end):
        path.write_bytes(whole[:size])
        with contextlib.closing(Journal(path)) as journal:
            assert journal.torn is not None
            assert (journal.torn.offset, journal.torn.bytes) == (last, size - last)
            assert f"{size - last} bytes at offset {last}" in str(journal.torn)
            assert path.stat().st_size == last
            journal.append(6, RECORDS[-1].body)
        assert reread(path) == RECORDS


@pytest.mark.parametrize("garbage", [b"\0" * 5000, NOISE[:3], NOISE[:5000], b"\xf5Rec" * 50])
def test_garbage_behind_the_last_record_is_cut_off(tmp_path: Path, garbage: bytes) -> None:
    *_, end = written(tmp_path / "j")
    with (tmp_path / "j").open("ab") as file:
        file.write(garbage)
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        assert journal.torn is not None
        assert journal.torn.offset == end
        assert journal.read() == RECORDS


def test_a_torn_record_may_hold_another_journal(tmp_path: Path) -> None:
    """The records inside are none of this file."""
    path, other = tmp_path / "j", tmp_path / "other"
    written(other)
    *_, end = written(path, (RECORDS[0], Record(1, other.read_bytes())))
    os.truncate(path, end - 1)
    assert reread(path) == (RECORDS[0],)


def test_a_sector_that_never_reached_the_disk(quick_disk: Path) -> None:
    """Of the last record it is a torn write; of an earlier one it is damage."""
    path = quick_disk / "j"
    *_, last, end = written(path, (RECORDS[0], Record(1, NOISE[:3000])))
    whole = path.read_bytes()
    for at in range(last - last % 512, end, 512):
        empty = bytearray(whole)
        empty[max(at, last) : at + 512] = bytes(len(empty[max(at, last) : at + 512]))
        path.write_bytes(empty)
        with contextlib.closing(Journal(path)) as journal:
            assert journal.torn is not None
            assert journal.read() == (RECORDS[0],)
        path.write_bytes(whole)
        with contextlib.closing(Journal(path)) as journal:
            journal.append(2, b"a later one")
        longer = path.read_bytes()
        path.write_bytes(empty + longer[end:])
        with pytest.raises(JournalDamaged, match="record 1 is the last good one"):
            Journal(path)
        path.unlink()
        path.write_bytes(whole)


def test_a_flipped_bit_is_always_noticed(quick_disk: Path) -> None:
    path = quick_disk / "j"
    *_, last, end = written(path)
    whole = path.read_bytes()
    anywhere = generator(2, Purpose.PROBE).integers(0, 8 * end, 1000)
    for bit in (*(int(each) for each in anywhere), *range(8 * last, 8 * (last + 34), 3)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(JournalDamaged) as caught:
            Journal(path)
        assert str(path) in caught.value.problem
        assert caught.value.fix
        assert path.read_bytes() == flipped, "a damaged file is left as it is"


def test_the_advice_for_a_damaged_file_works(tmp_path: Path) -> None:
    path = tmp_path / "j"
    offsets = written(path)
    damaged = bytearray(path.read_bytes())
    damaged[offsets[3] + 50] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(JournalDamaged, match="record 3 is the last good one") as caught:
        Journal(path)
    subprocess.run(caught.value.fix.split(": ")[-1].split(), check=True)
    assert reread(path) == RECORDS[:3]


def test_lost_doubled_and_foreign_records_are_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "j", tmp_path / "other"
    offsets = written(path)
    assert written(other) == offsets
    whole, foreign = path.read_bytes(), other.read_bytes()
    a, b, c = offsets[2:5]
    for changed in (
        whole[:a] + whole[b:],  # lost
        whole[:b] + whole[a:],  # twice
        whole + whole[offsets[-2] :],  # the last one twice
        whole[:a] + whole[b:c] + whole[a:b] + whole[c:],  # changed places
        whole[:a] + foreign[a:b] + whole[b:],  # of another journal
        whole[: a + 40] + whole[a + 50 :],  # some bytes lost
    ):
        path.write_bytes(changed)
        with pytest.raises(JournalDamaged):
            Journal(path)
    path.write_bytes(whole[:a] + whole[b:])
    with pytest.raises(JournalDamaged, match="record 4 stands where record 3 must"):
        Journal(path)


def test_a_record_that_followed_another_is_noticed(tmp_path: Path) -> None:
    """Two copies of one journal went separate ways: their records do not mix."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    written(ours)
    theirs.write_bytes(ours.read_bytes())
    ends = []
    for path, text in ((ours, b"ours"), (theirs, b"them")):
        with contextlib.closing(Journal(path)) as journal:
            journal.append(1, text)
            ends.append(journal.size)
            journal.append(2, b"the same")
    assert ends[0] == ends[1]
    ours.write_bytes(ours.read_bytes()[: ends[0]] + theirs.read_bytes()[ends[0] :])
    with pytest.raises(JournalDamaged, match="record 7 is the last good one"):
        Journal(ours)


@pytest.mark.parametrize("content", [b"", b"fedhp", b"something else" * 20])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(JournalDamaged, match="does not begin as a journal"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == content


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be used") as caught:
        Journal(tmp_path / "nowhere" / "j")
    assert str(tmp_path / "nowhere" / "j") in str(caught.value)


def test_one_at_a_time(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        with pytest.raises(JournalBusy, match="another process"):
            Journal(tmp_path / "j")
        journal.rewrite(RECORDS)
        with pytest.raises(JournalBusy):
            Journal(tmp_path / "j")
    assert reread(tmp_path / "j") == RECORDS


def test_rewriting_makes_it_short_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with contextlib.closing(Journal(path)) as journal:
        for _ in range(50):
            journal.append(1, NOISE[:1000])
        before = journal.size
        journal.rewrite(RECORDS[:2])
        assert journal.size < before / 10
        journal.append(3, RECORDS[2].body)
        assert journal.in_place()
    assert reread(path) == RECORDS[:3]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["j", "j.lock"]


def test_the_draft_of_a_killed_rewrite_is_forgotten(tmp_path: Path) -> None:
    written(tmp_path / "j")
    (tmp_path / "j.new").write_bytes(b"half a jour")
    assert reread(tmp_path / "j") == RECORDS
    assert not (tmp_path / "j.new").exists()


def test_a_journal_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        assert journal.in_place()
        (tmp_path / "j.lock").rename(tmp_path / "away")
        assert not journal.in_place()
        (tmp_path / "away").rename(tmp_path / "j.lock")
        assert journal.in_place()
        (tmp_path / "j").unlink()
        assert not journal.in_place()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    with mounted(tmp_path / "disk", "64k") as place:
        yield place


def test_a_disk_that_fills_up(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 20_000)
    with contextlib.closing(Journal(small_disk / "j")) as journal:
        done = 5
        for at in range(done):
            journal.append(1, NOISE[at : at + 3000])
        with pytest.raises(StorageFull, match="full") as caught:
            journal.append(1, NOISE + NOISE)
        assert str(journal.path) in str(caught.value)
        assert journal.size == journal.path.stat().st_size
        with pytest.raises(StorageFull):
            journal.rewrite([Record(1, NOISE + NOISE)])
        assert len(journal.read()) == done
        assert sorted(each.name for each in small_disk.iterdir()) == ["filler", "j", "j.lock"]
        filler.unlink()
        journal.append(2, NOISE[:5000])
    assert reread(small_disk / "j")[done:] == (Record(2, NOISE[:5000]),)


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
    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        journal.append(1, NOISE[:6000])
        before = journal.size
        with files_of_at_most(before + 1000), pytest.raises(StorageFull):
            journal.append(1, NOISE[:6000])
        assert journal.path.stat().st_size == journal.size == before
        journal.append(2, b"a short one")
        assert journal.read() == (Record(1, NOISE[:6000]), Record(2, b"a short one"))


def test_after_a_failed_fsync_only_a_new_opening_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with contextlib.closing(Journal(tmp_path / "j")) as journal:
        journal.append(1, b"good")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            with pytest.raises(RunError, match="Input/output error"):
                journal.append(1, b"who knows")
        for use in (lambda: journal.append(1, b"more"), journal.read):
            with pytest.raises(RunError, match="cannot be used any more"):
                use()
    assert reread(tmp_path / "j")[0] == Record(1, b"good")


def test_a_record_is_on_the_disk_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    true_fsync = os.fsync

    def note(handle: int) -> None:
        true_fsync(handle)
        synced.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    path = tmp_path / "j"
    with contextlib.closing(Journal(path)) as journal:
        assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]
        journal.append(1, b"one")
        assert synced[2:] == [path.stat().st_ino]
        journal.rewrite([])
        assert synced[3:] == [path.stat().st_ino, tmp_path.stat().st_ino]


WRITER = """
import sys
from pathlib import Path
from fedhp.cluster.ledger.journal import Journal, Record
journal = Journal(Path(sys.argv[1]))
number = int.from_bytes(journal.read()[-1].body[:8]) if journal.read() else 0
while True:
    number += 1
    body = number.to_bytes(8) * (1 + number * 37 % 900)
    journal.append(1, body)
    if number % 7 == 0:
        journal.rewrite([Record(1, body)])
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    lives = generator(3, Purpose.PROBE).integers(1, 30, 20)
    for lines in lives:
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "j")], stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout is not None
            told = [int(child.stdout.readline()) for _ in range(lines)]
            child.send_signal(signal.SIGKILL)
            told += [int(line) for line in child.stdout if line.endswith("\n")]
        found = [int.from_bytes(record.body[:8]) for record in reread(tmp_path / "j")]
        assert found == list(range(found[0], found[-1] + 1))
        assert told[-1] <= found[-1] <= told[-1] + 1
