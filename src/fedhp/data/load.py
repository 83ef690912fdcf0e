"""load_data: a data section of an experiment -> prepared, read-only arrays.

A reader has a built-in name, or is the user's own loader named by a dotted path. The last few
data sets stay in memory: a comparison runs many runs with the same data in one process.
"""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.components import check_settings, is_dotted, resolve
from fedhp.config import DataConfig
from fedhp.data.arrays import check_numbers, from_arrays, group_numbers
from fedhp.data.prepare import prepare
from fedhp.data.raw import RawData, check_labels, check_same_shape, is_whole
from fedhp.errors import ConfigError, DataError, FedhpError, about, at_user_place
from fedhp.types import Dataset

BUILTINS = {
    "digits": "fedhp.data.arrays:read_digits",
    "mnist": "fedhp.data.idx:read_mnist",
    "emnist": "fedhp.data.idx:read_emnist",
    "cifar10": "fedhp.data.cifar:read_cifar10",
    "image_folder": "fedhp.data.images:read_image_folder",
    "tiny_imagenet": "fedhp.data.images:read_tiny_imagenet",
    "huggingface": "fedhp.data.huggingface:read_huggingface",
    "npz": "fedhp.data.arrays:read_npz",
}

IMAGE_AXES = 4  # [n, channels, height, width]
_MOST_IN_MEMORY = 2  # data sets; CIFAR-10 takes 0.7 GB
_PREPARATION = ("name", "path", "split", "pool", "standardize", "train_images", "test_images")
_lock = threading.Lock()
_memory: OrderedDict[str, Dataset] = OrderedDict()


def load_data(config: DataConfig) -> Dataset:
    """The data set of an experiment, read, checked and prepared; its arrays are read-only."""
    key = _memory_key(config)
    with _lock:
        if key in _memory:
            _memory.move_to_end(key)
            return _memory[key]
        while len(_memory) >= _MOST_IN_MEMORY:  # before reading: the next set may need the room
            _memory.popitem(last=False)
        _memory[key] = prepare(read(config), config)
        return _memory[key]


def clear_memory() -> None:
    """Drop the data sets kept in memory."""
    with _lock:
        _memory.clear()


def read(config: DataConfig) -> RawData:
    reader = resolve(config.name, BUILTINS, key="data.name")
    own = is_dotted(config.name)
    if config.split is not None and config.name != "emnist":
        raise ConfigError(
            f"the value {config.split!r} has no effect for {config.name}",
            key="data.split",
            allowed="data.split with data.name = 'emnist' only",
            fix="pass it as data.options.split" if own else "remove data.split",
        )
    if own:
        return _read_with_loader(reader, config)
    settings = check_settings(reader, config.options, prefix="data.options")
    keys, path = _keys(config), config.path or "not set"
    try:
        raw: RawData = reader(config, **settings)
    except MemoryError:
        raise DataError(
            f"the samples of data.name = {config.name!r} do not fit into the memory of this "
            f"machine (data.path = {path})",
            allowed="data that fit into the memory of this machine",
            fix="if the data are what you expect, use fewer samples or a machine with more memory; "
            "otherwise delete the file",
            keys=keys,
        ) from None
    except DataError as error:
        if error.keys:
            raise
        raise type(error)(
            f"{error.problem} (data.name = {config.name!r}, data.path = {path})",
            allowed=error.allowed,
            fix=error.fix,
            keys=keys,
        ) from error
    return raw


def _keys(config: DataConfig) -> tuple[str, ...]:
    return ("data.name",) if config.path is None else ("data.name", "data.path")


def _memory_key(config: DataConfig) -> str:
    fields: dict[str, Any] = {name: getattr(config, name) for name in _PREPARATION}
    fields["options"] = config.options
    fields["environment"] = [
        os.environ.get(name, "") for name in ("FEDHP_DATA", "FEDHP_CACHE", "XDG_CACHE_HOME", "HOME")
    ]
    if config.path is not None and os.path.exists(config.path):
        # a file that was written again is read again
        stat = os.stat(config.path)
        fields["written"] = [stat.st_mtime_ns, stat.st_size, stat.st_ino]
    return json.dumps(fields, sort_keys=True, default=repr)


