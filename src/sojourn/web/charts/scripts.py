"""The few things of an option that only JavaScript can say: how a number reads, and shapes that ECharts has not.

An option has them under a key that begins with a colon (``":formatter"``), as NiceGUI wants it; the report's page does
the same. They are constants, or are made of numbers and of units known here: nothing that was captured becomes code.
"""

from __future__ import annotations

import json

from sojourn.core.errors import ParameterError

# The units that values may have, each with its steps (size, suffix), the largest first.
_STEPS: dict[str, list[tuple[float, str]]] = {
    "ns": [(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1, " ns")],
    "B": [(2**40, " TiB"), (2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")],
    "bit/s": [(1e9, " Gbit/s"), (1e6, " Mbit/s"), (1e3, " kbit/s"), (1, " bit/s")],
    "share": [(0.01, " %")],
    "": [(1e9, " G"), (1e6, " M"), (1e4, " k"), (1, "")],
}
_SAME = {"bytes": "B", "count": "", "packets": "", "operations": "", "bits/s": "bit/s"}
_STEPPED = {"B": 1024, "": 1000}  # of which size a step's suffix stands for
AXIS_DIGITS, SHOWN_DIGITS = 6, 4


def formatter(unit: str, *, digits: int = SHOWN_DIGITS) -> str:
    """A function of a number (or several) that writes it with so many digits in the step of `unit` that suits it.

    Units that are not known here follow the number as they are: letters, digits and ``/ % ² ³ µ`` only.
    """
    known = _SAME.get(unit, unit)
    if known not in _STEPS and not all(sign.isalnum() or sign in " /%²³µ.-_" for sign in known):
        raise ParameterError(f"{unit!r} is no unit", where="chart", action="use letters, digits and /")
    steps = _STEPS.get(known) or [(size, f"{suffix} {known}") for size, suffix in _STEPS[""]]
    if known not in ("ns", "B", "bit/s", "share"):
        steps = [(1e3 if size == 1e4 else size, suffix) for size, suffix in steps]
    return (
        f"(value) => {{ const steps = {json.dumps(steps, ensure_ascii=False)}; const one = (v) => {{ "
        'if (v === null || v === undefined || v === "" || !isFinite(v)) return "–"; if (+v === 0) return "0"; '
        "const at = steps.find((step) => Math.abs(v) >= step[0] * 0.9999999) || steps[steps.length - 1]; "
        f"return String(+(v / at[0]).toPrecision({digits})).replace('-', '−') + at[1]; }}; "
        "return Array.isArray(value) ? value.map(one).join(' … ') : one(value); }"
    )


# Between the second and the third dimension, along the first: a band that is left out where either is missing.
BAND = """(params, api) => {
  if (params.dataIndexInside !== 0) return null;
  const runs = []; let run = null;
  for (let i = 0; i < params.dataInsideLength; i++) {
    const x = api.value(0, i), low = api.value(1, i), high = api.value(2, i);
    if (isNaN(low) || isNaN(high)) { run = null; continue; }
    if (!run) runs.push(run = {low: [], high: []});
    run.low.push(api.coord([x, low])); run.high.push(api.coord([x, high]));
  }
  return {type: "group", children: runs.map((run) => ({
    type: "polygon", shape: {points: run.high.concat(run.low.reverse())},
    style: {fill: api.visual("color"), opacity: 0.22}
  }))};
}"""

# A horizontal interval from the second to the third dimension, in the row of the first, with ends.
WHISKER = """(params, api) => {
  const row = api.value(0), low = api.value(1), high = api.value(2);
  if (isNaN(low) || isNaN(high)) return null;
  const from = api.coord([low, row]), to = api.coord([high, row]), end = 4;
  const style = {stroke: api.visual("color"), lineWidth: 1.5, fill: "none"};
  const line = (x1, y1, x2, y2) => ({type: "line", shape: {x1, y1, x2, y2}, style});
  return {type: "group", children: [
    line(from[0], from[1], to[0], to[1]),
    line(from[0], from[1] - end, from[0], from[1] + end),
    line(to[0], to[1] - end, to[0], to[1] + end)
  ]};
}"""

# A horizontal bar from the second to the third dimension, in the row of the first.
SPAN = """(params, api) => {
  const row = api.value(0), low = api.value(1), high = api.value(2);
  if (isNaN(low) || isNaN(high)) return null;
  const from = api.coord([low, row]), to = api.coord([high, row]);
  const height = Math.min(api.size([0, 1])[1] * 0.5, 18);
  return {type: "rect", shape: {
    x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 1.5), height, r: 2
  }, style: {fill: api.visual("color"), opacity: api.value(3)}};
}"""

# A cell of a map: column and row are the first two dimensions, their edges the arrays that stand before.
_CELL = """const left = columns[api.value(0)], right = columns[api.value(0) + 1];
  const bottom = rows[api.value(1)], top = rows[api.value(1) + 1];
  const a = api.coord([left, top]), b = api.coord([right, bottom]);
  return {type: "rect", shape: {x: a[0], y: a[1], width: b[0] - a[0] + 0.4, height: b[1] - a[1] + 0.4},
    style: {fill: api.visual("color")}};"""


def cells(columns: list[float], rows: list[float]) -> str:
    """Draws the cells between the edges of columns and rows."""
    edges = f"const columns = {json.dumps(columns)}, rows = {json.dumps(rows)};"
    return f"(() => {{ {edges} return (params, api) => {{ {_CELL} }}; }})()"


def cell_tooltip(columns: list[float], rows: list[float], unit: str) -> str:
    """Says how many packets a cell has, when, and of which delays."""
    edges = f"const columns = {json.dumps(columns)}, rows = {json.dumps(rows)};"
    return (
        f"(() => {{ {edges} const shown = {formatter(unit)}; return (cell) => {{ const [i, j, count] = cell.value; "
        "const at = new Date(columns[i]); const clock = at.toLocaleTimeString([], {hour12: false}) + '.' + "
        "String(at.getMilliseconds()).padStart(3, '0'); "
        "return clock + '<br>' + shown(rows[j]) + ' … ' + shown(rows[j + 1]) + ': <b>' + "
        "count.toLocaleString('en') + (count === 1 ? ' packet' : ' packets') + '</b>'; }; })()"
    )


def of_power(unit: str) -> str:
    """As `formatter`, of the number whose logarithm is given: colours of values that spread over decades."""
    return f"(power) => ({formatter(unit)})(Math.pow(10, power))"


def of_pointer(unit: str) -> str:
    """As `formatter`, of the place on an axis that a tooltip is about."""
    return f"(place) => ({formatter(unit)})(place.value)"
