"""A client of the control plane, for the shell and for scripts. Raises the error that the run itself would have raised."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from meander.control.guard import is_loopback
from meander.control.problems import to_error
from meander.errors import ConfigError, Retryable
from meander.settings import Strategy

DEFAULT_URL = "http://127.0.0.1:9008"
_TIMEOUT = 90.0
"""Longer than a rescaling may take."""


class NothingListens(ConfigError):
    """No control plane is at the address."""


class Client:
    """Asks one control plane. Without an address: MEANDER_URL, or the default one of this machine; likewise the token."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url = (url or os.environ.get("MEANDER_URL") or DEFAULT_URL).rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{self.url}' is not an address of a control plane; write it like {DEFAULT_URL}")
        self._token = token or os.environ.get("MEANDER_TOKEN")
        # A proxy of the surroundings is for the world outside: it does not know this machine's loopback.
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_loopback(parts.hostname) else []))

    def status(self) -> dict[str, Any]:
        return self._ask("GET", "/status", timeout=30.0)

    def rescale(self, operator: str, parallelism: int, strategy: Strategy = "hybrid") -> dict[str, Any]:
        return self._ask("POST", "/rescale", {"operator": operator, "parallelism": parallelism, "strategy": strategy})

    def modify(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body is that of POST /modify."""
        return self._ask("POST", "/modify", body, timeout=2 * float(body.get("timeout", 60.0)) + 30.0)

    def modify_as_data(self, data: Mapping[str, Any], code: bytes | None = None) -> dict[str, Any]:
        """``Running.modify_as_data``, in the process of the flow. ``code`` needs the code token."""
        body = {name: value for name, value in data.items() if value is not None}
        if code is not None:
            body["code"] = base64.b64encode(code).decode()
        return self.modify(body)

    def metrics(self) -> str:
        """The text of GET /metrics."""
        return self._read("GET", "/metrics", timeout=5.0).decode()

    def modifications(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", "/modifications", timeout=30.0)["modifications"]
        return found

    def migrate(
        self, operators: list[str], executor: str, key_groups: list[int] | None = None, strategy: Strategy = "hybrid"
    ) -> dict[str, Any]:
        asked = {"operators": operators, "executor": executor, "key_groups": key_groups, "strategy": strategy}
        return self._ask("POST", "/migrate", asked)

    def evacuate(self, executor: str) -> dict[str, Any]:
        return self._ask("POST", "/evacuate", {"executor": executor})

    def stop(self) -> dict[str, Any]:
        return self._ask("POST", "/stop")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = _TIMEOUT) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self._read(method, path, body, timeout))
        except ValueError:
            raise ConfigError(f"what answers at {self.url} is not a control plane; give the right address with --url") from None
        return answer

    def _read(self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = _TIMEOUT) -> bytes:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=timeout) as response:
                found: bytes = response.read()
                return found
        except urllib.error.HTTPError as error:
            raise to_error(_problem(error)) from None
        except (urllib.error.URLError, HTTPException, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise Retryable(
                    f"the control plane at {self.url} did not answer in time; look at `meander status`, then try again"
                ) from None
            raise NothingListens(
                f"no control plane answers at {self.url} ({reason}); start the flow with `meander run FLOW.py --http` or "
                "`meander control-plane FLOW.py`, or give its address with --url"
            ) from None
        except TimeoutError:
            raise Retryable(f"the control plane at {self.url} did not answer in time; look at `meander status`, then try again") from None


def _problem(error: urllib.error.HTTPError) -> dict[str, Any]:
    try:
        problem = json.loads(error.read())
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {"detail": f"{error.url} answered {error.code} {error.reason}; is it a control plane?"}