def _read_with_loader(loader: Callable[..., Any], config: DataConfig) -> RawData:
    settings = dict(config.options)
    parameter = _path_parameter(loader, config)
    keyword_only = parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY
    if keyword_only and config.path is not None:
        settings["path"] = config.path
    checked = check_settings(loader, settings, prefix="data.options")
    if parameter is not None and not keyword_only and config.path is not None:
        checked["path"] = Path(config.path) if parameter.annotation is Path else config.path
    try:
        result = loader(**checked)
    except FedhpError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise DataError(
            f"data.name = {config.name!r}: the loader failed: {type(error).__name__}: {error}"
            f"{at_user_place(error)} (data.path = {config.path or 'not set'})",
            fix="correct the loader, or check data.path and data.options",
            keys=_keys(config),
        ) from error
    with about("data.name"):
        return _checked(result, config.name)


def _path_parameter(loader: Callable[..., Any], config: DataConfig) -> inspect.Parameter | None:
    """The loader's parameter `path`, if it takes one and the settings agree with it."""
    if "path" in config.options:
        raise ConfigError(
            "the path is not an option of the loader",
            key="data.options.path",
            allowed="the path as data.path",
            fix="move it to data.path",
        )
    parameter = inspect.signature(loader, eval_str=True).parameters.get("path")
    if parameter is None and config.path is not None:
        raise ConfigError(
            f"{config.name!r} takes no path",
            key="data.path",
            allowed="data.path only for loaders with a parameter called path",
            fix="remove data.path, or add the parameter",
        )
    required = parameter is not None and parameter.default is inspect.Parameter.empty
    if required and config.path is None:
        raise ConfigError(
            f"is required by {config.name!r} but missing",
            key="data.path",
            allowed="the path that the loader reads",
            fix="add data.path = '...'",
        )
    return parameter


def _checked(result: Any, name: str) -> RawData:
    where = f"data.name = {name!r}"
    if isinstance(result, Dataset):
        train, test = np.asarray(result.train_targets), np.asarray(result.test_targets)
        if result.classes is None and train.ndim == test.ndim == 1:
            train, test = train[:, None], test[:, None]
        groups = result.groups
        if groups is not None:
            groups = group_numbers(groups, samples=len(train), name="groups", where=where)
        inputs = np.asarray(result.train_inputs), np.asarray(result.test_inputs)
        names = tuple(result.class_names)
        raw = RawData(inputs[0], train, inputs[1], test, result.classes, names, groups)
        _check_dataset(raw, where)
        return _with_tokens(raw)
    if isinstance(result, tuple) and len(result) == 4:
        return _with_tokens(from_arrays(result[:2], result[2:], where=where))
    kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
    raise DataError(
        f"{where}: the loader returned {kind}",
        allowed="a fedhp.types.Dataset, or (x_train, y_train, x_test, y_test)",
        fix="return one of these",
    )


def _with_tokens(raw: RawData) -> RawData:
    """Whole numbers of a loader stay so, unless they are images [n, channels, height, width]."""
    parts = (raw.train_inputs, raw.test_inputs)
    return replace(raw, tokens=all(is_whole(part) and part.ndim != IMAGE_AXES for part in parts))


def _check_dataset(raw: RawData, where: str) -> None:
    for part, inputs, targets in (
        ("train", raw.train_inputs, raw.train_targets),
        ("test", raw.test_inputs, raw.test_targets),
    ):
        check_numbers(f"{part}_inputs", inputs, where=where)
        check_numbers(f"{part}_targets", targets, where=where)
        if len(inputs) != len(targets) or inputs.ndim < 2:
            raise DataError(
                f"{where}: {part}_inputs has the shape {inputs.shape}, {part}_targets"
                f" {targets.shape}",
                allowed="[n, ...] inputs and as many targets",
                fix="return arrays that belong together",
            )
        if raw.classes is None:
            continue
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            raise DataError(
                f"{where}: {part}_targets is {targets.dtype} of shape {targets.shape}",
                allowed="[n] whole numbers, or classes = None for values to predict",
                fix="return class numbers from 0",
            )
        labels = f"{where}: {part}_targets"
        check_labels(targets, labels, classes=raw.classes, fix="number the classes from 0")
    check_same_shape(raw.train_inputs, raw.test_inputs, where)
