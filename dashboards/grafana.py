"""Pushing boards to a Grafana over its HTTP API (10.4 to 13)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdiag.dashboards.board import UID_PREFIX
from kvdiag.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDERS: Final = {"boards": "kvdiag", "runbooks": "kvdiag runbooks"}
"""The first part of a document's path, and the folder that it goes to."""
_EXISTS: Final = {409, 412}
TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Grafana:
    """One Grafana; `token` is a service account token with the right to edit dashboards."""

    url: str
    token: str

    def push(self, documents: Mapping[str, dict[str, Any]]) -> None:
        """Create or replace every document (path to Grafana's JSON) and the folders that they go to."""
        for part, title in FOLDERS.items():
            self._post("/api/folders", {"uid": UID_PREFIX + part, "title": title}, accept=_EXISTS)
        for path, document in documents.items():
            folder = UID_PREFIX + path.partition("/")[0]
            body = {"dashboard": {**document, "id": None}, "folderUid": folder, "overwrite": True}
            self._post("/api/dashboards/db", body)

    def _post(self, path: str, body: dict[str, Any], *, accept: set[int] | None = None) -> None:
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked where the URL comes in
            self.url + path,
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                self._refuse(path, error, accept or set())
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"Grafana at {self.url} does not answer ({reason}); check the URL") from None

    def _refuse(self, path: str, error: urllib.error.HTTPError, accept: set[int]) -> None:
        if error.code in accept:
            return
        if error.code in {401, 403}:
            raise InputError(
                f"Grafana at {self.url} refused the token ({error.code}); "
                "set GRAFANA_TOKEN to a service account token with the role Editor"
            )
        said = error.read(300).decode(errors="replace")
        raise UnavailableError(f"Grafana at {self.url}{path} answered {error.code}: {said}")
