"""Data sets of the Hugging Face library `datasets`, read from local files or from its cache.

data.path is a folder of save_to_disk, or Parquet; data.options.dataset names a data set of the
Hub, which is looked up in the cache alone unless data.options.download is set. Columns with data
are read; code that comes with a data set is never run.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.config import DataConfig
from fedhp.data.arrays import Layout, from_arrays, from_unsplit_arrays, group_numbers
from fedhp.data.images import Side, decode
from fedhp.data.raw import AnyArray, RawData
from fedhp.data.source_files import check_fits, require_existing
from fedhp.errors import ConfigError, DataError, DataMissing, install_extra

if TYPE_CHECKING:
    from datasets import Dataset

PARQUET = "*.parquet"
WANTS = (
    "a folder written by save_to_disk, a Parquet file, or a folder of them (train*.parquet, "
    "test*.parquet)"
)
SPLITS = {"train", "test", "validation", "valid", "val", "dev"}  # that files are named after
UNDIVIDED = "all"  # the only part of a data set that has no splits
SAVED_SPLITS, SAVED_SET = "dataset_dict.json", "state.json"
DIVIDE = (
    "data.options.divide = true takes 20 % of the training split for tests, or save a test split: "
    "dataset.train_test_split(test_size=0.2).save_to_disk(PATH)"
)


def read_huggingface(
    request: DataConfig,
    *,
    inputs: str | list[str] | None = None,
    targets: str | None = None,
    groups: str | None = None,
    train: str = "train",
    test: str = "test",
    divide: bool = False,
    dataset: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    download: bool = False,
    size: Side | None = None,
    grayscale: bool | None = None,
    layout: Layout = "auto",
) -> RawData:
    """The columns `inputs` and `targets` of a data set; without splits, divided 80 / 20."""
    if importlib.util.find_spec("datasets") is None:
        raise ConfigError(
            "'huggingface' needs the Python package 'datasets', which is not installed",
            key="data.name",
            allowed="an installation with the extra 'huggingface'",
            fix=f"{install_extra('huggingface')}; or use another data set",
        )
    if (request.path is None) == (dataset is None):
        raise ConfigError(
            "is missing" if dataset is None else "and data.options.dataset are both given",
            key="data.path",
            allowed=f"data.path ({WANTS}), or data.options.dataset = 'NAME' of the Hub",
            fix="set one of them",
        )
    if dataset is None:
        of_hub = {"config": config, "revision": revision, "download": download or None}
        _refuse_ineffective(of_hub, "data.options.dataset is not set")
        assert request.path is not None
        splits, where = _local(Path(request.path)), request.path
    else:
        splits = _from_hub(dataset, config, revision=revision, download=download)
        where = f"data.options.dataset = {dataset!r}"
    reader = _Reader(where=where, inputs=inputs, targets=targets, size=size, grayscale=grayscale)
    undivided = list(splits) == [UNDIVIDED]
    if undivided or divide:
        why = "the data set has no splits" if undivided else "data.options.divide is true"
        named = {"train": train, "test": test} if undivided else {"test": test}
        _refuse_ineffective({key: name for key, name in named.items() if name != key}, why)
    if divide or undivided:
        part = splits[UNDIVIDED] if UNDIVIDED in splits else _split(splits, train, "train", where)
        layout = _layout_of(reader, part, layout)
        content = dict(zip("xy", reader.arrays(part), strict=True))
        if groups is not None:
            content["groups"] = reader.group_ids(part, groups)
        return from_unsplit_arrays(
            content, layout=layout, class_names=reader.class_names(part), where=where
        )
    training = _split(splits, train, "train", where)
    testing = _split(splits, test, "test", where)
    layout = _layout_of(reader, training, layout)
    reader.check_same_names(training, testing)
    raw = from_arrays(
        reader.arrays(training, request.train_images),
        reader.arrays(testing, request.test_images),
        layout=layout,
        class_names=reader.class_names(training),
        where=where,
    )
    if groups is None:
        return raw
    ids = reader.group_ids(training, groups)[: len(raw.train_targets)]
    numbers = group_numbers(ids, samples=len(ids), name=groups, where=where)
    return replace(raw, groups=numbers)


def holds_huggingface(path: Path) -> bool:
    """Whether a folder was written by save_to_disk, or has Parquet files."""
    saved = any((path / name).is_file() for name in (SAVED_SPLITS, SAVED_SET))
    return saved or next(path.glob(PARQUET), None) is not None


def _refuse_ineffective(options: Mapping[str, Any], why: str) -> None:
    for key, value in options.items():
        if value is not None:
            raise ConfigError(
                f"the value {value!r} has no effect: {why}",
                key=f"data.options.{key}",
                allowed="only settings that have an effect",
                fix=f"remove data.options.{key}",
            )


def _layout_of(reader: _Reader, part: Dataset, layout: Layout) -> Layout:
    """The layout of the inputs: encoded images have one, and only they can be resized."""
    if reader.has_images(part):
        given = None if layout == "auto" else layout
        _refuse_ineffective({"layout": given}, "the inputs are encoded images")
        return "channels_first"
    of_images = {"size": reader.size, "grayscale": reader.grayscale}
    _refuse_ineffective(of_images, "the inputs are numbers, not encoded images")
    return layout


def _local(path: Path) -> dict[str, Dataset]:
    import datasets

    require_existing(path)
    try:
        if path.is_dir() and (path / SAVED_SPLITS).is_file():
            return dict(datasets.DatasetDict.load_from_disk(str(path)))
        if path.is_dir() and (path / SAVED_SET).is_file():
            return {UNDIVIDED: datasets.Dataset.load_from_disk(str(path))}
        files = sorted(path.rglob(PARQUET)) if path.is_dir() else [path]
        if not files or (path.is_file() and path.suffix != ".parquet"):
            raise DataError(
                f"{path}: is not a data set of Hugging Face",
                allowed=WANTS,
                fix="save it with dataset.save_to_disk(PATH) or dataset.to_parquet(PATH)",
            )
        return _from_parquet(path, files)
    except DataError:
        raise
    except Exception as error:  # damaged files fail in many ways inside the library
        raise DataError(
            f"{path}: cannot be read: {type(error).__name__}: {' '.join(str(error).split())}",
            allowed=WANTS,
            fix="save the data set again",
        ) from error


def _from_parquet(path: Path, files: Sequence[Path]) -> dict[str, Dataset]:
    """Parquet files by split, which the name of the file or of its folder begins with."""
    import datasets
    import pyarrow.parquet

    by_split: dict[str, list[Path]] = {}
    for file in files:
        names = [file.name] if file.parent == path else [file.name, file.parent.name]
        words = [re.split(r"[-_.0-9]", name, maxsplit=1)[0] for name in names]
        split = next(filter(SPLITS.__contains__, words), words[0] or words[-1])
        by_split.setdefault(split, []).append(file)
    if path.is_file() or (len(files) == 1 and not SPLITS & by_split.keys()):
        by_split = {UNDIVIDED: list(files)}
    for split, some in by_split.items():
        folders = sorted({str(file.parent.relative_to(path)) for file in some if file != path})
        if len(folders) > 1:
            raise DataError(
                f"{path}: the split {split!r} is in several folders: {', '.join(folders)}",
                allowed="the Parquet files of one data set",
                fix=f"set data.path to one of them, such as {path / folders[0]}",
            )
    check_fits(path, sum(_unpacked(file) for file in files))
    return {
        split: datasets.concatenate_datasets(
            [datasets.Dataset(pyarrow.parquet.read_table(file)) for file in some]
        )
        for split, some in by_split.items()
    }


def _unpacked(file: Path) -> int:
    """The bytes of a Parquet file's columns in memory, by its footer: at least those of its pages,
    and one value per row where values have one size."""
    import pyarrow.parquet

    content = pyarrow.parquet.ParquetFile(file)
    groups = (content.metadata.row_group(index) for index in range(content.num_row_groups))
    pages = sum(group.total_byte_size for group in groups)
    kinds = [field.type for field in content.schema_arrow]
    bits = sum(kind.bit_width for kind in kinds if pyarrow.types.is_primitive(kind))
    return max(int(pages), int(content.metadata.num_rows * bits) // 8)


def _from_hub(
    name: str, config: str | None, *, revision: str | None, download: bool
) -> dict[str, Dataset]:
    """The splits of a data set of the Hub, from the cache; from the network only if asked for."""
    import datasets

    settings = datasets.DownloadConfig(local_files_only=not download)
    before = datasets.config.HF_HUB_OFFLINE
    try:
        if not download:
            datasets.config.HF_HUB_OFFLINE = True
        loaded = datasets.load_dataset(
            name, config, revision=revision, download_config=settings, streaming=False
        )
    except Exception as error:  # the library, its cache or the network
        raise DataMissing(
            f"data.options.dataset = {name!r}: cannot be loaded"
            f"{'' if download else ' from the cache of this machine'}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}",
            allowed="a data set of the Hub that is in the cache, or data.path for local files",
            fix="check the name"
            + ("" if download else ", or set data.options.download = true to download it once"),
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    return dict(loaded)


def _split(splits: Mapping[str, Dataset], name: str, option: str, where: str) -> Dataset:
    if name in splits:
        return splits[name]
    others = [split for split in splits if split != "train"]
    if option == "train":
        fix = "set data.options.train to one of them"
    elif others:
        fix = f"set data.options.test = {others[0]!r}; or {DIVIDE}"
    else:
        fix = DIVIDE
    raise DataError(
        f"{where}: has no split {name!r} (data.options.{option})",
        allowed=f"the splits {', '.join(map(repr, splits))}",
        fix=fix,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the chosen columns of a split as arrays."""

    where: str
    inputs: str | list[str] | None
    targets: str | None
    size: int | None
    grayscale: bool | None

    def arrays(self, part: Dataset, limit: int | None = None) -> tuple[AnyArray, AnyArray]:
        columns, target = self.input_columns(part), self.target_column(part)
        if limit is not None:
            part = part.select(range(min(limit, len(part))))
        if not len(part):
            raise DataError(f"{self.where}: a split holds no samples", fix="choose another split")
        return self._read_inputs(part, columns), self._read_targets(part, target)

    def input_columns(self, part: Dataset) -> list[str]:
        """The columns of the inputs: those asked for, or the only one that can be meant."""
        images = [name for name, kind in part.features.items() if _is_image(kind)]
        candidates = images or [n for n in part.column_names if n in ("image", "img", "x")]
        wanted = "the column of images, or those of features"
        return self._columns(part, "inputs", self.inputs, candidates, wanted)

    def has_images(self, part: Dataset) -> bool:
        """Whether the inputs are encoded images, which have one layout."""
        columns = self.input_columns(part)
        return len(columns) == 1 and _is_image(part.features[columns[0]])

    def target_column(self, part: Dataset) -> str:
        """The column of the labels: the one asked for, or the only one that can be meant."""
        labels = [name for name, kind in part.features.items() if hasattr(kind, "names")]
        candidates = labels or [n for n in part.column_names if n in ("label", "labels", "y")]
        wanted = "the column of the class numbers"
        return self._columns(part, "targets", self.targets, candidates, wanted)[0]

    def _columns(
        self,
        part: Dataset,
        option: str,
        chosen: str | list[str] | None,
        candidates: list[str],
        wanted: str,
    ) -> list[str]:
        columns = [chosen] if isinstance(chosen, str) else candidates if chosen is None else chosen
        if not columns or (chosen is None and len(columns) > 1):
            raise DataError(
                f"{self.where}: which column holds the {option} is not clear",
                allowed=_columns(part),
                fix=f"set data.options.{option} to {wanted}",
            )
        for column in columns:
            self._check_column(part, column, option)
        return columns

    def class_names(self, part: Dataset) -> tuple[str, ...]:
        kind = part.features[self.target_column(part)]
        return tuple(map(str, getattr(kind, "names", None) or ()))

    def check_same_names(self, training: Dataset, testing: Dataset) -> None:
        first, second = self.class_names(training), self.class_names(testing)
        if first != second:
            raise DataError(
                f"{self.where}: the classes of the training split are {list(first)[:5]}, those of "
                f"the test split {list(second)[:5]}",
                allowed="the same classes in the same order",
                fix="cast both columns to one ClassLabel",
            )

    def group_ids(self, part: Dataset, column: str) -> AnyArray:
        self._check_column(part, column, "groups")
        return np.asarray(part.with_format(None)[column][:])

    def _check_column(self, part: Dataset, column: str, option: str) -> None:
        if column not in part.column_names:
            raise DataError(
                f"{self.where}: has no column {column!r} (data.options.{option})",
                allowed=_columns(part),
                fix=f"set data.options.{option} to one of these",
            )

    def _read_inputs(self, part: Dataset, columns: list[str]) -> AnyArray:
        if self.has_images(part):
            import datasets

            rows = part.cast_column(columns[0], datasets.Image(decode=False)).with_format(None)
            tree = _ImageColumn(rows, columns[0], self.where)
            names = tree.names()
            gray = tree.is_gray(names[0]) if self.grayscale is None else self.grayscale
            return decode(tree, names, size=self.size, grayscale=gray)
        arrays = [self._read_numbers(part, column) for column in columns]
        if len(arrays) == 1:
            return arrays[0] if arrays[0].ndim > 1 else arrays[0][:, None]
        for column, array in zip(columns, arrays, strict=True):
            if array.ndim > 2:
                raise DataError(
                    f"{self.where}: the column {column!r} has the shape {array.shape[1:]} per "
                    "sample, and cannot be one of several",
                    allowed="several columns of numbers or lists of numbers, or one of arrays",
                    fix="choose one column in data.options.inputs",
                )
        return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)

    def _read_numbers(self, part: Dataset, column: str) -> AnyArray:
        values = part.with_format(None)[column][:]
        try:
            array = np.asarray(values)
        except ValueError:  # rows of different lengths
            array = np.asarray([], dtype=object)
        if array.dtype.kind not in "buif":
            kind = part.features[column]
            raise DataError(
                f"{self.where}: the column {column!r} ({_kind(kind)}) does not hold numbers of one "
                "shape",
                allowed="an Image column, numbers, or lists of equally many numbers",
                fix="choose other columns in data.options.inputs, or convert it with dataset.map",
            )
        narrow = {"float64": np.float32}.get(array.dtype.name, array.dtype)
        kind = _value_type(part.features[column])
        return array.astype(np.uint8 if kind == "uint8" else narrow)

    def _read_targets(self, part: Dataset, column: str) -> AnyArray:
        kind = part.features[column]
        values = part.with_format(None)[column][:]
        if any(value is None for value in values):
            raise DataError(
                f"{self.where}: the column {column!r} has samples without a label",
                allowed="a label for every sample",
                fix="remove them: dataset.filter(lambda row: row['LABEL'] is not None)".replace(
                    "LABEL", column
                ),
            )
        array = np.asarray(values)
        if array.dtype.kind == "b":
            return array.astype(np.int64)
        if array.dtype.kind not in "iuf":
            raise DataError(
                f"{self.where}: the column {column!r} holds {_kind(kind)}, not class numbers",
                allowed="whole numbers from 0, a ClassLabel, or floats as values to predict",
                fix=f"number the classes: dataset.class_encode_column({column!r})",
            )
        if array.dtype.kind in "iu" and array.ndim == 1 and array.min() == -1:
            raise DataError(
                f"{self.where}: the column {column!r} has the label -1, which means that a sample "
                "has no label",
                allowed="a label for every sample",
                fix="choose another split in data.options.test, such as 'validation'",
            )
        return array


