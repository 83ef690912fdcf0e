"""Which leader a worker follows, kept on disk: a restarted worker is not led astray either."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Follower, Leadership
from fedhp.cluster.worker.model_store import stored_attempts
from fedhp.files import PRIVATE_FILE, storage_errors, write_file

LEADER_FILE = "leader.json"


class FollowedLeader:
    """The leader of the run that this worker joined last."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / LEADER_FILE
        self._run, self.follower = "", Follower()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._file.read_bytes())
            epoch, token = int(known["epoch"]), bytes.fromhex(known["token"])
            # Of two stored models, the older one was committed; the other need not be.
            stored = stored_attempts(folder)
            committed = stored[0] if len(stored) > 1 else INITIAL
            self._run, self.follower = str(known["run"]), Follower(epoch, token, committed)

    def joined(self, reply: wire.JoinReply) -> None:
        """Follow the coordinator that answered, or raise Refused."""
        follower = self.follower if reply.run == self._run else Follower()
        known = (self._run, follower.epoch, follower.token)
        committed = follower.committed  # an older program does not say
        if reply.HasField("committed"):
            committed = Attempt.from_wire(reply.committed)
        follower.follow(
            tuple(map(Leadership.from_wire, reply.leaders)),
            epoch=reply.epoch,
            committed=committed,
        )
        self._run, self.follower = reply.run, follower
        if known != (self._run, follower.epoch, follower.token):
            facts = {"run": reply.run, "epoch": follower.epoch, "token": follower.token.hex()}
            with storage_errors(self._file, option="--state", recovery="start this worker again"):
                write_file(self._file, json.dumps(facts).encode(), mode=PRIVATE_FILE)
