"""The right to make a request. Pure decisions over a request's head; ``api`` calls them before
anything else happens.

- **A change needs the token**, if there is one; without a token the server listens on loopback
  alone.
- **Code is another right.** A request with Python code that the flow's process would run needs the
  code token; a server without a code token refuses all code.
- **Loopback is no protection against browsers.** A page from anywhere can send requests to
  127.0.0.1, and with a name of its own that resolves there (DNS rebinding) even read the answers.
  So the Host must be ours, and a request that the browser marks as coming from another site is
  refused, GET /scale included.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from meander.control.problems import Problem, refusal
from meander.errors import ConfigError

CHANGING = {"/scale"}
"""Paths that change something with every method. On other paths only the methods in ``_SAFE``
change nothing."""
SHOWING = {"/modifications"}
"""Paths that change nothing but need the right to change: they show code."""
_SAFE = {"GET", "HEAD"}
_OWN_SITE = {"same-origin", "none"}
"""``none``: a person typed the address or opened a bookmark."""


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, True, False, False)
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Policy:
    """Where the server listens, and the secrets that changes need."""

    host: str
    token: str | None = field(default=None, repr=False)
    names: frozenset[str] = frozenset()
    """Names of this machine under which it may be asked, beside the host and loopback."""
    code_token: str | None = field(default=None, repr=False)
    """It allows all that the token allows, and sending code."""

    def __post_init__(self) -> None:
        for token in (self.token, self.code_token):
            if token is not None and len(token) < 8:
                raise ConfigError("the token is too short: take at least 8 characters, better 32 random ones")
        if self.code_token is not None and self.code_token == self.token:
            raise ConfigError(
                "the token and the code token are the same: everybody who may change the flow could run code in it; take another one"
            )
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"the control plane would listen on {self.host}, where others can reach it, and anyone could change the flow: "
                "give a token (--token or MEANDER_TOKEN), or listen on 127.0.0.1"
            )


def policy(host: str, token: str | None, code_token: str | None = None) -> Policy:
    names = set() if is_loopback(host) else {socket.gethostname().lower(), socket.getfqdn().lower()}
    return Policy(host, token or None, frozenset(names), code_token or None)


def judge(policy: Policy, method: str, path: str, headers: Mapping[str, str]) -> Problem | None:
    """The reason to refuse a request; None where it may pass. Names of headers are in lower case."""
    host = headers.get("host", "")
    if not _is_ours(policy, host):
        return refusal("misdirected", f"this control plane is not '{host}': ask it at its own address, such as http://{policy.host}")
    site = headers.get("sec-fetch-site")
    changes = method not in _SAFE or path.rstrip("/") in CHANGING | SHOWING
    for header in ("origin", "referer"):
        came_from = headers.get(header)
        if came_from is not None and urlsplit(came_from).netloc.lower() != host.lower() and (changes or header == "origin"):
            return refusal("forbidden", f"the request comes from a page of another site ({came_from}): send it from a shell")
    if not changes:
        return None
    if site is not None and site not in _OWN_SITE:
        return refusal("forbidden", "the request comes from a page of another site: send it from a shell")
    if policy.token is not None and not _knows(policy.token, headers.get("authorization", "")) and not may_run_code(policy, headers):
        return refusal("unauthorized", "changes need the token: send 'Authorization: Bearer …' (--token or MEANDER_TOKEN in the shell)")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    media_type = headers.get("content-type", "").split(";")[0].strip().lower()
    if method not in _SAFE and has_body and media_type != "application/json":
        return refusal("unsupported-media-type", "send the body as JSON, with 'Content-Type: application/json'")
    return None


def may_run_code(policy: Policy, headers: Mapping[str, str]) -> bool:
    """Whether whoever asks may have the flow's process run code. Names of headers are in lower case.

    >>> may_run_code(Policy("127.0.0.1"), {}), may_run_code(Policy("127.0.0.1", code_token="x" * 8), {"authorization": "Bearer xxxxxxxx"})
    (False, True)
    """
    return policy.code_token is not None and _knows(policy.code_token, headers.get("authorization", ""))


def _knows(token: str, authorization: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _is_ours(policy: Policy, header: str) -> bool:
    """A rebinding page has a name of its own; a number cannot be rebound, so that where others may come any of them will do."""
    try:
        host = (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if is_loopback(host) or host == policy.host.lower() or host in policy.names:
        return True
    if is_loopback(policy.host):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