@dataclass(frozen=True, slots=True)
class _ImageColumn:
    """The images of a column, as files that `decode` reads."""

    rows: Dataset
    column: str
    place: str

    def names(self) -> list[str]:
        return [str(index) for index in range(len(self.rows))]

    def read(self, name: str) -> bytes:
        content: Any = self.rows[int(name)][self.column]
        if content and content.get("bytes"):
            return bytes(content["bytes"])
        path = content and content.get("path")
        try:
            if path and "://" not in path:
                return Path(path).read_bytes()
            reason = "it is an address of the network" if path else "it is empty"
        except OSError as error:
            reason = error.strerror or str(error)
        raise DataError(
            f"{self.where(name)}: the image cannot be read: {reason}",
            allowed="images inside the data set, or files on this machine",
            fix="save the data set again with save_to_disk, which puts the images into it",
        )

    def where(self, name: str) -> str:
        return f"{self.place}, row {name} of {self.column!r}"

    def is_gray(self, name: str) -> bool:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(self.read(name))) as image:
                return image.mode in ("1", "L")
        except OSError:
            return False  # decoding says what is wrong with it


def _is_image(kind: Any) -> bool:
    return type(kind).__name__ == "Image"


def _value_type(kind: Any) -> str:
    """The type of the numbers in a column, also of nested lists."""
    while not hasattr(kind, "dtype") or kind.dtype in ("list", None):
        inner = getattr(kind, "feature", None)
        if inner is None:
            return ""
        kind = inner
    return str(kind.dtype)


def _kind(kind: Any) -> str:
    return {"string": "text", "large_string": "text"}.get(_value_type(kind), str(kind))


def _columns(part: Dataset) -> str:
    return "the columns " + ", ".join(
        f"{name} ({_value_type(kind) or type(kind).__name__})"
        for name, kind in part.features.items()
    )
