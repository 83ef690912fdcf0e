"""Generated code is what its source says: wire_pb2 is made from wire.proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PROTO = "fedhp/cluster/protocol/wire.proto"


def test_wire_pb2_is_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    made = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    subprocess.run([*command, *made], cwd=SOURCE, check=True, timeout=60)
    for name in ("wire_pb2.py", "wire_pb2.pyi"):
        fresh = (tmp_path / "fedhp/cluster/protocol" / name).read_text(encoding="utf-8")
        kept = (SOURCE / "fedhp/cluster/protocol" / name).read_text(encoding="utf-8")
        assert fresh == kept, f"make {name} anew: CONTRIBUTING.md says how"
