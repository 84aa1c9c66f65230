"""The page of a fleet: the network, who trusts whom now, curves, and what was rejected and why."""

from __future__ import annotations

from html import escape
from string import Template

from varangian.core.version import __version__
from varangian.report.page import hash_of, static_text


def fleet_page(title: str) -> str:
    """The page. It asks the server that it came from for `data`, once a second, and connects to nothing else.

    >>> "<h1 id=\\"title\\">two &amp; three</h1>" in fleet_page("two & three")
    True
    """
    code = "(() => {\n'use strict';\n" + static_text("fleet.js") + "})();"
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{hash_of(code)}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return Template(static_text("fleet.html")).substitute(
        policy="; ".join(f"{name} {value}" for name, value in policy.items()),
        title=escape(title),
        style=static_text("page.css"),
        version=escape(__version__),
        script=code,
    )
