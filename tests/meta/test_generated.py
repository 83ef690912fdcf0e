"""Generated files are what their sources make: the stubs of wire.proto, docs/reference.md."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROTO = "fedhp/cluster/protocol/wire.proto"


def test_the_stubs_are_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([*command, *outputs, PROTO], cwd=SOURCE, check=True, timeout=60)
    for name in ("wire_pb2.py", "wire_pb2.pyi", "wire_pb2_grpc.py"):
        fresh = (tmp_path / "fedhp/cluster/protocol" / name).read_text(encoding="utf-8")
        kept = (SOURCE / "fedhp/cluster/protocol" / name).read_text(encoding="utf-8")
        assert fresh == kept, f"generate {name} again: see CONTRIBUTING.md"


def test_the_reference_is_up_to_date() -> None:
    generator = runpy.run_path(str(ROOT / "docs/reference.py"))
    kept = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert generator["reference"]() == kept, "run: make docs"
    for name in ("Plan", "Decision", "Reports", "Action", "LinkVerdict", "Topology"):
        assert f"### fedhp.types.{name} *" in kept
