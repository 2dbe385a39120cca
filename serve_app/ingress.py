"""The ingress deployment: the HTTP API, with engines reached through Ray Serve."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.api.app import create_app
from serve_app.api.models import ModelDirectory, ServedModel
from serve_app.observer import ServeObserver
from serve_app.settings.tree import AppSettings
from serve_app.transport.handle import HandleClient
from serve_app.transport.relay import RelayClient

_CLIENTS: dict[str, type[RelayClient] | type[HandleClient]] = {"relay": RelayClient, "handle": HandleClient}


@serve.ingress()
class Ingress:
    """Validates, routes by model, and streams.

    Args:
        settings: `AppSettings` as plain data.
        engines: A handle to each model's engine deployment, in the order of `settings.models`.
    """

    def __init__(self, settings: dict[str, Any], *engines: DeploymentHandle) -> None:
        self._settings = AppSettings.model_validate(settings)
        client = _CLIENTS[self._settings.ingress.data_plane]
        wait_s = self._settings.ingress.replica_wait_timeout_s
        self._clients = [
            client(model, handle, wait_s)
            for model, handle in zip(self._settings.models, engines, strict=True)
        ]

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray calls this after the constructor and serves what it returns."""
        started = int(time.time())
        models = self._settings.models
        directory = ModelDirectory(
            [
                ServedModel(model.name, started, client, model.max_model_len)
                for model, client in zip(models, self._clients, strict=True)
            ]
        )
        observer = ServeObserver(serve.get_replica_context().app_name, models)
        return create_app(directory, observer, self._settings.http.max_body_bytes, behind_ray=True)
