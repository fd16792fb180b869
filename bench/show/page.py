"""Pages of HTML: a template with its charts as JSON for `report.js`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .charts import Chart, DataPoint
from .render import template


def page(name: str, drawn: Mapping[str, Any] | None = None, **values: Any) -> str:
    """Return a self-contained page.

    Args:
        name: Template, which extends ``base.html``.
        drawn: Charts of the page by id, see `drawn`; None: it has none.
        values: Other values of the template.
    """
    text = json.dumps(drawn or {}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return with_hashes(template(name, autoescape=True, lstrip_blocks=True).render(drawn=text, **values))


def with_hashes(text: str) -> str:
    """Replace %HASHES%: the page's policy allows only its own script and style."""
    allowed = []
    for tag in ("script", "style"):
        content = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        allowed.append(f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'")
    return text.replace("%HASHES%", "; ".join(allowed), 1)


def drawn(chart: Chart) -> dict[str, Any]:
    """Return a chart for JSON."""
    return {
        "kind": chart.kind,
        "x": {"log": chart.x.is_log} | ({"date": True} if chart.x.is_date else {}),
        "y": {"log": chart.y.is_log},
        "styles": {series.name: series.style for panel in chart.panels for series in panel.series},
        "panels": [
            {
                "title": panel.title,
                "ticks": panel.ticks,
                "level": panel.level,
                "x": panel.xlabel or chart.x.label,
                "y": panel.ylabel or chart.y.label,
                "right": panel.right,
                "series": [
                    {"name": series.name, "points": [_numbers(point, chart.x.is_date) for point in series.points]}
                    for series in panel.series
                ],
            }
            for panel in chart.panels
        ],
    }


def _numbers(point: DataPoint, is_date: bool) -> list[Any]:
    x = round(point.x, 3) if is_date else float(f"{point.x:.6g}")  # a minute and a half
    numbers = [x, *(float(f"{each:.6g}") for each in (point.y, point.low, point.high))]
    more = [point.note, point.label, point.link]
    return [*numbers, *(more if point.link else more[:2] if point.label else more[:1])]
