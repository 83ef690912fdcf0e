"""How answers and errors become JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from fedhp.dash.progress import finite
from fedhp.dash.schema import Problem


class JsonAnswer(JSONResponse):
    """An answer; NaN and infinity become null."""

    def render(self, content: Any) -> bytes:
        plain = content.model_dump() if isinstance(content, BaseModel) else content
        try:
            text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
        except ValueError:
            text = json.dumps(finite(plain), allow_nan=False, separators=(",", ":"))
        return text.encode()


def problem_response(
    status: int,
    error: str,
    *,
    allowed: str = "",
    fix: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error in the one form that all errors have."""
    problem = Problem(error=error, allowed=allowed, fix=fix)
    return JsonAnswer(problem, status_code=status, headers=dict(headers or {}))
