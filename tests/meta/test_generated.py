"""Generated files are what their sources make: the stubs of wire.proto, docs/reference.md."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

from google.protobuf import descriptor_pb2

from fedhp.cluster.protocol import wire_pb2

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
FOLDER = SOURCE / "fedhp/cluster/protocol"
PROTO = "fedhp/cluster/protocol/wire.proto"
AGAIN = "generate the stubs again: see CONTRIBUTING.md"


def test_the_stubs_are_up_to_date(tmp_path: Path) -> None:
    outputs = [f"--descriptor_set_out={tmp_path / 'wire.bin'}", f"--pyi_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, PROTO]
    subprocess.run(command, cwd=SOURCE, check=True, timeout=60)
    described = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "wire.bin").read_bytes())
    (file,) = described.file
    kept = descriptor_pb2.FileDescriptorProto.FromString(wire_pb2.DESCRIPTOR.serialized_pb)
    # JSON names are written by some versions of protoc only.
    fresh_text, kept_text = (re.sub(r"\s*json_name: .*", "", str(text)) for text in (file, kept))
    assert fresh_text == kept_text, AGAIN

    def typed(path: Path) -> set[str]:
        """The lines, without what versions of protoc write differently."""
        text = path.read_text(encoding="utf-8").replace("_Optional[bool]", "bool")
        return {line for line in text.splitlines() if not re.match(r"(from|import) ", line)}

    fresh = tmp_path / "fedhp/cluster/protocol/wire_pb2.pyi"
    assert typed(fresh) == typed(FOLDER / "wire_pb2.pyi"), AGAIN


def test_the_stubs_accept_the_versions_that_the_package_requires() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = " ".join(settings["project"]["optional-dependencies"]["cluster"])
    messages = (FOLDER / "wire_pb2.py").read_text(encoding="utf-8")
    protobuf = re.findall(r"^# Protobuf Python Version: (.*)$", messages, flags=re.MULTILINE)
    assert re.findall(r"protobuf>=([\d.]+)", requirements) == protobuf, AGAIN


def test_the_reference_is_up_to_date() -> None:
    generator = runpy.run_path(str(ROOT / "docs/reference.py"))
    kept = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert generator["reference"]() == kept, "run: make docs"
    for name in ("Plan", "Decision", "Reports", "Action", "LinkVerdict", "Topology"):
        assert f"### fedhp.types.{name} *" in kept
