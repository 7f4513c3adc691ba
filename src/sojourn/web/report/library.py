"""ECharts as a script that a page can contain: taken from NiceGUI's wheel, where it is an ES module in two files.

An ES module cannot be loaded from another file by a page that is itself opened from a disk. So the module's exports are
replaced by one global name; its one lazy import (3D charts) is refused, so that nothing can be loaded later.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from sojourn.core.errors import UsageError

NOTICE = "Apache ECharts 6 (Apache License 2.0, https://echarts.apache.org) and ZRender (BSD 3-Clause)"
_INSTALL = "install sojourn[web]"


@lru_cache(maxsize=1)
def echarts_script() -> str:
    """JavaScript that makes ``echarts`` a global name, without ``</script`` in it."""
    folder = _folder()
    try:
        front = (folder / "index.js").read_text(encoding="utf-8")
        names = re.search(r'import\{(\w+) as (\w+)[^}]*\}from"\./([\w.-]+)"', front)
        exported = re.search(r"export\{(\w+) as echarts\b", front)
        if names is None or exported is None or names[2] != exported[1]:
            raise _unknown()
        module = (folder / names[3]).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError("a report needs ECharts, which NiceGUI brings", action=_INSTALL) from error
    return _as_script(module, names[1])


def _folder() -> Path:
    """Where NiceGUI keeps it; NiceGUI itself, with its server, is not imported."""
    found = find_spec("nicegui")
    if found is None or not found.submodule_search_locations:
        raise UsageError("a report needs ECharts, which NiceGUI brings", action=_INSTALL)
    return Path(found.submodule_search_locations[0]) / "elements" / "echart" / "dist"


def _as_script(module: str, exported: str) -> str:
    """The module as a classic script; `exported` is the name under which it gives all of ECharts."""
    end = re.search(r"export\{([^}]*)\};?\s*(//[^\n]*)?\s*$", module)
    own = re.search(rf"(?:^|,)([\w$]+) as {re.escape(exported)}(?:,|$)", end[1]) if end else None
    if end is None or own is None:
        raise _unknown()
    body = re.sub(r'\bimport\("[^"]*"\)', 'Promise.reject(new Error("3D charts"))', module[: end.start()])
    if re.search(r"</script|<!--", body, re.IGNORECASE):
        raise _unknown()
    return f'(function () {{ "use strict"; {body}\nglobalThis.echarts = {own[1]}; }})();'


def _unknown() -> UsageError:
    return UsageError("NiceGUI has its ECharts in another form than expected", action=f"{_INSTALL} as it is pinned")
