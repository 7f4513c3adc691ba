"""Pages without a script of ours or anybody's: signing in, and why something was refused.

They are shown to who has no valid token, so they need nothing that only those with one get, and say nothing of what is
stored. What comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from starlette.responses import HTMLResponse

TITLES = {
    401: "Sign in",
    403: "Not with this token",
    404: "There is no such page",
    405: "Not in this way",
    413: "Too much at once",
    429: "Too many requests",
    503: "Try again in a moment",
}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} – Sojourn</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="/_sojourn/icon.svg">
<link rel="stylesheet" href="/_sojourn/style.css"><script src="/_sojourn/script.js"></script>
</head><body class="plain"><main class="card">
<p class="brand">Sojourn</p>
<h1>{title}</h1>
{body}
</main></body></html>
"""
_FORM = """<form method="post" action="/sign-in">
{notice}
<p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus
 spellcheck="false" maxlength="200"{described}></p>
<input type="hidden" name="next" value="{next}">
<p><button type="submit">Sign in</button></p>
<p class="hint">The first admin's token is in the file <code>admin-token</code> of the data directory. An admin makes
others:</p>
<pre tabindex="0">sojourn token create --role viewer --name me</pre>
</form>
"""
_REFUSAL = """<p role="alert" class="notice bad">{detail}</p>
<p><a class="button" href="/">To the overview</a></p>
<form method="post" action="/sign-out"><button class="quiet" type="submit">Sign in with another token</button></form>
"""


def sign_in_page(*, next_path: str = "/", problem: str = "", status: int = 200) -> HTMLResponse:
    """The form that a token is given to, with why the last one was not taken."""
    notice = f'<p role="alert" class="notice bad" id="problem">{escape(problem)}</p>' if problem else ""
    described = ' aria-describedby="problem" aria-invalid="true"' if problem else ""
    body = _FORM.format(notice=notice, next=escape(next_path), described=described)
    return HTMLResponse(_PAGE.format(title=TITLES[401], body=body), status)


def refusal_page(status: int, detail: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """Why a page is not shown, and where to go from there."""
    title = TITLES.get(status, "This did not work")
    return HTMLResponse(_PAGE.format(title=title, body=_REFUSAL.format(detail=escape(detail))), status, headers)
