"""`sojourn pseudonym`: keys under which nodes send no name or address in clear, and what pseudonyms stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn.cli.options import NamesOption, SecretOption

app = typer.Typer(help="Make keys of pseudonyms, and translate with them.", no_args_is_help=True)
TextsArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT…", help="Addresses, names, or keys as in answers; patterns, too.")
]


@app.command(epilog="Example:  sojourn pseudonym key -w pseudonyms.key")
def key(
    write: Annotated[
        Path, typer.Option("--write", "-w", metavar="FILE", help="A new file, which only you will be able to read.")
    ],
) -> None:
    """Make a key for the nodes whose names and addresses shall go by the same pseudonyms."""
    from sojourn.core.pseudonyms.mapping import Pseudonyms
    from sojourn.core.pseudonyms.secret import make_secret

    make_secret(write)
    print(Pseudonyms.of_file(write).fingerprint)


@app.command(name="of", epilog="Example:  sojourn pseudonym of --pseudonyms pseudonyms.key 10.0.0.7 'mosquitto[*]'")
def pseudonyms_of(texts: TextsArgument, pseudonyms: SecretOption) -> None:
    """Print the pseudonym of each: what to write in objectives and patterns of assignments."""
    from sojourn.client.translation import Translation

    translation = Translation.of_files(pseudonyms)
    for text in texts:
        print(translation.hidden_word(text))


@app.command(epilog="Example:  sojourn pseudonym reveal --pseudonyms pseudonyms.key --names names '101.7.3.9'")
def reveal(texts: TextsArgument, pseudonyms: SecretOption, names: NamesOption = None) -> None:
    """Print what each pseudonym stands for; of names those among the candidates, others as they are."""
    from sojourn.client.translation import Translation

    translation = Translation.of_files(pseudonyms, names)
    for text in texts:
        print(translation.clear_word(text))
