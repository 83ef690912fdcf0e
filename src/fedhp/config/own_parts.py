"""The parts of an experiment that are the user's own code, and whether they may be imported."""

from __future__ import annotations

from pathlib import Path

from fedhp.components import is_dotted, resolve
from fedhp.config.rules import COMPONENTS
from fedhp.config.schema import Experiment
from fedhp.errors import ConfigError
from fedhp.files import is_run_folder
from fedhp.trust import OPTION, Trust, granted, home_of, limited_to, split_path

PART_KEYS = (*(f"{section}.name" for section in COMPONENTS), "data.name", "data.partition")


def own_parts(experiment: Experiment) -> dict[str, str]:
    names = {}
    for key in PART_KEYS:
        section, _, field = key.partition(".")
        name = getattr(getattr(experiment, section), field)
        if is_dotted(name):
            names[key] = name
    return names


def own_modules(experiment: Experiment) -> tuple[str, ...]:
    """The modules of the experiment's own parts, and those that really define them."""
    modules: set[str] = set()
    with experiment.origins.named():
        for key, path in own_parts(experiment).items():
            part = resolve(path, {}, key=key)
            modules |= {split_path(path)[0], home_of(part)} - {""}
    return tuple(sorted(modules))


def check_trusted(experiment: Experiment, trust: Trust) -> None:
    """Refuse an experiment from another machine that names untrusted parts."""
    with limited_to(trust), experiment.origins.named():
        for key, path in own_parts(experiment).items():
            resolve(path, {}, key=key)


def check_origin(experiment: Experiment) -> None:
    """Refuse own parts of a file in a run folder, which may come from somebody else, unless the
    user trusts their modules. Any other file is the user's own word."""
    file = experiment.origins.file
    if not file or not is_run_folder(Path(file).absolute().parent):
        return
    for key, path in own_parts(experiment).items():
        module, _ = split_path(path)
        if module not in granted():
            with experiment.origins.named():
                raise ConfigError(
                    f"{path!r} is a part of the user's own, and a file in a run folder may come "
                    "from somebody else",
                    key=key,
                    allowed="built-in parts, and parts of modules that you trust",
                    fix=f"if you have read the module {module} and trust it, add {OPTION} "
                    f"{module}, or use an experiment file outside of run folders",
                )
