"""The process in which a coordinator's machine reads the experiment's data and builds its model.

Reads JSON from standard input and writes JSON to standard output; what the user's own code prints
goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import astuple
from typing import Any

from fedhp.cluster.protocol.own_setup import data_parts, model_part, module_parts
from fedhp.cluster.protocol.setup import SetupPart
from fedhp.components import make_importable
from fedhp.config import own_modules, parse
from fedhp.errors import FedhpError
from fedhp.trust import load_trust


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.read())
    with os.fdopen(answer, "w") as stream:
        json.dump(answer_to(request), stream)


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The parts that this machine has, and why others are missing."""
    make_importable(*request["folders"])
    experiment = parse(request["experiment"], stored=True)
    parts: list[SetupPart] = []
    problem = ""
    try:
        parts += module_parts(load_trust(own_modules(experiment)))
        from fedhp.engine.prepare import build_task, experiment_data
        from fedhp.learn.task import initial_model

        task = build_task(experiment)
        parts += data_parts(experiment_data(task))
        parts.append(model_part(initial_model(task, experiment.seed)))
    except FedhpError as error:
        problem = error.problem
    except Exception as error:  # the user's own code may fail in any way
        problem = f"{type(error).__name__}: {error}"
    return {"parts": [astuple(part) for part in parts], "problem": problem}


if __name__ == "__main__":
    main()
