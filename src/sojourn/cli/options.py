"""Options that several commands share, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from sojourn.cli.output import Format

__all__ = ["FormatOption", "InnerOption", "StrictOption", "VerboseOption", "WriteOption"]

InnerOption: TypeAlias = Annotated[
    bool, typer.Option("--inner", help="Look into IP-in-IP, 6in4, GRE, VXLAN and GTP-U tunnels.")
]
StrictOption: TypeAlias = Annotated[bool, typer.Option("--strict", help="Fail on a damaged capture.")]
VerboseOption: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Tell what was ignored, by reason.")]
FormatOption: TypeAlias = Annotated[
    Format | None, typer.Option("--format", help="How to write; by default after the file's ending.")
]
WriteOption: TypeAlias = Annotated[Path | None, typer.Option("--write", "-w", metavar="FILE", help="Write to a file.")]
