"""How numbers, sizes, lists and the names of labels are written for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedhp.algorithms.base import about

ACCURACY = "accuracy"  # the metric that is a share, shown in percent
MISSING = "–"


def number(value: float | None) -> str:
    """Three significant digits, without an exponent for usual sizes: 0.182, 9.27, 41.1, 518."""
    if value is None or value != value:
        return MISSING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001 or size >= 1e7:
        return f"{value:.2e}"
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:.{decimals}f}"


def fixed(value: float | None, decimals: int) -> str:
    """A number with this many decimals, as all numbers of a table column have them."""
    return MISSING if value is None or value != value else f"{value:.{decimals}f}"


def decimals_for(values: Iterable[float | None]) -> int:
    """How many decimals a column needs, by its largest value."""
    largest = max((abs(v) for v in values if v is not None and v == v), default=0.0)
    if largest < 1:
        return 3 if largest else 0
    return 2 if largest < 100 else 1 if largest < 1000 else 0


def seconds(value: float | None) -> str:
    return MISSING if value is None else f"{number(value)} s"


def score(value: float | None, metric: str = ACCURACY, *, unit: bool = True) -> str:
    """A test result: percent for accuracies, a plain number for other metrics."""
    if value is None or value != value:
        return MISSING
    if metric != ACCURACY:
        return number(value)
    return f"{100 * value:.1f}" + (" %" if unit else "")


def target_name(key: str | float, metric: str = ACCURACY) -> str:
    """A target as it was set: 90 %, 92.5 %, or the plain number."""
    return f"{round(100 * float(key), 6):g} %" if metric == ACCURACY else f"{float(key):g}"


def time_name(key: str | float) -> str:
    """A time of evaluation.times as it was set: 60 s, 62.5 s."""
    return f"{round(float(key), 6):.15g} s"


def data_size(count: float | None) -> str:
    """Bytes in decimal units: 950 B, 1.50 MB, 1.35 GB."""
    if count is None:
        return MISSING
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.0f} B" if units[0] == "B" else f"{number(value)} {units[0]}"


def count(amount: int, singular: str, plural: str = "") -> str:
    """1 link, 2 links."""
    return f"{amount} {singular if amount == 1 else plural or singular + 's'}"


def from_to(values: Sequence[int]) -> str:
    """2 to 5, or 3 where all are equal."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def listed(items: Iterable[str], *, most: int = 0, total: int = 0) -> str:
    """a, b and c; beyond `most`: a, b and 7 more. `total` also counts items that are not given."""
    all_items = list(items)
    total = max(total, len(all_items))
    if most and total > most:
        return f"{', '.join(all_items[:most])} and {total - most} more"
    if len(all_items) < 2:
        return "".join(all_items)
    return f"{', '.join(all_items[:-1])} and {all_items[-1]}"


def markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def final_meaning(tests: Iterable[int]) -> str:
    """What "final" is, by how many of the last tests are averaged in each run."""
    counts = set(tests) or {1}
    return "the last test" if counts == {1} else f"mean of the last {from_to([*counts])} tests"


def worker_name(worker: int, device: str) -> str:
    """A worker in a sentence: worker 7 (laptop)."""
    return f"worker {worker} ({device})"


def sentence(text: str) -> str:
    """A text as a sentence: a capital letter first, a full stop at the end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def label_base(label: str) -> str:
    return label.partition(":")[0]


def is_limit(label: str) -> bool:
    """Whether a label is the limit of the others: training on links that cost nothing."""
    known = about(label_base(label))
    return known is not None and known.limit


def label_name(label: str) -> str:
    """A run's label as figures and sentences write it: FedHP (deadline=fill)."""
    base, separator, settings = label.partition(":")
    known = about(base)
    words = f" ({settings.replace(',', ', ')})" if separator else ""
    return label if known is None else known.name + words


def short_names(labels: Sequence[str]) -> dict[str, str]:
    """The labels of one comparison by what differs: AD-PSGD 100 steps, lr 0.4."""
    parsed = {label: _label_parts(label) for label in labels}
    alike = [set(settings) for _, settings in parsed.values()]
    shared = set.intersection(*alike) if len(alike) > 1 else set()
    names = {}
    for label, (base, settings) in parsed.items():
        words = [setting_words(setting) for setting in settings if setting not in shared]
        known = about(base)
        title = base if known is None else known.name
        names[label] = " ".join(filter(None, [title, ", ".join(words)]))
    uses = Counter(names.values())
    return {label: name if uses[name] == 1 else label_name(label) for label, name in names.items()}


def _label_parts(label: str) -> tuple[str, list[str]]:
    """The algorithm of a label (perhaps package.module:Class) and its settings, key=value."""
    parts = label.split(":")
    first = next((i for i, part in enumerate(parts) if "=" in part), len(parts))
    return ":".join(parts[:first]), parts[first:]


def setting_words(setting: str) -> str:
    """key=value as names have it: 12 steps, lr 0.4, robust trimmed mean, overlap, no overlap."""
    key, _, value = setting.partition("=")
    section, _, key = key.strip().rpartition(".")
    if key in ("steps", "local_steps"):
        return f"{value} steps"
    if key in ("kind", "name") and section:  # attack.kind=noise: attack noise
        key = section.rpartition(".")[2]
    words = "lr" if key == "learning_rate" else key.replace("_", " ")
    no = f"no {words}"
    shown = value.replace("_", " ") if value.isidentifier() else value
    return {"true": words, "false": no, "none": no}.get(value, f"{words} {shown}")
