"""What the documentation site needs beyond MkDocs: the Python reference, dark pictures, pages that have not landed.

Run by `mkdocs build` (see mkdocs.yml). The reference is written from signatures and docstrings at every build, so it is
never out of date; a picture `name.svg` that has a `name-dark.svg` beside it is shown in the reader's scheme.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import sojourn

REFERENCE = "<!-- reference of sojourn.__all__ -->"
PICTURE = re.compile(r"!\[([^]]*)\]\((\S*?)([^/()\s]+)\.(svg|png|webp)\)")


def on_config(config: Any) -> Any:
    """Leave places in the navigation free whose pages are not written yet."""
    config["nav"] = _existing(config["nav"], Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    pictures = Path(config["docs_dir"]) / Path(page.file.src_path).parent
    text = PICTURE.sub(lambda found: _in_both_schemes(found, pictures), markdown)
    return text.replace(REFERENCE, _reference()) if REFERENCE in text else text


def on_post_page(output: str, **_: Any) -> str:
    """The search of the theme has no name that a screen reader could say."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def _existing(entry: Any, folder: Path) -> Any:
    if isinstance(entry, str):
        return entry if (folder / entry).exists() else None
    if isinstance(entry, dict):
        title, value = next(iter(entry.items()))
        kept = _existing(value, folder)
        return {title: kept} if kept else None
    return [kept for child in entry if (kept := _existing(child, folder))]


def _in_both_schemes(found: re.Match[str], folder: Path) -> str:
    alt, path, name, ending = found.groups()
    if not (folder / path / f"{name}-dark.{ending}").exists():
        return found[0]
    return f"![{alt}]({path}{name}.{ending}#only-light)![{alt}]({path}{name}-dark.{ending}#only-dark)"


def _reference() -> str:
    names = [name for name in sojourn.__all__ if not name.startswith("_")]
    functions = sorted(name for name in names if inspect.isroutine(getattr(sojourn, name)))
    classes = sorted(set(names) - set(functions))
    parts = ["## Functions\n", *map(_section, functions), "## Classes\n", *map(_section, classes)]
    return "\n".join(parts)


def _section(name: str) -> str:
    thing = getattr(sojourn, name)
    text = [f"### {name}\n", "```python", f"{_signature(thing, name)}", "```\n", _prose(thing)]
    if inspect.isclass(thing):
        text += [_member(member, value) for member, value in _own_members(thing)]
    return "\n".join(text)


def _signature(thing: Any, name: str) -> str:
    """One parameter a line, where one line would be too long; without defaults that are functions."""
    signature = inspect.signature(thing)
    parameters, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parameters.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        unpacked = re.fullmatch(r"'?Unpack\[(\w+)\]'?", str(parameter.annotation))
        if unpacked:
            parameters += [*([] if starred else ["*"]), *_options(thing, unpacked[1])]
            continue
        is_function = callable(parameter.default) and parameter.default is not parameter.empty
        shown = parameter.replace(default=parameter.empty) if is_function else parameter
        parameters.append(re.sub(r": '(.*?)'(?= =|$)", r": \1", str(shown)))
    returned = signature.return_annotation
    gives = "" if inspect.isclass(thing) or returned is signature.empty else f" -> {str(returned).strip(chr(39))}"
    line = f"{name}({', '.join(parameters)}){gives}"
    if len(line) <= 90:
        return line
    return f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){gives}"


def _options(thing: Any, name: str) -> list[str]:
    """The keywords of a function that takes them as a typed dictionary; each may be left out."""
    home = inspect.getmodule(inspect.unwrap(thing))
    annotations = getattr(home, name).__annotations__
    return [f"{key}: {getattr(value, '__forward_arg__', value)} = ..." for key, value in annotations.items()]


def _prose(thing: Any) -> str:
    """The docstring as Markdown: doctests become code, names in double backticks single ones."""
    text = (inspect.getdoc(thing) or "").replace("``", "`")
    return re.sub(r"((?:^>>> .*\n?(?:^(?!>>>).+\n?)*)+)", r"```pycon\n\1\n```", text, flags=re.MULTILINE) + "\n"


def _own_members(thing: type) -> list[tuple[str, Any]]:
    """Public methods and properties with a docstring, bases' included, in alphabetical order."""
    found = []
    for member in sorted(dir(thing)):
        value = inspect.getattr_static(thing, member)
        value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        documented = inspect.isfunction(value) or isinstance(value, property) or hasattr(value, "func")
        home = getattr(value, "__module__", None) or getattr(getattr(value, "fget", None), "__module__", "sojourn")
        if documented and not member.startswith("_") and value.__doc__ and str(home).startswith("sojourn"):
            found.append((member, value))
    return found


def _member(name: str, value: Any) -> str:
    shown = _signature(value, name) if inspect.isfunction(value) else name
    return f"#### `{' '.join(shown.split())}`\n\n{_prose(value)}"
