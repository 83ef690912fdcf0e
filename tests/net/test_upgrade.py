"""Machines with the release before and this one work together: fields are only added.

releases/wire-VERSION.json has one message of every kind, as the code of that release wrote it,
and the numbers and types of all fields. `python -m net.test_upgrade` writes one of this release;
until 0.2.0 is released, its file may be written again.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from fedhp import __version__
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.versions import works_with
from net.good_messages import GOOD, SCENE, new_guard, take

RELEASES = Path(__file__).parent / "releases"
LAST = json.loads(max(RELEASES.glob("wire-*.json")).read_text())


def fields_of(descriptor: Descriptor) -> dict[str, dict[str, list[Any]]]:
    """Every field by message and number: name, type, whether repeated, type of message."""
    fields = {
        descriptor.full_name: {
            str(field.number): [
                field.name,
                field.type,
                bool(field.is_repeated),
                field.message_type.full_name if field.message_type else "",
            ]
            for field in descriptor.fields
        }
    }
    for nested in descriptor.nested_types:
        fields |= fields_of(nested)
    return fields


def present() -> dict[str, Any]:
    """What this release has on the wire."""
    file = wire.DESCRIPTOR
    fields: dict[str, Any] = {}
    for descriptor in file.message_types_by_name.values():
        fields |= fields_of(descriptor)
    messages = {name: kind.make(SCENE) for name, kind in GOOD.items()}
    return {
        "fedhp": __version__,
        "messages": {
            name: {
                "message": message.DESCRIPTOR.name,
                "bytes": base64.b64encode(message.SerializeToString(deterministic=True)).decode(),
            }
            for name, message in messages.items()
        },
        "fields": fields,
        "enums": {
            enum.full_name: {str(value.number): value.name for value in enum.values}
            for enum in file.enum_types_by_name.values()
        },
        "services": {
            service.full_name: {
                method.name: [method.input_type.full_name, method.output_type.full_name]
                for method in service.methods
            }
            for service in file.services_by_name.values()
        },
    }


@pytest.mark.parametrize("part", ["fields", "enums", "services"])
def test_nothing_was_removed_or_changed(part: str) -> None:
    now = present()[part]
    for name, entries in LAST[part].items():
        assert {key: now[name].get(key) for key in entries} == entries, name


def saved_message(name: str) -> Any:
    """A message as the last release wrote it."""
    saved = LAST["messages"][name]
    message = getattr(wire, saved["message"])()
    message.ParseFromString(base64.b64decode(saved["bytes"]))
    return message


@pytest.mark.parametrize("name", LAST["messages"])
def test_a_message_of_the_last_release_is_accepted(name: str) -> None:
    message = saved_message(name)
    take(message, GOOD[name], guard=new_guard(SCENE), scene=replace(SCENE))


def last_class(name: str) -> Any:
    """The class of a message as the last release had it, made from the saved fields."""
    package = "fedhp.cluster.v1"
    file = FileDescriptorProto(name="last.proto", package=package, syntax="proto3")
    for full_name, numbers in LAST["enums"].items():
        enum = file.enum_type.add(name=full_name.removeprefix(f"{package}."))
        for number, value in sorted(numbers.items(), key=lambda item: int(item[0])):
            enum.value.add(name=value, number=int(number))
    by_name: dict[str, DescriptorProto] = {}
    for full_name in sorted(LAST["fields"], key=lambda text: text.count(".")):
        parent, _, own = full_name.removeprefix(f"{package}.").rpartition(".")
        holder = by_name[parent].nested_type if parent else file.message_type
        descriptor = by_name[f"{parent}.{own}".strip(".")] = holder.add(name=own)
        descriptor.options.map_entry = own.endswith("Entry")
        for number, (field, kind, repeated, target) in LAST["fields"][full_name].items():
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else None
            added = descriptor.field.add(name=field, number=int(number), type=kind)
            added.label = label or FieldDescriptorProto.LABEL_OPTIONAL
            if kind == FieldDescriptorProto.TYPE_ENUM:
                added.type_name = f".{next(iter(LAST['enums']))}"
            elif target:
                added.type_name = f".{target}"
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def is_old(name: str) -> bool:
    """Whether the last release knows messages of this kind."""
    return GOOD[name].make(SCENE).DESCRIPTOR.full_name in LAST["fields"]


@pytest.mark.parametrize("name", [name for name in GOOD if is_old(name)])
def test_the_last_release_reads_what_this_one_sends(name: str) -> None:
    """What it knows it reads unchanged; what it does not know it keeps as unknown fields."""
    message = GOOD[name].make(SCENE)
    written = message.SerializeToString(deterministic=True)
    old = last_class(message.DESCRIPTOR.name)()
    old.ParseFromString(written)
    for descriptor, value in old.ListFields():
        if descriptor.message_type is None:
            assert repr(value) == repr(getattr(message, descriptor.name)), descriptor.name
    back = type(message)()
    back.ParseFromString(old.SerializeToString(deterministic=True))
    assert back.SerializeToString(deterministic=True) == written


@pytest.mark.parametrize(
    ("other", "good"),
    [
        ("0.1.0", True),
        ("0.2.7", True),
        ("0.3.0rc1", True),
        ("0.4.0", False),
        ("1.2.0", False),
        ("", False),
        ("0.2x", False),
        ("0.2.0", True),
    ],
)
def test_which_releases_work_together(other: str, good: bool) -> None:
    assert works_with(other, here="0.2.0") is good


def test_the_last_release_works_with_this_one() -> None:
    assert works_with(LAST["fedhp"])


if __name__ == "__main__":
    path = RELEASES / f"wire-{__version__}.json"
    path.write_text(json.dumps(present(), indent=1) + "\n")
    print(f"wrote {path}")
